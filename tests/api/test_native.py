"""Calls on native threads keep their values apart, and errors come back."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import gevent
import pytest

from api.native import NativeThreads, SqliteStores, WriterThread
from jobs import migrate
from jobs.database import DatabaseUnavailable
from jobs.job import JobNotFound


def test_each_thread_has_a_value_of_its_own_and_the_caller_none() -> None:
    threads = NativeThreads(threading.get_ident, threads=2)

    made = {threads.call(lambda own: (own, threading.get_ident())) for _ in range(10)}

    assert all(own == ran for own, ran in made)
    assert threading.get_ident() not in {own for own, _ in made}


def test_other_greenlets_go_on_while_a_call_waits() -> None:
    threads = NativeThreads(lambda: None, threads=1)
    waiting = gevent.spawn(lambda: threads.call(lambda _: time.sleep(0.3)))
    began = time.monotonic()

    gevent.sleep(0.01)

    assert time.monotonic() - began < 0.2
    waiting.get()


def test_an_error_comes_back_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    threads = NativeThreads(lambda: 0, threads=1)

    with pytest.raises(ZeroDivisionError):
        threads.call(lambda zero: 1 / zero)

    assert capfd.readouterr().err == ""


def test_writes_that_waited_behind_a_lock_share_its_outcome() -> None:
    writer = WriterThread(lambda: None)

    def locked(_: None) -> None:
        time.sleep(0.2)
        raise DatabaseUnavailable("locked")

    def write() -> str:
        try:
            writer.call(locked)
        except DatabaseUnavailable as error:
            return str(error)
        return "written"

    writes = [gevent.spawn(write) for _ in range(5)]
    began = time.monotonic()
    gevent.joinall(writes)

    assert all("locked" in write.value for write in writes)
    assert time.monotonic() - began < 0.4
    assert writer.call(lambda _: "written") == "written"


def test_the_stores_answer_through_the_threads(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/voxfleet.db"
    migrate.upgrade(url)
    stores = SqliteStores(url, public_url="http://x", busy_seconds=0.2)

    stores.check()
    assert (stores.models(), stores.alive(), stores.verify("x")) == ([], {}, None)
    with pytest.raises(JobNotFound):
        stores.get("job_x", "ten_x")
