"""How jobs end before their time, and are asked for again, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from jobs.database import Database
from jobs.job import (
    Claim,
    Fenced,
    Job,
    JobClass,
    JobEnded,
    JobNotFound,
    JobUnended,
    Status,
    TenantId,
    TooManyQueued,
)
from jobs.lanes import AGEING_SECONDS
from jobs.store import JobStore

from ..jobs.databases import START, Clock, everything, execute, rows
from .job_steps import (
    BROKEN,
    HOOK,
    MEDIA,
    QUEUE,
    at_once,
    audio,
    begin,
    completed,
    encoding,
    key,
    new,
    speak,
    take,
    uploading,
)

WANTED: Final = new(webhook_url=HOOK, metadata={"a": "é"})
TENANT: Final = TenantId("ten_a")

# --- cancel ----------------------------------------------------------------------------------------------


def _queued(jobs: JobStore) -> Claim | None:
    jobs.create(WANTED)
    return None


def _held(jobs: JobStore) -> Claim | None:
    jobs.create(WANTED)
    claim = take(jobs)
    begin(jobs, claim)
    return claim


def _between_claims(jobs: JobStore) -> Claim | None:
    claim = _held(jobs)
    assert claim is not None
    jobs.release(claim)
    return claim


def _backing_off(jobs: JobStore) -> Claim | None:
    claim = _held(jobs)
    assert claim is not None
    jobs.retry_later(claim, BROKEN)
    return claim


def _spoken(jobs: JobStore) -> Claim | None:
    jobs.create(WANTED)
    claim = take(jobs)
    speak(jobs, claim)
    return claim


def _encoding(jobs: JobStore) -> Claim | None:
    return encoding(jobs, WANTED)


def _uploading(jobs: JobStore) -> Claim | None:
    return uploading(jobs, WANTED)


def _upload_let_go(jobs: JobStore) -> Claim | None:
    claim = uploading(jobs, WANTED)
    jobs.release(claim)
    return claim


UNENDED: Final = [
    _queued,
    _held,
    _between_claims,
    _backing_off,
    _spoken,
    _encoding,
    _uploading,
    _upload_let_go,
]


@pytest.mark.parametrize("stand", UNENDED)
def test_a_job_can_be_cancelled_wherever_it_stands(
    jobs: JobStore, database: Database, clock: Clock, stand: Callable[[JobStore], Claim | None]
) -> None:
    claim = stand(jobs)
    (row,) = rows(database, "jobs")
    clock.advance(3)

    job = jobs.cancel(row["id"], TENANT)

    assert job == jobs.get(row["id"], TENANT)
    assert (job.status, job.stage, job.queue, job.held) == (Status.CANCELLED, None, None, False)
    assert (job.error, job.audio) == (None, None)
    assert job.completed_at == datetime.fromtimestamp(START + 3, UTC)
    assert job.version == row["version"] + 1
    (after,) = rows(database, "jobs")
    assert bool(after["cancel_requested"])
    (event,) = rows(database, "events")
    assert (event["type"], bool(event["terminal"])) == ("speech.job.cancelled", True)
    payload = json.loads(event["payload"])["data"]
    assert (payload["status"], payload["metadata"], payload["result"]) == ("cancelled", {"a": "é"}, None)
    (delivery,) = rows(database, "deliveries")
    assert (delivery["event"], delivery["url"]) == (event["id"], HOOK)
    clock.advance(600)
    assert jobs.claim(QUEUE, holder="worker") is None
    assert jobs.claim(MEDIA, holder="worker") is None
    if claim is not None:
        with pytest.raises(Fenced):
            jobs.renew(claim.job.id, claim.job.epoch)


@pytest.mark.parametrize("stand", UNENDED)
def test_to_cancel_again_changes_nothing(
    jobs: JobStore, database: Database, clock: Clock, stand: Callable[[JobStore], Claim | None]
) -> None:
    stand(jobs)
    (row,) = rows(database, "jobs")
    cancelled = jobs.cancel(row["id"], TENANT)
    before = everything(database)
    clock.advance(5)

    assert jobs.cancel(row["id"], TENANT) == cancelled

    assert everything(database) == before


@pytest.mark.parametrize("tenant", ["ten_b", "", "ten_%"])
def test_another_tenants_job_cannot_be_cancelled(jobs: JobStore, database: Database, tenant: str) -> None:
    job = jobs.create(new())
    before = everything(database)

    with pytest.raises(JobNotFound):
        jobs.cancel(job.id, tenant)
    with pytest.raises(JobNotFound):
        jobs.cancel("job_unknown", "ten_a")
    with pytest.raises(JobNotFound):
        jobs.cancel("job_\x00", "ten_a")

    assert everything(database) == before


def _complete(jobs: JobStore, clock: Clock) -> Job:
    return completed(jobs)[1]


def _fail(jobs: JobStore, clock: Clock) -> Job:
    jobs.create(new())
    return jobs.fail(take(jobs), BROKEN)


def _expire(jobs: JobStore, clock: Clock) -> Job:
    job = jobs.create(new(deadline=1))
    clock.advance(1)
    assert jobs.expire(limit=1) == 1
    return jobs.get(job.id, TENANT)


def _cancel(jobs: JobStore, clock: Clock) -> Job:
    job = jobs.create(new())
    return jobs.cancel(job.id, TENANT)


@pytest.mark.parametrize("end", [_complete, _fail, _expire])
def test_what_has_ended_otherwise_cannot_be_cancelled(
    jobs: JobStore, database: Database, clock: Clock, end: Callable[[JobStore, Clock], Job]
) -> None:
    job = end(jobs, clock)
    before = everything(database)

    with pytest.raises(JobEnded) as refused:
        jobs.cancel(job.id, TENANT)

    assert refused.value.status is job.status
    assert everything(database) == before


@pytest.mark.slow
def test_a_cancel_beside_the_publication_ends_the_job_once(
    crowd: list[JobStore], database: Database, clock: Clock
) -> None:
    first, second, third = crowd[:3]
    ends: list[Status] = []
    for _ in range(25):
        claim = uploading(first, WANTED)

        done, *cancels = at_once(
            lambda claim=claim: first.complete(claim, audio(claim)),
            lambda claim=claim: second.cancel(claim.job.id, TENANT),
            lambda claim=claim: third.cancel(claim.job.id, TENANT),
        )

        job = first.get(claim.job.id, TENANT)
        ends.append(job.status)
        if job.status is Status.COMPLETED:
            assert done == job
            assert all(isinstance(cancel, JobEnded) for cancel in cancels), cancels
        else:
            assert isinstance(done, Fenced)
            assert cancels == [job, job]
        states = [row["state"] for row in rows(database, "objects") if row["owner"] == job.id]
        assert states == ["live" if job.status is Status.COMPLETED else "pending"]
        assert [event["type"] for event in rows(database, "events") if event["job"] == job.id] == [
            f"speech.job.{job.status.value}"
        ]
    assert set(ends) <= {Status.COMPLETED, Status.CANCELLED}


@pytest.mark.slow
def test_a_cancel_beside_a_claim_leaves_a_holder_that_can_do_nothing(
    crowd: list[JobStore], database: Database
) -> None:
    for _ in range(25):
        job = crowd[0].create(WANTED)

        cancelled, *claims = at_once(
            lambda job=job: crowd[0].cancel(job.id, TENANT),
            *(lambda store=store: store.claim(QUEUE, holder="worker") for store in crowd[1:4]),
        )

        assert isinstance(cancelled, Job)
        assert cancelled.status is Status.CANCELLED
        taken = [claim for claim in claims if claim is not None]
        assert len(taken) <= 1
        for claim in taken:
            assert isinstance(claim, Claim)
            with pytest.raises(Fenced):
                begin(crowd[1], claim)
        assert len([event for event in rows(database, "events") if event["job"] == job.id]) == 1
        assert crowd[0].get(job.id, TENANT) == cancelled


@pytest.mark.slow
def test_many_ends_at_once_are_one_end(crowd: list[JobStore], database: Database, clock: Clock) -> None:
    for _ in range(15):
        claim = uploading(crowd[0], WANTED)

        at_once(
            lambda claim=claim: crowd[0].complete(claim, audio(claim)),
            lambda claim=claim: crowd[1].cancel(claim.job.id, TENANT),
            lambda claim=claim: crowd[2].fail(claim, BROKEN),
            lambda claim=claim: crowd[3].retry_later(claim, BROKEN),
            lambda claim=claim: crowd[4].release(claim),
        )

        # Whichever it was: one event where it has ended, none where it goes on.
        status = crowd[0].get(claim.job.id, TENANT).status
        told = [event["type"] for event in rows(database, "events") if event["job"] == claim.job.id]
        assert told == ([] if status is Status.IN_PROGRESS else [f"speech.job.{status.value}"])
        if status is Status.IN_PROGRESS:
            crowd[0].cancel(claim.job.id, TENANT)


# --- deadlines -------------------------------------------------------------------------------------------


def test_a_deadline_is_counted_from_the_request(jobs: JobStore) -> None:
    job = jobs.create(new(deadline=90))

    assert job.deadline == job.created_at + timedelta(seconds=90)


def test_a_claim_passes_over_what_came_too_late_and_ends_it(
    jobs: JobStore, database: Database, clock: Clock
) -> None:
    late = [jobs.create(new(deadline=60, webhook_url=HOOK)) for _ in range(3)]
    clock.advance(60)
    in_time = jobs.create(new(deadline=1))

    assert take(jobs).job.id == in_time.id

    assert {jobs.get(job.id, TENANT).status for job in late} == {Status.EXPIRED}
    assert {event["type"] for event in rows(database, "events")} == {"speech.job.expired"}
    assert len(rows(database, "events")) == len(rows(database, "deliveries")) == 3
    assert jobs.claim(QUEUE, holder="worker") is None


def test_a_job_that_was_begun_in_time_is_finished(jobs: JobStore, clock: Clock) -> None:
    jobs.create(new(deadline=60))
    clock.advance(59)
    claim = take(jobs)
    jobs.release(claim)
    clock.advance(600)

    assert take(jobs).job.id == claim.job.id


# --- once more -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [_fail, _expire, _cancel])
def test_what_ended_without_audio_is_asked_for_again_as_a_new_job(
    jobs: JobStore, database: Database, clock: Clock, end: Callable[[JobStore, Clock], Job]
) -> None:
    job = end(jobs, clock)
    execute(database, "UPDATE jobs SET metadata = :told", told='{"a": "é"}')
    before = jobs.get(job.id, TENANT)
    clock.advance(5)

    again = jobs.retry(job.id, TENANT, queue="gpu.tone")

    assert again.id != job.id
    assert again.retry_of == job.id
    assert (again.status, again.queue, again.epoch, again.version) == (Status.QUEUED, "gpu.tone", 0, 1)
    assert again.created_at == datetime.fromtimestamp(START + 5, UTC) + (
        timedelta(seconds=1) if end is _expire else timedelta()
    )
    assert (again.deadline, again.started_at, again.completed_at, again.error) == (None, None, None, None)
    same = ("model", "voice", "language", "response_format", "characters", "expires_in", "metadata")
    for name in (*same, "job_class", "tenant_id"):
        assert getattr(again, name) == getattr(before, name), name
    # The one before stays as it ended.
    assert jobs.get(job.id, TENANT) == before
    claim = take(jobs, "gpu.tone")
    assert (claim.job.id, claim.input, claim.seed) == (again.id, "Hello there.", 7)
    assert (claim.recorded, claim.spoken_text, claim.errors) == ((), None, ())
    assert claim.synthesis_queue == "gpu.tone"


def test_a_job_that_is_tried_again_tells_the_same_webhook(jobs: JobStore, database: Database) -> None:
    jobs.create(new(webhook_url=HOOK))
    failed = jobs.fail(take(jobs), BROKEN)
    again = jobs.retry(failed.id, TENANT, queue=QUEUE)

    jobs.cancel(again.id, TENANT)

    assert [delivery["url"] for delivery in rows(database, "deliveries")] == [HOOK, HOOK]


def test_every_try_is_a_job_of_its_own(jobs: JobStore) -> None:
    first = jobs.cancel(jobs.create(new()).id, TENANT)

    second = jobs.cancel(jobs.retry(first.id, TENANT, queue=QUEUE).id, TENANT)
    third = jobs.retry(second.id, TENANT, queue=QUEUE)

    assert (second.retry_of, third.retry_of) == (first.id, second.id)
    assert jobs.retry(first.id, TENANT, queue=QUEUE).retry_of == first.id


def test_a_promoted_job_is_asked_for_again_in_its_own_class(jobs: JobStore, clock: Clock) -> None:
    job = jobs.create(new(job_class=JobClass.LOW))
    clock.advance(AGEING_SECONDS * 2)
    assert (jobs.promote(), jobs.promote()) == (1, 1)
    assert jobs.get(job.id, TENANT).job_class is JobClass.HIGH
    jobs.cancel(job.id, TENANT)

    assert jobs.retry(job.id, TENANT, queue=QUEUE).job_class is JobClass.LOW


def test_what_has_not_ended_or_has_its_audio_is_not_tried_again(jobs: JobStore, database: Database) -> None:
    _, done = completed(jobs)
    queued = jobs.create(new())
    before = everything(database)

    with pytest.raises(JobUnended):
        jobs.retry(queued.id, TENANT, queue=QUEUE)
    with pytest.raises(JobEnded) as refused:
        jobs.retry(done.id, TENANT, queue=QUEUE)
    assert refused.value.status is Status.COMPLETED
    assert everything(database) == before

    take(jobs)
    with pytest.raises(JobUnended):
        jobs.retry(queued.id, TENANT, queue=QUEUE)


def test_another_tenants_job_cannot_be_tried_again(jobs: JobStore, database: Database) -> None:
    job = jobs.cancel(jobs.create(new()).id, TENANT)
    before = everything(database)

    for job_id, tenant in ((job.id, "ten_b"), ("job_unknown", "ten_a"), ("\x00", "ten_a")):
        with pytest.raises(JobNotFound):
            jobs.retry(job_id, TenantId(tenant), queue=QUEUE)

    assert everything(database) == before


def test_another_try_counts_as_a_job_that_waits(jobs: JobStore, database: Database) -> None:
    job = jobs.cancel(jobs.create(new()).id, TENANT)
    jobs.create(new())
    before = everything(database)

    with pytest.raises(TooManyQueued):
        jobs.retry(job.id, TENANT, queue=QUEUE, max_queued=1)

    assert everything(database) == before
    assert jobs.retry(job.id, TENANT, queue=QUEUE, max_queued=2).retry_of == job.id


def test_a_cancelled_upload_can_be_tried_again_and_published(jobs: JobStore, clock: Clock) -> None:
    claim = uploading(jobs)
    jobs.cancel(claim.job.id, TENANT)
    again = jobs.retry(claim.job.id, TENANT, queue=QUEUE)
    speak(jobs, take(jobs))
    encoder = take(jobs, MEDIA)
    jobs.uploading(encoder, key=key(encoder))

    assert jobs.complete(encoder, audio(encoder)).id == again.id
    assert [orphan.key for orphan in jobs.orphaned_objects(limit=10)] == [key(claim)]
