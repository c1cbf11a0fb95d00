"""How long a job waits and takes, from what waits before it and how fast the workers are. No clock, no SQL.

A fluid picture of the rule that shares workers (`jobs.lanes`): more urgent classes first; in a class, every
tenant with work gets the same share; a job gives way at the border of a chunk to a more urgent one, in its
class to one that needs a quarter of what it still needs, and to any when its turn is over.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from jobs.job import JobClass, TenantId
from jobs.lanes import ROTATION, SHORTER

#: Code points, about half a chunk: how far the border is at which a running job gives way.
HALF_CHUNK: Final = 150
#: After this a job shares its worker with others of its class, in turns.
TURN_SECONDS: Final = 300.0
#: Encoding, verifying and storing a short piece of audio.
MEDIA_SECONDS: Final = 0.5
#: Encoding seconds per second of audio, before anybody has measured it.
MEDIA_RTF: Final = 0.01
#: A media worker encodes so many jobs at once.
MEDIA_AT_ONCE: Final = 2
#: While no more jobs than this come before one for each worker, each of them is looked at by itself.
LISTED: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What one tenant has in one class of one queue."""

    job_class: JobClass
    tenant_id: TenantId
    jobs: int
    #: Code points that are still to be spoken.
    characters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InHand:
    """A job that a worker speaks now."""

    job_class: JobClass
    tenant_id: TenantId
    #: Code points that are still to be spoken.
    characters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What waits in one class of one queue: jobs and code points of each tenant, and of all."""

    lanes: Mapping[TenantId, tuple[int, int]] = field(default_factory=dict)
    jobs: int = 0
    characters: int = 0

    def plus(self, tenant_id: TenantId, *, jobs: int, characters: int) -> Waiting:
        """Return it with more work of one tenant."""
        before = self.lanes.get(tenant_id, (0, 0))
        return Waiting(
            lanes={**self.lanes, tenant_id: (before[0] + jobs, before[1] + characters)},
            jobs=self.jobs + jobs,
            characters=self.characters + characters,
        )


NOTHING: Final = Waiting()


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be done in one queue."""

    waiting: Mapping[JobClass, Waiting] = field(default_factory=dict)
    in_hand: Sequence[InHand] = ()

    def of(self, job_class: JobClass) -> Work:
        """Return the work of one class."""
        return Work(
            waiting={job_class: self.waiting.get(job_class, NOTHING)},
            in_hand=[running for running in self.in_hand if running.job_class == job_class],
        )

    def own(self, job_class: JobClass, tenant_id: TenantId) -> tuple[int, int]:
        """Return how many jobs and code points of one lane wait."""
        return self.waiting.get(job_class, NOTHING).lanes.get(tenant_id, (0, 0))

    def plus(self, job_class: JobClass, tenant_id: TenantId, *, characters: int) -> Work:
        """Return it with one more job that waits."""
        more = self.waiting.get(job_class, NOTHING).plus(tenant_id, jobs=1, characters=characters)
        return replace(self, waiting={**self.waiting, job_class: more})

    @property
    def jobs(self) -> int:
        """How many wait or are in hand."""
        return sum(waiting.jobs for waiting in self.waiting.values()) + len(self.in_hand)

    @property
    def characters(self) -> int:
        """Code points that are still to be spoken."""
        waiting = sum(waiting.characters for waiting in self.waiting.values())
        return waiting + sum(running.characters for running in self.in_hand)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Who serves a queue.

    Attributes:
        count: how many; one at least.
        seconds_per_char: processing seconds per code point.
        rtf: processing seconds per second of audio.
        most_running: how many jobs of one tenant are worked on at once; None is no limit.
    """

    count: int
    seconds_per_char: float
    rtf: float
    most_running: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """The encoders.

    Attributes:
        waiting: jobs that wait for one.
        count: workers; each encodes `MEDIA_AT_ONCE` jobs at a time.
        rtf: encoding seconds per second of audio; None before anybody has measured it.
    """

    waiting: int = 0
    count: int = 1
    rtf: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A job that waits, or would.

    Attributes:
        characters: code points that are still to be spoken.
        ahead: code points of its own lane that wait and come before it.
        ahead_jobs: of how many jobs.
    """

    job_class: JobClass
    tenant_id: TenantId
    characters: int
    ahead: int = 0
    ahead_jobs: int = 0


def work(lanes: Iterable[Lane], in_hand: Iterable[InHand]) -> Work:
    """Return the work of one queue.

    Args:
        lanes: what waits or is in hand.
        in_hand: what is in hand; it is in its lane as well.
    """
    held = list(in_hand)
    speaking: dict[tuple[JobClass, TenantId], list[int]] = {}
    for running in held:
        speaking.setdefault((running.job_class, running.tenant_id), []).append(running.characters)
    found: dict[JobClass, dict[TenantId, tuple[int, int]]] = {}
    for lane in lanes:
        mine = speaking.get((lane.job_class, lane.tenant_id), ())
        if (jobs := lane.jobs - len(mine)) > 0:
            found.setdefault(lane.job_class, {})[lane.tenant_id] = jobs, max(0, lane.characters - sum(mine))
    waiting = {
        job_class: Waiting(
            lanes=tenants,
            jobs=sum(jobs for jobs, _ in tenants.values()),
            characters=sum(characters for _, characters in tenants.values()),
        )
        for job_class, tenants in found.items()
    }
    return Work(waiting=waiting, in_hand=held)


def until_start(asked: Asked, work: Work, workers: Workers) -> float:
    """Return in how many seconds a worker takes the job."""
    # Where the picture is coarse: never later than a less urgent one.
    begun = min(
        _start(replace(asked, job_class=job_class), work, workers)
        for job_class in JobClass
        if job_class >= asked.job_class
    )
    return begun * workers.seconds_per_char


def until_spoken(asked: Asked, work: Work, workers: Workers, *, start: float) -> float:
    """Return in how many seconds all of the job's text is spoken.

    Args:
        start: seconds until a worker takes it, as `until_start` estimates.
    """
    end = start + asked.characters * workers.seconds_per_char
    if asked.characters <= _turn(workers):
        return end
    return max(end, _in_turns(asked, work) / workers.count * workers.seconds_per_char)


def until_spoken_in_hand(asked: Asked, work: Work, workers: Workers) -> float:
    """Return the same for a job that a worker holds now; it is in `work` itself."""
    waiting = work.waiting.get(asked.job_class, NOTHING)
    # What makes it give way at the next border.
    before = _better(asked, work) + sum(
        characters
        for jobs, characters in waiting.lanes.values()
        if characters * SHORTER <= asked.characters * jobs
    )
    end = max(float(asked.characters), (asked.characters + before) / workers.count)
    if asked.characters > _turn(workers):
        end = max(end, _in_turns(asked, _without(work, asked)) / workers.count)
    return end * workers.seconds_per_char


def until_done(spoken: float, *, audio: float, media: Media) -> float:
    """Return in how many seconds a job is completed.

    Args:
        spoken: seconds until its text is spoken.
        audio: how many seconds it sounds.
    """
    queue = media.waiting * MEDIA_SECONDS / (MEDIA_AT_ONCE * max(1, media.count))
    return max(spoken, queue) + audio * (MEDIA_RTF if media.rtf is None else media.rtf) + MEDIA_SECONDS


def audio_seconds(characters: int, workers: Workers) -> float:
    """Return how long so much text sounds."""
    return characters * workers.seconds_per_char / workers.rtf if workers.rtf > 0 else 0.0


def until_below(limit: int, work: Work, workers: Workers) -> float:
    """Return in how many seconds fewer than `limit` jobs are left."""
    if (jobs := work.jobs) < limit:
        return 0.0
    return (jobs - limit + 1) * (work.characters / jobs) * workers.seconds_per_char / workers.count


# Below, time is counted in code points that one worker speaks.


def _start(asked: Asked, work: Work, workers: Workers) -> float:
    turn, most = _turn(workers), _most(asked)
    before = _Before(limit=LISTED * workers.count)
    for jobs, mean in _own(asked, turn=turn, most=most):
        before.add(jobs, mean)
    own = before.characters
    for job_class, waiting in work.waiting.items():
        if job_class < asked.job_class:
            before.add_all(waiting)
    for tenant_id, (jobs, characters) in work.waiting.get(asked.job_class, NOTHING).lanes.items():
        if tenant_id != asked.tenant_id:
            # The job that is its turn, and its share until all of our own lane is done.
            mean = min(characters / jobs, most)
            first = min(mean, turn)
            before.add(1, first)
            before.pour(min(jobs * mean - first, own))
    free = [_free_in(running, asked, turn) for running in work.in_hand]
    free += [0.0] * (workers.count - len(free))
    return max(before.started(sorted(free)[: workers.count]), _room(asked, own, work, workers))


class _Before:
    """What is spoken before a job: pieces, while those are few, and what may be shared out at will."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._count = 0
        #: In all.
        self.characters = 0.0
        self._pieces: list[tuple[float, int]] = []
        self._poured = 0.0

    def add(self, jobs: int, mean: float) -> None:
        """Add jobs of one length."""
        self._count += jobs
        self.characters += jobs * mean
        if self._count <= self._limit:
            self._pieces.append((mean, jobs))

    def add_all(self, waiting: Waiting) -> None:
        """Add a whole class."""
        if self._count + waiting.jobs > self._limit:
            self._count += waiting.jobs
            self.characters += waiting.characters
        else:
            for jobs, characters in waiting.lanes.values():
                self.add(jobs, characters / jobs)

    def pour(self, characters: float) -> None:
        """Add some of many jobs."""
        self.characters += characters
        self._poured += characters

    def started(self, free: list[float]) -> float:
        """Return when one of the workers that are free at these times, sorted, has come to the end of it."""
        left = self.characters
        if self._count <= self._limit:
            # A few long ones leave the other workers free.
            for mean, jobs in sorted(self._pieces, reverse=True):
                for _ in range(jobs):
                    heapq.heapreplace(free, free[0] + mean)
            free.sort()
            left = self._poured
        level = free[0]
        for number, (this, following) in enumerate(itertools.pairwise([*free, math.inf]), start=1):
            step = (following - this) * number
            if step >= left:
                level = this + left / number
                break
            left -= step
        return level


def _free_in(running: InHand, asked: Asked, turn: float) -> float:
    """Return when the worker of a job in hand may begin another."""
    if running.job_class > asked.job_class or (
        running.job_class == asked.job_class and asked.characters * SHORTER <= running.characters
    ):
        return min(running.characters, HALF_CHUNK)
    # An equal gives way when its turn is over.
    return min(running.characters, turn) if running.job_class == asked.job_class else running.characters


def _most(asked: Asked) -> float:
    """Return how much of a job of its class may be spoken before it: what is much longer gives way.

    Only the mean length of a lane is known. Where books and lines wait together, this counts about what the
    lines need.
    """
    return max(2.0 * HALF_CHUNK, 2.0 * asked.characters)


def _own(asked: Asked, *, turn: float, most: float) -> Iterator[tuple[int, float]]:
    """Yield how many jobs of its own lane come before it, and how much is spoken of each."""
    if asked.ahead_jobs:
        mean = min(asked.ahead / asked.ahead_jobs, most)
        # Long ones take turns a few at a time, until they are done.
        among = asked.ahead_jobs % ROTATION
        yield asked.ahead_jobs - among, mean
        yield among, min(mean, turn)


def _better(asked: Asked, work: Work) -> int:
    return sum(
        waiting.characters for job_class, waiting in work.waiting.items() if job_class < asked.job_class
    )


def _room(asked: Asked, own: float, work: Work, workers: Workers) -> float:
    """Return when its tenant may have one more job in hand."""
    if workers.most_running is None:
        return 0.0
    mine = [running for running in work.in_hand if running.tenant_id == asked.tenant_id]
    if len(mine) < workers.most_running and not own:
        return 0.0
    left = sum(_free_in(running, asked, math.inf) for running in mine)
    return (own + left) / workers.most_running


def _in_turns(asked: Asked, work: Work) -> float:
    """Return how much is spoken until a long job is, which takes turns with all that is long."""
    ahead = asked.ahead + asked.characters
    _, waiting = work.own(asked.job_class, asked.tenant_id)
    in_hand: dict[TenantId, int] = {}
    for running in work.in_hand:
        if running.job_class == asked.job_class:
            in_hand[running.tenant_id] = in_hand.get(running.tenant_id, 0) + running.characters
    # Those of its own lane end a few at a time.
    few = ROTATION * asked.characters
    whole = max(ahead, waiting) + in_hand.get(asked.tenant_id, 0)
    own = min(whole, few * math.ceil(ahead / few))
    lanes = work.waiting.get(asked.job_class, NOTHING).lanes
    rivals = {tenant_id: characters for tenant_id, (_, characters) in lanes.items()}
    for tenant_id, characters in in_hand.items():
        rivals[tenant_id] = rivals.get(tenant_id, 0) + characters
    rivals.pop(asked.tenant_id, None)
    return own + _better(asked, work) + sum(min(characters, own) for characters in rivals.values())


def _without(work: Work, asked: Asked) -> Work:
    """Return `work` without a job that is in hand."""
    mine = (asked.job_class, asked.tenant_id)
    others = list(work.in_hand)
    for number, running in enumerate(others):
        if (running.job_class, running.tenant_id) == mine:
            del others[number]
            break
    return replace(work, in_hand=others)


def _turn(workers: Workers) -> float:
    """Return how much a worker speaks in one turn; it ends with a chunk."""
    if not workers.seconds_per_char:
        return math.inf
    return max(HALF_CHUNK, TURN_SECONDS / workers.seconds_per_char)
