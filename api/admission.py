"""Whether one more job is taken, and when a job will be done."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from actors.bell import MEDIA_QUEUE
from api.backlog import RecentBacklog, Snapshot
from api.problems import Busy, TenantBusy
from jobs.database import DatabaseUnavailable
from jobs.estimate import (
    Asked,
    Media,
    Workers,
    audio_seconds,
    until_below,
    until_done,
    until_spoken,
    until_spoken_in_hand,
    until_start,
)
from jobs.job import TERMINAL, Job, JobClass, Stage, TenantId
from jobs.workers import ServedModel

#: What `Retry-After` says at least, at most, and where nothing was measured yet.
SHORTEST_RETRY: Final = 1
LONGEST_RETRY: Final = 3600
UNKNOWN_RETRY: Final = 30
#: A lane is walked for the jobs before one of them up to so many; beyond, its share is taken by age.
WALKED: Final = 1000
#: Code points of a short job.
SHORT: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may wait.

    Attributes:
        max_queued: jobs of one model that may wait or be worked on.
        max_wait_seconds: estimated seconds until a new job would be started.
        tenant_max_queued: jobs of one tenant that may wait.
        tenant_max_running: jobs of one tenant that are worked on at once in a queue; None is no limit. The
            workers keep it, and estimates count with it.
    """

    max_queued: int
    max_wait_seconds: int
    tenant_max_queued: int
    tenant_max_running: int | None = None


class Admission:
    """Judges new jobs by the backlog, and estimates the end of those that were taken. Thread-safe."""

    def __init__(
        self,
        backlog: RecentBacklog,
        *,
        models: Callable[[], Sequence[ServedModel]],
        media: Callable[[], Media],
        ahead: Callable[[Job], int],
        limits: Limits,
    ) -> None:
        """Nothing is asked yet.

        Args:
            models: every model that was ever served.
            media: the encoders; what waits for them is told by the backlog.
            ahead: how many code points of its lane come before a job.
        """
        self._backlog = backlog
        self._models = models
        self._media = media
        self._ahead = ahead
        self._limits = limits

    def check(
        self, served: ServedModel, *, job_class: JobClass, tenant_id: TenantId, characters: int
    ) -> float | None:
        """Return in how many seconds such a job would be completed, when the fleet takes one more; None where
        nobody can know.

        Raises:
            Busy: too many wait, or for too long.
        """
        snapshot = self._backlog.snapshot()
        work = snapshot.of(served.queue)
        workers = self._workers(served)
        # A live job is judged by the live ones alone.
        judged = work.of(job_class) if job_class is JobClass.LIVE else work
        if judged.jobs >= self._limits.max_queued:
            seconds = None if workers is None else until_below(self._limits.max_queued, judged, workers)
            raise Busy("queue_full", self._limits.max_queued, retry_after=_retry(seconds))
        if workers is None or snapshot.is_old:
            return None
        ahead_jobs, ahead = work.own(job_class, tenant_id)
        asked = Asked(
            job_class=job_class,
            tenant_id=tenant_id,
            characters=characters,
            ahead=ahead,
            ahead_jobs=ahead_jobs,
        )
        wait = until_start(asked, work, workers)
        if wait > self._limits.max_wait_seconds:
            over = wait - self._limits.max_wait_seconds
            raise Busy("wait_too_long", self._limits.max_wait_seconds, retry_after=_retry(over))
        spoken = until_spoken(asked, work, workers, start=wait)
        return until_done(spoken, audio=audio_seconds(characters, workers), media=self._encoders(snapshot))

    def tenant_busy(self, tenant_id: TenantId, *, limit: int) -> TenantBusy:
        """Return the refusal of a tenant that has `limit` jobs waiting, in whatever queues."""
        snapshot = self._backlog.snapshot()
        waits = (self._until_room(served, tenant_id, snapshot) for served in self._models())
        return TenantBusy(
            limit, retry_after=_retry(min((wait for wait in waits if wait is not None), default=None))
        )

    def accepted(self, job: Job) -> None:
        """Count a job that was stored."""
        self._backlog.accepted(job)

    def eta(self, job: Job, *, now: datetime) -> datetime | None:
        """Return when a job is expected to be completed; None where nobody can know.

        That is: it has ended, nobody serves its model, nothing was measured yet, or the database is away.
        """
        if job.status in TERMINAL:
            return None
        try:
            seconds = self._seconds(job, now)
        except DatabaseUnavailable:
            return None
        return None if seconds is None else now + timedelta(seconds=seconds)

    def wait(self, served: ServedModel) -> float | None:
        """Return in how many seconds a short normal job of a new tenant would be started."""
        snapshot, workers = self._backlog.snapshot(), self._workers(served)
        if workers is None or snapshot.is_old:
            return None
        asked = Asked(job_class=JobClass.NORMAL, tenant_id=TenantId(""), characters=SHORT)
        return until_start(asked, snapshot.of(served.queue), workers)

    def _seconds(self, job: Job, now: datetime) -> float | None:
        # Another model than the one that was asked for may speak it.
        served = min(
            (model for model in self._models() if model.queue == job.queue or model.model == job.model),
            key=lambda model: model.queue != job.queue,
            default=None,
        )
        workers = None if served is None else self._workers(served)
        snapshot = self._backlog.snapshot()
        if workers is None or snapshot.is_old:
            return None
        media = self._encoders(snapshot)
        if job.stage in (Stage.ENCODING, Stage.UPLOADING):
            # The shortest are encoded first: of those that wait, half come before it.
            waiting = 0 if job.held else media.waiting // 2
            return until_done(0.0, audio=job.audio_ms / 1000, media=replace(media, waiting=waiting))
        work = snapshot.of(job.queue)
        asked = Asked(job_class=job.job_class, tenant_id=job.tenant_id, characters=job.characters_left)
        if job.held:
            spoken = until_spoken_in_hand(asked, work, workers)
        else:
            ahead_jobs, ahead = self._before(job, snapshot, now)
            asked = replace(asked, ahead=ahead, ahead_jobs=ahead_jobs)
            spoken = until_spoken(asked, work, workers, start=until_start(asked, work, workers))
        audio = job.audio_ms / 1000 + audio_seconds(job.characters_left, workers)
        return until_done(spoken, audio=audio, media=media)

    def _before(self, job: Job, snapshot: Snapshot, now: datetime) -> tuple[int, int]:
        """Return how many jobs and code points of its lane wait and come before a job."""
        work = snapshot.of(job.queue)
        jobs, characters = work.own(job.job_class, job.tenant_id)
        if jobs <= 1:
            return 0, 0
        if jobs <= WALKED:
            in_hand = sum(
                running.characters
                for running in work.in_hand
                if (running.job_class, running.tenant_id) == (job.job_class, job.tenant_id)
            )
            # What is in hand came before it, and is no longer to be waited for.
            ahead = min(characters, max(0, self._ahead(job) - in_hand))
        else:
            oldest = snapshot.ages.get((job.queue or "", job.job_class, job.tenant_id), 0.0)
            waited = max(0.0, (now - job.queued_at).total_seconds())
            ahead = int(characters * (1.0 - min(1.0, waited / oldest))) if oldest > 0 else 0
        return min(jobs - 1, math.ceil(jobs * ahead / characters)) if characters else 0, ahead

    def _until_room(self, served: ServedModel, tenant_id: TenantId, snapshot: Snapshot) -> float | None:
        """Return in how many seconds one more of a tenant's jobs has been begun in a queue."""
        work, workers = snapshot.of(served.queue), self._workers(served)
        own = {
            job_class: waiting.lanes[tenant_id]
            for job_class, waiting in work.waiting.items()
            if tenant_id in waiting.lanes
        }
        if workers is None or not own:
            return None
        tenants = {tenant for waiting in work.waiting.values() for tenant in waiting.lanes}
        jobs, characters = map(sum, zip(*own.values(), strict=True))
        # Its jobs end one after another, in its share of the workers.
        share = workers.count / len(tenants)
        begun = min(
            until_start(
                Asked(job_class=job_class, tenant_id=tenant_id, characters=of // count), work, workers
            )
            for job_class, (count, of) in own.items()
        )
        return max(begun, characters / jobs * workers.seconds_per_char / share)

    def _encoders(self, snapshot: Snapshot) -> Media:
        waiting = sum(waiting.jobs for waiting in snapshot.of(MEDIA_QUEUE).waiting.values())
        return replace(self._media(), waiting=waiting)

    def _workers(self, served: ServedModel) -> Workers | None:
        if not served.workers or served.seconds_per_char is None or served.rtf is None:
            return None
        return Workers(
            count=served.workers,
            seconds_per_char=served.seconds_per_char,
            rtf=served.rtf,
            most_running=self._limits.tenant_max_running,
        )


def _retry(seconds: float | None) -> int:
    if seconds is None:
        return UNKNOWN_RETRY
    return min(LONGEST_RETRY, max(SHORTEST_RETRY, math.ceil(seconds)))
