"""A whole fleet, started as a user starts it: `voxfleet up`, with ports and a data folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import urllib3

from tests import servers

#: A variable that every process of a fleet inherits; engines are given no `VOXFLEET_*`.
MARK = "TEST_FLEET"
#: The names of the ports that `up` takes, in the order in which they are handed out.
PORTS = (
    "VOXFLEET_VALKEY_PORT",
    "VOXFLEET_S3_PORT",
    "VOXFLEET_WEED_FILER_PORT",
    "VOXFLEET_WEED_MASTER_PORT",
    "VOXFLEET_WEED_VOLUME_PORT",
    "VOXFLEET_WEED_ADMIN_PORT",
)


def fleet_environment(data_dir: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which `up` runs beside anything else on this machine."""
    api, *ports = servers.free_ports(1 + len(PORTS), also=(10_000,))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VOXFLEET_")}
    environ |= dict(zip(PORTS, map(str, ports), strict=True))
    environ |= {"VOXFLEET_DATA_DIR": str(data_dir), "VOXFLEET_API_BIND": f"127.0.0.1:{api}"}
    environ[MARK] = secrets.token_hex(8)
    return environ | dict(settings)


@dataclass
class Fleet:
    """A running fleet."""

    data_dir: Path
    environ: dict[str, str]
    process: subprocess.Popen[bytes]
    http: urllib3.PoolManager = field(
        default_factory=lambda: urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(30), maxsize=32)
    )

    @property
    def url(self) -> str:
        return f"http://{self.environ['VOXFLEET_API_BIND']}"

    @property
    def key(self) -> str:
        return (self.data_dir / "first-key").read_text(encoding="utf-8").strip()

    def wait_ready(self, seconds: float = 60.0) -> None:
        """Wait until `/readyz` says yes."""
        end = time.monotonic() + seconds
        last: object = "no answer"
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"up ended with {self.process.returncode}\n{self.logs()}")
            with contextlib.suppress(urllib3.exceptions.HTTPError):
                response = self.http.request("GET", f"{self.url}/readyz")
                if response.status == 200:
                    return
                last = response.data
            time.sleep(0.1)
        raise AssertionError(f"not ready within {seconds} s: {last!r}\n{self.logs()}")

    def call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, redirect: bool = False
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Authorization": f"Bearer {self.key}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        return self.http.request(
            method,
            f"{self.url}{path}",
            body=None if body is None else json.dumps(body).encode(),
            headers=headers,
            redirect=redirect,
        )

    def submit(self, text: str, **members: Any) -> dict[str, Any]:
        response = self.call("POST", "/v1/speech/jobs", {"input": text, **members})
        assert response.status == 202, response.data
        return dict(response.json())

    def job(self, job_id: str) -> dict[str, Any]:
        response = self.call("GET", f"/v1/speech/jobs/{job_id}")
        assert response.status == 200, response.data
        return dict(response.json())

    def wait(self, job_id: str, *, seconds: float = 60.0) -> dict[str, Any]:
        """Wait until a job has ended, whatever way."""
        end = time.monotonic() + seconds
        while True:
            job = self.job(job_id)
            if job["status"] not in ("queued", "in_progress"):
                return job
            if time.monotonic() > end:
                raise AssertionError(f"{job} has not ended within {seconds} s\n{self.logs()}")
            time.sleep(0.1)

    def processes(self) -> dict[int, str]:
        """Return every live process of this fleet: each has inherited its mark, whoever its parent is."""
        mark = f"{MARK}={self.environ[MARK]}".encode()
        # Valkey writes its title over its environment.
        title = f":{self.environ['VOXFLEET_VALKEY_PORT']}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                # A dead process that its parent has not buried holds nothing.
                if (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                    continue
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                if title in command or mark in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = command.decode("utf-8", "replace")
        return found

    def pids(self, what: str) -> list[int]:
        """Return the fleet's processes whose command line holds `what`."""
        return [pid for pid, command in self.processes().items() if what in command]

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Ask the fleet's SQLite directly."""
        with contextlib.closing(sqlite3.connect(self.data_dir / "voxfleet.db", timeout=10)) as connection:
            return connection.execute(query, values).fetchall()

    def logs(self) -> str:
        """Return the end of every log."""
        parts = []
        for log in sorted((self.data_dir / "logs").glob("*.log")):
            text = log.read_text(encoding="utf-8", errors="replace")
            parts.append(f"--- {log.name}\n{text[-3000:]}")
        return "\n".join(parts)

    def stop(self) -> int:
        """Press Ctrl-C and wait; return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=60)

    def wait_gone(self, seconds: float) -> dict[int, str]:
        """Return what is still alive after at most `seconds`."""
        end = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < end:
            time.sleep(0.1)
        return left


def start(data_dir: Path, **settings: str) -> Fleet:
    """Start a fleet; the caller waits for it and stops it."""
    environ = fleet_environment(data_dir, settings)
    with (data_dir.parent / f"{data_dir.name}-up.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cli.main", "up"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
    return Fleet(data_dir=data_dir, environ=environ, process=process)


@contextlib.contextmanager
def fleet(data_dir: Path, **settings: str) -> Iterator[Fleet]:
    """Give a fleet that is ready, and leave nothing of it behind."""
    running = start(data_dir, **settings)
    try:
        running.wait_ready()
        yield running
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.stop()
        running.http.clear()
        for pid in running.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
