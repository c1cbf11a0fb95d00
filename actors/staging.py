"""Stages the clip that was made last while the next one is made."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self

from actors.renewal import Renewal
from jobs.database import DatabaseUnavailable
from jobs.job import Claim, Clip, Fenced
from jobs.store import JobStore
from speech.audio import pcm_s16le
from speech.chunks import Chunk
from speech.engine import Samples
from storage.keys import staged_key
from storage.store import ObjectStore, StoreError

log = logging.getLogger("voxfleet.actors")

#: Bits of a sample of a staged clip.
_S16: Final = "S16LE"
_BYTES: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A clip that is not staged yet."""

    seq: int
    chunk: Chunk
    seed: int
    samples: Samples
    #: Hz.
    sample_rate: int
    #: What made them: `EngineInfo.revision`, or `notice`.
    revision: str
    #: The voice state that this clip began, to be stored before it is recorded.
    voice_state: bytes | None = None
    #: Key of the voice state that it goes on with, or began.
    voice_state_key: str | None = None


class Staging:
    """Stores and records the clips of one job, one at a time and in order, on a thread of its own.

    `put` returns as soon as the clip before is recorded; what went wrong with that one is raised there, or
    by `flush`. When the block is left, the last clip has been recorded, or its failure is known.
    """

    def __init__(self, claim: Claim, lease: Renewal, *, jobs: JobStore, objects: ObjectStore) -> None:
        self._claim = claim
        self._lease = lease
        self._jobs = jobs
        self._objects = objects
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="staging")
        self._under_way: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.flush()
        except (Fenced, StoreError, DatabaseUnavailable) as failure:
            if error is None:
                raise
            # The job's fate is decided by what broke its work off; this clip is made again.
            log.warning("the last clip of job %s was not recorded: %s", self._claim.job.id, failure)
        finally:
            self._thread.shutdown()

    def put(self, made: Made) -> None:
        """Begin to stage a clip.

        Raises:
            Fenced, StoreError, DatabaseUnavailable: of the clip before.
        """
        self.flush()
        self._under_way = self._thread.submit(self._stage, made)

    def flush(self) -> None:
        """Wait until every clip is recorded.

        Raises:
            Fenced, StoreError, DatabaseUnavailable: one could not be.
        """
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()

    def _stage(self, made: Made) -> None:
        """Store the clip, then record it: the row is the checkpoint."""
        claim = self._claim
        if made.voice_state is not None and made.voice_state_key is not None:
            self._objects.put(made.voice_state_key, made.voice_state, content_type=_BYTES)
        body = pcm_s16le(made.samples)
        key = staged_key(claim.job.id, epoch=claim.job.epoch, seq=made.seq)
        self._objects.put(key, body, content_type=clip_type(made.sample_rate))
        clip = Clip(
            seq=made.seq,
            text_start=made.chunk.start,
            text_end=made.chunk.end,
            pause_ms=0,
            epoch=claim.job.epoch,
            key=key,
            sha256=hashlib.sha256(body).hexdigest(),
            samples=len(made.samples),
            sample_rate=made.sample_rate,
            seed=made.seed,
            engine_revision=made.revision,
            voice_state_key=made.voice_state_key,
        )
        record: Callable[[], None] = partial(self._jobs.record, claim, clip)
        try:
            self._lease.check()
            self._lease.persist(record)
        except Fenced:
            # The job may have ended meanwhile, and its staged objects been cleared: this one would stay.
            with suppress(StoreError):
                self._objects.delete(key)
            raise


def clip_type(sample_rate: int) -> str:
    """Return the content type of a staged clip: raw s16le mono at the engine's rate."""
    return f"audio/x-raw; format={_S16}; channels=1; rate={sample_rate}"
