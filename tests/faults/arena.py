"""Where the storm rages: a fleet that `up` started, more workers beside it, servers outside.

Use it from the main thread: the kernel ends what a thread started together with that thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import boto3.session
import psycopg
import psycopg.rows
from botocore.config import Config

from cli.supervisor import tethered
from speech import ffmpeg
from tests import servers
from tests.faults.orders import MAX_CHARS, TENANTS
from tests.faults.proxy import Proxy
from tests.journeys.fleet import Fleet, start

Database = Literal["postgresql", "sqlite"]
#: Short enough for a test to wait for, long enough for a busy machine to renew.
LEASE_SECONDS: Final = 5.0
BUCKET: Final = "voxfleet"
#: What the driver runs and starts again itself, beside the same that `up` runs.
EXTRAS: Final[Mapping[str, Sequence[str]]] = {
    "extra-synth": ("worker", "synth", "--model", "tone"),
    "extra-media": ("worker", "media"),
    "extra-sweeper": ("sweeper",),
}
#: Before one of them that ended is started again.
RESTART_SECONDS: Final = 0.5
#: Room for all that the encoders of two media workers have in hand.
TMPFS: Final = "size=192m"

# Answers what is asked at start-up; then, while the flag lies there, it finds the disk full.
_WRAPPER: Final = """#!/bin/sh
if [ -e {flag} ]; then case "$*" in *speech.mp3*)
  echo "speech.mp3: No space left on device" >&2; cat >/dev/null; exit 228;; esac; fi
exec {ffmpeg} "$@"
"""

# What happened to each job and clip, told by the database itself, in the same transactions.
_AUDIT: Final[Mapping[Database, Sequence[str]]] = {
    "postgresql": (
        """
        CREATE TABLE chaos_moves (n bigserial, job text, status text, stage text, epoch int, holder text,
            new_status text, new_stage text, new_epoch int, new_holder text, at double precision);
        CREATE TABLE chaos_clips (job text, text_start int, epoch int, key text, gone bool,
            at double precision);
        CREATE FUNCTION chaos_move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO chaos_moves (job, status, stage, epoch, holder, new_status, new_stage, new_epoch,
                new_holder, at) VALUES (OLD.id, OLD.status, OLD.stage, OLD.epoch, OLD.holder, NEW.status,
                NEW.stage, NEW.epoch, NEW.holder, extract(epoch from clock_timestamp()));
            RETURN NULL; END $$;
        CREATE FUNCTION chaos_clip() RETURNS trigger LANGUAGE plpgsql AS $$
            DECLARE r clips := COALESCE(NEW, OLD); BEGIN
            INSERT INTO chaos_clips VALUES (r.job, r.text_start, r.epoch, r.key, TG_OP = 'DELETE',
                extract(epoch from clock_timestamp()));
            RETURN NULL; END $$;
        CREATE TRIGGER chaos_move AFTER UPDATE ON jobs FOR EACH ROW
            WHEN ((OLD.status, OLD.stage, OLD.epoch, OLD.holder)
                IS DISTINCT FROM (NEW.status, NEW.stage, NEW.epoch, NEW.holder))
            EXECUTE FUNCTION chaos_move();
        CREATE TRIGGER chaos_clip AFTER INSERT OR DELETE ON clips FOR EACH ROW EXECUTE FUNCTION chaos_clip();
        """,
    ),
    "sqlite": (
        "CREATE TABLE chaos_moves (n INTEGER PRIMARY KEY, job, status, stage, epoch, holder, new_status,"
        " new_stage, new_epoch, new_holder, at)",
        "CREATE TABLE chaos_clips (job, text_start, epoch, key, gone, at)",
        "CREATE TRIGGER chaos_move AFTER UPDATE ON jobs WHEN OLD.status <> NEW.status"
        " OR OLD.stage IS NOT NEW.stage OR OLD.epoch <> NEW.epoch OR OLD.holder IS NOT NEW.holder BEGIN"
        " INSERT INTO chaos_moves VALUES (NULL, OLD.id, OLD.status, OLD.stage, OLD.epoch, OLD.holder,"
        " NEW.status, NEW.stage, NEW.epoch, NEW.holder, (julianday('now') - 2440587.5) * 86400.0); END",
        "CREATE TRIGGER chaos_clip AFTER INSERT ON clips BEGIN INSERT INTO chaos_clips VALUES"
        " (NEW.job, NEW.text_start, NEW.epoch, NEW.key, 0, (julianday('now') - 2440587.5) * 86400.0); END",
        "CREATE TRIGGER chaos_clip_gone AFTER DELETE ON clips BEGIN INSERT INTO chaos_clips VALUES"
        " (OLD.job, OLD.text_start, OLD.epoch, OLD.key, 1, (julianday('now') - 2440587.5) * 86400.0); END",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of the fleet.

    Attributes:
        role: `up`, `api master`, `api worker`, `synth`, `media`, `sweeper`, `engine`, `ffmpeg` or `other`.
        is_extra: whether the driver runs it, not `up`.
    """

    pid: int
    parent: int
    role: str
    is_extra: bool

    @property
    def name(self) -> str:
        return f"extra {self.role}" if self.is_extra else self.role


class Journal:
    """What was done and when, in a file; thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._begun = time.time()
        self._lock = threading.Lock()

    def note(self, what: str, **details: object) -> None:
        now = time.time()
        entry = {"t": round(now, 3), "s": round(now - self._begun, 2), "what": what} | details
        with self._lock:
            self._file.write(json.dumps(entry, default=str) + "\n")

    def close(self) -> None:
        self._file.close()


@dataclass(kw_only=True)
class Arena:
    """Everything that the faults of the storm may touch."""

    folder: Path
    database: Database
    journal: Journal
    valkey: servers.Valkey
    seaweed: servers.SeaweedFS
    #: None with SQLite.
    postgres: servers.Postgres | None
    #: What the fleet's connections to the object store and the database pass, and those of its clients.
    store_line: Proxy
    database_line: Proxy | None
    api_line: Proxy
    fleet: Fleet
    #: While it lies there, encoders find the disk full.
    full_flag: Path
    #: Whether the temp folder is a small file system of its own, which can be filled.
    has_tmpfs: bool
    secrets: list[str] = field(default_factory=list)
    extras: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ended_at: dict[str, float] = field(default_factory=dict)
    #: (kind of fault, what it hit) and how often.
    hits: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: Everything that was hit: when, the kind of fault, and its process id, if it is a process.
    struck: list[tuple[float, str, int | None]] = field(default_factory=list)
    #: (process id, when it went on) of everything that was frozen.
    thawed: list[tuple[int, float]] = field(default_factory=list)
    is_over: bool = False

    @property
    def temp_dir(self) -> Path:
        return self.fleet.data_dir / "tmp"

    @property
    def calls_log(self) -> Path:
        return self.folder / "calls.jsonl"

    def hit(self, kind: str, target: str, *, pids: Sequence[int] = (), **details: object) -> None:
        """Write down that a fault hit something."""
        self.hits[kind, target] += 1
        self.struck += [(time.time(), kind, pid) for pid in pids or (None,)]
        self.journal.note(f"fault: {kind}", target=target, pids=list(pids), **details)

    # --- the database, as a bystander sees it --------------------------------------------------------

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Ask the database directly, past the proxy."""
        if self.postgres is None:
            with contextlib.closing(self._sqlite()) as connection:
                return [dict(row) for row in connection.execute(query)]
        with contextlib.closing(self._psycopg()) as plain:
            cursor = plain.cursor(row_factory=psycopg.rows.dict_row)
            return list(cursor.execute(query.encode()))

    def audit(self) -> None:
        """Have the database write down every change of a job's state and every clip."""
        for statement in _AUDIT[self.database]:
            if self.postgres is None:
                with contextlib.closing(self._sqlite()) as connection:
                    connection.execute(statement)
                    connection.commit()
            else:
                with contextlib.closing(self._psycopg()) as plain:
                    plain.execute(statement.encode())

    def _sqlite(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.fleet.data_dir / "voxfleet.db", timeout=30)
        connection.row_factory = sqlite3.Row
        return connection

    def _psycopg(self) -> psycopg.Connection[Any]:
        assert self.postgres is not None
        return psycopg.connect(self.postgres.url.replace("+psycopg", ""), autocommit=True, connect_timeout=5)

    # --- the bucket, likewise ------------------------------------------------------------------------

    @contextlib.contextmanager
    def bucket(self) -> Iterator[Any]:
        """Give a client of our own, past the proxy."""
        client = boto3.session.Session().client(
            "s3",
            endpoint_url=self.seaweed.endpoint,
            aws_access_key_id=self.seaweed.access_key_id,
            aws_secret_access_key=self.seaweed.secret_access_key,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 5}),
        )
        with contextlib.closing(client):
            yield client

    def keys(self, prefix: str) -> dict[str, int]:
        """Return the keys under a prefix, with their sizes."""
        with self.bucket() as client:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
            return {entry["Key"]: entry["Size"] for page in pages for entry in page.get("Contents", [])}

    # --- processes -----------------------------------------------------------------------------------

    def processes(self) -> list[Process]:
        """Return the live processes of the fleet, by role and then by age."""
        found = []
        commands = self.fleet.processes()
        parents: dict[int, int] = {}
        for pid in commands:
            with contextlib.suppress(OSError, IndexError):
                parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        ours = {process.pid for process in self.extras.values()}
        for pid, command in sorted(commands.items()):
            if pid in parents:
                role = _role(pid, command, parent=commands.get(parents[pid], ""))
                found.append(
                    Process(
                        pid=pid, parent=parents[pid], role=role, is_extra=bool({pid, parents[pid]} & ours)
                    )
                )
        return found

    def of_role(self, role: str) -> list[Process]:
        return [process for process in self.processes() if process.role == role]

    def tend(self) -> None:
        """Start again those of our own workers that have ended. Call often."""
        for name, arguments in EXTRAS.items():
            process = self.extras.get(name)
            if process is not None and process.poll() is None:
                continue
            now = time.monotonic()
            if process is not None and name not in self.ended_at:
                self.ended_at[name] = now
                self.journal.note("an extra ended", name=name, status=process.returncode)
            if self.is_over or now - self.ended_at.get(name, 0.0) < RESTART_SECONDS:
                continue
            self.ended_at.pop(name, None)
            with (self.fleet.data_dir / "logs" / f"{name}.log").open("ab") as log:
                self.extras[name] = subprocess.Popen(
                    tethered([sys.executable, "-P", "-m", "cli.main", *arguments], nice=10),
                    env=self.fleet.environ,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def wait(self, seconds: float) -> None:
        """Wait, with an eye on our own workers."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.tend()
            time.sleep(min(0.1, left))

    def stop_extras(self) -> dict[str, int | None]:
        """Ask our own workers to leave and return their exit codes; None is one that had to be killed."""
        self.is_over = True
        for process in self.extras.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        codes: dict[str, int | None] = {}
        for name, process in self.extras.items():
            try:
                codes[name] = process.wait(timeout=35)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                codes[name] = None
        return codes

    def heal(self) -> None:
        """Put everything outside of the fleet in order."""
        self.full_flag.unlink(missing_ok=True)
        self.store_line.heal()
        self.api_line.heal()
        if self.database_line is not None:
            self.database_line.heal()
        if self.postgres is not None and self.postgres.process is None:
            self.postgres.start()
        if self.valkey.process is None:
            self.valkey.start()
        self.journal.note("healed")

    def logs(self) -> dict[str, str]:
        """Return every log of the fleet, whole."""
        folder = self.fleet.data_dir / "logs"
        return {path.name: path.read_text(errors="replace") for path in sorted(folder.iterdir())}


def _role(pid: int, command: str, *, parent: str) -> str:
    if "tether.py" in command:
        return "other"  # it is about to become something else
    for role, words in (
        ("synth", "cli.main worker synth"),
        ("media", "cli.main worker media"),
        ("sweeper", "cli.main sweeper"),
        ("engine", "-m speech.child"),
        ("up", "cli.main up"),
    ):
        if words in command:
            return role
    if "cli.gunicorn_app" in command:
        return "api worker" if "cli.gunicorn_app" in parent else "api master"
    with contextlib.suppress(OSError):
        if "ffmpeg" in Path(f"/proc/{pid}/exe").readlink().name:
            return "ffmpeg"
    return "other"


@contextlib.contextmanager
def arena(
    folder: Path, *, database: Database, rtf: float, tmpfs: bool, max_failures: int = 3
) -> Iterator[Arena]:
    """Give an arena whose fleet is ready, and leave nothing of it behind.

    Args:
        folder: an empty one; logs and the journal stay there.
        rtf: of the engine.
        tmpfs: whether to give the workers' temp folder a small file system, where that is possible.
    """
    data_dir = folder / "data"
    (data_dir / "tmp").mkdir(parents=True, mode=0o700)
    wrapper, flag = folder / "ffmpeg", folder / "disk-is-full"
    wrapper.write_text(_WRAPPER.format(flag=flag, ffmpeg=ffmpeg.find(None)))
    wrapper.chmod(0o755)
    with contextlib.ExitStack() as stack:
        journal = Journal(folder / "journal.jsonl")
        stack.callback(journal.close)
        has_tmpfs = tmpfs and _mount(data_dir / "tmp", stack)
        valkey = stack.enter_context(servers.valkey())
        seaweed = stack.enter_context(servers.seaweed())
        store_line = stack.enter_context(Proxy(seaweed.port))
        settings = {
            "VOXFLEET_BROKER_URL": valkey.url,
            "VOXFLEET_S3_ENDPOINT": f"http://127.0.0.1:{store_line.port}",
            "VOXFLEET_S3_ACCESS_KEY_ID": seaweed.access_key_id,
            "VOXFLEET_S3_SECRET_ACCESS_KEY": seaweed.secret_access_key,
            "VOXFLEET_S3_BUCKET": BUCKET,
            "VOXFLEET_DEFAULT_MODEL": "tone",
            "VOXFLEET_LEASE_SECONDS": str(LEASE_SECONDS),
            "VOXFLEET_MAX_FAILURES": str(max_failures),
            "VOXFLEET_FFMPEG": str(wrapper),
            "VOXFLEET_WEBHOOK_ALLOWED_CIDRS": "127.0.0.0/8",
            "VOXFLEET_ENGINE_TONE_FAULTS": "1",
            "VOXFLEET_ENGINE_TONE_MAX_CHARS": str(MAX_CHARS),
            "VOXFLEET_ENGINE_TONE_RTF": str(rtf),
            "VOXFLEET_ENGINE_TONE_LOG": str(folder / "calls.jsonl"),
        }
        postgres: servers.Postgres | None = None
        database_line: Proxy | None = None
        if database == "postgresql":
            postgres = stack.enter_context(servers.postgres())
            database_line = stack.enter_context(Proxy(postgres.port))
            settings["VOXFLEET_DATABASE_URL"] = postgres.url.replace(
                f":{postgres.port}/", f":{database_line.port}/"
            )
        fleet = start(data_dir, **settings)
        api_line = stack.enter_context(Proxy(int(fleet.environ["VOXFLEET_API_BIND"].rpartition(":")[2])))
        found = Arena(
            folder=folder,
            database=database,
            journal=journal,
            valkey=valkey,
            seaweed=seaweed,
            postgres=postgres,
            store_line=store_line,
            database_line=database_line,
            api_line=api_line,
            fleet=fleet,
            full_flag=flag,
            has_tmpfs=has_tmpfs,
        )
        stack.callback(_end, found)
        fleet.wait_ready()
        found.secrets = [_new_key(fleet, f"tenant-{number}") for number in range(TENANTS)]
        found.audit()
        found.tend()
        yield found


def _new_key(fleet: Fleet, name: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cli.main", "keys", "create", name],
        env=fleet.environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.strip()


def _end(found: Arena) -> None:
    """End every process of the fleet by its id, whatever has happened."""
    found.is_over = True
    for process in found.extras.values():
        process.kill()
        process.wait()
    if found.fleet.process.poll() is None:
        for pid in found.fleet.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            found.fleet.stop()
    found.fleet.http.clear()
    for pid in found.fleet.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if found.fleet.process.poll() is None:
        found.fleet.process.wait(timeout=10)


def _mount(folder: Path, stack: contextlib.ExitStack) -> bool:
    """Give a folder a small file system of its own; return whether that was possible."""
    if os.geteuid() != 0 or sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", str(folder).encode(), b"tmpfs", 0, f"{TMPFS},mode=700".encode()) != 0:
        return False
    detach = 2  # MNT_DETACH, <sys/mount.h>
    stack.callback(libc.umount2, str(folder).encode(), detach)
    return True
