"""The `voxfleet` command. Each command imports what it needs when it runs, so `--help` is instant."""

from __future__ import annotations

import click

from cli import api, db, doctor, keys, models, prepare, speak, storage, sweeper, up, worker


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
