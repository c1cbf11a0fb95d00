"""How a worker shows that it is there: a row every few seconds."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from jobs.database import DatabaseUnavailable
from jobs.workers import WorkerRegistry

log = logging.getLogger("voxfleet.actors")

PUBLISH_SECONDS: Final = 5.0


def worker_id() -> str:
    """Return a name for this process that no other one has, now or later."""
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What a worker tells of itself."""

    info: Mapping[str, Any] | None = None
    #: Processing seconds per second of audio, and per code point; None while unknown.
    rtf: float | None = None
    seconds_per_char: float | None = None
    #: See `jobs.workers.WorkerRegistry.publish`.
    max_chars_learned: int | None = None
    breaker: str | None = None


class Presence:
    """Publishes a worker in the `workers` table while the block lasts.

    Args:
        account: asked at every publication.
    """

    def __init__(
        self,
        registry: WorkerRegistry,
        *,
        worker_id: str,
        queue: str,
        model: str | None = None,
        account: Callable[[], Account] = Account,
    ) -> None:
        self._registry = registry
        self._worker_id = worker_id
        self._queue = queue
        self._model = model
        self._account = account
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def __enter__(self) -> Self:
        self.publish()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        try:
            self._registry.leave(self._worker_id)
        except DatabaseUnavailable as failure:
            log.warning("could not say good-bye: %s", failure)

    def _run(self) -> None:
        while not self._over.wait(PUBLISH_SECONDS):
            try:
                self.publish()
            except Exception:  # the top of a thread: without it a healthy worker would look dead
                log.exception("could not publish this worker")

    def publish(self) -> None:
        """Publish now; while the database is away, later."""
        try:
            told = self._account()
            self._registry.publish(
                self._worker_id,
                queue=self._queue,
                model=self._model,
                info=told.info,
                rtf=told.rtf,
                seconds_per_char=told.seconds_per_char,
                max_chars_learned=told.max_chars_learned,
                breaker=told.breaker,
            )
        except DatabaseUnavailable as error:
            log.warning("could not publish this worker: %s", error)
