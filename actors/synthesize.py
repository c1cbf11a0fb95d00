"""A synthesis bell rings: claim the best job of this queue, speak its chunks, record each, hand it on."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from actors.bell import MEDIA_QUEUE, WEBHOOK_QUEUE
from actors.renewal import Renewal
from jobs.database import DatabaseUnavailable
from jobs.job import Claim, Clip, Fenced, JobError
from jobs.store import JobStore
from speech.audio import pcm_s16le
from speech.checks import check_clip
from speech.chunks import Chunk, split
from speech.engine import EngineError, EngineInfo, EngineUnavailable, Samples, SynthesisRequest
from speech.host import Interrupted
from speech.text import prepare, speakable
from storage.keys import staged_key
from storage.store import ObjectStore, StoreError, StoreUnavailable

log = logging.getLogger("voxfleet.actors")

#: How long a job waits when the object store or the engine is out of order, which is not its fault.
OUTAGE_SECONDS: Final = 5.0


class Speaker(Protocol):
    """The engine, as this actor drives it: `speech.host.EngineHost`."""

    @property
    def info(self) -> EngineInfo: ...

    def synthesize(
        self, request: SynthesisRequest, *, stop: Callable[[], bool] | None = None
    ) -> Iterator[Samples]: ...


class Leaving(Exception):
    """This worker is to end: let go of the job at a chunk's border."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesis:
    """What the synthesis actor works with."""

    queue: str
    holder: str
    jobs: JobStore
    objects: ObjectStore
    engine: Speaker
    ring: Callable[[str], None]
    #: Whether this worker is to end.
    leaving: Callable[[], bool]


def synthesize(work: Synthesis) -> None:
    """Speak the most urgent job of the queue, from its last recorded clip on."""
    try:
        claim = work.jobs.claim(work.queue, holder=work.holder)
    except DatabaseUnavailable as error:
        # The sweeper rings again.
        log.warning("no job could be claimed: %s", error)
        return
    if claim is None:
        return
    job = claim.job
    log.info("job %s epoch %d: speaking from offset %d", job.id, job.epoch, claim.text_end)
    with Renewal(lambda: work.jobs.renew(job.id, job.epoch), lease_seconds=claim.lease_seconds) as lease:
        try:
            _try(work, claim, lease)
        except (Fenced, Interrupted):
            log.info("job %s epoch %d is no longer ours", job.id, job.epoch)
        except DatabaseUnavailable as error:
            # The row stays held until the lease runs out; what is recorded stays recorded.
            log.warning("job %s epoch %d: %s", job.id, job.epoch, error)


def _try(work: Synthesis, claim: Claim, lease: Renewal) -> None:
    """Speak the job, or write down why it could not be done now."""
    try:
        _speak(work, claim, lease)
    except (Fenced, Interrupted, DatabaseUnavailable):
        raise
    except Leaving:
        work.jobs.release(claim)
        work.ring(work.queue)
    except (StoreUnavailable, EngineUnavailable) as error:
        log.warning("job %s waits: %s", claim.job.id, error)
        work.jobs.postpone(claim, _error(error), seconds=OUTAGE_SECONDS)
    except (EngineError, StoreError) as error:
        _blame(work, claim, error)
    except Exception as error:
        log.exception("job %s epoch %d", claim.job.id, claim.job.epoch)
        _blame(work, claim, error)
    else:
        work.ring(MEDIA_QUEUE)


def _speak(work: Synthesis, claim: Claim, lease: Renewal) -> None:
    info = work.engine.info
    spoken = claim.spoken_text
    if spoken is None:
        spoken = prepare(claim.input)
        work.jobs.prepare(claim, spoken_text=spoken)
    chunks = voiced(
        split(spoken, start=claim.text_end, max_chars=info.max_chars, language=claim.job.language)
    )
    if chunks:
        work.jobs.plan(claim, chunks_total=claim.clips + len(chunks))
        work.jobs.staging(claim)
    for number, chunk in enumerate(chunks):
        lease.check()
        if work.leaving():
            raise Leaving
        # A chunk that gave a bad clip is spoken with another seed; any other repeat gives the same sound.
        attempt = claim.job.failures if number == 0 else 0
        seed = chunk_seed(claim.seed, chunk.start, attempt)
        samples = _make(work, claim, chunk, seed, lease)
        _stage(work, claim, chunk, seed, samples, seq=claim.clips + number, lease=lease)
    work.jobs.synthesized(claim, queue=MEDIA_QUEUE)


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
    parts = list(work.engine.synthesize(request, stop=lease.lost))
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
        work.jobs.record(claim, clip)
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


def _blame(work: Synthesis, claim: Claim, error: Exception) -> None:
    """Count the failure, or fail the job when trying again cannot help."""
    reason = _error(error)
    final = isinstance(error, EngineError) and not error.transient
    ended = work.jobs.fail(claim, reason) if final else work.jobs.retry_later(claim, reason)
    what = "will be tried again" if ended is None else "failed for good"
    log.warning("job %s %s: %s: %s", claim.job.id, what, reason.code, reason.message)
    if ended is not None and claim.webhook_url is not None:
        work.ring(WEBHOOK_QUEUE)


def _error(error: Exception) -> JobError:
    match error:
        case EngineError():
            fault = "server_error" if error.transient else "invalid_request_error"
            return JobError(code=error.code, message=str(error), type=fault)
        case StoreError():
            return JobError(code="storage_error", message="the object store did not take a clip")
        case _:
            return JobError(code="internal_error", message="an unexpected error; the worker's log has it")
