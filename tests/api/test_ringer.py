"""Bells are rung outside requests, also after an outage."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from actors.bell import BrokerUnavailable
from api.ringer import Ringer


class Bell:
    """Counts, and can be out of order or slow."""

    def __init__(self) -> None:
        self.rung: Counter[str] = Counter()
        self.down = False
        self.tries = 0
        self.gate = threading.Event()
        self.gate.set()

    def ring(self, queue: str, *, times: int = 1) -> None:
        self.tries += 1
        assert self.gate.wait(5)
        if self.down:
            raise BrokerUnavailable("down")
        self.rung[queue] += times

    def waiting(self, queue: str) -> int:
        return self.rung[queue]

    def check(self) -> None:
        """It is there."""


@contextmanager
def _ringer(bell: Bell, *, give_up_seconds: float = 30.0) -> Iterator[Ringer]:
    ringer = Ringer(bell, first_wait=0.01, give_up_seconds=give_up_seconds)
    yield ringer
    ringer.close()


def _until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def test_every_job_gets_a_bell_on_its_queue() -> None:
    bell = Bell()
    with _ringer(bell) as ringer:
        for queue in ("a", "b", "a"):
            ringer.mark(queue)
        _until(lambda: bell.rung == {"a": 2, "b": 1})


def test_a_hanging_broker_costs_no_caller_anything_and_bells_gather() -> None:
    bell = Bell()
    bell.gate.clear()
    with _ringer(bell) as ringer:
        ringer.mark("a")
        _until(lambda: bell.tries == 1)
        began = time.monotonic()
        for _ in range(1000):
            ringer.mark("a")
        assert time.monotonic() - began < 0.5
        bell.gate.set()
        # No queue has so many idle workers that more would be of use.
        _until(lambda: bell.rung["a"] == 16)
        assert bell.tries == 2


def test_a_queue_that_has_bells_enough_is_not_rung() -> None:
    bell = Bell()
    bell.rung["a"] = 16
    with _ringer(bell) as ringer:
        ringer.mark("a")
        ringer.mark("b")
        _until(lambda: bell.rung["b"] == 1)
    assert bell.rung == {"a": 16, "b": 1}


def test_bells_are_sent_after_an_outage_that_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bell = Bell()
    bell.down = True
    with _ringer(bell) as ringer:
        ringer.mark("a")
        ringer.mark("b")
        _until(lambda: bell.tries >= 4)
        bell.down = False
        _until(lambda: bell.rung == {"a": 1, "b": 1})
        _until(lambda: "the broker is back" in caplog.text)
    assert caplog.text.count("the broker is down") == 1


def test_bells_are_dropped_when_an_outage_lasts() -> None:
    bell = Bell()
    bell.down = True
    with _ringer(bell, give_up_seconds=0.05) as ringer:
        ringer.mark("a")
        _until(lambda: bell.tries >= 3)
        time.sleep(0.2)
        tries = bell.tries
        time.sleep(0.1)
        assert bell.tries == tries
        bell.down = False
        ringer.mark("b")
        _until(lambda: bell.rung["b"] == 1)
    assert bell.rung == {"b": 1}


def test_an_error_nobody_knows_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Bell):
        def ring(self, queue: str, *, times: int = 1) -> None:
            if queue == "bad":
                raise ZeroDivisionError
            super().ring(queue, times=times)

    bell = Broken()
    with _ringer(bell) as ringer:
        ringer.mark("bad")
        _until(lambda: "ZeroDivisionError" in caplog.text)
        ringer.mark("good")
        _until(lambda: bell.rung["good"] == 1)
