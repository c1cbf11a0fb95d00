"""What becomes of a job when its engine cannot speak it: another engine, the notice, or an honest end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from actors.counts import Counts
from actors.renewal import Renewal
from actors.staging import Made, Staging
from actors.standing import Standing
from jobs.job import Claim, JobClass, JobWarning
from jobs.store import JobStore
from speech.audio import Samples
from speech.chunks import Chunk
from speech.ladder import Rung

log = logging.getLogger("voxfleet.actors")

#: `Clip.engine_revision` of a clip that no engine made.
NOTICE_REVISION: Final = "notice"

#: What the owner of a job is told, by what was done.
TOLD: Final[dict[Rung, str]] = {
    Rung.RETRIED: "the engine ran out of memory; the piece in hand was spoken again",
    Rung.SPLIT: "too little memory for the usual length: some sentences were spoken in pieces",
    Rung.SPARED: "too little memory: some of it was spoken at lower quality",
    Rung.RESTARTED: "the engine was started again to free its memory",
    Rung.HANDED_OVER: "spoken by another model",
    Rung.NOTICE: "the engine could not speak in time: a notice is heard in place of the rest",
}
#: Codes of the warnings.
CODES: Final[dict[Rung, str]] = {
    Rung.RETRIED: "memory_retried",
    Rung.SPLIT: "memory_split",
    Rung.SPARED: "memory_spared",
    Rung.RESTARTED: "engine_restarted",
    Rung.HANDED_OVER: "fallback_model",
    Rung.NOTICE: "notice_played",
}
#: What is heard is not what was asked for.
DEGRADING: Final = frozenset({Rung.SPARED, Rung.HANDED_OVER, Rung.NOTICE})


class OutOfMeans(Exception):
    """Nothing that this worker could do gave the text enough memory, and nobody else speaks it."""

    told = "it ran out of memory"


class LeftAlone(Exception):
    """The breaker is open: the engine is not asked now."""

    told = "it ran out of memory too often"


class Late(Exception):
    """Nothing was heard in time by somebody who listens."""

    told = "it gave no sound in time"


def warning(rung: Rung, message: str | None = None) -> JobWarning:
    """Return what the owner of a job is told of a rung."""
    return JobWarning(code=CODES[rung], message=message or TOLD[rung])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescue:
    """What a rescue needs, for every job."""

    jobs: JobStore
    ring: Callable[[str], None]
    standing: Standing
    counts: Counts
    #: The notice in a language, at a sample rate.
    notice: Callable[[str, int], Samples]

    def tell(self, claim: Claim, lease: Renewal, rung: Rung, *, again: bool = False) -> None:
        """Count what was done, and tell the owner of the job, if that was not done before."""
        self.counts.add(f"rung.{rung.value}")
        if not again:
            lease.persist(partial(self.jobs.warn, claim, warning(rung), degraded=rung in DEGRADING))

    def hand_over(self, claim: Claim, lease: Renewal, staging: Staging, *, reason: str) -> bool:
        """Give the job to another model, where one can speak it; say whether it was."""
        to = self.standing.substitute(claim)
        if to is None:
            return False
        # No clip of this engine may be recorded after the others are dropped.
        staging.flush()
        said = warning(Rung.HANDED_OVER, f"spoken by {to.model} in place of {claim.job.model}: {reason}")
        lease.persist(partial(self.jobs.hand_over, claim, to, said))
        self.counts.add(f"rung.{Rung.HANDED_OVER.value}")
        log.warning("job %s is handed over to %s: %s", claim.job.id, to.model, reason)
        self.ring(to.queue)
        return True

    def play_notice(
        self, claim: Claim, lease: Renewal, staging: Staging, rest: Sequence[Chunk], *, seq: int, rate: int
    ) -> bool:
        """Let whoever listens hear that the rest cannot be spoken now; say whether anybody does.

        Args:
            rest: what is not recorded, in order.
            seq: of the first clip.
            rate: of the job's other clips, in Hz.
        """
        if claim.job.job_class is not JobClass.LIVE:
            return False
        samples = self.notice(claim.language, rate)
        for number, gap in enumerate(_gaps(rest)):
            staging.put(
                Made(
                    seq=seq + number,
                    chunk=gap,
                    seed=0,
                    samples=samples,
                    sample_rate=rate,
                    revision=NOTICE_REVISION,
                )
            )
        self.tell(claim, lease, Rung.NOTICE)
        log.warning("job %s: the notice is heard in place of the rest", claim.job.id)
        return True


def _gaps(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Return the chunks with neighbours made one."""
    gaps: list[Chunk] = []
    for chunk in chunks:
        if gaps and gaps[-1].end == chunk.start:
            gaps[-1] = Chunk(gaps[-1].start, chunk.end, gaps[-1].text)
        else:
            gaps.append(chunk)
    return gaps
