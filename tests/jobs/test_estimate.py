"""The estimate of a wait: laws, waits that can be worked out by hand, and whole fleets played through."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from statistics import quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.estimate import (
    HALF_CHUNK,
    MEDIA_AT_ONCE,
    MEDIA_SECONDS,
    TURN_SECONDS,
    Asked,
    InHand,
    Lane,
    Media,
    Work,
    Workers,
    audio_seconds,
    until_below,
    until_done,
    until_spoken,
    until_spoken_in_hand,
    until_start,
    work,
)
from jobs.job import JobClass, TenantId

from .sharing import Play, Player

ME = TenantId("me")
WORKER = Workers(count=1, seconds_per_char=0.1, rtf=0.1)

classes = st.sampled_from(JobClass)
tenants = st.sampled_from([ME, TenantId("a"), TenantId("b"), TenantId("c")])
hands = st.builds(InHand, job_class=classes, tenant_id=tenants, characters=st.integers(0, 100_000))
fleets = st.builds(
    Workers,
    count=st.integers(1, 20),
    seconds_per_char=st.floats(1e-5, 10),
    rtf=st.floats(0.001, 10),
    most_running=st.none() | st.integers(1, 5),
)


@st.composite
def lanes(draw: st.DrawFn) -> Lane:
    jobs = draw(st.integers(1, 50))
    return Lane(
        job_class=draw(classes), tenant_id=draw(tenants), jobs=jobs, characters=draw(st.integers(0, 10**6))
    )


@st.composite
def works(draw: st.DrawFn) -> Work:
    in_hand = draw(st.lists(hands, max_size=8))
    found = draw(st.lists(lanes(), max_size=8, unique_by=lambda lane: (lane.job_class, lane.tenant_id)))
    made = work(found, ())
    return replace(made, in_hand=in_hand)


@st.composite
def asks(draw: st.DrawFn) -> Asked:
    ahead_jobs = draw(st.integers(0, 50))
    return Asked(
        job_class=draw(classes),
        tenant_id=draw(tenants),
        characters=draw(st.integers(1, 10**5)),
        ahead=ahead_jobs and draw(st.integers(0, 10**6)),
        ahead_jobs=ahead_jobs,
    )


def _asked(characters: int = 100, *, ahead: int = 0, ahead_jobs: int = 0) -> Asked:
    return Asked(
        job_class=JobClass.NORMAL, tenant_id=ME, characters=characters, ahead=ahead, ahead_jobs=ahead_jobs
    )


def _lane(
    characters: int, *, jobs: int = 1, tenant: str = "a", job_class: JobClass = JobClass.NORMAL
) -> Lane:
    return Lane(job_class=job_class, tenant_id=TenantId(tenant), jobs=jobs, characters=characters)


def _hand(characters: int, *, tenant: str = "a", job_class: JobClass = JobClass.NORMAL) -> InHand:
    return InHand(job_class=job_class, tenant_id=TenantId(tenant), characters=characters)


def _spoken(asked: Asked, there: Work, workers: Workers) -> float:
    return until_spoken(asked, there, workers, start=until_start(asked, there, workers))


def _close(seconds: float) -> float:
    """Return a little more: sums of floats differ by their order."""
    return seconds * (1 + 1e-9) + 1e-9


# --- laws ------------------------------------------------------------------------------------------------


@given(asks(), works(), fleets, classes, tenants, st.integers(0, 10**5))
def test_another_job_that_waits_never_brings_one_forward(
    asked: Asked, before: Work, workers: Workers, job_class: JobClass, tenant: TenantId, characters: int
) -> None:
    jobs, whole = before.own(job_class, tenant)
    # Only the mean of a lane is known: one that is as long as the others, or longer.
    characters = max(characters, -(-whole // jobs) if jobs else 0)
    after = before.plus(job_class, tenant, characters=characters)

    assert until_start(asked, before, workers) <= _close(until_start(asked, after, workers))
    assert _spoken(asked, before, workers) <= _close(_spoken(asked, after, workers))


@given(asks(), works(), fleets, st.integers(0, 1000))
def test_more_of_its_own_lane_before_it_never_brings_a_job_forward(
    asked: Asked, there: Work, workers: Workers, more: int
) -> None:
    longer = replace(asked, ahead=asked.ahead + asked.ahead_jobs * more)
    one = -(-asked.ahead // asked.ahead_jobs) if asked.ahead_jobs else more
    another = replace(asked, ahead=asked.ahead + one, ahead_jobs=asked.ahead_jobs + 1)

    for further in (longer, another):
        assert until_start(asked, there, workers) <= _close(until_start(further, there, workers))
        assert _spoken(asked, there, workers) <= _close(_spoken(further, there, workers))


@given(asks(), works(), fleets)
def test_a_more_urgent_job_is_never_begun_later(asked: Asked, there: Work, workers: Workers) -> None:
    begun = [
        until_start(replace(asked, job_class=job_class), there, workers) for job_class in sorted(JobClass)
    ]

    for earlier, later in pairwise(begun):
        assert earlier <= _close(later)


@given(asks(), works(), fleets)
def test_every_estimate_is_a_time(asked: Asked, there: Work, workers: Workers) -> None:
    start, spoken = until_start(asked, there, workers), _spoken(asked, there, workers)
    own = asked.characters * workers.seconds_per_char

    assert 0 <= start < float("inf")
    assert start + own <= _close(spoken) < float("inf")
    assert own <= _close(until_spoken_in_hand(asked, there, workers)) < float("inf")
    assert 0 <= until_below(1, there, workers) < float("inf")


@given(asks(), fleets)
def test_with_an_idle_worker_and_nothing_before_it_there_is_its_own_work_alone(
    asked: Asked, workers: Workers
) -> None:
    alone = replace(asked, ahead=0, ahead_jobs=0)

    assert until_start(alone, Work(), workers) == 0
    assert _spoken(alone, Work(), workers) == pytest.approx(asked.characters * workers.seconds_per_char)


# --- worked out by hand ----------------------------------------------------------------------------------


def test_what_is_in_hand_does_not_wait_as_well() -> None:
    made = work([_lane(500, jobs=3), _lane(70, tenant="b")], [_hand(100), _hand(70, tenant="b")])

    assert made.own(JobClass.NORMAL, TenantId("a")) == (2, 400)
    assert made.own(JobClass.NORMAL, TenantId("b")) == (0, 0)
    assert (made.jobs, made.characters) == (4, 570)


def test_its_own_lane_comes_first() -> None:
    assert until_start(_asked(ahead=500, ahead_jobs=5), Work(), WORKER) == 50


def test_a_flood_of_another_tenant_costs_one_of_its_jobs() -> None:
    assert until_start(_asked(), work([_lane(100_000, jobs=1000)], ()), WORKER) == 10


def test_the_rest_of_a_short_job_in_hand_is_waited_for() -> None:
    there = work([_lane(90)], [_hand(90)])

    assert until_start(_asked(), there, WORKER) == 9


def test_a_line_behind_a_book_in_hand_waits_for_half_a_chunk_whoever_s_it_is() -> None:
    for tenant in ("a", "me"):
        there = work([_lane(90_000, tenant=tenant)], [_hand(90_000, tenant=tenant)])

        assert until_start(_asked(), there, WORKER) == HALF_CHUNK * 0.1


def test_a_book_that_waits_before_a_line_costs_it_a_chunk() -> None:
    assert until_start(_asked(), work([_lane(90_000)], ()), WORKER) == 2 * HALF_CHUNK * 0.1
    assert until_start(_asked(ahead=90_000, ahead_jobs=1), Work(), WORKER) == 2 * HALF_CHUNK * 0.1


def test_an_equal_book_waits_for_the_turn_of_the_one_in_hand_and_takes_turns_with_it() -> None:
    there = work([_lane(90_000)], [_hand(90_000)])

    assert until_start(_asked(90_000), there, WORKER) == TURN_SECONDS
    assert _spoken(_asked(90_000), there, WORKER) == pytest.approx(18_000)
    assert until_spoken_in_hand(
        replace(_asked(90_000), tenant_id=TenantId("a")), work([_lane(90_000), _lane(90_000, tenant="me")],
        [_hand(90_000)]), WORKER
    ) == pytest.approx(18_000)  # fmt: skip


def test_a_less_urgent_job_waits_for_all_that_is_more_urgent() -> None:
    there = work([_lane(500, job_class=JobClass.HIGH), _lane(90, job_class=JobClass.LOW)], ())

    assert until_start(_asked(), there, WORKER) == 50


def test_a_second_worker_is_free_however_long_the_first_is_not() -> None:
    there = work([_lane(90_000, job_class=JobClass.HIGH)], [_hand(90_000, job_class=JobClass.HIGH)])
    two = replace(WORKER, count=2)

    assert until_start(_asked(), there, WORKER) == 9_000
    assert until_start(_asked(), there, two) == 0
    assert until_start(_asked(), work([_lane(90_000, job_class=JobClass.HIGH)], ()), two) == 0
    assert until_start(_asked(ahead=100, ahead_jobs=1), there, two) == 10


def test_a_tenant_that_may_have_one_job_in_hand_waits_for_its_end() -> None:
    there = work([_lane(200, tenant="me")], [_hand(200, tenant="me")])
    many = replace(WORKER, count=10)

    assert until_start(_asked(ahead=100, ahead_jobs=1), there, many) == 0
    assert until_start(_asked(ahead=100, ahead_jobs=1), there, replace(many, most_running=1)) == 30


def test_the_end_is_after_speaking_encoding_and_what_waits_for_the_encoders() -> None:
    # 100 code points are 10 s of work and 100 s of audio.
    assert audio_seconds(100, WORKER) == 100
    assert until_done(10, audio=100, media=Media(rtf=0.02)) == 10 + 2 + MEDIA_SECONDS
    busy = Media(waiting=400, count=2, rtf=0.02)
    assert (
        until_done(10, audio=100, media=busy) == 100 * MEDIA_SECONDS / MEDIA_AT_ONCE * 2 + 2 + MEDIA_SECONDS
    )


def test_a_queue_drains_by_its_mean_job() -> None:
    there = work([_lane(500, jobs=5)], [_hand(100)])

    assert until_below(3, there, WORKER) == 30
    assert until_below(6, there, WORKER) == 0


# --- beside the truth ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "median", "tenth"),
    [
        # Everything else in the fleet is as long, or mixed: lines and books in the same lanes.
        ([(50, 1500)], 1.15, (0.75, 1.8)),
        ([(50, 1000)] * 4 + [(20_000, 100_000)], 1.15, (0.7, 2.5)),
        ([(20_000, 80_000)], 1.2, (0.5, 3.0)),
    ],
    ids=["lines", "mixed", "books"],
)
def test_estimates_are_honest_where_nothing_comes_in_later(
    lengths: list[tuple[int, int]], median: float, tenth: tuple[float, float]
) -> None:
    """Of thousands of jobs, estimated at a random moment: the estimated over the true time to the end."""
    ratios = []
    for seed in range(40):
        chance = random.Random(seed)
        play = _play(chance, lengths)
        seconds = sum(job.left for job in play.jobs) * play.workers.seconds_per_char / play.workers.count
        play.run(until=chance.choice([0.0, 0.2, 0.5]) * seconds)
        there, at = play.work(), play.now
        expected = {}
        for job in play.unended():
            estimate = until_spoken_in_hand if play.holds(job) else _spoken
            expected[job] = estimate(play.asked(job), there, play.workers)
        play.run()
        # Five seconds are as good as nothing.
        ratios += [(spoken + 5) / ((job.ended_at or 0) - at + 5) for job, spoken in expected.items()]

    tenths = quantiles(ratios, n=10)
    print(f"{len(ratios)} jobs; estimate over truth, by tenths: {[round(x, 2) for x in tenths]}")  # noqa: T201
    assert 1 / median < tenths[4] < median
    assert tenth[0] < tenths[0] < tenths[8] < tenth[1]


def _play(chance: random.Random, lengths: list[tuple[int, int]]) -> Play:
    owners = chance.randint(1, 6)
    jobs = [
        Player(
            number=number,
            job_class=chance.choice([JobClass.NORMAL] * 6 + [JobClass.HIGH, JobClass.LOW]),
            tenant_id=TenantId(f"t{chance.randrange(owners)}"),
            left=chance.randint(*chance.choice(lengths)),
            queued_at=0.0,
        )
        for number in range(chance.randint(2, 60))
    ]
    workers = Workers(
        count=chance.choice([1, 1, 2, 4, 10]), seconds_per_char=chance.choice([0.005, 0.02, 0.1]), rtf=0.1
    )
    return Play(workers, jobs)
