"""`voxfleet keys`: who may use the API."""

# ruff: noqa: PLC0415 (each command imports what it needs, when it runs)

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

from cli.db import reported
from cli.environment import Failed, settings

if TYPE_CHECKING:
    from jobs.keys import KeyStore


@click.group()
def keys() -> None:
    """Make, list and revoke API keys."""


@keys.command()
@click.argument("name")
def create(name: str) -> None:
    """Make a key called NAME and print it; it is never shown again."""
    with _store() as store:
        key = store.create(name)
    click.echo(f"{key.id} ({key.name}); keep the secret, it is shown once:", err=True)
    click.echo(key.secret)


@keys.command("list")
def list_() -> None:
    """List all keys, without their secrets."""
    with _store() as store:
        for key in store.list():
            state = f"revoked {key.revoked_at:%Y-%m-%d %H:%M}" if key.revoked_at else "active"
            click.echo(f"{key.id}  {key.created_at:%Y-%m-%d %H:%M}  {state}  {key.name}")


@keys.command()
@click.argument("id_", metavar="ID")
def revoke(id_: str) -> None:
    """Revoke the key ID at once."""
    with _store() as store:
        if not store.revoke(id_):
            raise Failed(f"no active key {id_}; `voxfleet keys list` shows them")
    click.echo(f"{id_} is revoked", err=True)


@contextmanager
def _store() -> Iterator[KeyStore]:
    values = settings()
    with reported():
        from jobs.database import connect
        from jobs.keys import KeyStore

        with closing(connect(values.database)) as database:
            yield KeyStore(database)
