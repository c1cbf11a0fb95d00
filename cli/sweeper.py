"""`voxfleet sweeper`: the process that rings again and tidies up."""

# ruff: noqa: PLC0415 (each command imports what it needs, when it runs)

from __future__ import annotations

import sys

import click

from cli.environment import settings
from config.logs import start_logging


@click.command()
def sweeper() -> None:
    """Ring lost bells again and delete what has expired. Two of them do no harm."""
    values = settings(engines=False)
    start_logging(values.log_level)
    from actors.sweeper import run

    sys.exit(run(values))
