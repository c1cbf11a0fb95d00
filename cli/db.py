"""`voxfleet db`: the schema of the job table."""

# ruff: noqa: PLC0415 (each command imports what it needs, when it runs)

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from cli.environment import Failed, first_line, settings


@click.group()
def db() -> None:
    """Move the database between schema revisions."""


@db.command()
@click.argument("revision", default="head")
def upgrade(revision: str) -> None:
    """Bring the schema up to REVISION (the newest, if none is given)."""
    url = settings().database
    with reported():
        from jobs import migrate

        migrate.upgrade(url, revision)
        click.echo(f"database is at {migrate.current(url)}")


@db.command()
@click.argument("revision")
def downgrade(revision: str) -> None:
    """Take the schema back to REVISION; `base` is the empty database. Data of later columns is lost."""
    url = settings().database
    with reported():
        from jobs import migrate

        migrate.downgrade(url, revision)
        click.echo(f"database is at {migrate.current(url) or 'base'}")


@db.command()
def current() -> None:
    """Print the revision the database is at, and the newest one."""
    url = settings().database
    with reported():
        from jobs import migrate

        click.echo(f"{migrate.current(url) or 'base'} (newest: {migrate.head()})")


@contextmanager
def reported() -> Iterator[None]:
    """Turn what a database says into one line.

    Raises:
        Failed.
    """
    from alembic.util import CommandError
    from sqlalchemy.exc import SQLAlchemyError

    from jobs.database import DatabaseUnavailable

    try:
        yield
    except (SQLAlchemyError, DatabaseUnavailable, CommandError, ValueError) as error:
        raise Failed(
            f"database: {first_line(error)} (VOXFLEET_DATABASE_URL; `voxfleet db upgrade` makes the tables)"
        ) from error
