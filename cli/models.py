"""`voxfleet models`: what speaks here."""

# ruff: noqa: PLC0415 (each command imports what it needs, when it runs)

from __future__ import annotations

from contextlib import closing

import click

from cli.db import reported
from cli.environment import settings


@click.command()
def models() -> None:
    """List the models that workers serve, and the engines that are installed."""
    values = settings()
    with reported():
        from jobs.database import connect
        from jobs.workers import WorkerRegistry
        from speech import registry

        with closing(connect(values.database)) as database:
            served = WorkerRegistry(database).models()
    for model in served:
        voices = [voice["id"] for voice in model.info.get("voices", [])]
        state = "served" if model.alive else f"no worker since {model.seen_at:%Y-%m-%d %H:%M}"
        click.echo(f"{model.model}  {model.queue}  {state}  voices: {', '.join(voices) or '-'}")
    for name, factory in sorted(registry.installed().items()):
        if not any(model.model == name for model in served):
            missing = factory.missing()
            click.echo(
                f"{name}  installed  " + (missing or f"`voxfleet worker synth --model {name}` serves it")
            )
