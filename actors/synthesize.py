"""A synthesis bell rings: claim the best job of this queue, speak its chunks, record each, hand it on."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

import numpy as np

from actors.bell import MEDIA_QUEUE
from actors.departure import Departure, Leaving
from actors.pace import Pace
from actors.renewal import Renewal
from actors.staging import Made, Staging
from actors.turn import UNEXPECTED, Remedy, Turn, Verdict
from actors.urgency import Urgency
from jobs.database import DatabaseUnavailable
from jobs.job import Claim, JobClass, JobError
from jobs.store import JobStore
from speech.checks import check_clip
from speech.chunks import Chunk, split
from speech.engine import (
    BadOutput,
    EngineError,
    EngineFailed,
    EngineInfo,
    EngineUnavailable,
    Samples,
    SynthesisRequest,
)
from speech.host import Interrupted
from speech.text import prepare, speakable
from storage.store import ObjectStore, StoreError, StoreUnavailable

log = logging.getLogger("voxfleet.actors")

#: After so long on one worker a job lets others of its class go first.
TURN_SECONDS: Final = 300.0
#: A live job waits for the chunk in hand when no more than this is left of it.
CUT_SECONDS: Final = 1.0


class Speaker(Protocol):
    """The engine, as this actor drives it: `speech.host.EngineHost`."""

    @property
    def info(self) -> EngineInfo: ...

    def synthesize(
        self, request: SynthesisRequest, *, stop: Callable[[], bool] | None = None
    ) -> Iterator[Samples]: ...


@dataclass(slots=True)
class Habits:
    """What was seen by the jobs before."""

    #: Whether it gives a clip in several pieces, between which it can stop. One that gives it whole would
    #: have to be killed, and a load takes longer than a chunk.
    streams: bool = False
    #: Whether the object store was away when a clip was to be staged: what is made now would be lost.
    store_is_away: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """What the synthesis actor works with."""

    queue: str
    holder: str
    jobs: JobStore
    objects: ObjectStore
    engine: Speaker
    ring: Callable[[str], None]
    departure: Departure
    #: Called when the engine cannot be loaded any more: this worker is of no use.
    broken: Callable[[str], None]
    pace: Pace = field(default_factory=Pace)
    habits: Habits = field(default_factory=Habits)
    #: Seconds, from any beginning.
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class InHand:
    """A job while it is spoken."""

    claim: Claim
    lease: Renewal
    urgency: Urgency
    staging: Staging


def synthesize(work: Synthesis) -> None:
    """Speak the jobs of the queue, the most urgent first, each from its last recorded clip on."""
    turn = Turn(
        queue=work.queue,
        jobs=work.jobs,
        ring=work.ring,
        claim=partial(_claim, work),
        go_on=lambda: not work.departure.asked(),
    )
    turn.take(lambda claim, lease: _speak(work, claim, lease), judge=partial(_judge, work))


def _claim(work: Synthesis) -> Claim | None:
    """Take the best job, unless its clips could not be stored."""
    if work.habits.store_is_away:
        try:
            work.objects.check()
        except StoreError as error:
            # The sweeper rings again.
            log.debug("nothing is claimed: %s", error)
            return None
        work.habits.store_is_away = False
    return work.jobs.claim(work.queue, holder=work.holder)


def _speak(work: Synthesis, claim: Claim, lease: Renewal) -> Claim | None:
    """Speak what is not recorded yet; return the job that this one gave way to, if it did."""
    job = claim.job
    info = work.engine.info
    spoken = prepare(claim.input) if claim.spoken_text is None else claim.spoken_text
    chunks = unspoken(spoken, claim.recorded, max_chars=info.max_chars, language=job.language)
    left = sum(chunk.end - chunk.start for chunk in chunks)
    log.info("job %s epoch %d: %d of %d characters to speak", job.id, job.epoch, left, len(spoken))
    total = len(claim.recorded) + len(chunks)
    begin = partial(work.jobs.begin, claim, spoken_text=spoken, chunks_total=total, characters_left=left)
    lease.persist(begin)
    begun = work.clock()
    urgency = Urgency(partial(work.jobs.urgent, work.queue), wanted=job.job_class is not JobClass.LIVE)
    with urgency, Staging(claim, lease, jobs=work.jobs, objects=work.objects) as staging:
        hand = InHand(claim=claim, lease=lease, urgency=urgency, staging=staging)
        for number, chunk in enumerate(chunks):
            # A chunk that gave a bad clip is spoken with another seed; any other repeat sounds the same.
            attempt = claim.errors.count(BadOutput.code) if number == 0 else 0
            seed = chunk_seed(claim.seed, chunk.start, attempt)
            samples: Samples | None = None
            # At least one chunk of each turn is made, so that no job is only ever put off.
            border = number > 0
            while samples is None:
                lease.check()
                if work.departure.asked():
                    raise Leaving
                if border:
                    turn_is_over = work.clock() - begun >= TURN_SECONDS
                    better = _give_way(work, hand, left=left, turn_is_over=turn_is_over)
                    if better is not None:
                        return better
                # None when it was cut for a live job, which somebody else may have taken since.
                samples = _make(work, hand, chunk, seed)
                border = True
            left -= chunk.end - chunk.start
            staging.put(Made(seq=claim.next_seq + number, chunk=chunk, seed=seed, samples=samples, info=info))
    lease.persist(partial(work.jobs.synthesized, claim, queue=MEDIA_QUEUE))
    work.ring(MEDIA_QUEUE)
    return None


def unspoken(text: str, recorded: Iterable[tuple[int, int]], *, max_chars: int, language: str) -> list[Chunk]:
    """Return the chunks of all that no clip holds, in order.

    That is the end of the text after a death, a gap where a clip was lost, or both; each piece is cut by
    itself, so it does not matter how the clips were cut, or by whom.
    """
    chunks: list[Chunk] = []
    at = 0
    for start, end in (*recorded, (len(text), len(text))):
        if start > at:
            piece = split(text[:start], start=at, max_chars=max_chars, language=language)
            chunks += voiced(piece)
        at = max(at, end)
    return chunks


def _give_way(work: Synthesis, hand: InHand, *, left: int, turn_is_over: bool) -> Claim | None:
    """Return a better job, claimed in place of the one in hand, if one waits."""
    job = hand.claim.job
    try:
        if not work.jobs.better(hand.claim, left=left, turn_is_over=turn_is_over):
            return None
        # What is made stays made.
        hand.staging.flush()
        better = work.jobs.swap(hand.claim, holder=work.holder, left=left, turn_is_over=turn_is_over)
    except DatabaseUnavailable as error:
        # Nobody knows whether it was done; if it was, the next write is fenced.
        log.warning("job %s does not look for a better one: %s", job.id, error)
        return None
    if better is not None:
        log.info("job %s gives way to %s with %d characters left", job.id, better.job.id, left)
        work.ring(work.queue)
    return better


def voiced(chunks: Iterable[Chunk]) -> list[Chunk]:
    """Return the chunks that an engine has a sound for; the spans still tile the text.

    A line of dots or emoji that fits into no neighbour has no sound: its span goes to the chunk before it,
    or after it at the start of the text.
    """
    found: list[Chunk] = []
    start: int | None = None
    for chunk in chunks:
        if speakable(chunk.text):
            found.append(chunk if start is None else replace(chunk, start=start))
            start = None
        elif found:
            found[-1] = replace(found[-1], end=chunk.end)
        elif start is None:
            start = chunk.start
    return found


def _make(work: Synthesis, hand: InHand, chunk: Chunk, seed: int) -> Samples | None:
    """Return the audio of one chunk; None when it was cut, for a live job."""
    job = hand.claim.job
    request = SynthesisRequest(text=chunk.text, voice=job.voice, language=job.language, seed=seed)
    begun = work.clock()
    is_cut = False

    def stop() -> bool:
        nonlocal is_cut
        if hand.lease.lost() or work.departure.overdue():
            return True
        if hand.urgency.waits() and work.habits.streams:
            pace = work.pace.seconds_per_char or 0.0
            is_cut = len(chunk.text) * pace - (work.clock() - begun) > CUT_SECONDS
        return is_cut

    try:
        parts = list(work.engine.synthesize(request, stop=stop))
    except Interrupted as error:
        hand.lease.check()
        if not is_cut or work.departure.overdue():
            raise Leaving from error
        log.info("job %s: the chunk at %d is cut for a live job", job.id, chunk.start)
        return None
    work.habits.streams = len(parts) > 1
    samples = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    info = work.engine.info
    check_clip(samples, chunk.text, info)
    work.pace.made(
        seconds=work.clock() - begun,
        audio_seconds=len(samples) / info.sample_rate,
        characters=len(chunk.text),
    )
    return samples


def chunk_seed(seed: int, text_start: int, attempt: int) -> int:
    """Return the seed of one chunk, 0 to 2**32 - 1: it depends on where the chunk starts, so that a resumed
    job, or one that was cut differently, sounds the same up to there.
    """
    digest = hashlib.sha256(f"{seed}/{text_start}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def _judge(work: Synthesis, _claim: Claim, error: Exception) -> Verdict:
    """Say what an error of `_speak` means to its job."""
    match error:
        case EngineUnavailable():
            # It is this worker that is broken, not the text: another one may have the job at once.
            work.broken(str(error))
            reason = JobError(code=error.code, message="the engine cannot be loaded")
            return Verdict(error=reason, remedy=Remedy.WAIT)
        case EngineFailed():
            # Its own words may tell of the worker's machine.
            reason = JobError(code=error.code, message="the engine failed; the worker's log says how")
            return Verdict(error=reason, remedy=Remedy.RETRY)
        case EngineError(transient=True):
            return Verdict(error=JobError(code=error.code, message=str(error)), remedy=Remedy.RETRY)
        case EngineError():
            reason = JobError(
                code=error.code, message=str(error), type="invalid_request_error", param="input"
            )
            return Verdict(error=reason, remedy=Remedy.NONE)
        case StoreError():
            reason = JobError(code="storage_error", message="the object store did not take a clip")
            waits = work.habits.store_is_away = isinstance(error, StoreUnavailable)
            return Verdict(error=reason, remedy=Remedy.WAIT if waits else Remedy.RETRY)
        case _:
            return Verdict(error=UNEXPECTED, remedy=Remedy.RETRY)
