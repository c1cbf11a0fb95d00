"""Names are looked up within a limit, and not again at once."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from api.names import LOOKUP_SECONDS, Names


def test_a_name_is_looked_up_once_in_a_while() -> None:
    asked: list[str] = []

    def look(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["192.0.2.1"]

    names = Names(look)

    assert [names.resolve("a", 443), names.resolve("a", 443)] == [["192.0.2.1"]] * 2
    assert asked == ["a"]


def test_no_caller_waits_long_for_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait(30) and [])
    began = time.monotonic()
    try:
        with pytest.raises(TimeoutError):
            Names().resolve("slow.example", 443)
    finally:
        release.set()

    assert LOOKUP_SECONDS - 0.1 < time.monotonic() - began < LOOKUP_SECONDS + 1
