"""How a process hears that it is to leave, and what is left of its time."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

#: SIGTERM to exit; a container is killed after that.
LEAVE_SECONDS: Final = 28.0
#: How much of it the chunk or the encode in hand may take before it is broken off, to be let go of.
FINISH_SECONDS: Final = 18.0


class Leaving(Exception):
    """This worker is to end: let go of the job."""


class Departure:
    """Whether this process is to end, and since when. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked = threading.Event()
        self._since = float("inf")

    def ask(self) -> None:
        """Say that the process is to end. Saying it again changes nothing."""
        self._since = min(self._since, self._clock())
        self._asked.set()

    def asked(self) -> bool:
        """Whether to begin nothing new."""
        return self._asked.is_set()

    def overdue(self) -> bool:
        """Whether to break off even what is nearly done."""
        return self.asked() and self._clock() - self._since > FINISH_SECONDS

    def wait(self, seconds: float) -> bool:
        """Wait for so many seconds, or until the process is to end; return whether it is."""
        return self._asked.wait(seconds)


def on_signals() -> Departure:
    """Return a departure that SIGTERM or SIGINT asks for."""
    departure = Departure()

    def leave(_number: int, _frame: FrameType | None) -> None:
        departure.ask()

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    return departure
