"""The estimate of a wait: laws, and a few waits that can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from jobs.estimate import (
    HALF_CHUNK,
    MEDIA_SECONDS,
    Asked,
    InHand,
    Lane,
    Workers,
    encoded_in,
    until_below,
    until_done,
    until_start,
)
from jobs.job import JobClass, TenantId

ME = TenantId("me")
WORKER = Workers(count=1, seconds_per_char=0.1, rtf=0.1, media_rtf=0.01)

classes = st.sampled_from(JobClass)
tenants = st.sampled_from([ME, TenantId("a"), TenantId("b")])
counts = st.integers(0, 100_000)


@st.composite
def lanes(draw: st.DrawFn) -> Lane:
    jobs = draw(st.integers(1, 50))
    return Lane(
        job_class=draw(classes), tenant_id=draw(tenants), jobs=jobs, characters=draw(st.integers(jobs, 10**6))
    )


hands = st.builds(InHand, job_class=classes, tenant_id=tenants, characters=counts)
asks = st.builds(Asked, job_class=classes, tenant_id=tenants, characters=st.integers(1, 10**5), ahead=counts)
fleets = st.builds(
    Workers,
    count=st.integers(1, 100),
    seconds_per_char=st.floats(1e-5, 10),
    rtf=st.floats(0.001, 10),
    media_rtf=st.none() | st.floats(0, 1),
)


def _asked(characters: int = 100, *, job_class: JobClass = JobClass.NORMAL, ahead: int = 0) -> Asked:
    return Asked(job_class=job_class, tenant_id=ME, characters=characters, ahead=ahead)


def _lane(
    characters: int, *, jobs: int = 1, tenant: str = "a", job_class: JobClass = JobClass.NORMAL
) -> Lane:
    return Lane(job_class=job_class, tenant_id=TenantId(tenant), jobs=jobs, characters=characters)


@given(asks, st.lists(lanes(), max_size=8), st.lists(hands, max_size=8), fleets, lanes())
def test_more_work_before_it_never_brings_a_job_forward(
    asked: Asked, found: list[Lane], in_hand: list[InHand], workers: Workers, more: Lane
) -> None:
    before = until_start(asked, found, in_hand, workers)

    assert 0 <= before < float("inf")
    assert until_start(asked, [*found, more], in_hand, workers) >= before
    further = replace(asked, ahead=asked.ahead + 1000)
    assert until_start(further, found, in_hand, workers) >= before
    assert until_done(asked, found, in_hand, workers) >= before


@given(asks, st.lists(lanes(), max_size=8), fleets)
def test_a_more_urgent_job_is_never_later(asked: Asked, found: list[Lane], workers: Workers) -> None:
    others = [lane for lane in found if lane.tenant_id != asked.tenant_id]
    if asked.job_class is JobClass.LIVE:
        return
    # The rivals of its own class change with it: the law is about the work of the classes above.
    mine = replace(asked, ahead=0)
    above = [lane for lane in others if lane.job_class < asked.job_class]
    urgent = replace(mine, job_class=JobClass(asked.job_class - 1))

    assert (
        until_start(urgent, above, [], workers)
        <= until_start(mine, above, [], workers)
        + 1e-6
        + sum(lane.characters / lane.jobs for lane in above) * workers.seconds_per_char
    )


@given(asks, fleets)
def test_an_idle_worker_begins_at_once_and_needs_its_own_time(asked: Asked, workers: Workers) -> None:
    alone = replace(asked, ahead=0)

    assert until_start(alone, [], [], workers) == 0
    done = until_done(alone, [], [], workers)
    assert done >= asked.characters * workers.seconds_per_char


def test_its_own_lane_comes_first() -> None:
    assert until_start(_asked(ahead=500), [_lane(500, tenant="me")], [], WORKER) == 50


def test_a_flood_of_another_tenant_costs_one_of_its_jobs() -> None:
    flood = _lane(100_000, jobs=1000)

    assert until_start(_asked(), [flood], [], WORKER) == 10


def test_a_line_behind_a_book_waits_for_half_a_chunk() -> None:
    book = InHand(job_class=JobClass.NORMAL, tenant_id=TenantId("a"), characters=90_000)

    assert until_start(_asked(), [_lane(90_000)], [book], WORKER) == HALF_CHUNK * 0.1


def test_an_equal_book_waits_for_the_one_in_hand() -> None:
    book = InHand(job_class=JobClass.NORMAL, tenant_id=TenantId("a"), characters=90_000)

    assert until_start(_asked(90_000), [_lane(90_000)], [book], WORKER) == 9_000


def test_a_second_worker_is_free() -> None:
    book = InHand(job_class=JobClass.NORMAL, tenant_id=TenantId("a"), characters=90_000)

    assert until_start(_asked(90_000), [_lane(90_000)], [book], replace(WORKER, count=2)) == 0


def test_the_end_is_after_speaking_and_encoding() -> None:
    # 100 code points are 10 s of work and 100 s of audio.
    assert until_done(_asked(), [], [], WORKER) == 10 + encoded_in(100, WORKER)
    assert encoded_in(100, WORKER) == 1 + MEDIA_SECONDS


def test_a_queue_drains_by_its_mean_job() -> None:
    assert until_below(3, [_lane(500, jobs=5)], WORKER) == 30
    assert until_below(6, [_lane(500, jobs=5)], WORKER) == 0
