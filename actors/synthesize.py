"""A synthesis bell rings: claim the best job of this queue, speak its chunks, record each, hand it on."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from actors.bell import MEDIA_QUEUE
from actors.departure import Departure, Leaving
from actors.renewal import Renewal
from actors.turn import UNEXPECTED, Remedy, Turn, Verdict
from jobs.job import Claim, Clip, Fenced, JobError
from jobs.store import JobStore
from speech.audio import pcm_s16le
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
from storage.keys import staged_key
from storage.store import ObjectStore, StoreError, StoreUnavailable

log = logging.getLogger("voxfleet.actors")


class Speaker(Protocol):
    """The engine, as this actor drives it: `speech.host.EngineHost`."""

    @property
    def info(self) -> EngineInfo: ...

    def synthesize(
        self, request: SynthesisRequest, *, stop: Callable[[], bool] | None = None
    ) -> Iterator[Samples]: ...


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


def synthesize(work: Synthesis) -> None:
    """Speak the most urgent job of the queue, from its last recorded clip on."""
    turn = Turn(queue=work.queue, holder=work.holder, jobs=work.jobs, ring=work.ring)
    turn.take(lambda claim, lease: _speak(work, claim, lease), judge=lambda error: _judge(work, error))


def _speak(work: Synthesis, claim: Claim, lease: Renewal) -> None:
    log.info("job %s epoch %d: speaking from offset %d", claim.job.id, claim.job.epoch, claim.text_end)
    info = work.engine.info
    spoken = claim.spoken_text
    if spoken is None:
        spoken = prepare(claim.input)
        lease.persist(partial(work.jobs.prepare, claim, spoken_text=spoken))
    chunks = voiced(
        split(spoken, start=claim.text_end, max_chars=info.max_chars, language=claim.job.language)
    )
    if chunks:
        lease.persist(partial(work.jobs.plan, claim, chunks_total=claim.clips + len(chunks)))
        lease.persist(partial(work.jobs.staging, claim))
    for number, chunk in enumerate(chunks):
        lease.check()
        if work.departure.asked():
            raise Leaving
        # A chunk that gave a bad clip is spoken with another seed; any other repeat gives the same sound.
        attempt = claim.errors.count(BadOutput.code) if number == 0 else 0
        seed = chunk_seed(claim.seed, chunk.start, attempt)
        samples = _make(work, claim, chunk, seed, lease)
        _stage(work, claim, chunk, seed, samples, seq=claim.clips + number, lease=lease)
    lease.persist(partial(work.jobs.synthesized, claim, queue=MEDIA_QUEUE))
    work.ring(MEDIA_QUEUE)


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


def _make(work: Synthesis, claim: Claim, chunk: Chunk, seed: int, lease: Renewal) -> Samples:
    request = SynthesisRequest(text=chunk.text, voice=claim.job.voice, language=claim.job.language, seed=seed)
    try:
        stop = lambda: lease.lost() or work.departure.overdue()  # noqa: E731
        parts = list(work.engine.synthesize(request, stop=stop))
    except Interrupted as error:
        lease.check()
        raise Leaving from error
    samples = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    check_clip(samples, chunk.text, work.engine.info)
    return samples


def _stage(
    work: Synthesis, claim: Claim, chunk: Chunk, seed: int, samples: Samples, *, seq: int, lease: Renewal
) -> None:
    """Store the clip, then record it: the row is the checkpoint."""
    info = work.engine.info
    body = pcm_s16le(samples)
    key = staged_key(claim.job.id, epoch=claim.job.epoch, seq=seq)
    work.objects.put(key, body, content_type=clip_type(info.sample_rate))
    clip = Clip(
        seq=seq,
        text_start=chunk.start,
        text_end=chunk.end,
        pause_ms=0,
        epoch=claim.job.epoch,
        key=key,
        sha256=hashlib.sha256(body).hexdigest(),
        samples=len(samples),
        sample_rate=info.sample_rate,
        seed=seed,
        engine_revision=info.revision,
    )
    try:
        lease.check()
        lease.persist(partial(work.jobs.record, claim, clip))
    except Fenced:
        # The job may have ended meanwhile, and its staged objects been cleared: this one would stay.
        with suppress(StoreError):
            work.objects.delete(key)
        raise


def clip_type(sample_rate: int) -> str:
    """Return the content type of a staged clip: raw s16le mono at the engine's rate."""
    return f"audio/x-raw; format=S16LE; channels=1; rate={sample_rate}"


def chunk_seed(seed: int, text_start: int, attempt: int) -> int:
    """Return the seed of one chunk, 0 to 2**32 - 1: it depends on where the chunk starts, so that a resumed
    job, or one that was cut differently, sounds the same up to there.
    """
    digest = hashlib.sha256(f"{seed}/{text_start}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def _judge(work: Synthesis, error: Exception) -> Verdict:
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
            waits = isinstance(error, StoreUnavailable)
            return Verdict(error=reason, remedy=Remedy.WAIT if waits else Remedy.RETRY)
        case _:
            return Verdict(error=UNEXPECTED, remedy=Remedy.RETRY)
