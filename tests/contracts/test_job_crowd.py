"""A job store under many workers at once, each doing at random what workers, owners and sweepers do."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import pytest

from jobs.database import Database
from jobs.job import Claim, Fenced, JobClass, JobEnded, JobId, TenantId, TooManyQueued
from jobs.store import JobStore

from ..jobs.databases import Clock, rows
from ..jobs.invariants import check
from .job_steps import BROKEN, LEASE, MEDIA, QUEUE, audio, begin, clip, key, new

SECONDS: Final = 3.0
TENANTS: Final = ("ten_a", "ten_b", "ten_c")


@dataclass(kw_only=True)
class Passerby:
    """One thread's worth of the fleet, with a mind of its own."""

    jobs: JobStore
    clock: Clock
    chance: random.Random
    #: Jobs that anybody has created; only ever added to.
    made: list[tuple[JobId, str]]
    claim: Claim | None = None
    #: Where its next clip starts.
    at: int = 0
    done: Counter[str] = field(default_factory=Counter)

    def live(self, until: float) -> None:
        """Do one thing after another."""
        steps: list[tuple[Callable[[], None], int]] = [
            (self.work, 20),
            (self.ask, 6),
            (self.cancel, 2),
            (self.sweep, 3),
            (self.wait, 1),
        ]
        todo, weights = zip(*steps, strict=True)
        while time.monotonic() < until:
            step = self.chance.choices(todo, weights)[0]
            try:
                step()
            except Fenced:
                self.claim = None
                self.done["fenced"] += 1
            self.done[step.__name__] += 1

    def ask(self) -> None:
        tenant = self.chance.choice(TENANTS)
        request = new(
            "x" * self.chance.choice([4, 40, 400]),
            tenant=tenant,
            job_class=self.chance.choice(list(JobClass)),
            deadline=self.chance.choice([None, None, 20]),
            webhook_url=self.chance.choice([None, "https://hooks.example"]),
        )
        try:
            job = self.jobs.create(request, max_queued=20)
        except TooManyQueued:
            return
        self.made.append((job.id, tenant))

    def cancel(self) -> None:
        if not self.made:
            return
        job_id, tenant = self.chance.choice(self.made)
        try:
            cancelled = self.jobs.cancel(job_id, tenant)
        except JobEnded as error:
            if error.status.value != "completed":
                self.jobs.retry(job_id, TenantId(tenant), queue=QUEUE)
        else:
            assert cancelled.queue is None

    def sweep(self) -> None:
        self.chance.choice(
            [
                lambda: self.jobs.expire(limit=5),
                self.jobs.promote,
                lambda: self.jobs.ready(cap=5),
                self.jobs.backlog,
                lambda: [self.jobs.abandon(found.key) for found in self.jobs.orphaned_objects(limit=3)],
                lambda: [self.jobs.forget_object(found.key) for found in self.jobs.expired_objects(limit=3)],
            ]
        )()

    def wait(self) -> None:
        self.clock.advance(self.chance.choice([1, 5, LEASE, 300]))

    def work(self) -> None:
        if self.claim is None:
            queue = self.chance.choice([QUEUE, MEDIA])
            self._took(self.jobs.claim(queue, holder=f"{threading.get_ident()}"))
            return
        claim = self.claim
        if claim.job.queue == QUEUE:
            self._speak(claim)
        else:
            self._encode(claim)

    def _speak(self, claim: Claim) -> None:
        jobs, length = self.jobs, len(claim.input)
        match self.chance.randrange(10):
            case 0:
                self.claim = None
                jobs.release(claim)
            case 1:
                self.claim = None
                jobs.retry_later(claim, BROKEN)
            case 2 | 3 | 4:
                turn_is_over = self.chance.random() < 0.5
                left = max(0, length - self.at)
                if jobs.better(claim, left=left, turn_is_over=turn_is_over):
                    self._took(jobs.swap(claim, holder="w", left=left, turn_is_over=turn_is_over) or claim)
            case _ if self.at >= length:
                self.claim = None
                jobs.synthesized(claim, queue=MEDIA)
            case _:
                end = min(length, self.at + max(1, length // 3))
                made = clip(claim, seq=claim.next_seq + self.done["clips"], start=self.at, end=end)
                jobs.record(claim, made)
                self.done["clips"] += 1
                self.at = end

    def _encode(self, claim: Claim) -> None:
        jobs = self.jobs
        self.claim = None
        match self.chance.randrange(8):
            case 0:
                jobs.release(claim)
            case 1:
                jobs.fail(claim, BROKEN)
            case 2:
                jobs.remake(claim, jobs.clips(claim.job.id)[:2])
            case 3:
                jobs.uploading(claim, key=key(claim))
                jobs.release(claim)
            case _:
                jobs.uploading(claim, key=key(claim))
                jobs.complete(claim, audio(claim))

    def _took(self, claim: Claim | None) -> None:
        if claim is None or claim is self.claim:
            return
        self.claim = claim
        if claim.job.queue == QUEUE:
            # After a loss the gaps are filled first; one clip does for all of them here.
            spans = claim.recorded
            self.at = max((end for _, end in spans), default=0)
            begin(self.jobs, claim, chunks=3, left=len(claim.input) - sum(b - a for a, b in spans))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_crowd_at_work_breaks_no_rule_and_nobody_waits_for_another_for_ever(
    crowd: list[JobStore], database: Database, clock: Clock, seed: int
) -> None:
    made: list[tuple[JobId, str]] = []
    passersby = [
        Passerby(jobs=store, clock=Clock(store._db), chance=random.Random(seed * 100 + number), made=made)
        for number, store in enumerate(crowd[:8])
    ]
    failed: list[BaseException] = []
    until = time.monotonic() + SECONDS

    def live(passerby: Passerby) -> None:
        try:
            passerby.live(until)
        except BaseException as error:
            # A deadlock is one of these: `DatabaseUnavailable`.
            failed.append(error)
            raise

    threads = [threading.Thread(target=live, args=(passerby,)) for passerby in passersby]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    done = sum((passerby.done for passerby in passersby), Counter())
    ends = Counter(row["type"] for row in rows(database, "events"))
    print(f"{database.dialect}, seed {seed}: {dict(done)} {dict(ends)}")  # noqa: T201
    assert failed == []
    check(database)
    assert done["work"] > 100
    assert ends["speech.job.completed"] > 0
