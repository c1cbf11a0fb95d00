"""`voxfleet worker`: the processes that do the work."""

# ruff: noqa: PLC0415 (each command imports what it needs, when it runs)

from __future__ import annotations

import sys

import click

from cli.environment import settings
from config.logs import start_logging


@click.group()
def worker() -> None:
    """Run a worker until it is told to stop."""


@worker.command()
@click.option("--model", required=True, metavar="MODEL", help="Model to load and serve.")
def synth(model: str) -> None:
    """Speak: text to clips, with one model."""
    values = settings()
    start_logging(values.log_level)
    from actors.worker import run_synth

    sys.exit(run_synth(values, model=model))


@worker.command()
def media() -> None:
    """Encode, publish, and deliver webhooks."""
    values = settings()
    start_logging(values.log_level)
    from actors.worker import run_media

    sys.exit(run_media(values))
