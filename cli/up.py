"""`voxfleet up`: the whole fleet on this machine, from one terminal."""

# ruff: noqa: PLC0415 (each command imports what it needs, when it runs)

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cli import embedded, ports, supervisor
from cli.environment import BadInput, Failed, settings
from cli.prepare import FIRST_KEY

if TYPE_CHECKING:
    from config.settings import Settings

LOCK: Final = "up.lock"
#: A fleet that was killed a moment ago may still hold its ports.
PORT_PATIENCE: Final = 2.0
#: A busy disk makes SeaweedFS slow to start; longer than this it is broken.
STORE_PATIENCE: Final = 60
#: After so long without being ready, say what is missing.
SLOW_SECONDS: Final = 30.0
#: A worker finishes the chunk in hand before it leaves, within 30 s at most.
WORKER_PATIENCE: Final = 40.0


@click.command()
def up() -> None:
    """Start the whole fleet here: broker, store, API, workers, sweeper. Ctrl-C stops it."""
    started = time.monotonic()
    # The last start may have been with other settings.
    given = settings(embedded=False)
    values = given.model_copy(update={"data_dir": given.data_dir.absolute()})
    _make_folders(values.data_dir)
    with _locked(values.data_dir):
        parts = embedded.Parts.of(os.environ)
        _check_ffmpeg(values)
        _check_engine(values)
        _check_ports(values, parts)
        found = embedded.environment(parts, values, os.environ)
        _write_down(found, values.data_dir)
        environ = {
            **os.environ,
            **found,
            "VOXFLEET_DATA_DIR": str(values.data_dir),
            # A `config/` or `api/` in the folder where `up` was called must not shadow ours.
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
        }
        with supervisor.Signals() as signals:
            fleet = supervisor.Supervisor(signals=signals, say=_complain)
            try:
                _run(fleet, values, parts, environ, started)
                _say("stopping; workers finish what they have in hand, for half a minute at most")
            finally:
                fleet.stop()
    _say("stopped")


def _run(
    fleet: supervisor.Supervisor,
    values: Settings,
    parts: embedded.Parts,
    environ: Mapping[str, str],
    started: float,
) -> None:
    """Start everything and keep it running until a signal comes."""
    servers = _servers(values, parts, environ)
    fleet.groups = [[], [], [], *servers]
    made = _prepare(fleet, values, parts, environ)
    if fleet.signals.stops:
        return
    fleet.groups = [*_processes(values, environ), *servers]
    api = ports.api_port(values)
    ready, told = False, False
    while not fleet.signals.stops:
        fleet.tend()
        if not ready:
            status, body = embedded.fetch(api.number, "/readyz", host=ports.local_host(api.host))
            taken = time.monotonic() - started
            if status == 200:
                ready = True
                _greet(values, first_key=made, seconds=taken)
            elif not told and taken > SLOW_SECONDS:
                told = True
                _complain(
                    f"not ready after {taken:.0f} s: {body or 'the API does not answer'}; see {_logs(values)}"
                )
        fleet.signals.wait(1.0 if ready else 0.1)


def _make_folders(data_dir: Path) -> None:
    try:
        for folder in (data_dir, data_dir / "logs", data_dir / "tmp"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(
            f"cannot use the data folder {data_dir}: {error.strerror} (VOXFLEET_DATA_DIR)"
        ) from error


@contextlib.contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    """Hold the data folder; the kernel lets go of it however this process ends."""
    path = data_dir / LOCK
    with path.open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read().strip() or "?"
            raise Failed(
                f"already running as process {pid} with the data folder {data_dir}; "
                "stop that one, or set VOXFLEET_DATA_DIR to another folder"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _check_ffmpeg(values: Settings) -> None:
    from speech import ffmpeg

    try:
        path = ffmpeg.find(values.ffmpeg)
    except ffmpeg.FfmpegMissing as error:
        raise Failed(str(error)) from error
    if problems := ffmpeg.problems(path):
        raise Failed("; ".join(problems))


def _check_engine(values: Settings) -> None:
    from config.settings import engine_options
    from speech import registry
    from speech.engine import EngineUnavailable, read_options

    name = values.default_model
    try:
        engine = registry.find(name)
        read_options(engine.options, engine_options(os.environ, name), engine=name)
    except (registry.UnknownEngine, EngineUnavailable) as error:
        raise BadInput(f"VOXFLEET_DEFAULT_MODEL={name}: {error}") from error
    if missing := engine.missing():
        raise Failed(f"VOXFLEET_DEFAULT_MODEL={name}: {missing}")


def _check_ports(values: Settings, parts: embedded.Parts) -> None:
    try:
        needed = [ports.api_port(values)]
    except ValueError as error:
        raise BadInput(str(error)) from error
    if parts.valkey:
        needed.append(ports.valkey_port(values))
    if parts.seaweed:
        needed += ports.seaweed_ports(values)
    if both := ports.clash(needed):
        raise Failed(both)
    if taken := ports.first_taken(needed, patience=PORT_PATIENCE):
        raise Failed(
            f"port {taken.number} ({taken.part}) cannot be used on {taken.host}: another program holds it, "
            f"or that is no address of this machine; set {taken.setting} to another"
        )


def _write_down(found: Mapping[str, str], data_dir: Path) -> None:
    """Let `doctor`, or a worker started by hand, find the embedded servers."""
    from config.settings import EMBEDDED_ENV

    def quoted(value: str) -> str:
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

    lines = [f"{name}={quoted(value)}\n" for name, value in found.items()]
    embedded.write_private(
        data_dir / EMBEDDED_ENV, "# Written by `voxfleet up` at each start.\n" + "".join(lines)
    )


def _voxfleet(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "cli.main", *arguments]


def _logs(values: Settings) -> Path:
    return values.data_dir / "logs"


def _servers(
    values: Settings, parts: embedded.Parts, environ: Mapping[str, str]
) -> list[list[supervisor.Child]]:
    """Return Valkey and SeaweedFS, where `up` is to start them, in the order in which they stop."""
    servers: list[list[supervisor.Child]] = []
    if parts.valkey:
        command = embedded.valkey_command(values)
        log = _logs(values) / "valkey.log"
        servers.append([supervisor.Child(name="valkey", command=command, log=log, environ=environ)])
    if parts.seaweed:
        keys = embedded.seaweed_environment(environ[embedded.ACCESS_KEY], environ[embedded.SECRET_KEY])
        servers.append(
            [
                supervisor.Child(
                    name="seaweedfs",
                    command=embedded.seaweed_command(values),
                    log=_logs(values) / "seaweedfs.log",
                    environ={**environ, **keys},
                    before=functools.partial(embedded.forget_options, values),
                    nice=values.cpu_nice,
                )
            ]
        )
    return servers


def _processes(values: Settings, environ: Mapping[str, str]) -> list[list[supervisor.Child]]:
    """Return the fleet's own processes, in the order in which they stop.

    All but the API and its broker give way: on two busy cores the API answered within 30 ms (p99) so, and
    within 50 to 190 ms when only the engines did.
    """

    def child(
        name: str, *arguments: str, patience: float = 10.0, nice: int = values.cpu_nice
    ) -> supervisor.Child:
        return supervisor.Child(
            name=name,
            command=_voxfleet(*arguments),
            log=_logs(values) / f"{name}.log",
            environ=environ,
            patience=patience,
            nice=nice,
        )

    return [
        # Gunicorn gives requests in flight 10 s of its own.
        [child("api", "api", patience=12.0, nice=0)],
        [
            child(
                "worker-synth", "worker", "synth", "--model", values.default_model, patience=WORKER_PATIENCE
            ),
            child("worker-media", "worker", "media", patience=WORKER_PATIENCE),
        ],
        [child("sweeper", "sweeper")],
    ]


@dataclass(slots=True)
class _Step:
    """A command that must succeed before the fleet starts."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, environ: Mapping[str, str], *arguments: str) -> _Step:
        return cls(
            subprocess.Popen(
                supervisor.tethered(_voxfleet(*arguments)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(environ),
                text=True,
                start_new_session=True,
            )
        )

    def result(self) -> str | None:
        """Return what the command said, or None while it runs.

        Raises:
            Failed: with its own last words.
        """
        if self.process.poll() is None:
            return None
        said, complaint = self.process.communicate()
        if self.process.returncode:
            lines = complaint.strip().splitlines() or [f"ended with status {self.process.returncode}"]
            raise Failed(lines[-1].removeprefix("voxfleet: "))
        return said


def _prepare(
    fleet: supervisor.Supervisor, values: Settings, parts: embedded.Parts, environ: Mapping[str, str]
) -> bool:
    """Start the servers, migrate the database, make the bucket. Return whether a first key was made."""
    fleet.tend()
    patience = str(STORE_PATIENCE if parts.seaweed else 0)
    database = _Step.start(environ, "prepare")
    bucket = _Step.start(environ, "storage", "init", "--wait", patience)
    end = time.monotonic() + STORE_PATIENCE
    made: str | None = None
    filled: str | None = None
    try:
        while not fleet.signals.stops:
            fleet.tend()
            made = database.result() if made is None else made
            filled = bucket.result() if filled is None else filled
            if made is not None and filled is not None:
                if (absent := _absent(parts, values)) is None:
                    break
                if time.monotonic() > end:
                    raise Failed(f"{absent} does not serve within {STORE_PATIENCE} s; see {_logs(values)}")
            fleet.signals.wait(0.1)
    finally:
        for step in (database, bucket):
            if step.process.poll() is None:
                step.process.kill()
                step.process.communicate()
    return (made or "").strip() == "made"


def _absent(parts: embedded.Parts, values: Settings) -> str | None:
    """Return which of the servers that `up` started does not serve yet, if any."""
    if parts.valkey and not embedded.valkey_answers(values.valkey_port):
        return "Valkey"
    if parts.seaweed and not embedded.seaweed_answers(values):
        return "SeaweedFS"
    return None


def _greet(values: Settings, *, first_key: bool, seconds: float) -> None:
    url, path = values.external_url, values.data_dir / FIRST_KEY
    if path.exists():
        secret = path.read_text(encoding="ascii").strip()
        key = f"$(cat {shlex.quote(str(path))})"
        shown = f"{secret}  (kept in {path})" if first_key else f"in {path}"
    else:
        key, shown = "$VOXFLEET_API_KEY", "made earlier; `voxfleet keys create NAME` makes another"
    script = Path(sys.executable).with_name("voxfleet")
    program = shlex.quote(str(script)) if script.exists() else "voxfleet"
    _say(
        f"ready after {seconds:.1f} s\n"
        f"\n"
        f"  API   {url}\n"
        f"  docs  {url}/docs\n"
        f"  key   {shown}\n"
        f"  logs  {_logs(values)}\n"
        f"\n"
        f"Post a job:\n"
        f'  curl -sS {url}/v1/speech/jobs -H "Authorization: Bearer {key}" '
        f"-H 'Content-Type: application/json' -d '{{\"input\": \"Hello from voxfleet.\"}}'\n"
        f"or post one, wait, and save the audio:\n"
        f'  {program} speak "Hello from voxfleet." -o hello.mp3 --url {url} --key "{key}"\n'
        f"\n"
        f"Ctrl-C stops everything."
    )


def _say(line: str) -> None:
    # A fleet does not end because nobody reads its output any more.
    with contextlib.suppress(OSError):
        click.echo(f"voxfleet: {line}")


def _complain(line: str) -> None:
    with contextlib.suppress(OSError):
        click.echo(f"voxfleet: {line}", err=True)
