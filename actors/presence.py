"""How a worker shows that it is there: a row every few seconds."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from jobs.database import DatabaseUnavailable
from jobs.workers import WorkerRegistry

log = logging.getLogger("voxfleet.actors")

PUBLISH_SECONDS: Final = 5.0


def worker_id() -> str:
    """Return a name for this process that no other one has, now or later."""
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"


class Presence:
    """Publishes a worker in the `workers` table while the block lasts."""

    def __init__(
        self,
        registry: WorkerRegistry,
        *,
        worker_id: str,
        queue: str,
        model: str | None = None,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        self._registry = registry
        self._worker_id = worker_id
        self._queue = queue
        self._model = model
        self._info = info
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="presence", daemon=True)

    def __enter__(self) -> Self:
        self._publish()
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
                self._publish()
            except Exception:  # the top of a thread: without it a healthy worker would look dead
                log.exception("could not publish this worker")

    def _publish(self) -> None:
        try:
            self._registry.publish(self._worker_id, queue=self._queue, model=self._model, info=self._info)
        except DatabaseUnavailable as error:
            log.warning("could not publish this worker: %s", error)
