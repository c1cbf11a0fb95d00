"""`voxfleet api`: the HTTP server."""

# ruff: noqa: PLC0415 (each command imports what it needs, when it runs)

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from cli.environment import BadInput, Failed, first_line, settings

if TYPE_CHECKING:
    from config.settings import Settings


@click.command()
def api() -> None:
    """Serve the HTTP API."""
    values = settings()
    command = gunicorn_command(values)
    _refuse_open_door(values)
    # A fresh interpreter: gevent must patch before anything else is imported.
    os.execv(command[0], command)  # noqa: S606


def gunicorn_command(values: Settings) -> list[str]:
    """Return how gunicorn serves the API.

    Raises:
        BadInput: the bind setting is no address.
    """
    from cli import ports

    try:
        ports.split_bind(values.api_bind)
    except ValueError as error:
        raise BadInput(str(error)) from error
    return [
        sys.executable,
        "-P",
        "-m",
        "cli.gunicorn_app",
        "--config=python:cli.gunicorn_conf",
        f"--bind={values.api_bind}",
        f"--log-level={values.log_level.lower()}",
        "api.wsgi:app",
    ]


def _refuse_open_door(values: Settings) -> None:
    from cli import ports

    host, _ = ports.split_bind(values.api_bind)
    if ports.is_loopback(host):
        return
    from sqlalchemy.exc import SQLAlchemyError

    from jobs.database import DatabaseUnavailable, connect
    from jobs.keys import KeyStore

    database = connect(values.database)
    try:
        if KeyStore(database).any():
            return
    except (DatabaseUnavailable, SQLAlchemyError) as error:
        raise Failed(
            f"cannot look for API keys ({first_line(error)}); `voxfleet db upgrade` makes the database"
        ) from error
    finally:
        database.close()
    raise Failed(
        f"VOXFLEET_API_BIND={values.api_bind} is open to others, and no API key exists: "
        "make one with `voxfleet keys create NAME`, or bind to 127.0.0.1"
    )
