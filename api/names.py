"""Host names of webhooks: what was looked up is kept for a moment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from jobs.targets import Resolve, lookup

#: A caller waits for it.
LOOKUP_SECONDS: Final = 2.0
#: A client names the same host in every job.
KEPT_SECONDS: Final = 10.0
KEPT_NAMES: Final = 256

_SYSTEM: Final = partial(lookup, seconds=LOOKUP_SECONDS)


class Names:
    """Addresses of host names, kept for a moment. Thread-safe."""

    def __init__(self, lookup: Resolve = _SYSTEM) -> None:
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
