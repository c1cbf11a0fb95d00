"""The API as it is run: gunicorn with gevent, in a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from jobs import migrate
from jobs.database import Database
from jobs.keys import KeyStore
from jobs.workers import WorkerRegistry

from ..servers import free_ports
from .conftest import TONE


@dataclass
class Api:
    """A running API."""

    port: int
    database: Path
    secret: str
    #: The key of another tenant.
    other: str
    log: Path

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """Return status, headers (lower case) and JSON, or text, of one request."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body, {"X-API-Key": self.secret} | headers)
            reply = connection.getresponse()
            named = {name.lower(): value for name, value in reply.getheaders()}
            body = reply.read()
            return reply.status, named, json.loads(body) if "json" in named["content-type"] else body.decode()
        finally:
            connection.close()

    def submit(self) -> tuple[int, dict[str, str], Any]:
        """Submit a job."""
        return self.ask(
            "POST", "/v1/speech/jobs", b'{"input":"Hello."}', **{"Content-Type": "application/json"}
        )

    def raw(self, sent: bytes) -> bytes:
        """Send bytes as they are, and return the beginning of the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall(sent)
            return connection.recv(65536)


@contextmanager
def api(
    folder: Path, *, broker: str = "redis://127.0.0.1:1/0", url: str | None = None, **settings: str
) -> Iterator[Api]:
    """Give an API that has ended when the block is left; its database is SQLite unless `url` is another."""
    url = url or f"sqlite:///{folder}/voxfleet.db"
    migrate.upgrade(url)
    database = Database(url)
    WorkerRegistry(database).publish(
        "w1", queue="cpu.tone", model="tone", info=TONE, rtf=0.1, seconds_per_char=0.5
    )
    keys = KeyStore(database)
    secret, other = keys.create("tests").secret, keys.create("another").secret
    database.close()
    (port,) = free_ports(1)
    environ = os.environ | {
        "VOXFLEET_DATA_DIR": str(folder),
        "VOXFLEET_API_BIND": f"127.0.0.1:{port}",
        "VOXFLEET_BROKER_URL": broker,
        "VOXFLEET_DATABASE_URL": url,
        "VOXFLEET_DEFAULT_MODEL": "tone",
        "VOXFLEET_S3_ENDPOINT": "http://127.0.0.1:1",
        "VOXFLEET_S3_ACCESS_KEY_ID": "id",
        "VOXFLEET_S3_SECRET_ACCESS_KEY": "secret",
        **{f"VOXFLEET_{name.upper()}": value for name, value in settings.items()},
    }
    served = Api(
        port=port, database=folder / "voxfleet.db", secret=secret, other=other, log=folder / "api.log"
    )
    command = [sys.executable, "-P", "-m", "cli.main", "api"]
    with served.log.open("wb") as log:
        process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _until_it_answers(served, process)
        yield served
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _until_it_answers(served: Api, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            assert served.ask("GET", "/healthz")[0] == 200
        except (OSError, HTTPException):
            assert process.poll() is None, served.log.read_text()
            assert time.monotonic() < deadline, served.log.read_text()
            time.sleep(0.05)
        else:
            return
