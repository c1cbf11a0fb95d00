"""A whole API over a real SQLite file: Flask's test client, and small doubles at its other ports."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from api.admission import Limits
from api.app import create_app
from api.names import Names
from api.services import Services, target_check
from jobs import migrate
from jobs.database import Database
from jobs.job import JobError, PublishedAudio
from jobs.keys import KeyStore
from jobs.store import JobStore
from jobs.workers import WorkerRegistry
from storage.store import Link

PUBLIC_URL = "https://tts.example"
TONE = {
    "name": "tone",
    "sample_rate": 24_000,
    "languages": ["en", "de-DE"],
    "voices": [
        {"id": "one", "name": "One", "language": "en"},
        {"id": "zwei", "name": "Zwei", "language": "de-DE"},
    ],
    "default_voice": "one",
    "licence": "Apache-2.0",
}


@dataclass
class Marks:
    """A ringer that only remembers."""

    queues: list[str] = field(default_factory=list)

    def mark(self, queue: str) -> None:
        self.queues.append(queue)


class Signer:
    """Links that say how long they live."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now

    def sign(self, key: str, *, seconds: int) -> Link:
        return Link(
            url=f"https://s3.example/{key}?seconds={seconds}",
            expires_at=self._now() + timedelta(seconds=seconds),
        )


@dataclass
class World:
    """The API, and the other side of its ports."""

    services: Services
    store: JobStore
    keys: KeyStore
    workers: WorkerRegistry
    marks: Marks
    client: FlaskClient
    secret: str
    #: Moves the API's clock.
    ahead: timedelta = timedelta()
    #: What name servers know.
    names: dict[str, list[str]] = field(default_factory=dict)
    broken: dict[str, Exception] = field(default_factory=dict)

    def post(self, body: Any, **arguments: Any) -> TestResponse:
        """Submit a job."""
        headers = {"Authorization": f"Bearer {self.secret}"} | arguments.pop("headers", {})
        kind = {"json": body} if not isinstance(body, bytes) else {"data": body}
        if "data" in kind:
            arguments.setdefault("content_type", "application/json")
        return self.client.post("/v1/speech/jobs", headers=headers, **kind, **arguments)

    def get(self, path: str, **headers: str) -> TestResponse:
        """Ask with the key."""
        return self.client.get(path, headers={"X-API-Key": self.secret} | headers)

    def complete(self, job_id: str, *, key: str = "audio/7d/x/1.mp3") -> None:
        """Do the work of all workers for the only waiting job."""
        claim = self.store.claim("cpu.tone", holder="a")
        assert claim is not None
        assert claim.job.id == job_id
        self.store.synthesized(claim, queue="cpu.media")
        claim = self.store.claim("cpu.media", holder="b")
        assert claim is not None
        self.store.uploading(claim, key=key)
        self.store.complete(
            claim,
            PublishedAudio(
                key=key,
                content_type="audio/mpeg",
                bytes=1000,
                duration_ms=62,
                sample_rate=44_100,
                bitrate=128_000,
                channels=1,
                sha256="ab" * 32,
            ),
        )

    def fail(self, job_id: str) -> None:
        """Fail the only waiting job."""
        claim = self.store.claim("cpu.tone", holder="a")
        assert claim is not None
        assert claim.job.id == job_id
        self.store.fail(claim, JobError(code="engine_failed", message="it broke"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Give an API whose worker serves `tone` and whose caller has a key."""
    url = f"sqlite:///{tmp_path}/voxfleet.db"
    migrate.upgrade(url)
    database = Database(url)
    store, keys, workers = (
        JobStore(database, public_url=PUBLIC_URL),
        KeyStore(database),
        WorkerRegistry(database),
    )
    workers.publish("w1", queue="cpu.tone", model="tone", info=TONE)
    marks = Marks()

    def now() -> datetime:
        return datetime.now(UTC) + made.ahead

    def lookup(host: str, port: int) -> list[str]:
        if host not in made.names:
            raise OSError(f"no such host: {host}")
        return made.names[host]

    def check(name: str) -> Callable[[], None]:
        def ask() -> None:
            if name in made.broken:
                raise made.broken[name]

        return ask

    services = Services(
        jobs=store,
        keys=keys,
        workers=workers,
        links=Signer(now),
        ringer=marks,
        checks={"database": database.check, "broker": check("broker"), "object_store": check("object_store")},
        check_target=target_check((), Names(lookup)),
        now=now,
        new_seed=lambda: 7,
        public_url=PUBLIC_URL,
        default_model="tone",
        max_input_chars=2_000,
        link_seconds=3600,
        limits=Limits(max_queued=1_000, max_wait_seconds=86_400, tenant_max_queued=500),
        metrics_from=(ipaddress.ip_network("127.0.0.0/8"),),
    )
    made = World(
        services=services,
        store=store,
        keys=keys,
        workers=workers,
        marks=marks,
        client=create_app(services).test_client(),
        secret=keys.create("tests").secret,
    )
    yield made
    database.close()
