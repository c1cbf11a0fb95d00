"""Host names of webhooks, looked up without holding up a request for long."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

LIMIT_SECONDS: Final = 2.0
#: A name server that does not answer holds a native thread for many seconds, and there are ten of them.
LOOKUPS_AT_ONCE: Final = 4
#: A client names the same host in every job.
KEPT_SECONDS: Final = 10.0
KEPT_NAMES: Final = 256

Lookup = Callable[[str, int], Sequence[str]]


def lookup(host: str, port: int) -> list[str]:
    """Return every address of `host`, without zones.

    Raises:
        OSError.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]).partition("%")[0] for *_, address in found))


class Names:
    """Addresses of host names, kept for a moment. Thread-safe."""

    def __init__(self, lookup: Lookup = lookup, *, limit_seconds: float = LIMIT_SECONDS) -> None:
        self._lookup = lookup
        self._limit_seconds = limit_seconds
        self._slots = threading.BoundedSemaphore(LOOKUPS_AT_ONCE)
        self._kept: dict[tuple[str, int], tuple[float, Sequence[str]]] = {}

    def resolve(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of `host`.

        Raises:
            OSError: it has none, or `TimeoutError` where they did not come in time.
        """
        until, addresses = self._kept.get((host, port), (0.0, ()))
        if time.monotonic() < until:
            return addresses
        addresses = self._ask(host, port)
        while len(self._kept) >= KEPT_NAMES:
            self._kept.pop(next(iter(self._kept)), None)
        self._kept[host, port] = (time.monotonic() + KEPT_SECONDS, addresses)
        return addresses

    def _ask(self, host: str, port: int) -> Sequence[str]:
        started = time.monotonic()
        if not self._slots.acquire(timeout=self._limit_seconds):
            raise TimeoutError(f"{host}: too many names are being looked up")
        answers: list[Sequence[str] | OSError] = []

        def ask() -> None:
            try:
                answers.append(self._lookup(host, port))
            except (OSError, UnicodeError) as error:
                answers.append(error if isinstance(error, OSError) else OSError(str(error)))
            finally:
                self._slots.release()

        # A lookup cannot be cut short, only left alone.
        thread = threading.Thread(target=ask, name="lookup", daemon=True)
        thread.start()
        thread.join(max(0.0, self._limit_seconds - (time.monotonic() - started)))
        if not answers:
            raise TimeoutError(f"{host}: no answer within {self._limit_seconds:g} s")
        if isinstance(answer := answers[0], OSError):
            raise answer
        return answer
