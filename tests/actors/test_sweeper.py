"""What the sweeper heals and what it deletes; and that two of them do no harm."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from actors.bell import BrokerUnavailable
from actors.sweeper import (
    BELL_CAP,
    Sweep,
    delete_expired,
    delete_staged,
    delete_temp,
    heavy,
    sweep_until,
    top_up_bells,
)
from jobs.database import Database
from jobs.job import JobError, PublishedAudio
from jobs.store import JobStore
from jobs.tables import jobs as jobs_table
from jobs.tables import objects as ledger
from jobs.workers import WorkerRegistry
from storage.store import AccessDenied

from .conftest import ask
from .doubles import MemoryStore


class Bell:
    """Queues of bells in memory."""

    def __init__(self) -> None:
        self.queues: dict[str, int] = {}
        self.down = False

    def ring(self, queue: str, *, times: int = 1) -> None:
        self._up()
        self.queues[queue] = self.queues.get(queue, 0) + times

    def waiting(self, queue: str) -> int:
        self._up()
        return self.queues.get(queue, 0)

    def check(self) -> None:
        self._up()

    def _up(self) -> None:
        if self.down:
            raise BrokerUnavailable("down")


@pytest.fixture
def bell() -> Bell:
    return Bell()


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def sweep(jobs: JobStore, database: Database, objects: MemoryStore, bell: Bell, tmp_path: Path) -> Sweep:
    return Sweep(
        jobs=jobs,
        workers=WorkerRegistry(database),
        objects=objects,
        bell=bell,
        temp_dir=tmp_path / "tmp",
    )


def _published(jobs: JobStore, objects: MemoryStore) -> str:
    """Leave a completed job with its audio; return the key."""
    job = ask(jobs, "some text", queue="cpu.media")
    claim = jobs.claim("cpu.media", holder="w")
    assert claim is not None
    key = f"audio/1d/{job.id}/1.mp3"
    jobs.uploading(claim, key=key)
    objects.put(key, b"mp3", content_type="audio/mpeg")
    audio = PublishedAudio(
        key=key,
        content_type="audio/mpeg",
        bytes=3,
        duration_ms=1,
        sample_rate=44_100,
        bitrate=128_000,
        channels=1,
        sha256="",
    )
    jobs.complete(claim, audio)
    return key


def test_every_ready_row_has_a_bell_and_no_more(sweep: Sweep, jobs: JobStore, bell: Bell) -> None:
    for _ in range(3):
        ask(jobs, "text")
    bell.queues["cpu.fake"] = 1

    top_up_bells(sweep)
    top_up_bells(sweep)

    assert bell.queues == {"cpu.fake": 3}


def test_bells_are_capped_however_long_the_queue(sweep: Sweep, jobs: JobStore, bell: Bell) -> None:
    for _ in range(BELL_CAP + 20):
        ask(jobs, "text")

    top_up_bells(sweep)

    assert bell.queues["cpu.fake"] == BELL_CAP


def test_a_job_in_hand_needs_no_bell(sweep: Sweep, jobs: JobStore, bell: Bell) -> None:
    ask(jobs, "text")
    assert jobs.claim("cpu.fake", holder="w") is not None

    top_up_bells(sweep)

    assert bell.queues == {}


def test_audio_is_deleted_when_its_time_is_over_and_not_before(
    sweep: Sweep, jobs: JobStore, objects: MemoryStore, database: Database
) -> None:
    key = _published(jobs, objects)
    assert delete_expired(sweep) == 0
    with database.write() as connection:
        connection.execute(update(ledger).values(delete_after=0.0))

    assert delete_expired(sweep) == 1
    assert key not in objects.objects
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(ledger)).scalar_one() == 0


def test_a_delete_that_failed_is_made_up_for(
    sweep: Sweep, jobs: JobStore, objects: MemoryStore, database: Database
) -> None:
    key = _published(jobs, objects)
    with database.write() as connection:
        connection.execute(update(ledger).values(delete_after=0.0))
    objects.down = True
    with pytest.raises(Exception, match="down"):
        delete_expired(sweep)
    objects.down = False

    assert delete_expired(sweep) == 1
    assert key not in objects.objects


def test_clips_go_when_their_job_has_ended_and_not_before(
    sweep: Sweep, jobs: JobStore, objects: MemoryStore
) -> None:
    running, ended = ask(jobs, "a"), ask(jobs, "b")
    for job in (running, ended):
        objects.put(f"staged/{job.id}/1-0-x", b"clip", content_type="audio/x-raw")
    claims = [jobs.claim("cpu.fake", holder="w") for _ in range(2)]
    for claim in claims:
        assert claim is not None
        jobs.staging(claim)
        if claim.job.id == ended.id:
            jobs.fail(claim, JobError(code="x", message="x"))

    assert delete_staged(sweep) == 1
    assert list(objects.objects) == [f"staged/{running.id}/1-0-x"]
    assert delete_staged(sweep) == 0


def test_an_upload_that_was_broken_off_is_cleared_away_but_one_in_hand_is_not(
    sweep: Sweep, jobs: JobStore, objects: MemoryStore, database: Database
) -> None:
    job = ask(jobs, "text", queue="cpu.media")
    claim = jobs.claim("cpu.media", holder="w")
    assert claim is not None
    jobs.uploading(claim, key="audio/1d/x/1.mp3")
    objects.put("audio/1d/x/1.mp3", b"half", content_type="audio/mpeg")
    with database.write() as connection:
        connection.execute(update(ledger).values(created_at=0.0))

    heavy(sweep)
    assert delete_expired(sweep) == 0, job

    with database.write() as connection:
        connection.execute(update(jobs_table).values(visible_at=0.0))
    assert jobs.claim("cpu.media", holder="w2") is not None
    heavy(sweep)

    assert delete_expired(sweep) == 1
    assert objects.objects == {}


def test_old_temp_files_go_and_new_ones_stay(tmp_path: Path) -> None:
    old, new, fresh_inside = tmp_path / "old", tmp_path / "new.mp3", tmp_path / "busy"
    for folder in (old, fresh_inside):
        folder.mkdir()
        (folder / "speech.mp3").write_bytes(b"x")
    new.write_bytes(b"x")
    past = time.time() - 7200
    for path in (old / "speech.mp3", old, fresh_inside):
        os.utime(path, (past, past))

    assert delete_temp(tmp_path, older_than=3600) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["busy", "new.mp3"]
    assert delete_temp(tmp_path / "missing", older_than=3600) == 0


def test_an_outage_stops_nothing_else_and_is_over_when_it_is_over(
    sweep: Sweep, jobs: JobStore, bell: Bell, objects: MemoryStore, database: Database
) -> None:
    key = _published(jobs, objects)
    with database.write() as connection:
        connection.execute(update(ledger).values(delete_after=0.0))
    ask(jobs, "text")
    rounds = 0
    now = 0.0

    def stopped(seconds: float) -> bool:
        nonlocal rounds, now
        rounds += 1
        now += seconds
        bell.down = rounds < 5
        return rounds > 12

    sweep_until(sweep, stopped=stopped, clock=lambda: now)

    assert key not in objects.objects
    assert bell.queues == {"cpu.fake": 1}


def test_one_object_that_cannot_be_deleted_stops_no_other(
    sweep: Sweep, jobs: JobStore, objects: MemoryStore, database: Database
) -> None:
    published = [_published(jobs, objects) for _ in range(3)]
    with database.write() as connection:
        connection.execute(update(ledger).values(delete_after=0.0))
    delete = objects.delete

    def refuse(key: str) -> None:
        if key == published[0]:
            raise AccessDenied("no")
        delete(key)

    objects.delete = refuse  # type: ignore[method-assign]

    assert delete_expired(sweep) == 2
    assert list(objects.objects) == published[:1]
