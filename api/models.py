"""The models of the fleet, as the workers publish them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from jobs.workers import ServedModel

#: Workers publish themselves every 5 s: a second-old list is as good as a new one.
KEPT_SECONDS: Final = 1.0


class RecentModels:
    """The list of models, asked for at most once a second. Thread-safe."""

    def __init__(self, ask: Callable[[], list[ServedModel]]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._models: list[ServedModel] = []
        self._asked_at = -KEPT_SECONDS

    def list(self) -> list[ServedModel]:
        """Return every model that was ever served, as of a second ago at most."""
        if time.monotonic() - self._asked_at < KEPT_SECONDS:
            return self._models
        with self._lock:
            if time.monotonic() - self._asked_at >= KEPT_SECONDS:
                self._models = self._ask()
                self._asked_at = time.monotonic()
        return self._models
