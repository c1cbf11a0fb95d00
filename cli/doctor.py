"""`voxfleet doctor`: what is wrong, and how to mend it."""

# ruff: noqa: PLC0415 (each command imports what it needs, when it runs)

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import click

from cli.environment import BadInput, first_line, settings

if TYPE_CHECKING:
    from cli.ports import Port
    from config.settings import Settings


class Verdict(StrEnum):
    """How a part is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one part; what is not ok says how to mend it."""

    verdict: Verdict
    part: str
    text: str
    mend: str = ""


@click.command()
def doctor() -> None:
    """Check every part of the fleet, running or not, and say how to mend what is broken."""
    values = settings()
    worst = 0
    for check in CHECKS:
        for found in check(values):
            mend = f"\n{'':16}-> {found.mend}" if found.mend else ""
            click.echo(f"{found.verdict:<5} {found.part:<9} {found.text}{mend}")
            worst |= found.verdict is Verdict.FAIL
    sys.exit(worst)


def _ffmpeg(values: Settings) -> Iterator[Finding]:
    from speech import ffmpeg

    try:
        path = ffmpeg.find(values.ffmpeg)
    except ffmpeg.FfmpegMissing as error:
        yield Finding(Verdict.FAIL, "ffmpeg", *_cut(str(error)))
        return
    problems = ffmpeg.problems(path)
    for problem in problems:
        yield Finding(Verdict.FAIL, "ffmpeg", *_cut(problem))
    if not problems:
        yield Finding(Verdict.OK, "ffmpeg", f"{path} (soxr, lame)")


def _cut(message: str) -> tuple[str, str]:
    """Split a message of `speech.ffmpeg` into what is wrong and how to mend it."""
    wrong, _, mend = message.partition(": ")
    return wrong, mend


def _broker(values: Settings) -> Iterator[Finding]:
    from actors import bell

    url = values.broker_url.get_secret_value()
    try:
        bell.BrokerBell(bell.connect(url)).check()
    except (bell.BrokerUnavailable, ValueError) as error:
        yield Finding(Verdict.FAIL, "broker", f"{_place(url)}: {error}", f"{UP}, or set VOXFLEET_BROKER_URL")
    else:
        yield Finding(Verdict.OK, "broker", _place(url))


def _database(values: Settings) -> Iterator[Finding]:
    from sqlalchemy.exc import SQLAlchemyError

    from jobs import database, migrate

    url, mend = values.database, "`voxfleet db upgrade` (`voxfleet up` does it too)"
    place = url.partition(":///")[2] if url.startswith("sqlite") else _place(url)
    if _no_file(url):
        yield Finding(Verdict.FAIL, "database", f"{place} does not exist", mend)
        return
    try:
        with contextlib.closing(database.connect(url)) as connected:
            connected.check()
        present, newest = migrate.current(url), migrate.head()
    except (database.DatabaseUnavailable, SQLAlchemyError, ValueError) as error:
        said = f"{place}: {first_line(error)}"
        yield Finding(Verdict.FAIL, "database", said, "start it, or set VOXFLEET_DATABASE_URL")
        return
    if present == newest:
        yield Finding(Verdict.OK, "database", f"{place} at revision {present}")
    else:
        yield Finding(
            Verdict.FAIL, "database", f"{place} is at {present or 'no revision'}, not {newest}", mend
        )


def _bucket(values: Settings) -> Iterator[Finding]:
    from cli import storage
    from storage import lifecycle
    from storage.store import AccessDenied, ObjectNotFound, StoreError, StoreUnavailable

    place = f"{values.s3_bucket} at {values.s3_endpoint}"
    init = "`voxfleet storage init`"
    try:
        store = storage.connect(values)
        store.check()
        absent = lifecycle.missing(store)
    except BadInput as error:
        yield Finding(Verdict.FAIL, "bucket", f"{place}: no keys", str(error))
    except StoreUnavailable as error:
        yield Finding(Verdict.FAIL, "bucket", f"{place}: {error}", f"{UP}, or set VOXFLEET_S3_ENDPOINT")
    except AccessDenied as error:
        keys = "VOXFLEET_S3_ACCESS_KEY_ID and VOXFLEET_S3_SECRET_ACCESS_KEY"
        yield Finding(Verdict.FAIL, "bucket", f"{place}: {error}", f"check {keys}")
    except ObjectNotFound:
        yield Finding(Verdict.FAIL, "bucket", f"{place} does not exist", init)
    except StoreError as error:
        yield Finding(Verdict.FAIL, "bucket", f"{place}: {error}", "check VOXFLEET_S3_*")
    else:
        if absent:
            yield Finding(Verdict.WARN, "bucket", f"{place} lacks lifecycle rules {', '.join(absent)}", init)
        else:
            yield Finding(Verdict.OK, "bucket", f"{place}, lifecycle rules present")


def _models(values: Settings) -> Iterator[Finding]:
    from sqlalchemy.exc import SQLAlchemyError

    from jobs.database import DatabaseUnavailable, connect
    from jobs.workers import WorkerRegistry
    from speech import registry

    engines = registry.installed()
    missing = {name: remedy for name, factory in engines.items() if (remedy := factory.missing())}
    wanted = {name for name in (values.default_model, values.fallback_model) if name in missing}
    for name in sorted(wanted):
        verdict = Verdict.FAIL if name == values.default_model else Verdict.WARN
        yield Finding(verdict, "models", f"{name} cannot be loaded", missing[name])
    there = ", ".join(sorted(engines.keys() - missing.keys())) or "none"
    yield Finding(Verdict.OK, "models", f"installed: {there}")
    if others := ", ".join(sorted(missing.keys() - wanted)):
        yield Finding(Verdict.OK, "models", f"not installed: {others} (`voxfleet models` says how)")
    if values.default_model not in engines:
        known = ", ".join(sorted(engines)) or "none"
        yield Finding(
            Verdict.WARN,
            "models",
            f"the default model {values.default_model} is not installed here",
            f"install its engine, or set VOXFLEET_DEFAULT_MODEL to one of: {known}",
        )
    alive: list[str] = []
    # What is wrong with the database itself was said above.
    with contextlib.suppress(DatabaseUnavailable, SQLAlchemyError, ValueError):
        if not _no_file(values.database):
            with contextlib.closing(connect(values.database)) as database:
                alive = [model.model for model in WorkerRegistry(database).models() if model.alive]
    if alive:
        yield Finding(Verdict.OK, "models", f"workers serve {', '.join(alive)}")
    else:
        start = f"{UP}, or `voxfleet worker synth --model {values.default_model}`"
        yield Finding(Verdict.WARN, "models", "no live worker serves a model", start)


def _ports(values: Settings) -> Iterator[Finding]:
    from cli import embedded, ports

    parts = embedded.Parts.of(os.environ)
    listed: list[tuple[Port, bool]] = []
    try:
        api = ports.api_port(values)
        listed = [(api, embedded.answers(api.number, "/healthz", host=ports.local_host(api.host)))]
    except ValueError as error:
        yield Finding(Verdict.FAIL, "ports", str(error), "set VOXFLEET_API_BIND")
    if parts.valkey:
        listed.append((ports.valkey_port(values), embedded.valkey_answers(values.valkey_port)))
    if parts.seaweed:
        weed = embedded.answers(values.s3_port, "/healthz")
        listed += [(port, weed) for port in ports.seaweed_ports(values)]
    held: list[Port] = []
    free: list[Port] = []
    for port, mine in listed:
        if port.free():
            free.append(port)
        elif mine:
            held.append(port)
        else:
            text = f"{port.number} ({port.part}) is taken by another program"
            yield Finding(Verdict.FAIL, "ports", text, f"end that program, or set {port.setting}")
    if held:
        yield Finding(Verdict.OK, "ports", f"in use by the fleet: {_numbers(held)}")
    if free:
        yield Finding(Verdict.OK, "ports", f"free: {_numbers(free)}")
    if both := ports.clash([port for port, _ in listed]):
        yield Finding(Verdict.FAIL, "ports", both, "give each its own")


def _numbers(found: Sequence[Port]) -> str:
    return ", ".join(str(port.number) for port in found)


def _no_file(url: str) -> bool:
    """Whether the URL is of an SQLite file that is not there; connecting would make it."""
    return url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists()


def _place(url: str) -> str:
    """Return where a URL leads, without its password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


UP: Final = "start the fleet with `voxfleet up`"
CHECKS: Final[tuple[Callable[[Settings], Iterator[Finding]], ...]] = (
    _ffmpeg,
    _broker,
    _database,
    _bucket,
    _models,
    _ports,
)
