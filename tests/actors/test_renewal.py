"""A lease is kept while its work goes on, and given up in time."""

from __future__ import annotations

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
