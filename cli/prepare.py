"""`voxfleet prepare`: what `up` does to a database before anybody else uses it. Hidden."""

# ruff: noqa: PLC0415 (each command imports what it needs, when it runs)

from __future__ import annotations

import logging
from contextlib import closing
from typing import Final

import click

from cli.db import reported
from cli.embedded import write_private
from cli.environment import settings

#: In the data folder: the secret of the key made at the first start.
FIRST_KEY: Final = "first-key"


@click.command(hidden=True)
def prepare() -> None:
    """Migrate the database, and make the first API key if there is none; says `made` when it did."""
    values = settings()
    with reported():
        from jobs import migrate
        from jobs.database import connect
        from jobs.keys import KeyStore

        logging.getLogger("alembic").setLevel(logging.WARNING)
        migrate.upgrade(values.database)
        with closing(connect(values.database)) as database:
            store = KeyStore(database)
            if not store.any():
                write_private(values.data_dir / FIRST_KEY, store.create("first").secret + "\n")
                click.echo("made")
