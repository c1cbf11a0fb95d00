"""What the sweeper heals and what it deletes; and that two of them do no harm."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from actors.bell import BrokerUnavailable
from actors.sweeper import (
    BELL_CAP,
    CLEARING,
    MOVING,
    LastRuns,
    Sweep,
    delete_expired,
    delete_orphans,
    delete_staged,
    expire_jobs,
    promote_jobs,
    sweep_until,
    top_up_bells,
)
from jobs.database import Database
from jobs.job import JobClass, JobError, PublishedAudio, Status
from jobs.lanes import AGEING_SECONDS
from jobs.store import ORPHAN_SECONDS, ZOMBIE_SECONDS, JobStore
from jobs.tables import jobs as jobs_table
from jobs.tables import objects as ledger
from jobs.workers import WorkerRegistry
from storage.store import AccessDenied

from .conftest import ask, encoding
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
    claim = encoding(jobs)
    key = f"audio/1d/{claim.job.id}/2.mp3"
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


def test_clips_go_a_while_after_their_job_has_ended_and_not_before(
    sweep: Sweep, jobs: JobStore, objects: MemoryStore, database: Database
) -> None:
    running, ended = ask(jobs, "a"), ask(jobs, "b")
    for job in (running, ended):
        objects.put(f"staged/{job.id}/1-0-x", b"clip", content_type="audio/x-raw")
    claims = [jobs.claim("cpu.fake", holder="w") for _ in range(2)]
    for claim in claims:
        assert claim is not None
        jobs.begin(claim, spoken_text="a", chunks_total=1, characters_left=1)
        if claim.job.id == ended.id:
            jobs.fail(claim, JobError(code="x", message="x"))

    # Its last holder may not have heard of the end, and still be staging.
    assert delete_staged(sweep) == 0
    with database.write() as connection:
        connection.execute(update(jobs_table).values(completed_at=jobs_table.c.completed_at - ZOMBIE_SECONDS))
    assert delete_staged(sweep) == 1
    assert list(objects.objects) == [f"staged/{running.id}/1-0-x"]
    assert delete_staged(sweep) == 0


def test_an_upload_that_was_broken_off_is_cleared_away_twice_but_one_in_hand_is_not(
    sweep: Sweep, jobs: JobStore, objects: MemoryStore, database: Database
) -> None:
    claim = encoding(jobs)
    key = f"audio/1d/{claim.job.id}/2.mp3"
    jobs.uploading(claim, key=key)
    objects.put(key, b"half", content_type="audio/mpeg")
    assert delete_orphans(sweep) == 0

    with database.write() as connection:
        connection.execute(update(jobs_table).values(visible_at=0.0))
    assert delete_orphans(sweep) == 0, "its holder may still publish it"
    assert jobs.claim("cpu.media", holder="w2") is not None
    assert delete_orphans(sweep) == 1
    assert objects.objects == {}
    assert delete_orphans(sweep) == 0

    # The last part of the upload was under way still.
    objects.put(key, b"half", content_type="audio/mpeg")
    assert delete_expired(sweep) == 0
    with database.write() as connection:
        connection.execute(update(ledger).values(delete_after=ledger.c.delete_after - ORPHAN_SECONDS))
    assert delete_expired(sweep) == 1
    assert objects.objects == {}
    with database.read() as connection:
        assert connection.execute(select(func.count()).select_from(ledger)).scalar_one() == 0


def test_jobs_expire_and_are_promoted_by_two_sweepers_once(
    sweep: Sweep, jobs: JobStore, database: Database
) -> None:
    mortal, low = ask(jobs, "late"), ask(jobs, "patient", tenant="ten_b", job_class=JobClass.LOW)
    with database.write() as connection:
        connection.execute(update(jobs_table).where(jobs_table.c.id == mortal.id).values(deadline=1.0))
        connection.execute(
            update(jobs_table)
            .where(jobs_table.c.id == low.id)
            .values(queued_at=jobs_table.c.queued_at - AGEING_SECONDS - 1)
        )

    with ThreadPoolExecutor(2) as sweepers:
        expired = list(sweepers.map(expire_jobs, [sweep, sweep]))
        promoted = list(sweepers.map(promote_jobs, [sweep, sweep]))

    assert sum(expired) == 1
    assert sum(promoted) == 1
    assert jobs.get(mortal.id, "ten_a").status is Status.EXPIRED
    assert jobs.get(low.id, "ten_b").job_class is JobClass.NORMAL


def test_the_last_run_of_each_task_is_told_in_seconds_that_have_passed(
    sweep: Sweep, database: Database
) -> None:
    now = [100.0]
    runs = LastRuns(clock=lambda: now[0])

    sweep_until(sweep, MOVING, stopped=lambda seconds: True, ran=runs.ran, clock=lambda: now[0])
    now[0] += 7

    told = runs.account()
    assert told.info == {"last_run": dict.fromkeys(("top_up_bells", "expire_jobs", "promote_jobs"), 7.0)}
    sweep.workers.publish("sweeper-1", queue="sweeper", info=told.info)
    sweep.workers.publish("sweeper-2", queue="sweeper", info={"last_run": {"top_up_bells": 3.0}})
    ages = sweep.workers.sweeper()
    assert ages["top_up_bells"] == pytest.approx(3.0, abs=1)
    assert ages["promote_jobs"] == pytest.approx(7.0, abs=1)


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

    sweep_until(sweep, {**MOVING, **CLEARING}, stopped=stopped, clock=lambda: now)

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
