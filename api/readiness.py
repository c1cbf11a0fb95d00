"""Readiness: every part is asked at once, and each may take two seconds."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from actors.bell import MEDIA_QUEUE, SWEEPER_QUEUE, BrokerUnavailable
from api.asking import ask_all
from jobs.database import DatabaseUnavailable
from jobs.workers import ServedModel
from storage.store import AccessDenied, ObjectNotFound, StoreError

logger: Final = logging.getLogger("voxfleet.api")

LIMIT_SECONDS: Final = 2.0
#: Probes need no key: however many come, the parts are asked once a second.
KEPT_SECONDS: Final = 1.0
#: The sweeper tops up bells once a second, and tells of it every five.
SWEEPER_TASK: Final = "top_up_bells"
LATE_SECONDS: Final = 15.0

#: What workers call their counts of the memory ladder.
RUNG: Final = "rung."

#: What is said of a part that failed: errors may name hosts and users, and anyone may ask.
DETAILS: Final[Mapping[type[Exception], str]] = {
    DatabaseUnavailable: "unavailable",
    BrokerUnavailable: "unavailable",
    AccessDenied: "access_denied",
    ObjectNotFound: "no_bucket",
    StoreError: "unavailable",
    Exception: "failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The state of one part.

    Attributes:
        required: whether the fleet is ready only with it.
    """

    ok: bool
    detail: str
    required: bool = True


class Readiness:
    """Asks every part. Thread-safe."""

    def __init__(
        self,
        *,
        checks: Mapping[str, Callable[[], None]],
        models: Callable[[], list[ServedModel]],
        alive: Callable[[], Mapping[str, int]],
        sweeper: Callable[[], Mapping[str, float]],
        default_model: str,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        self._checks = checks
        self._models = models
        self._alive = alive
        self._sweeper = sweeper
        self._default_model = default_model
        self._limit_seconds = limit_seconds
        self._lock = threading.Lock()
        self._asked: dict[str, Part] = {}
        self._asked_at = -KEPT_SECONDS

    def parts(self) -> dict[str, Part]:
        """Return the state of every part, at most a second old; takes hardly longer than the limit."""
        with self._lock:
            if time.monotonic() - self._asked_at >= KEPT_SECONDS:
                self._asked = self._ask()
                self._asked_at = time.monotonic()
            return self._asked

    def _ask(self) -> dict[str, Part]:
        asked: dict[str, Callable[[], Mapping[str, Part]]] = {
            name: _checked(name, check) for name, check in self._checks.items()
        }
        asked["workers"] = self._workers
        answers = ask_all(asked, limit_seconds=self._limit_seconds)
        parts: dict[str, Part] = {}
        for name in asked:
            answer = answers.get(name)
            if isinstance(answer, Exception):
                parts[name] = _failed(name, answer)
            elif answer is None:
                parts[name] = Part(ok=False, detail="timed_out")
            else:
                parts.update(answer)
        return parts

    def _workers(self) -> Mapping[str, Part]:
        models = {model.model: model for model in self._models()}
        alive = self._alive()
        parts: dict[str, Part] = {}
        for name in sorted({self._default_model, *models}):
            parts[f"model.{name}"] = _model(models.get(name), required=name == self._default_model)
        parts[MEDIA_QUEUE] = _worker(alive.get(MEDIA_QUEUE, 0))
        parts[SWEEPER_QUEUE] = _swept(alive.get(SWEEPER_QUEUE, 0), self._sweeper().get(SWEEPER_TASK))
        return parts


def _model(served: ServedModel | None, *, required: bool) -> Part:
    if served is None or not served.alive:
        return Part(ok=False, detail="no_worker", required=required)
    rungs: Counter[str] = Counter()
    for counts in served.counts.values():
        for name, count in counts.items():
            if name.startswith(RUNG):
                rungs[name.removeprefix(RUNG)] += count
    climbed = ", ".join(f"{rung} {count}" for rung, count in sorted(rungs.items()))
    said = ["ok" if served.workers else "breaker_open: out of memory"]
    if served.workers and served.breakers_open:
        said.append(f"breaker open on {served.breakers_open} of {served.workers + served.breakers_open}")
    if served.max_chars_learned is not None:
        said.append(f"memory for {served.max_chars_learned} characters at once")
    if climbed:
        said.append(f"for want of memory since they started: {climbed}")
    return Part(ok=served.workers > 0, detail="; ".join(said), required=required)


def _failed(name: str, error: Exception) -> Part:
    detail = next(DETAILS[kind] for kind in type(error).__mro__ if kind in DETAILS)
    logger.warning("%s is not ready: %s", name, error, exc_info=error if detail == "failed" else None)
    return Part(ok=False, detail=detail)


def _swept(count: int, age: float | None) -> Part:
    """A sweeper that is there and hangs is none."""
    if not count or age is None:
        return Part(ok=False, detail="no_worker" if not count else "not_run_yet")
    detail = f"last run {age:.0f} s ago"
    return Part(ok=age <= LATE_SECONDS, detail=detail if age <= LATE_SECONDS else f"late: {detail}")


def _worker(count: int) -> Part:
    return Part(ok=count > 0, detail="ok" if count else "no_worker")


def _checked(name: str, check: Callable[[], None]) -> Callable[[], Mapping[str, Part]]:
    def ask() -> Mapping[str, Part]:
        check()
        return {name: Part(ok=True, detail="ok")}

    return ask
