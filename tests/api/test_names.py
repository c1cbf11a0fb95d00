"""Names are looked up within a limit, and not again at once."""

from __future__ import annotations

import threading
import time

import pytest

from api.names import Names, lookup


def test_a_name_is_looked_up_once_in_a_while() -> None:
    asked: list[str] = []

    def look(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["192.0.2.1"]

    names = Names(look)

    assert [names.resolve("a", 443), names.resolve("a", 443)] == [["192.0.2.1"]] * 2
    assert asked == ["a"]


def test_a_name_server_that_hangs_ends_in_a_timeout_for_everyone() -> None:
    release = threading.Event()

    def look(host: str, port: int) -> list[str]:
        release.wait(5)
        return []

    names = Names(look, limit_seconds=0.05)
    began = time.monotonic()
    for number in range(6):
        with pytest.raises(TimeoutError):
            names.resolve(f"host-{number}", 443)
    assert time.monotonic() - began < 2
    release.set()


def test_a_name_without_addresses_is_an_os_error() -> None:
    def look(host: str, port: int) -> list[str]:
        raise UnicodeError("label too long")

    with pytest.raises(OSError, match="label too long"):
        Names(look).resolve("x", 443)


def test_the_systems_resolver_knows_this_machine() -> None:
    assert lookup("127.0.0.1", 80) == ["127.0.0.1"]
