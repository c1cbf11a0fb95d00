"""A media bell rings: join the clips of one job, encode once, verify, upload, publish."""

from __future__ import annotations

import errno
import hashlib
import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from actors.bell import MEDIA_QUEUE, WEBHOOK_QUEUE
from actors.renewal import Renewal
from jobs.database import DatabaseUnavailable
from jobs.job import Claim, Clip, Fenced, Job, JobError, JobId, PublishedAudio
from jobs.store import JobStore
from speech.audio import Audio, from_pcm_s16le, join, overlap_between
from speech.encode import Encoded, EncodeError, Mp3Encoder
from storage.keys import audio_key, staged_prefix
from storage.store import ObjectNotFound, ObjectStore, StoreError, StoreUnavailable

log = logging.getLogger("voxfleet.actors")

CROSSFADE_MS: Final = 50
#: How long a job waits when the object store is out of order, which is not its fault.
OUTAGE_SECONDS: Final = 5.0
#: A key is never written twice with other bytes, so caches may keep what they have.
CACHE_CONTROL: Final = "private, max-age=31536000, immutable"


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


def encode(work: Media) -> None:
    """Turn the recorded clips of the most urgent job into its published audio."""
    try:
        claim = work.jobs.claim(MEDIA_QUEUE, holder=work.holder)
    except DatabaseUnavailable as error:
        # The sweeper rings again.
        log.warning("no job could be claimed: %s", error)
        return
    if claim is None:
        return
    job = claim.job
    log.info("job %s epoch %d: encoding %d clips", job.id, job.epoch, claim.clips)
    with Renewal(lambda: work.jobs.renew(job.id, job.epoch), lease_seconds=claim.lease_seconds) as lease:
        try:
            _try(work, claim, lease)
        except Fenced:
            log.info("job %s epoch %d is no longer ours", job.id, job.epoch)
        except DatabaseUnavailable as error:
            # The row stays held until the lease runs out, and the next holder encodes again.
            log.warning("job %s epoch %d: %s", job.id, job.epoch, error)


def _try(work: Media, claim: Claim, lease: Renewal) -> None:
    """Publish the job, or write down why it could not be done now."""
    try:
        published = _publish(work, claim, lease)
    except (Fenced, DatabaseUnavailable):
        raise
    except StoreUnavailable as error:
        log.warning("job %s waits: %s", claim.job.id, error)
        work.jobs.postpone(claim, _error(error), seconds=OUTAGE_SECONDS)
    except (EncodeError, StoreError, ClipLost, OSError) as error:
        _blame(work, claim, error)
    except Exception as error:
        log.exception("job %s epoch %d", claim.job.id, claim.job.epoch)
        _blame(work, claim, error)
    else:
        _after(work, claim, published)


def _publish(work: Media, claim: Claim, lease: Renewal) -> Job:
    job = claim.job
    recorded = work.jobs.clips(job.id)
    with tempfile.TemporaryDirectory(prefix=f"{job.id}-", dir=work.temp_dir) as folder:
        path = Path(folder) / "speech.mp3"
        made = work.encoder.encode(join(_clips(work, recorded, lease), crossfade_ms=CROSSFADE_MS), path)
        _check_length(made, recorded)
        lease.check()
        key = audio_key(job.id, epoch=job.epoch, extension="mp3", expires_in=job.expires_in)
        work.jobs.uploading(claim, key=key)
        with path.open("rb") as body:
            work.objects.put(
                key,
                body,
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
        return work.jobs.complete(claim, audio)
    except (Fenced, DatabaseUnavailable):
        # The answer may have been lost, not the commit.
        if not work.jobs.published(claim, key=key):
            raise
        return claim.job


def _clips(work: Media, recorded: list[Clip], lease: Renewal) -> Iterator[Audio]:
    for clip in recorded:
        lease.check()
        try:
            body = b"".join(work.objects.get(clip.key))
        except ObjectNotFound as error:
            raise ClipLost(f"clip {clip.seq} is gone") from error
        if hashlib.sha256(body).hexdigest() != clip.sha256:
            raise ClipLost(f"clip {clip.seq} is damaged")
        yield Audio(from_pcm_s16le(body), clip.sample_rate)


def _check_length(made: Encoded, recorded: list[Clip]) -> None:
    """The audio holds every recorded sample, less the overlaps: nothing was skipped on the way."""
    expected = sum(clip.samples for clip in recorded) - sum(
        overlap_between(before.samples, after.samples, before.sample_rate, CROSSFADE_MS)
        for before, after in pairwise(recorded)
    )
    # In the file's own rate, as the encoder counted what went in.
    if made.samples != round(expected * made.sample_rate / recorded[0].sample_rate):
        raise ClipLost(f"{made.samples} samples at {made.sample_rate} Hz were encoded of {expected}")


def _after(work: Media, claim: Claim, job: Job) -> None:
    log.info("job %s is published", job.id)
    if claim.webhook_url is not None:
        work.ring(WEBHOOK_QUEUE)
    try:
        drop_staged(job.id, jobs=work.jobs, objects=work.objects)
    except (StoreError, DatabaseUnavailable) as error:
        log.warning("staged clips of job %s are left to the sweeper: %s", job.id, error)


def drop_staged(job_id: JobId, *, jobs: JobStore, objects: ObjectStore) -> None:
    """Delete every staged object of a job that has ended, whoever staged it."""
    for stored in objects.list(staged_prefix(job_id)):
        objects.delete(stored.key)
    jobs.staged_gone(job_id)


def _blame(work: Media, claim: Claim, error: Exception) -> None:
    """Count the failure, or fail the job when trying again cannot help."""
    reason = _error(error)
    final = isinstance(error, EncodeError) and not error.transient
    ended = work.jobs.fail(claim, reason) if final else work.jobs.retry_later(claim, reason)
    what = "will be tried again" if ended is None else "failed for good"
    log.warning("job %s %s: %s: %s", claim.job.id, what, reason.code, reason.message)
    if ended is not None and claim.webhook_url is not None:
        work.ring(WEBHOOK_QUEUE)


def _error(error: Exception) -> JobError:
    match error:
        case EncodeError():
            return JobError(code=error.code, message=str(error))
        case ClipLost():
            return JobError(code="clip_lost", message=str(error))
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            return JobError(code="disk_full", message="the worker's disk is full")
        case StoreError():
            return JobError(code="storage_error", message="the object store did not take the audio")
        case _:
            return JobError(code="internal_error", message="an unexpected error; the worker's log has it")
