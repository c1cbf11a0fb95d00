"""The memory ladder and its breaker: decisions without an engine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speech.breaker import FAILURES, OPEN_SECONDS, WINDOW_SECONDS, Breaker, BreakerState
from speech.ladder import FLOOR_CHARS, RAISE_AFTER, Learned, Rung, climb, half


def test_the_rungs_are_climbed_in_order() -> None:
    tried: set[Rung] = set()
    order = []
    while (rung := climb(tried, chars=FLOOR_CHARS, can_spare=True)) is not None:
        order.append(rung)
        tried.add(rung)

    assert order == [Rung.RETRIED, Rung.SPARED, Rung.RESTARTED]


def test_a_long_piece_is_cut_before_anything_is_heard_to_be_worse() -> None:
    assert climb({Rung.RETRIED}, chars=FLOOR_CHARS + 1, can_spare=True) is Rung.SPLIT
    assert climb({Rung.RETRIED}, chars=FLOOR_CHARS, can_spare=False) is Rung.RESTARTED


@given(st.integers(FLOOR_CHARS + 1, 10_000))
def test_cutting_ends(chars: int) -> None:
    steps = 0
    while climb({Rung.RETRIED}, chars=chars, can_spare=False) is Rung.SPLIT:
        assert half(chars) < chars
        chars = half(chars)
        steps += 1

    assert steps <= 24


def test_what_worked_is_remembered_and_what_did_not_is_halved() -> None:
    learned = Learned()
    assert learned.within(120) == 120

    learned.too_long(118)
    assert learned.within(120) == 59

    learned.made(59, most=120)
    learned.too_long(100)
    assert learned.within(120) == 59
    learned.too_long(58)
    assert learned.within(120) == 29


def test_a_length_that_worked_keeps_the_limit_above_the_half() -> None:
    learned = Learned()
    learned.made(80, most=120)

    learned.too_long(118)

    assert learned.limit == 80


def test_the_limit_is_raised_slowly_by_what_goes_well_near_it() -> None:
    learned = Learned()
    learned.too_long(100)
    for _ in range(RAISE_AFTER - 1):
        learned.made(45, most=120)
    learned.made(10, most=120)
    assert learned.limit == 50

    learned.made(45, most=120)

    assert learned.limit == 63
    for _ in range(20 * RAISE_AFTER):
        learned.made(learned.within(120), most=120)
    assert learned.limit is None


def test_a_limit_that_helped_nothing_is_forgotten() -> None:
    learned = Learned()
    learned.too_long(100)

    learned.hopeless()

    assert learned.within(120) == 120


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300)), max_size=60))
def test_the_limit_is_never_below_the_floor_nor_above_what_the_engine_takes(
    calls: list[tuple[bool, int]],
) -> None:
    learned = Learned()
    for went_well, chars in calls:
        if went_well:
            learned.made(chars, most=120)
        else:
            learned.too_long(chars)
        assert FLOOR_CHARS <= learned.within(120) <= 120


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_it_opens_after_some_failures_and_closes_when_a_trial_goes_well(clock: Clock) -> None:
    breaker = Breaker(clock=clock)
    assert [breaker.failed() for _ in range(FAILURES)] == [False] * (FAILURES - 1) + [True]
    assert breaker.state is BreakerState.OPEN
    assert breaker.seconds_left() == OPEN_SECONDS
    assert not breaker.may_try()

    clock.now += OPEN_SECONDS

    assert breaker.may_try()
    assert breaker.state is BreakerState.HALF_OPEN
    assert not breaker.may_try()
    breaker.tried(well=True)
    assert breaker.is_closed
    assert not breaker.failed()


def test_it_stays_open_twice_as_long_after_each_trial_that_failed(clock: Clock) -> None:
    breaker = Breaker(clock=clock)
    for _ in range(FAILURES):
        breaker.failed()
    waits = []
    for _ in range(7):
        waits.append(breaker.seconds_left())
        clock.now += breaker.seconds_left()
        assert breaker.may_try()
        breaker.tried(well=False)

    assert waits == [15, 30, 60, 120, 240, 300, 300]


def test_failures_that_lie_far_apart_do_not_add_up(clock: Clock) -> None:
    breaker = Breaker(clock=clock)
    for _ in range(3 * FAILURES):
        breaker.failed()
        clock.now += WINDOW_SECONDS / (FAILURES - 1) + 1

    assert breaker.is_closed
