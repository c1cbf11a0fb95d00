"""`voxfleet worker`: the processes that do the work."""

# ruff: noqa: PLC0415 (each command imports what it needs, when it runs)

from __future__ import annotations

import os
import sys

import click

from cli.environment import settings, start_logging


@click.group()
def worker() -> None:
    """Run a worker until it is told to stop."""
    # Dramatiq reads both when it is imported. One message in hand, so that an idle worker never waits
    # for a busy one's; and 20 ms between looks at the queue, where its default is a second.
    os.environ["dramatiq_queue_prefetch"] = "1"  # noqa: SIM112
    os.environ["dramatiq_worker_timeout"] = "20"  # noqa: SIM112


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
