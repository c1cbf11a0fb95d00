"""A media bell rings: join the clips of one job, encode once, verify, upload, publish."""

from __future__ import annotations

import errno
import hashlib
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final, cast

from actors.bell import MEDIA_QUEUE, WEBHOOK_QUEUE
from actors.departure import Departure, Leaving
from actors.pace import Pace
from actors.renewal import Renewal
from actors.staged import drop_staged
from actors.turn import UNEXPECTED, Remedy, Turn, Verdict
from jobs.database import DatabaseUnavailable
from jobs.job import Claim, Clip, Fenced, JobError, PublishedAudio
from jobs.store import JobStore
from speech.audio import Audio, from_pcm_s16le, join, overlap_between
from speech.encode import (
    DiskFull,
    EmptyAudio,
    Encoded,
    EncodeError,
    EncoderFailed,
    EncoderMissing,
    Mp3Encoder,
)
from speech.text import speakable
from storage.keys import audio_key
from storage.store import ObjectNotFound, ObjectStore, StoreError, StoreUnavailable

log = logging.getLogger("voxfleet.actors")

CROSSFADE_MS: Final = 50
#: A key is never written twice with other bytes, so caches may keep what they have.
CACHE_CONTROL: Final = "private, max-age=31536000, immutable"


#: What the owner of a job is told; the encoder's own words name paths of the worker's machine.
TOLD: Final[dict[str, str]] = {
    EncoderFailed.code: "the audio could not be encoded",
    DiskFull.code: "the worker's disk is full",
    EncoderMissing.code: "the worker has no encoder",
    EmptyAudio.code: "there is nothing to hear",
}


#: How long a job waits for room on the worker's disk.
DISK_SECONDS: Final = 600.0
#: Encoding longer audio than this takes long enough for others to notice.
LONG_MS: Final = 600_000


class ClipsLost(Exception):
    """Recorded clips are not in the object store, or not as they were recorded; or text has no clip.

    Attributes:
        clips: those that must be made again.
    """

    def __init__(self, clips: Sequence[Clip]) -> None:
        super().__init__(f"{len(clips)} clips are gone or damaged" if clips else "text without a clip")
        self.clips = tuple(clips)


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """What the media actor works with."""

    holder: str
    jobs: JobStore
    objects: ObjectStore
    encoder: Mp3Encoder
    temp_dir: Path
    ring: Callable[[str], None]
    departure: Departure
    #: Long encodes take one each, and there are fewer than encoders: one encoder is left to short audio.
    long_slots: threading.Semaphore
    pace: Pace = field(default_factory=Pace)


def encode(work: Media) -> None:
    """Turn the recorded clips of jobs into their published audio, the most urgent and shortest first."""
    turn = Turn(
        queue=MEDIA_QUEUE,
        jobs=work.jobs,
        ring=work.ring,
        claim=partial(_claim, work),
        go_on=lambda: not work.departure.asked(),
    )
    turn.take(lambda claim, lease: _encode(work, claim, lease), judge=_judge)


def _claim(work: Media) -> Claim | None:
    """Take the best job; a long one only where that leaves an encoder to others."""
    if not work.long_slots.acquire(blocking=False):
        return work.jobs.claim(MEDIA_QUEUE, holder=work.holder, longest_ms=LONG_MS)
    claim: Claim | None = None
    try:
        claim = work.jobs.claim(MEDIA_QUEUE, holder=work.holder)
    finally:
        if claim is None or not _is_long(claim):
            work.long_slots.release()
    return claim


def _is_long(claim: Claim) -> bool:
    return claim.job.audio_ms > LONG_MS


def _encode(work: Media, claim: Claim, lease: Renewal) -> None:
    job = claim.job
    log.info("job %s epoch %d: encoding %d clips", job.id, job.epoch, len(claim.recorded))
    begun = time.monotonic()
    try:
        _publish(work, claim, lease)
    except ClipsLost as error:
        _send_back(work, claim, lease, error)
        return
    finally:
        if _is_long(claim):
            work.long_slots.release()
    log.info("job %s is published", job.id)
    work.pace.made(seconds=time.monotonic() - begun, audio_seconds=job.audio_ms / 1000)
    if claim.webhook_url is not None:
        work.ring(WEBHOOK_QUEUE)
    try:
        # One epoch for the engine, one for the encoder: nobody else ever held it, so nobody stages any more.
        drop_staged(job.id, jobs=work.jobs, objects=work.objects, settled=job.epoch <= 2)
    except (StoreError, DatabaseUnavailable) as error:
        log.warning("staged clips of job %s are left to the sweeper: %s", job.id, error)


def _send_back(work: Media, claim: Claim, lease: Renewal, error: ClipsLost) -> None:
    """Have what was lost spoken again."""
    failed = lease.persist(partial(work.jobs.remake, claim, error.clips))
    log.warning("job %s: %s; %s", claim.job.id, error, "failed for good" if failed else "spoken again")
    if failed is None and claim.synthesis_queue is not None:
        work.ring(claim.synthesis_queue)
    elif failed is not None and claim.webhook_url is not None:
        work.ring(WEBHOOK_QUEUE)


def _publish(work: Media, claim: Claim, lease: Renewal) -> None:
    job = claim.job
    recorded = work.jobs.clips(job.id)
    _check_whole(claim, recorded)
    with tempfile.TemporaryDirectory(prefix=f"{job.id}-", dir=work.temp_dir) as folder:
        path = Path(folder) / "speech.mp3"
        sound = join(_clips(work, recorded, lease), crossfade_ms=CROSSFADE_MS)
        made = work.encoder.encode(sound, path, check=partial(_go_on, work, lease))
        _check_length(made, recorded)
        _go_on(work, lease)
        key = audio_key(job.id, epoch=job.epoch, extension="mp3", expires_in=job.expires_in)
        lease.persist(partial(work.jobs.uploading, claim, key=key))
        try:
            with path.open("rb") as file:
                work.objects.put(
                    key,
                    cast(BinaryIO, Checked(file, partial(_go_on, work, lease))),
                    content_type=made.content_type,
                    metadata={"sha256": made.sha256, "job": job.id},
                    cache_control=CACHE_CONTROL,
                )
            lease.check()
        except Fenced:
            _discard(work, key)
            raise
    audio = PublishedAudio(
        key=key,
        content_type=made.content_type,
        bytes=made.bytes,
        duration_ms=made.duration_ms,
        sample_rate=made.sample_rate,
        bitrate=made.bitrate,
        channels=made.channels,
        sha256=made.sha256,
    )
    try:
        lease.persist(partial(work.jobs.complete, claim, audio))
    except (Fenced, DatabaseUnavailable) as error:
        # The answer may have been lost, not the commit.
        if work.jobs.published(claim, key=key):
            return
        if isinstance(error, Fenced):
            _discard(work, key)
        raise


def _discard(work: Media, key: str) -> None:
    """Delete an object that cannot be published any more; where that fails, the sweeper does it."""
    with suppress(StoreError, DatabaseUnavailable):
        work.objects.delete(key)
        work.jobs.abandon(key)


def _check_whole(claim: Claim, recorded: Sequence[Clip]) -> None:
    """Every piece of the text that can be heard has a clip.

    Raises:
        ClipsLost.
    """
    text = claim.spoken_text or ""
    at = 0
    for start, end in (*((clip.text_start, clip.text_end) for clip in recorded), (len(text), len(text))):
        if start > at and speakable(text[at:start]):
            raise ClipsLost(())
        at = max(at, end)


def _clips(work: Media, recorded: Sequence[Clip], lease: Renewal) -> Iterator[Audio]:
    """Yield the clips.

    Raises:
        ClipsLost: with every clip that is not as it was recorded, not the first one alone.
    """
    for number, clip in enumerate(recorded):
        _go_on(work, lease)
        body = _read(work, clip)
        if body is None:
            rest = recorded[number + 1 :]
            raise ClipsLost([clip, *(other for other in rest if _is_lost(work, other, lease))])
        yield Audio(from_pcm_s16le(body), clip.sample_rate)


def _is_lost(work: Media, clip: Clip, lease: Renewal) -> bool:
    _go_on(work, lease)
    return _read(work, clip) is None


def _read(work: Media, clip: Clip) -> bytes | None:
    """Return a clip as it was recorded, or None where it is gone or damaged."""
    try:
        body = b"".join(work.objects.get(clip.key))
    except ObjectNotFound:
        return None
    return body if hashlib.sha256(body).hexdigest() == clip.sha256 else None


def _go_on(work: Media, lease: Renewal) -> None:
    """Return when work may go on.

    Raises:
        Fenced: the job is somebody else's.
        Leaving: this worker is to end, and has finished what it could in time.
    """
    lease.check()
    if work.departure.overdue():
        raise Leaving


class Checked:
    """A file that is read on only while `check` does not raise: the upload of a book takes a while."""

    def __init__(self, file: BinaryIO, check: Callable[[], None]) -> None:
        self._file = file
        self._check = check

    def read(self, size: int = -1) -> bytes:
        self._check()
        return self._file.read(size)


def _check_length(made: Encoded, recorded: Sequence[Clip]) -> None:
    """The audio holds every recorded sample, less the overlaps: nothing was skipped on the way."""
    expected = sum(clip.samples for clip in recorded) - sum(
        overlap_between(before.samples, after.samples, before.sample_rate, CROSSFADE_MS)
        for before, after in pairwise(recorded)
    )
    # In the file's own rate, as the encoder counted what went in.
    if made.samples != round(expected * made.sample_rate / recorded[0].sample_rate):
        raise EncoderFailed(f"{made.samples} samples at {made.sample_rate} Hz were encoded of {expected}")


def _judge(claim: Claim, error: Exception) -> Verdict:
    """Say what an error of `_publish` means to its job."""
    match error:
        case DiskFull() | OSError(errno=errno.ENOSPC | errno.EDQUOT):
            # Not this job's fault, unless it never fits.
            waited = (datetime.now(UTC) - claim.job.queued_at).total_seconds()
            reason = JobError(code=DiskFull.code, message=TOLD[DiskFull.code])
            return Verdict(error=reason, remedy=Remedy.WAIT if waited < DISK_SECONDS else Remedy.NONE)
        case EncodeError():
            remedy = Remedy.RETRY if error.transient else Remedy.NONE
            return Verdict(error=JobError(code=error.code, message=TOLD[error.code]), remedy=remedy)
        case StoreError():
            reason = JobError(code="storage_error", message="the object store did not take the audio")
            waits = isinstance(error, StoreUnavailable)
            return Verdict(error=reason, remedy=Remedy.WAIT if waits else Remedy.RETRY)
        case _:
            return Verdict(error=UNEXPECTED, remedy=Remedy.RETRY)
