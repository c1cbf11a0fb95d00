"""Holds a lease while its work is done: a side thread renews it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

from jobs.database import DatabaseUnavailable
from jobs.job import Fenced

log = logging.getLogger("voxfleet.actors")

#: Six renewals fit into the default lease of 30 s, so that a slow database costs no lease.
RENEWALS_PER_LEASE: Final = 6
#: How long the end of the block waits for a renewal under way.
JOIN_SECONDS: Final = 2.0
#: Between two tries of a write that the database did not take.
PERSIST_SECONDS: Final = 0.5

Answer = TypeVar("Answer")


class Renewal:
    """Renews one lease until the block ends, or until the row is no longer ours.

    Work looks at `lost` between its steps; `check` raises. A lease that could not be renewed before it ran
    out counts as lost: somebody else may hold it.
    """

    def __init__(self, renew: Callable[[], None], *, lease_seconds: float) -> None:
        self._renew = renew
        self._lease_seconds = lease_seconds
        self._until = time.monotonic() + lease_seconds
        self._lost = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="renewal", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        # A database that has frozen holds the thread, but must not hold the worker.
        self._thread.join(timeout=JOIN_SECONDS)

    def lost(self) -> bool:
        """Whether the row may be somebody else's by now."""
        return self._lost.is_set() or time.monotonic() >= self._until

    def persist(self, write: Callable[[], Answer]) -> Answer:
        """Return what `write` returns; while the database is away, try again as long as the lease lasts.

        Raises:
            DatabaseUnavailable: the lease has run out, or is about to.
        """
        while True:
            try:
                return write()
            except DatabaseUnavailable as error:
                if self._over.wait(PERSIST_SECONDS) or self.lost():
                    raise
                log.warning("a write is tried again: %s", error)

    def check(self) -> None:
        """Raises:
        Fenced: the lease is lost.
        """
        if self.lost():
            raise Fenced("the lease is lost")

    def _run(self) -> None:
        while not self._over.wait(self._lease_seconds / RENEWALS_PER_LEASE):
            begun = time.monotonic()
            try:
                self._renew()
            except Fenced:
                self._lost.set()
                return
            except DatabaseUnavailable as error:
                # `lost` looks at the clock: the lease ends when it would have ended.
                log.warning("a lease could not be renewed: %s", error)
            except Exception:  # the top of a thread: work must not go on without a lease
                log.exception("a lease could not be renewed")
                self._lost.set()
                return
            else:
                self._until = begun + self._lease_seconds
