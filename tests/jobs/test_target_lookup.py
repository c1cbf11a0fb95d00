"""A host name is looked up within a limit, whoever asks."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobs.targets import LOOKUPS_AT_ONCE, lookup

Found = list[tuple[Any, ...]]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Give the names that a name server was asked for; it answers when the test has ended."""
    asked: list[str] = []
    release = threading.Event()

    def getaddrinfo(name: str, port: int, **_: Any) -> Found:
        asked.append(name)
        release.wait(30)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield asked
    release.set()
    _until(lambda: not _lookups())


def _lookups() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "lookup"]


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_systems_resolver_knows_this_machine() -> None:
    assert lookup("127.0.0.1", 80) == ["127.0.0.1"]
    assert set(lookup("localhost", 80)) <= {"127.0.0.1", "::1"}


def test_an_address_is_told_once_and_without_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(name: str, port: int, **_: Any) -> Found:
        addresses = ("fe80::1%eth0", "192.0.2.1", "192.0.2.1")
        return [(None, None, 0, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    assert lookup("x.example", 443) == ["fe80::1", "192.0.2.1"]


@pytest.mark.parametrize("error", [socket.gaierror("no such host"), UnicodeError("label too long")])
def test_a_name_without_addresses_is_an_os_error(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def getaddrinfo(name: str, port: int, **_: Any) -> Found:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    with pytest.raises(OSError, match=str(error)):
        lookup("x.example", 443)


def test_a_name_server_that_hangs_ends_in_a_timeout_for_everyone(silent: list[str]) -> None:
    began = time.monotonic()
    for number in range(LOOKUPS_AT_ONCE + 2):
        with pytest.raises(TimeoutError):
            lookup(f"host-{number}.example", 443, seconds=0.05)

    assert time.monotonic() - began < 2
    assert len(silent) == len(_lookups()) == LOOKUPS_AT_ONCE


def test_after_the_name_server_came_back_names_are_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait(30) and [])
        for number in range(LOOKUPS_AT_ONCE):
            with pytest.raises(TimeoutError):
                lookup(f"host-{number}.example", 443, seconds=0.01)
        release.set()
        _until(lambda: not _lookups())

    assert lookup("127.0.0.1", 80) == ["127.0.0.1"]


_GREENLETS = """
from gevent import monkey
monkey.patch_all()
import socket, time
import gevent
from jobs.targets import lookup

assert lookup("127.0.0.1", 80) == ["127.0.0.1"]

native_sleep = monkey.get_original("time", "sleep")
socket.getaddrinfo = lambda *_, **__: gevent.get_hub().threadpool.apply(native_sleep, (1,))
ticks = 0

def tick():
    global ticks
    while True:
        ticks += 1
        gevent.sleep(0.01)

ticking = gevent.spawn(tick)
began = time.monotonic()
try:
    lookup("slow.example", 80, seconds=0.3)
except TimeoutError:
    print(ticks > 10, time.monotonic() - began < 0.6)
"""


def test_among_greenlets_a_lookup_keeps_its_limit_and_stops_nobody_else() -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", _GREENLETS], capture_output=True, text=True, check=False
    )

    assert (run.stdout, run.stderr, run.returncode) == ("True True\n", "", 0)
