"""Small stand-ins for what the handlers drive."""

from __future__ import annotations

import hashlib
import io
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import BinaryIO

import numpy as np

from actors.counts import Counts
from actors.rescue import Rescue
from actors.standing import Alone, Standing
from jobs.store import JobStore
from speech.engine import EngineError, EngineInfo, Samples, SynthesisRequest, Voice
from storage.store import ObjectNotFound, StoredObject, StoreUnavailable


class MemoryStore:
    """Objects in a dictionary; `down` makes every call fail."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.down = False
        self.after_put: Callable[[str], None] = lambda key: None

    def put(
        self,
        key: str,
        body: bytes | BinaryIO,
        *,
        content_type: str,
        metadata: Mapping[str, str] | None = None,
        cache_control: str | None = None,
    ) -> None:
        self._up()
        self.objects[key] = (body if isinstance(body, bytes) else body.read(), content_type)
        self.after_put(key)

    def get(self, key: str, *, chunk_size: int = 1 << 16) -> Iterator[bytes]:
        self._up()
        if key not in self.objects:
            raise ObjectNotFound(key)
        body = io.BytesIO(self.objects[key][0])
        return iter(lambda: body.read(chunk_size), b"")

    def head(self, key: str) -> StoredObject:
        self._up()
        if key not in self.objects:
            raise ObjectNotFound(key)
        body, content_type = self.objects[key]
        return StoredObject(
            key=key,
            size=len(body),
            etag=hashlib.sha256(body).hexdigest(),
            last_modified=datetime.now(UTC),
            content_type=content_type,
        )

    def delete(self, key: str) -> None:
        self._up()
        self.objects.pop(key, None)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self._up()
        return iter([self.head(key) for key in sorted(self.objects) if key.startswith(prefix)])

    def check(self) -> None:
        self._up()

    def _up(self) -> None:
        if self.down:
            raise StoreUnavailable("down")


@dataclass
class FakeEngine:
    """A hundred samples for each code point, of a level that follows from the text."""

    max_chars: int = 40
    fails: list[EngineError] = field(default_factory=list)
    spoken: list[SynthesisRequest] = field(default_factory=list)
    before: Callable[[SynthesisRequest], None] = lambda request: None

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            name="fake",
            version="1",
            revision="fake-1",
            sample_rate=1000,
            languages=("*",),
            voices=(Voice(id="v", name="V", language="en"),),
            default_voice="v",
            max_chars=self.max_chars,
            device="cpu",
            deterministic=True,
            licence="Apache-2.0",
            min_seconds_per_char=0.01,
            max_seconds_per_char=1.0,
            max_extra_seconds=1.0,
        )

    def synthesize(
        self,
        request: SynthesisRequest,
        *,
        stop: Callable[[], bool] | None = None,
        seconds: float | None = None,
        first_audio_seconds: float | None = None,
        keep: Callable[[bytes], None] | None = None,
    ) -> Iterator[Samples]:
        self.spoken.append(request)
        self.before(request)
        if self.fails:
            raise self.fails.pop(0)
        yield sound_of(request.text)

    def settle(self) -> None:
        """Nothing is ever left under way."""

    def restart(self) -> None:
        """There is no child."""


def sound_of(text: str) -> Samples:
    level = 0.1 + (hashlib.sha256(text.encode()).digest()[0] / 255) * 0.5
    return np.full(100 * len(text), level, np.float32)


def rescue(
    jobs: JobStore,
    *,
    ring: Callable[[str], None] = lambda queue: None,
    standing: Standing | None = None,
    counts: Counts | None = None,
) -> Rescue:
    """What a worker without any other does; its notice is a third of a second of half level."""
    return Rescue(
        jobs=jobs,
        ring=ring,
        standing=standing or Alone(),
        counts=counts or Counts(),
        notice=lambda language, rate: np.full(rate // 3, 0.5, np.float32),
    )


class Bells:
    """Remembers which queues were rung."""

    def __init__(self) -> None:
        self.rung: list[str] = []

    def __call__(self, queue: str) -> None:
        self.rung.append(queue)


@dataclass
class Request:
    """What a receiver got."""

    headers: dict[str, str]
    body: bytes
    path: str


class Receiver:
    """A webhook receiver on loopback that answers by script: bytes to send, or seconds to be silent."""

    def __init__(self, *script: bytes | float) -> None:
        self._script = list(script)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/hook?x=1"
        self.requests: list[Request] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        with socket.socket() as knock:
            knock.connect_ex(self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while not self._over.is_set():
            connection, _ = self._socket.accept()
            with connection:
                connection.settimeout(5)
                if self._over.is_set():
                    return
                try:
                    self._answer(connection)
                except OSError:
                    continue

    def _answer(self, connection: socket.socket) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        head, body = received.split(b"\r\n\r\n", 1)
        lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines[1:])}
        while len(body) < int(headers.get("content-length", 0)):
            body += connection.recv(65536)
        self.requests.append(Request(headers=headers, body=body, path=lines[0].split(" ")[1]))
        answer = self._script.pop(0) if self._script else b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        if isinstance(answer, bytes):
            connection.sendall(answer)
            return
        end = time.monotonic() + answer
        # A byte every tenth of a second: no single read is slow.
        while time.monotonic() < end and not self._over.is_set():
            connection.sendall(b"H" if time.monotonic() + 60 < end else b"")
            time.sleep(0.1)


@contextmanager
def receiver(*script: bytes | float) -> Iterator[Receiver]:
    """Give a receiver that answers its n-th request with the n-th entry of `script`, then with 200."""
    server = Receiver(*script)
    try:
        yield server
    finally:
        server.close()
