"""The `voxfleet` command. Each command imports what it needs when it runs, so `--help` is instant."""

from __future__ import annotations

from typing import Any

import click

from cli import api, db, doctor, keys, models, prepare, speak, storage, sweeper, up, worker
from cli.environment import BadInput


class Commands(click.Group):
    """The commands; settings that a command cannot use as they are end it with one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ValueError as error:
            from config.settings import SettingsError  # noqa: PLC0415 - `--help` is instant

            if not isinstance(error, SettingsError):
                raise
            raise BadInput(str(error)) from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="voxfleet", prog_name="voxfleet")
def main() -> None:
    """Self-hosted text to speech: text in, a durable job, an MP3 behind a link."""


for _command in (
    up.up,
    api.api,
    worker.worker,
    sweeper.sweeper,
    speak.speak,
    doctor.doctor,
    models.models,
    keys.keys,
    storage.storage,
    db.db,
    prepare.prepare,
):
    main.add_command(_command)


if __name__ == "__main__":
    main(prog_name="voxfleet")
