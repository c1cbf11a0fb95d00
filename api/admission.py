"""Whether one more job is taken, and when a job will be done."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from api.backlog import RecentBacklog, Snapshot
from api.models import RecentModels
from api.problems import Busy, TenantBusy
from jobs.estimate import (
    Asked,
    Lane,
    Workers,
    audio_seconds,
    encoded_in,
    spoken_in,
    until_below,
    until_done,
    until_start,
)
from jobs.job import Job, JobClass, Stage, Status, TenantId
from jobs.workers import ServedModel

#: What `Retry-After` says at least, at most, and where nothing was measured yet.
SHORTEST_RETRY: Final = 1
LONGEST_RETRY: Final = 3600
UNKNOWN_RETRY: Final = 30
#: A lane is walked for the jobs before one of them up to so many; beyond, its share is taken by age.
WALKED: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may wait.

    Attributes:
        max_queued: jobs of one model that may wait or be worked on.
        max_wait_seconds: estimated seconds until a new job would be started.
        tenant_max_queued: jobs of one tenant that may wait.
    """

    max_queued: int
    max_wait_seconds: int
    tenant_max_queued: int


class Admission:
    """Judges new jobs by the backlog, and estimates the end of those that were taken. Thread-safe."""

    def __init__(
        self,
        backlog: RecentBacklog,
        models: RecentModels,
        *,
        limits: Limits,
        media_rtf: Callable[[], float | None],
        ahead: Callable[[Job], int],
    ) -> None:
        self._backlog = backlog
        self._models = models
        self._media_rtf = media_rtf
        self._ahead = ahead
        self.limits = limits

    def check(
        self, served: ServedModel, *, job_class: JobClass, tenant_id: TenantId, characters: int
    ) -> None:
        """Return when the fleet takes one more job.

        Raises:
            Busy: too many wait, or for too long.
        """
        snapshot = self._backlog.snapshot()
        lanes = _judged(snapshot, served.queue, job_class)
        workers = self._workers(served)
        if sum(lane.jobs for lane in lanes) >= self.limits.max_queued:
            seconds = None if workers is None else until_below(self.limits.max_queued, lanes, workers)
            raise Busy("queue_full", self.limits.max_queued, retry_after=_retry(seconds))
        if workers is None:
            return
        own = [lane for lane in lanes if (lane.job_class, lane.tenant_id) == (job_class, tenant_id)]
        asked = Asked(
            job_class=job_class,
            tenant_id=tenant_id,
            characters=characters,
            ahead=sum(lane.characters for lane in own),
        )
        wait = until_start(asked, lanes, snapshot.in_hand.get(served.queue, []), workers)
        if wait > self.limits.max_wait_seconds:
            over = wait - self.limits.max_wait_seconds
            raise Busy("wait_too_long", self.limits.max_wait_seconds, retry_after=_retry(over))

    def tenant_busy(self, served: ServedModel, *, tenant_id: TenantId, limit: int) -> TenantBusy:
        """Return the refusal of a tenant that has `limit` jobs waiting."""
        lanes = self._backlog.snapshot().lanes.get(served.queue, [])
        own = [lane for lane in lanes if lane.tenant_id == tenant_id]
        workers = self._workers(served)
        # Its share of the workers, among all tenants that have work.
        sharing = max(1, len({lane.tenant_id for lane in lanes}))
        jobs = sum(lane.jobs for lane in own)
        seconds = None
        if workers is not None and jobs:
            mean = sum(lane.characters for lane in own) / jobs
            seconds = mean * workers.seconds_per_char * sharing / workers.count
        return TenantBusy(limit, retry_after=_retry(seconds))

    def accepted(self, job: Job) -> None:
        """Count a job that was stored."""
        self._backlog.accepted(job)

    def eta(self, job: Job, *, now: datetime, is_new: bool = False) -> datetime | None:
        """Return when a job is expected to be completed; None where nobody can know.

        That is: it has ended, nobody serves its model, or nothing was measured yet.

        Args:
            is_new: it was stored a moment ago, so that all of its lane comes before it.
        """
        served = next((model for model in self._models.list() if model.model == job.model), None)
        workers = None if served is None else self._workers(served)
        if workers is None or job.status not in (Status.QUEUED, Status.IN_PROGRESS):
            return None
        return now + timedelta(seconds=self._seconds(job, workers, now, is_new=is_new))

    def wait(self, served: ServedModel) -> float | None:
        """Return in how many seconds a normal job of a new tenant would be started."""
        workers = self._workers(served)
        if workers is None:
            return None
        snapshot = self._backlog.snapshot()
        asked = Asked(job_class=JobClass.NORMAL, tenant_id=TenantId(""), characters=200, ahead=0)
        lanes, in_hand = snapshot.lanes.get(served.queue, []), snapshot.in_hand.get(served.queue, [])
        return until_start(asked, lanes, in_hand, workers)

    def _seconds(self, job: Job, workers: Workers, now: datetime, *, is_new: bool) -> float:
        if job.stage in (Stage.ENCODING, Stage.UPLOADING):
            return encoded_in(job.audio_ms / 1000, workers)
        if job.held:
            audio = job.audio_ms / 1000 + audio_seconds(job.characters_left, workers)
            return spoken_in(job.characters_left, sharing=0, workers=workers) + encoded_in(audio, workers)
        queue = job.queue or ""
        snapshot = self._backlog.snapshot()
        lanes, in_hand = snapshot.lanes.get(queue, []), snapshot.in_hand.get(queue, [])
        asked = Asked(
            job_class=job.job_class,
            tenant_id=job.tenant_id,
            characters=job.characters_left,
            ahead=self._before(job, snapshot, now, is_new=is_new),
        )
        return until_done(asked, lanes, in_hand, workers)

    def _before(self, job: Job, snapshot: Snapshot, now: datetime, *, is_new: bool) -> int:
        """Return how many code points of its lane come before a job."""
        lanes = snapshot.lanes.get(job.queue or "", [])
        own = [lane for lane in lanes if (lane.job_class, lane.tenant_id) == (job.job_class, job.tenant_id)]
        jobs, characters = sum(lane.jobs for lane in own), sum(lane.characters for lane in own)
        if is_new:
            return characters
        if jobs <= 1:
            return 0
        if jobs <= WALKED:
            return self._ahead(job)
        oldest = snapshot.ages.get((job.queue or "", job.job_class), 0.0)
        waited = max(0.0, (now - job.queued_at).total_seconds())
        share = 1.0 - min(1.0, waited / oldest) if oldest > 0 else 0.0
        return int(characters * share)

    def _workers(self, served: ServedModel) -> Workers | None:
        if not served.workers or served.seconds_per_char is None or served.rtf is None:
            return None
        return Workers(
            count=served.workers,
            seconds_per_char=served.seconds_per_char,
            rtf=served.rtf,
            media_rtf=self._media_rtf(),
        )


def _judged(snapshot: Snapshot, queue: str, job_class: JobClass) -> list[Lane]:
    """Return the lanes that a new job is judged by: a live one by those of its own class alone."""
    lanes = snapshot.lanes.get(queue, [])
    return [lane for lane in lanes if job_class is not JobClass.LIVE or lane.job_class is JobClass.LIVE]


def _retry(seconds: float | None) -> int:
    if seconds is None:
        return UNKNOWN_RETRY
    return min(LONGEST_RETRY, max(SHORTEST_RETRY, math.ceil(seconds)))
