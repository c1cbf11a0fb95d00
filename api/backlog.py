"""What waits in the fleet, as of a moment ago: asked seldom, by nobody's request."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from jobs.database import DatabaseUnavailable
from jobs.estimate import InHand, Lane
from jobs.job import Job, JobClass, TenantId
from jobs.store import Backlog, Running

logger: Final = logging.getLogger("voxfleet.api")

KEPT_SECONDS: Final = 1.0
#: A million jobs take a while to walk: no more than a twentieth of the time goes into it.
SHARE: Final = 20.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What waits and is worked on, by queue."""

    lanes: dict[str, list[Lane]]
    in_hand: dict[str, list[InHand]]
    #: Seconds for which the oldest job of each queue and class has waited.
    ages: dict[tuple[str, JobClass], float]


class RecentBacklog:
    """The backlog of the fleet, with what this process has accepted since it was asked for. Thread-safe."""

    def __init__(
        self,
        backlog: Callable[[], list[Backlog]],
        running: Callable[[], list[Running]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backlog = backlog
        self._running = running
        self._clock = clock
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._due = 0.0
        self._accepted: list[Job] = []

    def snapshot(self) -> Snapshot:
        """Return the backlog, a second old or so. Only the first call waits for the database.

        Raises:
            DatabaseUnavailable: it never could be asked.
        """
        if self._clock() >= self._due and self._asking.acquire(blocking=False):
            if self._snapshot is None:
                self._refresh()
            else:
                threading.Thread(target=self._refresh_quietly, name="backlog", daemon=True).start()
        with self._lock:
            snapshot, accepted = self._snapshot, list(self._accepted)
        if snapshot is None:
            # Another request asks for the first time, at this moment.
            return Snapshot(lanes={}, in_hand={}, ages={})
        return _with(snapshot, accepted) if accepted else snapshot

    def accepted(self, job: Job) -> None:
        """Count a job that was stored a moment ago."""
        with self._lock:
            self._accepted.append(job)

    def _refresh_quietly(self) -> None:
        try:
            self._refresh()
        except DatabaseUnavailable as error:
            logger.info("the backlog is that of a while ago: %s", error)
        except Exception:  # the top of a thread
            logger.exception("the backlog cannot be asked for")

    def _refresh(self) -> None:
        """Ask; the caller holds `_asking`."""
        begun = self._clock()
        with self._lock:
            known = len(self._accepted)
        try:
            lanes, running = self._backlog(), self._running()
            made = _snapshot(lanes, running)
            with self._lock:
                self._snapshot = made
                # What was accepted before is in there.
                del self._accepted[:known]
        finally:
            self._due = self._clock() + max(KEPT_SECONDS, SHARE * (self._clock() - begun))
            self._asking.release()


def _snapshot(lanes: list[Backlog], running: list[Running]) -> Snapshot:
    made = Snapshot(lanes={}, in_hand={}, ages={})
    for lane in lanes:
        made.lanes.setdefault(lane.queue, []).append(
            Lane(
                job_class=lane.job_class,
                tenant_id=lane.tenant_id,
                jobs=lane.jobs,
                characters=lane.characters,
            )
        )
        place = (lane.queue, lane.job_class)
        made.ages[place] = max(lane.age, made.ages.get(place, 0.0))
    for job in running:
        made.in_hand.setdefault(job.queue, []).append(
            InHand(job_class=job.job_class, tenant_id=job.tenant_id, characters=job.characters)
        )
    return made


def _with(snapshot: Snapshot, accepted: list[Job]) -> Snapshot:
    """Return a snapshot with jobs that came later."""
    added: dict[tuple[str, JobClass, TenantId], tuple[int, int]] = {}
    for job in accepted:
        if job.queue is not None:
            lane = (job.queue, job.job_class, job.tenant_id)
            jobs, characters = added.get(lane, (0, 0))
            added[lane] = jobs + 1, characters + job.characters_left
    lanes = {queue: list(found) for queue, found in snapshot.lanes.items()}
    for (queue, job_class, tenant_id), (jobs, characters) in added.items():
        found = lanes.setdefault(queue, [])
        at = next(
            (
                number
                for number, lane in enumerate(found)
                if (lane.job_class, lane.tenant_id) == (job_class, tenant_id)
            ),
            None,
        )
        before = Lane(job_class=job_class, tenant_id=tenant_id, jobs=0, characters=0)
        if at is not None:
            before = found.pop(at)
        found.append(
            Lane(
                job_class=job_class,
                tenant_id=tenant_id,
                jobs=before.jobs + jobs,
                characters=before.characters + characters,
            )
        )
    return Snapshot(lanes=lanes, in_hand=snapshot.in_hand, ages=snapshot.ages)
