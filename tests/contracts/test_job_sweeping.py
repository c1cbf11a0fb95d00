"""What a job store tells its sweepers, on SQLite and on PostgreSQL: what is ready, and whose time is over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jobs.database import Database
from jobs.job import Claim, Fenced, Status
from jobs.store import ORPHAN_SECONDS, ZOMBIE_SECONDS, JobStore, StoredKey

from ..jobs.databases import Clock, everything, rows
from .job_steps import (
    BROKEN,
    HOOK,
    LEASE,
    MEDIA,
    QUEUE,
    WEBHOOKS,
    at_once,
    audio,
    begin,
    completed,
    encoding,
    job_store,
    key,
    new,
    speak,
    take,
    uploading,
)

# --- what is ready ---------------------------------------------------------------------------------------


def test_ready_work_is_counted_by_queue_up_to_a_cap(jobs: JobStore, clock: Clock) -> None:
    assert jobs.ready(cap=10) == {}
    completed(jobs, new(webhook_url=HOOK))
    for _ in range(5):
        jobs.create(new())
    jobs.create(new(queue="gpu.other"))
    take(jobs)

    assert jobs.ready(cap=10) == {QUEUE: 4, "gpu.other": 1, WEBHOOKS: 1}
    assert jobs.ready(cap=3) == {QUEUE: 3, "gpu.other": 1, WEBHOOKS: 1}
    clock.advance(LEASE)
    assert jobs.ready(cap=10)[QUEUE] == 5


def test_jobs_and_deliveries_of_one_queue_are_counted_together(database: Database) -> None:
    jobs = job_store(database, webhook_queue=MEDIA)
    completed(jobs, new(webhook_url=HOOK))
    jobs.create(new(queue=MEDIA))

    assert jobs.ready(cap=10) == {MEDIA: 2}


# --- deadlines -------------------------------------------------------------------------------------------


def test_jobs_that_nobody_began_in_time_expire(jobs: JobStore, database: Database, clock: Clock) -> None:
    late = jobs.create(new(deadline=60, webhook_url=HOOK))
    in_time = jobs.create(new(deadline=61))
    patient = jobs.create(new())
    clock.advance(59.5)
    assert jobs.expire(limit=10) == 0

    clock.advance(0.5)

    assert jobs.expire(limit=10) == 1
    assert jobs.expire(limit=10) == 0
    ended = jobs.get(late.id, "ten_a")
    assert (ended.status, ended.queue, ended.error) == (Status.EXPIRED, None, None)
    assert ended.completed_at == ended.deadline
    assert ended.started_at is None
    assert {jobs.get(job.id, "ten_a").status for job in (in_time, patient)} == {Status.QUEUED}
    assert [(event["job"], event["type"]) for event in rows(database, "events")] == [
        (late.id, "speech.job.expired")
    ]
    assert len(rows(database, "deliveries")) == 1


def test_a_job_that_was_begun_does_not_expire(jobs: JobStore, clock: Clock) -> None:
    held, waiting = jobs.create(new(deadline=5)), jobs.create(new(deadline=5))
    take(jobs)
    jobs.release(take(jobs))
    clock.advance(600)

    assert jobs.expire(limit=10) == 0
    assert {jobs.get(job.id, "ten_a").status for job in (held, waiting)} == {Status.IN_PROGRESS}


def test_no_more_expire_at_once_than_asked_for(jobs: JobStore, clock: Clock) -> None:
    for _ in range(5):
        jobs.create(new(deadline=1))
    clock.advance(1)

    assert [jobs.expire(limit=2) for _ in range(4)] == [2, 2, 1, 0]


@pytest.mark.slow
def test_sweepers_at_once_expire_each_job_once(
    crowd: list[JobStore], database: Database, clock: Clock
) -> None:
    made = [crowd[0].create(new(tenant=f"ten_{number % 3}", deadline=1)).id for number in range(60)]
    clock.advance(1)

    answers = at_once(*(lambda store=store: store.expire(limit=100) for store in crowd[:4]))

    assert sum(answer for answer in answers if isinstance(answer, int)) == len(made), answers
    assert sorted(event["job"] for event in rows(database, "events")) == sorted(made)
    assert {row["status"] for row in rows(database, "jobs")} == {"expired"}


@pytest.mark.slow
def test_a_job_is_claimed_or_expires_and_never_both(
    crowd: list[JobStore], database: Database, clock: Clock
) -> None:
    # The claimers live a moment earlier than the sweepers: whoever comes first has it.
    for _ in range(40):
        crowd[0].create(new(deadline=1))
    clock.advance(0.5)
    claims: list[Claim] = []

    def claim(store: JobStore) -> None:
        while (claimed := store.claim(QUEUE, holder="worker")) is not None:
            claims.append(claimed)
            clock.advance(0.05)

    def expire(store: JobStore) -> None:
        for _ in range(40):
            store.expire(limit=3)

    todo = [lambda store=store: claim(store) for store in crowd[:3]]
    answers = at_once(*todo, *(lambda store=store: expire(store) for store in crowd[3:5]))
    crowd[0].expire(limit=100)

    assert [answer for answer in answers if answer is not None] == []
    begun = {claimed.job.id for claimed in claims}
    expired = {event["job"] for event in rows(database, "events")}
    assert len(begun) + len(expired) == 40
    assert begun & expired == set()
    for row in rows(database, "jobs"):
        assert row["status"] == ("in_progress" if row["id"] in begun else "expired")


# --- published objects -----------------------------------------------------------------------------------


def test_audio_is_deleted_when_its_time_is_over(jobs: JobStore, database: Database, clock: Clock) -> None:
    claim, job = completed(jobs, new(expires_in=60))
    clock.advance(59)
    assert jobs.expired_objects(limit=10) == []

    clock.advance(1)

    due = [StoredKey(key=key(claim), owner=job.id)]
    assert jobs.expired_objects(limit=10) == due
    # Whoever was to delete it died: the next call names it again.
    assert jobs.expired_objects(limit=10) == due
    jobs.forget_object(key(claim))
    assert jobs.expired_objects(limit=10) == []
    assert rows(database, "objects") == []


def test_no_more_is_named_than_asked_for(jobs: JobStore, clock: Clock) -> None:
    for _ in range(3):
        completed(jobs, new(expires_in=60))
    clock.advance(61)

    assert len(jobs.expired_objects(limit=2)) == 2


def test_live_and_pending_entries_are_not_forgotten(jobs: JobStore, database: Database) -> None:
    claim, _ = completed(jobs)
    pending = uploading(jobs)

    jobs.forget_object(key(claim))
    jobs.forget_object(key(pending))

    assert {entry["state"] for entry in rows(database, "objects")} == {"live", "pending"}
    assert len(rows(database, "objects")) == 2


# --- orphans ---------------------------------------------------------------------------------------------


Fate = Callable[[JobStore, Claim, Clock], None]


def _in_hand(jobs: JobStore, claim: Claim, clock: Clock) -> None:
    clock.advance(LEASE * 100)


def _let_go(jobs: JobStore, claim: Claim, clock: Clock) -> None:
    jobs.release(claim)


def _published(jobs: JobStore, claim: Claim, clock: Clock) -> None:
    jobs.complete(claim, audio(claim))


@pytest.mark.parametrize("state", [_in_hand, _let_go, _published])
def test_what_may_be_published_or_is_is_no_orphan(
    jobs: JobStore, database: Database, clock: Clock, state: Fate
) -> None:
    claim = uploading(jobs)
    state(jobs, claim, clock)
    before = everything(database)

    assert jobs.orphaned_objects(limit=10) == []
    jobs.abandon(key(claim))

    assert everything(database) == before


def _failed(jobs: JobStore, claim: Claim, clock: Clock) -> None:
    jobs.fail(claim, BROKEN)


def _cancelled(jobs: JobStore, claim: Claim, clock: Clock) -> None:
    jobs.cancel(claim.job.id, "ten_a")


def _claimed_again(jobs: JobStore, claim: Claim, clock: Clock) -> None:
    clock.advance(LEASE)
    again = take(jobs, MEDIA)
    jobs.uploading(again, key=key(again))


def _published_by_another(jobs: JobStore, claim: Claim, clock: Clock) -> None:
    clock.advance(LEASE)
    again = take(jobs, MEDIA)
    jobs.uploading(again, key=key(again))
    jobs.complete(again, audio(again))


def _spoken_again(jobs: JobStore, claim: Claim, clock: Clock) -> None:
    jobs.release(claim)
    again = take(jobs, MEDIA)
    jobs.remake(again, jobs.clips(again.job.id))


@pytest.mark.parametrize(
    "end",
    [_failed, _cancelled, _claimed_again, _published_by_another, _spoken_again],
    ids=lambda end: end.__name__,
)
def test_what_nobody_can_publish_any_more_is_deleted_at_once_and_once_more_later(
    jobs: JobStore, clock: Clock, end: Fate
) -> None:
    claim = uploading(jobs, new(expires_in=864_000))
    end(jobs, claim, clock)
    orphan = StoredKey(key=key(claim), owner=claim.job.id)

    assert jobs.orphaned_objects(limit=10) == [orphan]
    # Whoever was to delete it died.
    assert jobs.orphaned_objects(limit=10) == [orphan]
    jobs.abandon(key(claim))

    assert jobs.orphaned_objects(limit=10) == []
    clock.advance(ORPHAN_SECONDS - 1)
    assert jobs.expired_objects(limit=10) == []
    # An upload that began in that time may have ended after the first deletion.
    clock.advance(1)
    assert jobs.expired_objects(limit=10) == [orphan]
    jobs.forget_object(key(claim))
    assert jobs.expired_objects(limit=10) == []


def test_no_more_orphans_are_named_than_asked_for(jobs: JobStore) -> None:
    for _ in range(3):
        jobs.fail(uploading(jobs), BROKEN)

    assert len(jobs.orphaned_objects(limit=2)) == 2
    assert len(jobs.orphaned_objects(limit=10)) == 3


def test_an_abandoned_key_cannot_be_published(jobs: JobStore, database: Database, clock: Clock) -> None:
    claim = uploading(jobs)
    _claimed_again(jobs, claim, clock)
    jobs.abandon(key(claim))

    with pytest.raises(Fenced):
        jobs.complete(claim, audio(claim))

    assert {row["state"] for row in rows(database, "objects")} == {"deleting", "pending"}


# --- staged objects --------------------------------------------------------------------------------------


def test_staged_objects_are_left_over_once_their_job_ended_and_every_zombie_knows(
    jobs: JobStore, clock: Clock
) -> None:
    _, done = completed(jobs)
    working = encoding(jobs)
    jobs.create(new())
    unstaged = jobs.fail(take(jobs), BROKEN)
    clock.advance(ZOMBIE_SECONDS)
    assert jobs.staged_leftovers(limit=10) == []
    clock.advance(1)
    assert jobs.staged_leftovers(limit=10) == [done.id]

    # Not while it is worked on.
    jobs.staged_gone(working.job.id)
    failed = jobs.fail(working, BROKEN)
    clock.advance(ZOMBIE_SECONDS + 1)

    assert jobs.staged_leftovers(limit=10) == sorted([done.id, failed.id])
    assert len(jobs.staged_leftovers(limit=1)) == 1
    jobs.staged_gone(done.id)
    assert jobs.staged_leftovers(limit=10) == [failed.id]
    assert unstaged.id not in jobs.staged_leftovers(limit=10)


@pytest.mark.parametrize("begun", [True, False])
def test_of_a_cancelled_job_what_was_staged_is_left_over(jobs: JobStore, clock: Clock, begun: bool) -> None:
    job = jobs.create(new())
    claim = take(jobs)
    if begun:
        begin(jobs, claim)
    jobs.cancel(job.id, "ten_a")
    clock.advance(ZOMBIE_SECONDS + 1)

    assert jobs.staged_leftovers(limit=10) == ([job.id] if begun else [])


# --- how much there is -----------------------------------------------------------------------------------


def test_the_backlog_tells_each_lane(jobs: JobStore, clock: Clock) -> None:
    assert jobs.backlog() == []
    first = jobs.create(new("x" * 100))
    clock.advance(5)
    jobs.create(new("x" * 10))
    jobs.create(new("x" * 7, tenant="ten_b"))
    claim = take(jobs)
    assert claim.job.id == first.id
    begin(jobs, claim, left=60)
    completed_later = new("x" * 50, tenant="ten_c", queue="cpu.other")
    jobs.create(completed_later)
    speak(jobs, take(jobs, "cpu.other"))
    clock.advance(2)

    lanes = {(lane.queue, lane.tenant_id): lane for lane in jobs.backlog()}

    a, b, c = lanes[QUEUE, "ten_a"], lanes[QUEUE, "ten_b"], lanes[MEDIA, "ten_c"]
    assert len(lanes) == 3
    assert (a.jobs, a.characters, a.age) == (2, 70, 7.0)
    assert (b.jobs, b.characters, b.age) == (1, 7, 2.0)
    # Its place is a little later: its audio is a second long.
    assert (c.jobs, c.characters) == (1, 0)
    assert c.age == pytest.approx(1.9, abs=1e-5)


def test_what_is_worked_on_is_what_is_held(jobs: JobStore, clock: Clock) -> None:
    assert jobs.running() == []
    for tenant in ("ten_a", "ten_b", "ten_c"):
        jobs.create(new("x" * 20, tenant=tenant))
    jobs.release(take(jobs, holder="let go"))
    claim = take(jobs)
    begin(jobs, claim, left=9)

    (running,) = jobs.running()

    assert (running.queue, running.job_class) == (QUEUE, claim.job.job_class)
    assert (running.tenant_id, running.characters) == (claim.job.tenant_id, 9)
    clock.advance(LEASE)
    # It fell silent.
    assert jobs.running() == []


def test_ahead_of_a_job_is_what_its_tenant_asked_for_before(jobs: JobStore, clock: Clock) -> None:
    made = []
    for length in (100, 10, 1):
        made.append(jobs.create(new("x" * length)))
        clock.advance(1)
    jobs.create(new("x" * 1000, tenant="ten_b"))

    assert [jobs.ahead(job) for job in made] == [0, 100, 110]
    assert jobs.ahead(made[2], cap=1) == 100
    begin(jobs, take(jobs), left=30)
    assert jobs.ahead(made[2]) == 40


def test_an_empty_database_has_nothing_to_sweep(jobs: JobStore, database: Database) -> None:
    assert jobs.expire(limit=10) == 0
    assert jobs.promote() == 0
    assert jobs.orphaned_objects(limit=10) == []
    assert jobs.expired_objects(limit=10) == []
    assert jobs.staged_leftovers(limit=10) == []
    jobs.abandon("audio/unknown")
    jobs.forget_object("audio/unknown")
    assert everything(database) == {name: [] for name in everything(database)}
