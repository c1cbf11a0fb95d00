"""Knows whether a live job waits, without making anybody wait for the answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from jobs.database import DatabaseUnavailable

log = logging.getLogger("voxfleet.actors")

#: A live job waits for so long, on average half of it, before the batch job in hand hears of it.
LOOK_SECONDS: Final = 0.25


class Urgency:
    """Asks again and again, from a side thread, while the block lasts.

    Args:
        asked: whether a live job waits.
        wanted: False where the answer changes nothing; then nothing is asked.
    """

    def __init__(
        self, asked: Callable[[], bool], *, wanted: bool, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self._asked = asked
        self._look_seconds = look_seconds
        self._waits = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="urgency", daemon=True) if wanted else None

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A database that has frozen holds the thread, but must not hold the worker.
        self._over.set()

    def waits(self) -> bool:
        """Whether a live job waited a moment ago."""
        return self._waits.is_set()

    def _run(self) -> None:
        while not self._over.wait(self._look_seconds):
            try:
                waits = self._asked()
            except DatabaseUnavailable:
                # The renewal of the lease says so.
                waits = False
            except Exception:  # the top of a thread: the next border of a chunk asks as well
                log.exception("cannot ask for live jobs")
                return
            if waits:
                self._waits.set()
            else:
                self._waits.clear()
