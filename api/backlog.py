"""What waits in the fleet, as of a moment ago: asked seldom, and by no request."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from jobs.database import DatabaseUnavailable
from jobs.estimate import InHand, Lane, Work, work
from jobs.job import Job, JobClass, TenantId
from jobs.store import Backlog, Running

logger: Final = logging.getLogger("voxfleet.api")

KEPT_SECONDS: Final = 1.0
#: A million jobs take a while to walk: no more than a twentieth of the time goes into it.
SHARE: Final = 20.0
#: Nobody has asked for a while, and what was known then is no answer: how long a request waits for a new one.
PATIENCE: Final = 0.25
#: The same for the first one of a process.
FIRST_PATIENCE: Final = 2.0

NO_WORK: Final = Work()


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What waits and is worked on.

    Attributes:
        queues: the work of each queue that has any.
        ages: seconds for which the oldest job of each queue, class and tenant has waited or worked.
        is_old: nobody could be asked for so long that this may be far from the truth.
    """

    queues: Mapping[str, Work] = field(default_factory=dict)
    ages: Mapping[tuple[str, JobClass, TenantId], float] = field(default_factory=dict)
    is_old: bool = False

    def of(self, queue: str | None) -> Work:
        """Return the work of one queue."""
        return self.queues.get(queue or "", NO_WORK)

    def plus(self, job: Job) -> Snapshot:
        """Return it with one more job that waits."""
        if job.queue is None:
            return self
        more = self.of(job.queue).plus(job.job_class, job.tenant_id, characters=job.characters_left)
        return replace(self, queues={**self.queues, job.queue: more})


class RecentBacklog:
    """The backlog of the fleet, with what this process has accepted since it was asked for. Thread-safe.

    It is asked for from a thread of its own, once a request wants it and it is a second old. Requests go on
    with what is known, unless that is from long before.
    """

    def __init__(
        self,
        backlog: Callable[[], list[Backlog]],
        running: Callable[[], list[Running]],
        *,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
    ) -> None:
        self._backlog = backlog
        self._running = running
        self._clock = clock
        self._patience = patience
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._answered = threading.Event()
        self._snapshot: Snapshot | None = None
        #: When it is to be asked for again, and from when on it is too old to go by.
        self._due = self._old = -math.inf
        self._accepted: list[Job] = []

    def snapshot(self) -> Snapshot:
        """Return the backlog, a second old or so; empty and old where it could never be asked for."""
        now = self._clock()
        if now >= self._due and self._asking.acquire(blocking=False):
            self._answered.clear()
            threading.Thread(target=self._refresh, name="backlog", daemon=True).start()
        if now >= self._old:
            self._answered.wait(self._patience if self._snapshot else FIRST_PATIENCE)
        with self._lock:
            return replace(self._snapshot or Snapshot(), is_old=now >= self._old)

    def accepted(self, job: Job) -> None:
        """Count a job that was stored a moment ago."""
        with self._lock:
            self._accepted.append(job)
            if self._snapshot is not None:
                self._snapshot = self._snapshot.plus(job)

    def _refresh(self) -> None:
        """Ask; the caller has taken `_asking`."""
        begun = self._clock()
        with self._lock:
            known = len(self._accepted)
        keep = KEPT_SECONDS
        try:
            made = _snapshot(self._backlog(), self._running())
            keep = max(KEPT_SECONDS, SHARE * (self._clock() - begun))
            with self._lock:
                # What was accepted before is in there.
                del self._accepted[:known]
                for job in self._accepted:
                    made = made.plus(job)
                self._snapshot = made
                self._old = begun + 2 * keep
        except DatabaseUnavailable as error:
            logger.info("the backlog is that of a while ago: %s", error)
        except Exception:  # the top of a thread
            logger.exception("the backlog cannot be asked for")
        finally:
            self._due = begun + keep
            self._asking.release()
            self._answered.set()


def _snapshot(lanes: list[Backlog], running: list[Running]) -> Snapshot:
    waiting: dict[str, list[Lane]] = {}
    in_hand: dict[str, list[InHand]] = {}
    for lane in lanes:
        waiting.setdefault(lane.queue, []).append(
            Lane(
                job_class=lane.job_class,
                tenant_id=lane.tenant_id,
                jobs=lane.jobs,
                characters=lane.characters,
            )
        )
    for job in running:
        in_hand.setdefault(job.queue, []).append(
            InHand(job_class=job.job_class, tenant_id=job.tenant_id, characters=job.characters)
        )
    return Snapshot(
        queues={
            queue: work(waiting.get(queue, ()), in_hand.get(queue, ()))
            for queue in waiting.keys() | in_hand.keys()
        },
        ages={(lane.queue, lane.job_class, lane.tenant_id): lane.age for lane in lanes},
    )
