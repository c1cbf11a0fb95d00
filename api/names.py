"""Host names of webhooks: what was looked up is kept for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from jobs.targets import lookup

#: A caller waits for it.
LOOKUP_SECONDS: Final = 2.0
#: A client names the same host in every job.
KEPT_SECONDS: Final = 10.0
KEPT_NAMES: Final = 256

Lookup = Callable[[str, int], Sequence[str]]


class Names:
    """Addresses of host names, kept for a moment. Thread-safe."""

    def __init__(self, lookup: Lookup = partial(lookup, seconds=LOOKUP_SECONDS)) -> None:
        self._lookup = lookup
        self._kept: dict[tuple[str, int], tuple[float, Sequence[str]]] = {}

    def resolve(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of `host`.

        Raises:
            OSError: it has none, or `TimeoutError` where they did not come in time.
        """
        until, addresses = self._kept.get((host, port), (0.0, ()))
        if time.monotonic() < until:
            return addresses
        addresses = self._lookup(host, port)
        while len(self._kept) >= KEPT_NAMES:
            self._kept.pop(next(iter(self._kept)), None)
        self._kept[host, port] = (time.monotonic() + KEPT_SECONDS, addresses)
        return addresses
