"""How a job store shares its workers out, on SQLite and on PostgreSQL: lanes, giving way, ageing, limits."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, Final

import pytest

from jobs.database import Database
from jobs.job import Claim, Job, JobClass, JobId, Stage, Status, TooManyQueued
from jobs.lanes import AGEING_SECONDS, ROTATION, SHORTER
from jobs.store import LENGTH_WEIGHT, NEAR_LIMIT, JobStore

from ..jobs.databases import START, Clock, everything, rows
from .job_steps import (
    BROKEN,
    LEASE,
    MEDIA,
    QUEUE,
    at_once,
    begin,
    encoding,
    job_store,
    new,
    speak,
    take,
)

BOOK: Final = "x" * 1000
LINE: Final = "x" * (1000 // SHORTER)


def _book(jobs: JobStore, **changes: Any) -> Claim:
    """Return a book that is held and begun."""
    jobs.create(new(BOOK, **changes))
    claim = take(jobs)
    begin(jobs, claim, chunks=10)
    return claim


def _swap(jobs: JobStore, claim: Claim, *, left: int = 1000, turn_is_over: bool = False) -> Claim | None:
    """Give way, if anything better waits; `better` must say the same before."""
    expected = jobs.better(claim, left=left, turn_is_over=turn_is_over)
    got = jobs.swap(claim, holder=f"{claim.job.id}'s worker", left=left, turn_is_over=turn_is_over)
    assert (got is not None) == expected
    return got


def _kept(database: Database, claim: Claim) -> bool:
    """Whether the claimed job is still held under its epoch."""
    (row,) = [row for row in rows(database, "jobs") if row["id"] == claim.job.id]
    return (row["epoch"], row["holder"] is not None) == (claim.job.epoch, True)


# --- how many of one tenant ------------------------------------------------------------------------------


def test_a_tenant_has_no_more_work_in_hand_than_it_may(database: Database, clock: Clock) -> None:
    jobs = job_store(database, max_running=2)
    for _ in range(4):
        jobs.create(new(tenant="ten_a"))
    clock.advance(1)
    jobs.create(new(tenant="ten_b"))

    assert [take(jobs).job.tenant_id for _ in range(3)] == ["ten_a", "ten_b", "ten_a"]
    assert jobs.claim(QUEUE, holder="worker") is None

    clock.advance(LEASE)
    # Those fell silent, and do not count.
    assert take(jobs).job.tenant_id == "ten_a"


def test_the_limit_of_running_jobs_is_one_of_each_queue(database: Database) -> None:
    jobs = job_store(database, max_running=1)
    encoding(jobs)
    jobs.create(new())
    jobs.create(new(queue="gpu.other"))

    assert take(jobs).job.stage is Stage.SYNTHESIZING
    assert take(jobs, "gpu.other").job.stage is Stage.SYNTHESIZING
    jobs.create(new())
    assert jobs.claim(QUEUE, holder="worker") is None


def test_urgent_jobs_of_a_tenant_at_its_limit_are_passed_over(database: Database) -> None:
    jobs = job_store(database, max_running=1)
    jobs.create(new(tenant="ten_a"))
    take(jobs)
    jobs.create(new(tenant="ten_a", job_class=JobClass.LIVE))
    jobs.create(new(tenant="ten_b", job_class=JobClass.LOW))

    # Nobody could take it, so nobody has to be interrupted for it.
    assert not jobs.urgent(QUEUE)
    assert take(jobs).job.tenant_id == "ten_b"


def test_a_job_that_gives_way_leaves_its_place_to_its_own_tenant(database: Database) -> None:
    jobs = job_store(database, max_running=1)
    claim = _book(jobs)
    line = jobs.create(new(LINE))
    jobs.create(new(LINE, tenant="ten_b"))

    got = _swap(jobs, claim)

    assert got is not None
    assert got.job.id == line.id


def test_nobody_gives_way_to_a_tenant_at_its_limit(database: Database) -> None:
    jobs = job_store(database, max_running=1)
    claim = _book(jobs)
    jobs.create(new(LINE, tenant="ten_b"))
    take(jobs)
    jobs.create(new(LINE, tenant="ten_b"))
    jobs.create(new(LINE, tenant="ten_b", job_class=JobClass.LIVE))

    assert _swap(jobs, claim) is None
    assert _swap(jobs, claim, turn_is_over=True) is None


@pytest.mark.slow
def test_workers_at_once_do_not_exceed_the_limit_of_running_jobs(
    crowd: list[JobStore], database: Database, url: str
) -> None:
    limited = [job_store(store._db, max_running=2) for store in crowd]
    for tenant in ("ten_a", "ten_b", "ten_c"):
        for _ in range(10):
            crowd[0].create(new(tenant=tenant))

    for _ in range(5):
        at_once(*(lambda store=store: store.claim(QUEUE, holder="worker") for store in limited))

    held = Counter(row["tenant_id"] for row in rows(database, "jobs") if row["holder"] is not None)
    assert max(held.values()) <= 2
    # Whoever found a lane locked comes back with the next bell.
    while limited[0].claim(QUEUE, holder="worker") is not None:
        pass
    held = Counter(row["tenant_id"] for row in rows(database, "jobs") if row["holder"] is not None)
    assert held == {"ten_a": 2, "ten_b": 2, "ten_c": 2}


# --- how many may wait -----------------------------------------------------------------------------------


def test_a_tenant_has_no_more_jobs_waiting_than_it_may(jobs: JobStore, database: Database) -> None:
    for _ in range(3):
        jobs.create(new(), max_queued=3)
    before = everything(database)

    with pytest.raises(TooManyQueued) as refused:
        jobs.create(new(), max_queued=3)

    assert refused.value.limit == 3
    assert everything(database) == before
    jobs.create(new(tenant="ten_b"), max_queued=3)
    jobs.create(new())
    # What was begun or has ended does not wait.
    claims = [take(jobs) for _ in range(3)]
    jobs.release(claims[0])
    jobs.create(new(), max_queued=3)
    with pytest.raises(TooManyQueued):
        jobs.create(new(), max_queued=3)


def test_a_tenant_that_may_have_none_waiting_gets_none(jobs: JobStore) -> None:
    with pytest.raises(TooManyQueued):
        jobs.create(new(), max_queued=0)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [5, NEAR_LIMIT + 20])
def test_the_limit_of_waiting_jobs_is_exact_however_many_ask_at_once(
    crowd: list[JobStore], database: Database, limit: int
) -> None:
    def ask(store: JobStore) -> int:
        refused = 0
        for _ in range(8):
            try:
                store.create(new(), max_queued=limit)
            except TooManyQueued:
                refused += 1
        return refused

    answers = at_once(*(lambda store=store: ask(store) for store in (*crowd, *crowd[:6])))

    refused = [answer for answer in answers if isinstance(answer, int)]
    assert len(refused) == 16, answers
    assert len(rows(database, "jobs")) == limit
    assert sum(refused) == 16 * 8 - limit


# --- encoders --------------------------------------------------------------------------------------------


def _spoken(jobs: JobStore, seconds: float, **changes: Any) -> JobId:
    job = jobs.create(new(**changes))
    speak(jobs, take(jobs), seconds=seconds)
    return job.id


def test_shorter_audio_is_encoded_first(jobs: JobStore) -> None:
    made = {seconds: _spoken(jobs, seconds) for seconds in (600, 5, 60, 1)}

    order = [take(jobs, MEDIA).job.id for _ in made]

    assert order == [made[seconds] for seconds in (1, 5, 60, 600)]


def test_a_book_waits_for_newcomers_for_a_while_and_no_longer(jobs: JobStore, clock: Clock) -> None:
    hour = 3600
    book = _spoken(jobs, hour)
    clock.advance(LENGTH_WEIGHT * hour - 2)
    before = _spoken(jobs, 1)
    clock.advance(4)
    after = _spoken(jobs, 1)

    assert [take(jobs, MEDIA).job.id for _ in range(3)] == [before, book, after]


def test_a_book_of_ten_hours_is_encoded_under_an_endless_stream_of_lines(
    jobs: JobStore, clock: Clock
) -> None:
    book = _spoken(jobs, 36_000)
    waited = 0
    while True:
        _spoken(jobs, 2)
        claim = take(jobs, MEDIA)
        if claim.job.id == book:
            break
        jobs.fail(claim, BROKEN)
        clock.advance(60)
        waited += 60

    assert waited <= LENGTH_WEIGHT * 36_000 + 60


def test_a_lane_of_its_own_is_kept_for_short_audio(jobs: JobStore) -> None:
    long, short = _spoken(jobs, 600), _spoken(jobs, 10, tenant="ten_b")
    live = _spoken(jobs, 601, tenant="ten_b", job_class=JobClass.LIVE)

    assert take(jobs, MEDIA, longest_ms=599_999).job.id == short
    assert jobs.claim(MEDIA, holder="encoder", longest_ms=599_999) is None
    assert take(jobs, MEDIA, longest_ms=600_000).job.id == long
    assert take(jobs, MEDIA).job.id == live


def test_the_first_short_audio_of_a_lane_is_found_behind_long_ones(jobs: JobStore, clock: Clock) -> None:
    for _ in range(3):
        _spoken(jobs, 600)
    clock.advance(600)
    short = _spoken(jobs, 10)

    assert take(jobs, MEDIA, longest_ms=20_000).job.id == short


# --- giving way ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "other"), [(mine, other) for mine in JobClass for other in JobClass], ids=lambda each: each.name
)
@pytest.mark.parametrize("turn_is_over", [False, True])
def test_a_job_gives_way_to_a_more_urgent_class_and_at_the_end_of_its_turn_to_its_own(
    jobs: JobStore, database: Database, mine: JobClass, other: JobClass, turn_is_over: bool
) -> None:
    claim = _book(jobs, job_class=mine)
    waiting = jobs.create(new(BOOK, tenant="ten_b", job_class=other))

    got = _swap(jobs, claim, turn_is_over=turn_is_over)

    if other < mine or (turn_is_over and other == mine):
        assert got is not None
        assert (got.job.id, got.job.epoch) == (waiting.id, 1)
        let_go = jobs.get(claim.job.id, "ten_a")
        assert (let_go.held, let_go.stage, let_go.failures) == (False, Stage.SYNTHESIZING, 0)
        assert jobs.ready(cap=10) == {QUEUE: 1}
    else:
        assert got is None
        assert _kept(database, claim)
        assert jobs.get(waiting.id, "ten_b").status is Status.QUEUED


@pytest.mark.parametrize("tenant", ["ten_a", "ten_b"])
@pytest.mark.parametrize(
    ("left", "needs", "gives_way"),
    [(1000, 250, True), (1000, 251, False), (999, 250, False), (4, 1, True), (3, 1, False), (1000, 1, True)],
)
def test_a_job_gives_way_to_one_of_its_class_that_needs_a_quarter_of_what_it_still_needs(
    jobs: JobStore, database: Database, tenant: str, left: int, needs: int, gives_way: bool
) -> None:
    claim = _book(jobs)
    waiting = jobs.create(new("x" * needs, tenant=tenant))

    got = _swap(jobs, claim, left=left)

    assert (got is not None) == gives_way
    assert _kept(database, claim) != gives_way
    assert (jobs.get(waiting.id, tenant).status is Status.IN_PROGRESS) == gives_way


def test_what_counts_is_what_a_job_still_needs(jobs: JobStore) -> None:
    claim = _book(jobs)
    begun = _book(jobs, tenant="ten_b")
    jobs.release(begun)
    assert _swap(jobs, claim) is None
    begun = take(jobs)
    begin(jobs, begun, left=1000 // SHORTER)
    jobs.release(begun)

    got = _swap(jobs, claim)

    assert got is not None
    assert (got.job.id, got.job.epoch) == (begun.job.id, 3)


def test_a_line_behind_its_own_tenants_books_is_found(jobs: JobStore, clock: Clock) -> None:
    claim = _book(jobs)
    for _ in range(20):
        jobs.create(new(BOOK))
        clock.advance(0.01)
    line = jobs.create(new(LINE))

    got = _swap(jobs, claim)

    assert got is not None
    assert got.job.id == line.id


def test_the_line_of_the_tenant_with_the_least_running_work_is_taken(jobs: JobStore, clock: Clock) -> None:
    claim = _book(jobs)
    jobs.create(new("x", tenant="ten_b"))
    take(jobs)
    for tenant in ("ten_b", "ten_c"):
        jobs.create(new(LINE, tenant=tenant))
        clock.advance(1)

    got = _swap(jobs, claim)

    assert got is not None
    assert got.job.tenant_id == "ten_c"


def test_a_more_urgent_book_goes_before_a_line_of_the_same_class(jobs: JobStore) -> None:
    claim = _book(jobs)
    jobs.create(new("x", tenant="ten_b"))
    urgent = jobs.create(new(BOOK * 10, tenant="ten_c", job_class=JobClass.HIGH))

    got = _swap(jobs, claim)

    assert got is not None
    assert got.job.id == urgent.id


def test_equal_books_do_not_take_turns_at_every_chunk(jobs: JobStore, database: Database) -> None:
    claim = _book(jobs)
    jobs.create(new(BOOK, tenant="ten_b"))

    for left in range(1000, 1000 // SHORTER, -50):
        assert _swap(jobs, claim, left=left) is None
    assert _kept(database, claim)


def test_whoever_keeps_its_job_keeps_all_of_it(jobs: JobStore, database: Database, clock: Clock) -> None:
    claim = _book(jobs)
    before = everything(database)
    clock.advance(10)

    assert _swap(jobs, claim, turn_is_over=True) is None

    after = everything(database)
    assert after["jobs"][0].pop("visible_at") == START + 10 + LEASE
    before["jobs"][0].pop("visible_at")
    assert after == before


def test_a_queue_gives_way_to_its_own_jobs_only(jobs: JobStore) -> None:
    claim = _book(jobs)
    jobs.create(new(LINE, queue="gpu.other", job_class=JobClass.LIVE))

    assert _swap(jobs, claim, turn_is_over=True) is None


def test_a_job_that_backs_off_or_is_held_is_not_better(jobs: JobStore) -> None:
    jobs.create(new(LINE, job_class=JobClass.LIVE))
    jobs.retry_later(take(jobs), BROKEN)
    jobs.create(new(LINE, job_class=JobClass.LIVE))
    take(jobs)
    claim = _book(jobs)

    assert _swap(jobs, claim, turn_is_over=True) is None


def test_nobody_gives_way_to_the_job_in_hand(jobs: JobStore, clock: Clock) -> None:
    # Its worker was frozen for so long that the job is ready for others, and nobody has taken it.
    claim = _book(jobs)
    clock.advance(LEASE * 3)

    assert jobs.swap(claim, holder="worker", left=1000, turn_is_over=True) is None

    job = jobs.get(claim.job.id, "ten_a")
    assert (job.epoch, job.failures, job.status) == (claim.job.epoch, 0, Status.IN_PROGRESS)


def test_candidates_that_are_poison_or_too_late_are_ended_and_the_next_is_taken(
    jobs: JobStore, database: Database, clock: Clock
) -> None:
    claim = _book(jobs)
    poison = jobs.create(new(LINE, job_class=JobClass.LIVE))
    for _ in range(3):
        assert take(jobs).job.id == poison.id
        clock.advance(LEASE)
        jobs.renew(claim.job.id, claim.job.epoch)
    late = jobs.create(new(LINE, job_class=JobClass.HIGH, deadline=1))
    clock.advance(1)
    line = jobs.create(new(LINE, tenant="ten_b"))

    got = jobs.swap(claim, holder="worker", left=1000, turn_is_over=False)

    assert got is not None
    assert got.job.id == line.id
    assert jobs.get(poison.id, "ten_a").status is Status.FAILED
    assert jobs.get(late.id, "ten_a").status is Status.EXPIRED
    assert Counter(event["type"] for event in rows(database, "events")) == {
        "speech.job.failed": 1,
        "speech.job.expired": 1,
    }


def test_where_all_candidates_end_the_job_in_hand_is_kept(
    jobs: JobStore, database: Database, clock: Clock
) -> None:
    claim = _book(jobs)
    for _ in range(3):
        jobs.create(new(LINE, job_class=JobClass.LIVE, deadline=1))
    clock.advance(1)

    assert jobs.swap(claim, holder="worker", left=1000, turn_is_over=False) is None

    assert _kept(database, claim)
    assert len(rows(database, "events")) == 3


def test_a_live_job_is_urgent_while_it_waits(jobs: JobStore, clock: Clock) -> None:
    jobs.create(new(job_class=JobClass.HIGH))
    assert not jobs.urgent(QUEUE)
    jobs.create(new(job_class=JobClass.LIVE))
    assert jobs.urgent(QUEUE)
    assert not jobs.urgent("gpu.other")

    claim = take(jobs)

    assert not jobs.urgent(QUEUE)
    jobs.release(claim)
    assert jobs.urgent(QUEUE)


# --- turns -----------------------------------------------------------------------------------------------


def test_a_job_whose_turn_is_over_goes_behind_a_few_others_of_its_lane(jobs: JobStore, clock: Clock) -> None:
    made = []
    for _ in range(8):
        made.append(jobs.create(new(BOOK)).id)
        clock.advance(1)
    claim = take(jobs)
    order = [claim.job.id]
    for _ in range(11):
        got = _swap(jobs, claim, turn_is_over=True)
        assert got is not None
        claim = got
        order.append(claim.job.id)
        clock.advance(300)

    names = [made.index(job_id) for job_id in order]
    # So many take turns, and the rest of the shelf waits until one of them is done.
    assert names == [number % (ROTATION + 1) for number in range(12)]


def test_a_few_books_take_turns_in_order(jobs: JobStore, clock: Clock) -> None:
    made = []
    for _ in range(3):
        made.append(jobs.create(new(BOOK)).id)
        clock.advance(1)
    claim = take(jobs)
    order = [claim.job.id]
    for _ in range(5):
        clock.advance(300)
        got = _swap(jobs, claim, turn_is_over=True)
        assert got is not None
        claim = got
        order.append(claim.job.id)

    assert order == made * 2


def test_a_job_that_gave_way_within_its_turn_keeps_its_place(jobs: JobStore, clock: Clock) -> None:
    first = jobs.create(new(BOOK))
    clock.advance(1)
    jobs.create(new(BOOK))
    claim = take(jobs)
    clock.advance(1)
    jobs.create(new(LINE))
    assert _swap(jobs, claim) is not None

    again = take(jobs)

    assert again.job.id == claim.job.id == first.id
    assert again.job.queued_at == first.queued_at


# --- a crowd ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("job_class", [JobClass.LIVE, JobClass.NORMAL], ids=lambda each: each.name)
@pytest.mark.parametrize("tenants", [1, 10])
def test_of_ten_workers_at_a_border_one_gives_way_to_one_line(
    crowd: list[JobStore], job_class: JobClass, tenants: int
) -> None:
    for number in range(10):
        crowd[0].create(new(BOOK, tenant=f"ten_{number % tenants}"))
    claims = [take(store, holder=f"worker-{number}") for number, store in enumerate(crowd)]
    for _ in range(5):
        waiting = crowd[0].create(new(LINE, tenant="ten_z", job_class=job_class))

        answers = _all_swap(crowd, claims, turn_is_over=False)

        (taken,) = [number for number, answer in enumerate(answers) if answer is not None]
        got = answers[taken]
        assert got is not None
        assert got.job.id == waiting.id
        assert crowd[0].ready(cap=10) == {QUEUE: 1}
        crowd[taken].fail(got, BROKEN)
        # The one that gave way goes on with its book.
        claims[taken] = take(crowd[taken])
        assert (claims[taken].job.characters, claims[taken].job.failures) == (len(BOOK), 0)


def _all_swap(crowd: list[JobStore], claims: list[Claim], *, turn_is_over: bool) -> list[Claim | None]:
    answers = at_once(
        *(
            lambda store=store, claim=claim: store.swap(
                claim, holder="worker", left=1000, turn_is_over=turn_is_over
            )
            for store, claim in zip(crowd, claims, strict=True)
        )
    )
    got: list[Claim | None] = []
    for answer in answers:
        assert not isinstance(answer, Exception), answer
        got.append(answer)
    return got


@pytest.mark.slow
def test_books_whose_turns_are_over_at_once_are_dealt_anew_and_none_is_left_over(
    crowd: list[JobStore], database: Database
) -> None:
    for number in range(11):
        crowd[0].create(new(BOOK, tenant=f"ten_{number % 3}"))
    claims = [take(store) for store in crowd]
    (waiting,) = [row["id"] for row in rows(database, "jobs") if row["status"] == "queued"]

    answers = _all_swap(crowd, claims, turn_is_over=True)

    held = [(answer or claim).job.id for answer, claim in zip(answers, claims, strict=True)]
    assert waiting in held
    assert len(set(held)) == 10
    assert {row["id"] for row in rows(database, "jobs") if row["holder"] is not None} == set(held)
    assert crowd[0].ready(cap=20) == {QUEUE: 1}


@pytest.mark.slow
def test_of_ten_workers_as_many_give_way_as_lines_wait(crowd: list[JobStore]) -> None:
    for number in range(10):
        crowd[0].create(new(BOOK, tenant=f"ten_{number}"))
    claims = [take(store) for store in crowd]
    lines = {crowd[0].create(new(LINE, tenant="ten_z", job_class=JobClass.LIVE)).id for _ in range(4)}

    answers = _all_swap(crowd, claims, turn_is_over=False)

    # Of one lane's head there is one at a time: whoever met a locked one asks again at its next border.
    got = {answer.job.id for answer in answers if answer is not None}
    assert len(got) == sum(answer is not None for answer in answers)
    assert got <= lines
    for store, claim, answer in zip(crowd, claims, answers, strict=True):
        if answer is None:
            store.swap(claim, holder="w", left=1000, turn_is_over=False)
    assert crowd[0].ready(cap=10) == {QUEUE: 4}


# --- ageing ----------------------------------------------------------------------------------------------


def _classes(jobs: JobStore, *made: Job) -> list[JobClass]:
    return [jobs.get(job.id, job.tenant_id).job_class for job in made]


def test_a_job_that_waited_long_is_promoted_one_class_at_a_time_and_never_to_live(
    jobs: JobStore, clock: Clock
) -> None:
    job = jobs.create(new(job_class=JobClass.LOW))
    clock.advance(AGEING_SECONDS - 1)
    assert jobs.promote() == 0
    clock.advance(1)
    assert (jobs.promote(), _classes(jobs, job)) == (1, [JobClass.NORMAL])
    clock.advance(AGEING_SECONDS - 1)
    assert jobs.promote() == 0
    clock.advance(1)
    assert (jobs.promote(), _classes(jobs, job)) == (1, [JobClass.HIGH])
    clock.advance(AGEING_SECONDS * 100)

    assert (jobs.promote(), _classes(jobs, job)) == (0, [JobClass.HIGH])
    # Its place is that of its age.
    assert jobs.get(job.id, "ten_a").queued_at == job.queued_at
    # The owner sees its class.
    assert jobs.get(job.id, "ten_a").version == job.version + 2


def test_high_and_live_jobs_are_not_promoted(jobs: JobStore, clock: Clock) -> None:
    made = [jobs.create(new(job_class=job_class)) for job_class in (JobClass.HIGH, JobClass.LIVE)]
    clock.advance(AGEING_SECONDS * 10)

    assert jobs.promote() == 0
    assert _classes(jobs, *made) == [JobClass.HIGH, JobClass.LIVE]


def test_the_oldest_of_each_tenant_and_queue_is_promoted_and_no_other_until_it_is_done(
    jobs: JobStore, clock: Clock
) -> None:
    made = []
    for _ in range(3):
        made.append(jobs.create(new(job_class=JobClass.LOW)))
        clock.advance(1)
    other = jobs.create(new(job_class=JobClass.LOW, tenant="ten_b"))
    elsewhere = jobs.create(new(job_class=JobClass.NORMAL, queue="gpu.other"))
    clock.advance(AGEING_SECONDS)

    assert jobs.promote() == 3
    assert _classes(jobs, *made) == [JobClass.NORMAL, JobClass.LOW, JobClass.LOW]
    assert _classes(jobs, other, elsewhere) == [JobClass.NORMAL, JobClass.HIGH]
    assert jobs.promote() == 0
    # Promoted jobs compete in their new class, and the next one moves up when they are done.
    jobs.cancel(made[0].id, "ten_a")
    assert jobs.promote() == 1
    assert _classes(jobs, *made[1:]) == [JobClass.NORMAL, JobClass.LOW]


def test_a_tenant_with_a_promoted_job_has_no_other_promoted_from_another_class(
    jobs: JobStore, clock: Clock
) -> None:
    low, normal = jobs.create(new(job_class=JobClass.LOW)), jobs.create(new(job_class=JobClass.NORMAL))
    clock.advance(AGEING_SECONDS)

    assert jobs.promote() == 1

    assert _classes(jobs, low, normal) == [JobClass.LOW, JobClass.HIGH]


def test_what_is_held_is_not_promoted_and_what_waits_between_claims_is(jobs: JobStore, clock: Clock) -> None:
    job = jobs.create(new(job_class=JobClass.LOW))
    claim = take(jobs)
    clock.advance(AGEING_SECONDS)
    assert jobs.promote() == 0
    # Fallen silent, and not taken by anybody yet.
    assert _classes(jobs, job) == [JobClass.LOW]
    jobs.release(claim)

    assert jobs.promote() == 1

    again = take(jobs)
    assert again.job.job_class is JobClass.NORMAL


def test_a_job_that_backs_off_is_promoted_when_it_is_ready(jobs: JobStore, clock: Clock) -> None:
    job = jobs.create(new(job_class=JobClass.LOW))
    clock.advance(AGEING_SECONDS)
    jobs.retry_later(take(jobs), BROKEN)
    assert jobs.promote() == 0
    clock.advance(600)

    assert jobs.promote() == 1
    assert _classes(jobs, job) == [JobClass.NORMAL]


def test_a_promoted_job_stays_so_at_its_encoder(jobs: JobStore, clock: Clock) -> None:
    jobs.create(new(job_class=JobClass.LOW))
    clock.advance(AGEING_SECONDS)
    jobs.promote()

    speak(jobs, take(jobs))

    assert take(jobs, MEDIA).job.job_class is JobClass.NORMAL


@pytest.mark.slow
def test_sweepers_at_once_promote_each_job_once(
    crowd: list[JobStore], database: Database, clock: Clock
) -> None:
    for number in range(30):
        crowd[0].create(new(tenant=f"ten_{number % 10}", job_class=JobClass(2 + number % 2)))
    clock.advance(AGEING_SECONDS)

    answers = at_once(*(store.promote for store in crowd))

    assert sum(answer for answer in answers if isinstance(answer, int)) == 10, answers
    promoted = [row for row in rows(database, "jobs") if row["aged_from"] is not None]
    assert len({row["tenant_id"] for row in promoted}) == len(promoted) == 10
    assert all(row["class"] == row["aged_from"] - 1 for row in promoted)


@pytest.mark.parametrize("tenant", ["ten_a", "ten_b"])
@pytest.mark.parametrize("busy", [[JobClass.NORMAL], [JobClass.HIGH], [JobClass.HIGH, JobClass.NORMAL]])
def test_a_low_job_is_served_in_bounded_time_under_an_endless_stream_of_more_urgent_ones(
    jobs: JobStore, clock: Clock, tenant: str, busy: list[JobClass]
) -> None:
    low = jobs.create(new(job_class=JobClass.LOW))
    seconds, swept = 20, 60
    waited = 0
    while True:
        for job_class in busy:
            while sum(lane.jobs for lane in jobs.backlog() if lane.job_class is job_class) < 3:
                jobs.create(new(job_class=job_class, tenant=tenant))
        claim = take(jobs)
        if claim.job.id == low.id:
            break
        clock.advance(seconds)
        jobs.fail(claim, BROKEN)
        waited += seconds
        if waited % swept == 0:
            jobs.promote()
        assert waited < 10 * AGEING_SECONDS

    steps = 2 if JobClass.HIGH in busy else 1
    assert claim.job.queued_at == low.created_at
    assert waited <= steps * (AGEING_SECONDS + swept) + 3 * seconds
    assert claim.job.started_at == low.created_at + timedelta(seconds=waited)
