"""The settings as the command line reads them, and the errors it prints in one line."""

# ruff: noqa: PLC0415 (each command imports what it needs, when it runs)

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from config.settings import Settings


class Failed(click.ClickException):
    """A command that could not do its work. Exit status 1."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"voxfleet: {self.format_message()}", file=file, err=file is None)


class BadInput(Failed):
    """What the caller gave is wrong: a setting, a text, a voice. Exit status 2."""

    exit_code = 2


def first_line(error: Exception) -> str:
    """Return what an error says first; a database appends its statement and a link."""
    return str(error).partition("\n")[0] or type(error).__name__


def settings(*, embedded: bool = True, engines: bool = True) -> Settings:
    """Read the settings of this process.

    Args:
        embedded: whether what `voxfleet up` wrote into the data folder counts, below the environment.
        engines: whether to check the names of the engines' settings too, which loads 30 MB to know them.

    Raises:
        BadInput: an unknown setting, or a value out of its range; the message names the variable.
    """
    from pydantic import ValidationError

    from config.settings import PREFIX, UnknownSettings, load

    try:
        return load(os.environ, engine_settings=_engine_settings() if engines else None, embedded=embedded)
    except UnknownSettings as error:
        raise BadInput(str(error)) from error
    except ValidationError as error:
        # The values stay out of the message: some of them are secrets.
        raise BadInput(
            "; ".join(
                f"{PREFIX}{str(found['loc'][0]).upper()}: {found['msg']}"
                for found in error.errors(include_url=False, include_input=False)
            )
        ) from error


def _engine_settings() -> set[str]:
    from speech import registry

    return registry.settings()
