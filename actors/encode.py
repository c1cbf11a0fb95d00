"""A media bell rings: join the clips of one job, encode once, verify, upload, publish."""

from __future__ import annotations

import errno
import hashlib
import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final, cast

from actors.bell import MEDIA_QUEUE, WEBHOOK_QUEUE
from actors.departure import Departure, Leaving
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


class ClipLost(Exception):
    """A recorded clip is not in the object store, or not as it was recorded."""


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


def encode(work: Media) -> None:
    """Turn the recorded clips of the most urgent job into its published audio."""
    turn = Turn(queue=MEDIA_QUEUE, holder=work.holder, jobs=work.jobs, ring=work.ring)
    turn.take(lambda claim, lease: _encode(work, claim, lease), judge=_judge)


def _encode(work: Media, claim: Claim, lease: Renewal) -> None:
    log.info("job %s epoch %d: encoding %d clips", claim.job.id, claim.job.epoch, claim.clips)
    _publish(work, claim, lease)
    log.info("job %s is published", claim.job.id)
    if claim.webhook_url is not None:
        work.ring(WEBHOOK_QUEUE)
    try:
        drop_staged(claim.job.id, jobs=work.jobs, objects=work.objects)
    except (StoreError, DatabaseUnavailable) as error:
        log.warning("staged clips of job %s are left to the sweeper: %s", claim.job.id, error)


def _publish(work: Media, claim: Claim, lease: Renewal) -> None:
    job = claim.job
    recorded = work.jobs.clips(job.id)
    with tempfile.TemporaryDirectory(prefix=f"{job.id}-", dir=work.temp_dir) as folder:
        path = Path(folder) / "speech.mp3"
        sound = join(_clips(work, recorded, lease), crossfade_ms=CROSSFADE_MS)
        made = work.encoder.encode(sound, path, check=partial(_go_on, work, lease))
        _check_length(made, recorded)
        _go_on(work, lease)
        key = audio_key(job.id, epoch=job.epoch, extension="mp3", expires_in=job.expires_in)
        lease.persist(partial(work.jobs.uploading, claim, key=key))
        with path.open("rb") as file:
            work.objects.put(
                key,
                cast(BinaryIO, Checked(file, partial(_go_on, work, lease))),
                content_type=made.content_type,
                metadata={"sha256": made.sha256, "job": job.id},
                cache_control=CACHE_CONTROL,
            )
        lease.check()
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
    except (Fenced, DatabaseUnavailable):
        # The answer may have been lost, not the commit.
        if not work.jobs.published(claim, key=key):
            raise


def _clips(work: Media, recorded: list[Clip], lease: Renewal) -> Iterator[Audio]:
    for clip in recorded:
        _go_on(work, lease)
        try:
            body = b"".join(work.objects.get(clip.key))
        except ObjectNotFound as error:
            raise ClipLost(f"clip {clip.seq} is gone") from error
        if hashlib.sha256(body).hexdigest() != clip.sha256:
            raise ClipLost(f"clip {clip.seq} is damaged")
        yield Audio(from_pcm_s16le(body), clip.sample_rate)


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


def _check_length(made: Encoded, recorded: list[Clip]) -> None:
    """The audio holds every recorded sample, less the overlaps: nothing was skipped on the way."""
    expected = sum(clip.samples for clip in recorded) - sum(
        overlap_between(before.samples, after.samples, before.sample_rate, CROSSFADE_MS)
        for before, after in pairwise(recorded)
    )
    # In the file's own rate, as the encoder counted what went in.
    if made.samples != round(expected * made.sample_rate / recorded[0].sample_rate):
        raise ClipLost(f"{made.samples} samples at {made.sample_rate} Hz were encoded of {expected}")


def _judge(error: Exception) -> Verdict:
    """Say what an error of `_publish` means to its job."""
    match error:
        case EncodeError():
            remedy = Remedy.RETRY if error.transient else Remedy.NONE
            return Verdict(error=JobError(code=error.code, message=TOLD[error.code]), remedy=remedy)
        case ClipLost():
            return Verdict(error=JobError(code="clip_lost", message=str(error)), remedy=Remedy.RETRY)
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            reason = JobError(code=DiskFull.code, message=TOLD[DiskFull.code])
            return Verdict(error=reason, remedy=Remedy.RETRY)
        case StoreError():
            reason = JobError(code="storage_error", message="the object store did not take the audio")
            waits = isinstance(error, StoreUnavailable)
            return Verdict(error=reason, remedy=Remedy.WAIT if waits else Remedy.RETRY)
        case _:
            return Verdict(error=UNEXPECTED, remedy=Remedy.RETRY)
