"""One turn of an actor: claim the best job, work under a renewed lease, and write down what came of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final

from actors.bell import WEBHOOK_QUEUE
from actors.departure import Leaving
from actors.renewal import Renewal
from jobs.database import DatabaseUnavailable
from jobs.job import Claim, Fenced, JobError
from jobs.store import JobStore

log = logging.getLogger("voxfleet.actors")

#: How long a job waits when something that is not its fault is out of order.
OUTAGE_SECONDS: Final = 5.0
#: What the owner of a job is told of an error that nobody has foreseen.
UNEXPECTED: Final = JobError(code="internal_error", message="an unexpected error; the worker's log has it")


class Remedy(Enum):
    """What helps against an error."""

    #: Something else is out of order: the job waits, and nothing is counted.
    WAIT = "waits"
    #: It may pass: the failure is counted, and the job tried again, up to the limit.
    RETRY = "will be tried again"
    #: Nothing: the job fails at once.
    NONE = "failed for good"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an error means to the job it rose from."""

    error: JobError
    remedy: Remedy
    #: How long it waits, where that is its remedy.
    seconds: float = OUTAGE_SECONDS


class Fate(Enum):
    """What came of a piece of work, to the worker that did it."""

    #: It is over, one way or another: look for the next one.
    OVER = 1
    #: Something that all work needs is out of order: wait for another bell.
    OUT_OF_ORDER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What every turn needs, whatever the work.

    Attributes:
        claim: takes the best job, or returns None.
        go_on: whether to look for another job when one is done; a bell need not be waited for.
    """

    queue: str
    jobs: JobStore
    ring: Callable[[str], None]
    claim: Callable[[], Claim | None]
    go_on: Callable[[], bool]

    def take(
        self, do: Callable[[Claim, Renewal], Claim | None], *, judge: Callable[[Claim, Exception], Verdict]
    ) -> None:
        """Do jobs of the queue, the most urgent first, until there is none.

        Args:
            do: the work; it raises `Fenced` as soon as the lease is lost, and `Leaving` where it breaks off
                because the process is to end. It returns the job that it gave way to, already claimed.
            judge: says what an error of `do` means to its job.
        """
        claim = self._next()
        while claim is not None:
            after = self._work(claim, do, judge)
            if isinstance(after, Claim):
                claim = after
            elif after is Fate.OVER and self.go_on():
                claim = self._next()
            else:
                return

    def _next(self) -> Claim | None:
        try:
            return self.claim()
        except DatabaseUnavailable as error:
            # The sweeper rings again.
            log.warning("no job of %s could be claimed: %s", self.queue, error)
            return None

    def _work(
        self,
        claim: Claim,
        do: Callable[[Claim, Renewal], Claim | None],
        judge: Callable[[Claim, Exception], Verdict],
    ) -> Claim | Fate:
        job = claim.job
        renew = partial(self.jobs.renew, job.id, job.epoch)
        with Renewal(renew, lease_seconds=claim.lease_seconds) as lease:
            try:
                return self._try(claim, lease, do, judge)
            except Fenced:
                log.info("job %s epoch %d is no longer ours", job.id, job.epoch)
                return Fate.OVER
            except DatabaseUnavailable as error:
                # The row stays held until the lease runs out; what is recorded stays recorded.
                log.warning("job %s epoch %d: %s", job.id, job.epoch, error)
                return Fate.OUT_OF_ORDER

    def _try(
        self,
        claim: Claim,
        lease: Renewal,
        do: Callable[[Claim, Renewal], Claim | None],
        judge: Callable[[Claim, Exception], Verdict],
    ) -> Claim | Fate:
        try:
            return do(claim, lease) or Fate.OVER
        except (Fenced, DatabaseUnavailable):
            raise
        except Leaving:
            log.info("job %s is let go", claim.job.id)
            lease.persist(partial(self.jobs.release, claim))
            self.ring(self.queue)
            return Fate.OVER
        except Exception as error:
            verdict = judge(claim, error)
            if verdict.error is UNEXPECTED:
                log.exception("job %s epoch %d", claim.job.id, claim.job.epoch)
            lease.persist(partial(self._write_down, claim, verdict, error))
            return Fate.OUT_OF_ORDER if verdict.remedy is Remedy.WAIT else Fate.OVER

    def _write_down(self, claim: Claim, verdict: Verdict, cause: Exception) -> None:
        remedy, error = verdict.remedy, verdict.error
        if remedy is Remedy.WAIT:
            self.jobs.postpone(claim, error, seconds=verdict.seconds)
        elif remedy is Remedy.NONE:
            self.jobs.fail(claim, error)
        elif self.jobs.retry_later(claim, error) is not None:
            remedy = Remedy.NONE
        # The whole cause is for the operator: it may tell of paths and hosts.
        log.warning("job %s %s: %s: %s", claim.job.id, remedy.value, error.code, cause)
        if remedy is Remedy.NONE and claim.webhook_url is not None:
            self.ring(WEBHOOK_QUEUE)
