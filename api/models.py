"""What the workers tell of themselves, asked for at most once a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from jobs.workers import ServedModel

#: Workers publish themselves every 5 s: a second-old answer is as good as a new one.
KEPT_SECONDS: Final = 1.0

Answer = TypeVar("Answer")


class Recent(Generic[Answer]):
    """An answer that is a second old at most. Thread-safe."""

    def __init__(self, ask: Callable[[], Answer]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._answer: list[Answer] = []
        self._asked_at = -KEPT_SECONDS

    def get(self) -> Answer:
        """Return it, asking where it is too old."""
        if not self._is_fresh():
            with self._lock:
                if not self._is_fresh():
                    self._answer = [self._ask()]
                    self._asked_at = time.monotonic()
        return self._answer[0]

    def _is_fresh(self) -> bool:
        return time.monotonic() - self._asked_at < KEPT_SECONDS


class RecentModels:
    """The list of models. Thread-safe."""

    def __init__(self, ask: Callable[[], list[ServedModel]]) -> None:
        self._recent = Recent(ask)

    def list(self) -> list[ServedModel]:
        """Return every model that was ever served, as of a second ago at most."""
        return self._recent.get()
