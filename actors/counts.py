"""What a worker has counted since it started: it tells of it with its presence."""

from __future__ import annotations

import threading
from collections import Counter


class Counts:
    """Named events and how often they happened. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: Counter[str] = Counter()

    def add(self, name: str) -> None:
        """Count one."""
        with self._lock:
            self._counted[name] += 1

    def all(self) -> dict[str, int]:
        """Return them all."""
        with self._lock:
            return dict(self._counted)
