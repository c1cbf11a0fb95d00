"""The ringer: bells for submitted jobs, outside any request: a hanging broker costs no caller anything."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import Final

from actors.bell import Bell, BrokerUnavailable

logger: Final = logging.getLogger("voxfleet.api.ringer")

#: A queue with so many bells has no idle worker that another would wake; the sweeper sees to the rest.
ENOUGH_BELLS: Final = 16
#: Between two rounds, the bells of many submits gather: sending each took a tenth of a busy API's time.
PAUSE_SECONDS: Final = 0.02
FIRST_WAIT: Final = 0.2
LONGEST_WAIT: Final = 5.0
#: After this the bells are dropped: the sweeper rings for every job that waits, once the broker is back.
GIVE_UP_SECONDS: Final = 30.0


class Ringer:
    """Rings queues from one thread of its own, which starts with the first job. Thread-safe."""

    def __init__(
        self, bell: Bell, *, first_wait: float = FIRST_WAIT, give_up_seconds: float = GIVE_UP_SECONDS
    ) -> None:
        self._bell = bell
        self._first_wait = first_wait
        self._give_up_seconds = give_up_seconds
        self._lock = threading.Lock()
        self._pending: Counter[str] = Counter()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        #: When the present outage of the broker began.
        self._down_since: float | None = None

    def mark(self, queue: str) -> None:
        """Remember that `queue` has one more job, and return at once."""
        with self._lock:
            self._pending[queue] = min(ENOUGH_BELLS, self._pending[queue] + 1)
            if self._thread is None:
                # Not before: gunicorn forks between import and the first request.
                self._thread = threading.Thread(target=self._work, name="ringer", daemon=True)
                self._thread.start()
        self._wake.set()

    def close(self) -> None:
        """End the thread; bells that were not sent are left to the sweeper."""
        self._closed.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while not self._closed.is_set():
            self._wake.wait()
            self._wake.clear()
            try:
                self._ring_pending()
            except Exception:  # the top of a thread that lives as long as the process
                logger.exception("the ringer met an error it does not know; the sweeper rings instead")

    def _ring_pending(self) -> None:
        wait = self._first_wait
        while not self._closed.is_set() and (pending := self._take()):
            try:
                for queue in [*pending]:
                    missing = min(pending[queue], ENOUGH_BELLS - self._bell.waiting(queue))
                    if missing > 0:
                        self._bell.ring(queue, times=missing)
                    del pending[queue]
            except BrokerUnavailable as error:
                if self._too_late(error):
                    return
                self._put_back(pending)
                self._closed.wait(wait)
                wait = min(LONGEST_WAIT, 2 * wait)
            else:
                wait = self._first_wait
                if self._down_since is not None:
                    logger.info("the broker is back after %.0f s", time.monotonic() - self._down_since)
                    self._down_since = None
                self._closed.wait(PAUSE_SECONDS)

    def _take(self) -> Counter[str]:
        with self._lock:
            pending, self._pending = self._pending, Counter()
        return pending

    def _put_back(self, pending: Counter[str]) -> None:
        with self._lock:
            for queue, times in pending.items():
                self._pending[queue] = min(ENOUGH_BELLS, self._pending[queue] + times)

    def _too_late(self, error: BrokerUnavailable) -> bool:
        if self._down_since is None:
            self._down_since = time.monotonic()
            logger.warning("the broker is down; jobs are accepted and wait for the sweeper's bell: %s", error)
        return time.monotonic() - self._down_since > self._give_up_seconds
