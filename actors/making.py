"""One clip: what the engine is asked, how long it may take, and whether what it gave can be the text."""

from __future__ import annotations

import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import numpy as np

from actors.departure import Departure, Leaving
from actors.pace import Pace
from actors.renewal import Renewal
from actors.rescue import Rescue
from actors.staging import Made, Staging
from actors.urgency import Urgency
from jobs.job import Claim, JobClass, JobWarning
from jobs.store import JobStore
from speech.breaker import Breaker
from speech.checks import check_clip
from speech.chunks import Chunk
from speech.engine import BadOutput, BadReference, EngineInfo, Samples, SynthesisRequest
from speech.host import Interrupted
from speech.ladder import Learned, Rung
from storage.keys import voice_state_key
from storage.store import ObjectStore

log = logging.getLogger("voxfleet.actors")

#: A live job waits for the chunk in hand when no more than this is left of it.
CUT_SECONDS: Final = 1.0
#: How often a chunk whose clip cannot be its text is spoken at once, each time with another seed.
SEEDS: Final = 3
#: An engine that gives a clip whole is given so many times as long as usual before somebody who listens is
#: told that nothing comes.
PATIENCE: Final = 2.0
VOICE_CHANGED: Final = JobWarning(
    code="voice_changed", message="the voice that was drawn for it was lost: from some place on it is another"
)


class Speaker(Protocol):
    """The engine, as this actor drives it: `speech.host.EngineHost`."""

    @property
    def info(self) -> EngineInfo: ...

    def synthesize(
        self,
        request: SynthesisRequest,
        *,
        stop: Callable[[], bool] | None = None,
        seconds: float | None = None,
        first_audio_seconds: float | None = None,
        keep: Callable[[bytes], None] | None = None,
    ) -> Iterator[Samples]: ...

    def settle(self) -> None: ...

    def restart(self) -> None: ...


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
    rescue: Rescue
    breaker: Breaker = field(default_factory=Breaker)
    learned: Learned = field(default_factory=Learned)
    pace: Pace = field(default_factory=Pace)
    habits: Habits = field(default_factory=Habits)
    #: How long somebody who listens waits for the first sound, from the claim on.
    first_audio_seconds: float = 3.0
    #: Seconds, from any beginning.
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A chunk that is to be spoken, and what was done for want of memory before."""

    chunk: Chunk
    tried: frozenset[Rung] = frozenset()


@dataclass(slots=True, kw_only=True)
class InHand:
    """A job while it is spoken.

    Attributes:
        text: as it is spoken.
        begun: when, by the clock of `Synthesis`.
        pieces: what is still to be spoken, in order.
        left: its code points.
        made: clips that were made in this turn.
        told: what its owner was told of in this turn.
        voice_state: what makes further clips sound like the first, and where it is stored.
    """

    claim: Claim
    lease: Renewal
    urgency: Urgency
    staging: Staging
    text: str
    begun: float
    pieces: deque[Piece]
    left: int
    made: int = 0
    told: set[Rung] = field(default_factory=set)
    voice_state: bytes | None = None
    voice_state_key: str | None = None


def say_voice_changed(work: Synthesis, hand: InHand) -> None:
    """Go on without the voice that was drawn for a job, and tell its owner."""
    hand.voice_state = hand.voice_state_key = None
    log.warning("job %s: its voice is lost; what is left gets another", hand.claim.job.id)
    hand.lease.persist(partial(work.jobs.warn, hand.claim, VOICE_CHANGED, degraded=True))


def make(work: Synthesis, hand: InHand, piece: Piece) -> Made | None:
    """Return the clip of one piece; None when it was cut, for a live job.

    A clip that cannot be its text is made again at once, with another seed where the engine heeds it.
    """
    seeds = SEEDS if work.engine.info.features.seed else 1
    before = 0 if hand.made else seeds * hand.claim.errors.count(BadOutput.code)
    for attempt in range(before, before + seeds - 1):
        try:
            return _attempt(work, hand, piece, attempt)
        except BadOutput as error:
            work.rescue.counts.add("engine.bad_output")
            log.warning("job %s: the chunk at %d again: %s", hand.claim.job.id, piece.chunk.start, error)
    return _attempt(work, hand, piece, before + seeds - 1)


def _attempt(work: Synthesis, hand: InHand, piece: Piece, attempt: int) -> Made | None:
    claim, chunk, info = hand.claim, piece.chunk, work.engine.info
    seed = chunk_seed(claim.seed, chunk.start, attempt)
    manner, features = claim.manner, info.features
    style = manner.style if features.design else None
    speed = manner.speed if features.speed else 1.0
    request = SynthesisRequest(
        text=chunk.text,
        voice=claim.voice,
        language=claim.language,
        seed=seed,
        style=style,
        speed=speed,
        options={**manner.options, **(info.thrift if Rung.SPARED in piece.tried else {})},
        voice_state=hand.voice_state,
        keeps_voice=features.continuation and hand.voice_state is None and style is None,
    )
    begun = work.clock()
    is_cut = False
    states: list[bytes] = []

    def stop() -> bool:
        nonlocal is_cut
        if hand.lease.lost() or work.departure.overdue():
            return True
        if hand.urgency.waits() and work.habits.streams:
            pace = work.pace.seconds_per_char or 0.0
            is_cut = len(chunk.text) * pace - (work.clock() - begun) > CUT_SECONDS
        return is_cut

    try:
        parts = list(
            work.engine.synthesize(
                request,
                stop=stop,
                seconds=work.pace.limit(len(chunk.text)),
                first_audio_seconds=_first_audio_seconds(work, hand, chunk),
                keep=states.append,
            )
        )
    except Interrupted as error:
        hand.lease.check()
        if not is_cut or work.departure.overdue():
            raise Leaving from error
        log.info("job %s: the chunk at %d is cut for a live job", claim.job.id, chunk.start)
        return None
    except BadReference:
        if hand.voice_state is None:
            raise
        # Of another version of the engine, perhaps.
        say_voice_changed(work, hand)
        return _attempt(work, hand, piece, attempt)
    work.habits.streams = len(parts) > 1
    samples = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    check_clip(samples, chunk.text, info, speed=speed)
    work.pace.made(
        seconds=work.clock() - begun,
        audio_seconds=len(samples) / info.sample_rate,
        characters=len(chunk.text),
    )
    work.learned.made(len(chunk.text), most=info.preferred(claim.language))
    state = states[-1] if states else None
    if state is not None:
        hand.voice_state = state
        hand.voice_state_key = voice_state_key(claim.job.id, epoch=claim.job.epoch, body=state)
    return Made(
        seq=claim.next_seq + hand.made,
        chunk=chunk,
        seed=seed,
        samples=samples,
        sample_rate=info.sample_rate,
        revision=info.revision,
        voice_state=state,
        voice_state_key=hand.voice_state_key,
    )


def _first_audio_seconds(work: Synthesis, hand: InHand, chunk: Chunk) -> float | None:
    """Return how long the first sound is waited for; None where nobody listens, or has heard some."""
    claim = hand.claim
    if claim.job.job_class is not JobClass.LIVE or claim.recorded or hand.made:
        return None
    left = work.first_audio_seconds - (work.clock() - hand.begun)
    if work.habits.streams or work.engine.info.features.streaming:
        return max(0.0, left)
    return max(0.0, left, PATIENCE * len(chunk.text) * (work.pace.seconds_per_char or 0.0))


def chunk_seed(seed: int, text_start: int, attempt: int) -> int:
    """Return the seed of one chunk, 0 to 2**32 - 1: it depends on where the chunk starts, so that a resumed
    job, or one that was cut differently, sounds the same up to there.
    """
    digest = hashlib.sha256(f"{seed}/{text_start}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
