"""A circuit breaker: an engine that keeps running out of memory is left alone for a while."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Final

#: So many jobs that nothing helped within so many seconds open it.
FAILURES: Final = 3
WINDOW_SECONDS: Final = 600.0
#: How long it is open, doubled each time that the trial fails.
OPEN_SECONDS: Final = 15.0
LONGEST_OPEN_SECONDS: Final = 300.0


class BreakerState(StrEnum):
    """Whether the engine is asked."""

    CLOSED = "closed"
    OPEN = "open"
    #: It is asked once, to see.
    HALF_OPEN = "half_open"


class Breaker:
    """Opens after some failures, and closes when a trial went well. Thread-safe."""

    def __init__(
        self, *, open_seconds: float = OPEN_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lock = threading.Lock()
        self._first_seconds = self._open_seconds = open_seconds
        self._clock = clock
        self._failures: deque[float] = deque(maxlen=FAILURES)
        self._state = BreakerState.CLOSED
        self._until = 0.0

    @property
    def state(self) -> BreakerState:
        """As of now."""
        return self._state

    @property
    def is_closed(self) -> bool:
        """Whether the engine may be asked for jobs."""
        return self._state is BreakerState.CLOSED

    def seconds_left(self) -> float:
        """Return in how many seconds a trial is due; 0 when it is, or when none is needed."""
        with self._lock:
            return 0.0 if self.is_closed else max(0.0, self._until - self._clock())

    def failed(self) -> bool:
        """Count a job that nothing helped; return whether the breaker is open now."""
        with self._lock:
            now = self._clock()
            self._failures.append(now)
            recent = [at for at in self._failures if now - at <= WINDOW_SECONDS]
            if self.is_closed and len(recent) >= FAILURES:
                self._open(now)
            return not self.is_closed

    def may_try(self) -> bool:
        """Whether a trial is due; it is the caller's then, who says how it went."""
        with self._lock:
            if self._state is BreakerState.OPEN and self._clock() >= self._until:
                self._state = BreakerState.HALF_OPEN
                return True
            return False

    def tried(self, *, well: bool) -> None:
        """Note how a trial went."""
        with self._lock:
            if well:
                self._state = BreakerState.CLOSED
                self._failures.clear()
                self._open_seconds = self._first_seconds
            else:
                self._open_seconds = min(LONGEST_OPEN_SECONDS, 2 * self._open_seconds)
                self._open(self._clock())

    def _open(self, now: float) -> None:
        self._state = BreakerState.OPEN
        self._until = now + self._open_seconds
