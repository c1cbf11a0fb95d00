"""A lease is kept while its work goes on, and given up in time."""

from __future__ import annotations

import threading
import time

import pytest

from actors.renewal import Renewal
from jobs.database import DatabaseUnavailable
from jobs.job import Fenced


def test_a_lease_is_renewed_several_times_before_it_runs_out() -> None:
    renewed: list[float] = []

    with Renewal(lambda: renewed.append(time.monotonic()), lease_seconds=0.6) as lease:
        time.sleep(0.5)
        assert not lease.lost()

    assert len(renewed) >= 2


def test_a_fenced_lease_is_lost_at_once() -> None:
    def fenced() -> None:
        raise Fenced("another has it")

    with Renewal(fenced, lease_seconds=0.3) as lease:
        time.sleep(0.2)
        assert lease.lost()
        with pytest.raises(Fenced):
            lease.check()


def test_a_lease_that_cannot_be_renewed_is_lost_when_it_runs_out_and_not_before() -> None:
    def away() -> None:
        raise DatabaseUnavailable("away")

    with Renewal(away, lease_seconds=0.6) as lease:
        time.sleep(0.25)
        assert not lease.lost()
        time.sleep(0.6)
        assert lease.lost()


def test_a_database_that_has_frozen_holds_neither_the_lease_nor_the_worker() -> None:
    frozen = threading.Event()

    begun = time.monotonic()
    with Renewal(frozen.wait, lease_seconds=0.3) as lease:
        time.sleep(0.5)
        assert lease.lost()
    assert time.monotonic() - begun < 4
    frozen.set()


def test_an_error_that_nobody_foresaw_ends_the_lease() -> None:
    def explode() -> None:
        raise ZeroDivisionError

    with Renewal(explode, lease_seconds=0.6) as lease:
        time.sleep(0.3)
        assert lease.lost()


def test_a_write_is_said_again_as_long_as_the_lease_lasts() -> None:
    tries: list[int] = []

    def shaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise DatabaseUnavailable("away")
        return "written"

    with Renewal(lambda: None, lease_seconds=30) as lease:
        assert lease.persist(shaky) == "written"

    def away() -> None:
        raise DatabaseUnavailable("away")

    with Renewal(away, lease_seconds=0.6) as lease, pytest.raises(DatabaseUnavailable):
        lease.persist(away)
