"""The rule that shares workers, played through without a database: what an estimate is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field

from jobs.estimate import TURN_SECONDS, Asked, InHand, Lane, Work, Workers, work
from jobs.job import JobClass, TenantId
from jobs.lanes import ROTATION, SHORTER

CHUNK = 300


@dataclass(eq=False)
class Player:
    """A job in the play."""

    number: int
    job_class: JobClass
    tenant_id: TenantId
    left: int
    queued_at: float
    started_at: float | None = None
    ended_at: float | None = None


@dataclass
class Play:
    """Workers that take turns as `jobs.lanes` says; nothing comes in later."""

    workers: Workers
    jobs: list[Player]
    now: float = 0.0
    #: The job, since when it is held, and when its chunk is spoken; one place for each worker.
    hands: list[tuple[Player, float, float] | None] = field(default_factory=list)

    def run(self, until: float = float("inf")) -> None:
        """Play on."""
        self.hands = self.hands or [None] * self.workers.count
        while True:
            for place, hand in enumerate(self.hands):
                if hand is None and (job := self._best(JobClass.LOW, None)) is not None:
                    self._take(place, job, since=self.now)
            busy = [(hand[2], place) for place, hand in enumerate(self.hands) if hand is not None]
            if not busy or min(busy)[0] > until:
                return
            self.now, place = min(busy)
            self._border(place)

    def work(self) -> Work:
        """Return what the API knows of it."""
        lanes: dict[tuple[JobClass, TenantId], tuple[int, int]] = {}
        for job in self.unended():
            jobs, characters = lanes.get((job.job_class, job.tenant_id), (0, 0))
            lanes[job.job_class, job.tenant_id] = jobs + 1, characters + job.left
        held = [hand[0] for hand in self.hands if hand is not None]
        return work(
            [
                Lane(job_class=at[0], tenant_id=at[1], jobs=jobs, characters=characters)
                for at, (jobs, characters) in lanes.items()
            ],
            [InHand(job_class=job.job_class, tenant_id=job.tenant_id, characters=job.left) for job in held],
        )

    def asked(self, job: Player) -> Asked:
        """Return a job as the API sees it."""
        ahead = [
            other.left for other in self._ready() if _lane(other) == _lane(job) and _age(other) < _age(job)
        ]
        return Asked(
            job_class=job.job_class,
            tenant_id=job.tenant_id,
            characters=job.left,
            ahead=sum(ahead),
            ahead_jobs=len(ahead),
        )

    def unended(self) -> list[Player]:
        """Return the jobs that have not ended."""
        return [job for job in self.jobs if job.ended_at is None]

    def holds(self, job: Player) -> bool:
        """Whether a worker holds a job."""
        return any(hand is not None and hand[0] is job for hand in self.hands)

    def _take(self, place: int, job: Player, *, since: float) -> None:
        if job.started_at is None:
            job.started_at = self.now
        spoken = self.now + min(CHUNK, job.left) * self.workers.seconds_per_char
        self.hands[place] = job, since, spoken

    def _border(self, place: int) -> None:
        hand = self.hands[place]
        assert hand is not None
        job, since, _ = hand
        job.left -= min(CHUNK, job.left)
        if not job.left:
            job.ended_at, self.hands[place] = self.now, None
            return
        over = self.now - since >= TURN_SECONDS
        better = (
            self._best(job.job_class if over else JobClass(job.job_class - 1), job)
            if over or job.job_class
            else None
        )
        if better is None and not over:
            better = self._short(job)
        if better is None:
            self._take(place, job, since=since)
            return
        if over:
            others = sorted(
                (o for o in self._ready() if _lane(o) == _lane(job) and o is not better), key=_age
            )
            at = others[ROTATION - 2].queued_at if len(others) > ROTATION - 2 else self.now
            job.queued_at = min(self.now, at + 1e-6)
        self._take(place, better, since=self.now)

    def _best(self, most: JobClass, mine: Player | None) -> Player | None:
        ready = [job for job in self._ready() if job.job_class <= most]
        return min(ready, key=lambda job: (job.job_class, self._running(job, mine), _age(job)), default=None)

    def _short(self, mine: Player) -> Player | None:
        short = [j for j in self._ready() if j.job_class == mine.job_class and j.left <= mine.left // SHORTER]
        first = {
            t: min((j for j in short if j.tenant_id == t), key=lambda j: j.left)
            for t in {j.tenant_id for j in short}
        }
        return min(first.values(), key=lambda job: (self._running(job, mine), _age(job)), default=None)

    def _running(self, job: Player, mine: Player | None) -> int:
        return sum(
            hand is not None and hand[0] is not mine and hand[0].tenant_id == job.tenant_id
            for hand in self.hands
        )

    def _ready(self) -> list[Player]:
        return [job for job in self.unended() if not self.holds(job)]


def _lane(job: Player) -> tuple[JobClass, TenantId]:
    return job.job_class, job.tenant_id


def _age(job: Player) -> tuple[float, int]:
    return job.queued_at, job.number
