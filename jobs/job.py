"""The job as a value, and the rules of its life as a table."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple, NewType

JobId = NewType("JobId", str)
TenantId = NewType("TenantId", str)

#: Changes when the same request would be spoken or joined differently: part of a clip's meaning.
PIPELINE_VERSION: Final = 1


class Status(StrEnum):
    """How a job stands, as its owner sees it."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class Stage(StrEnum):
    """Which work a job in progress asks for."""

    SYNTHESIZING = "synthesizing"
    ENCODING = "encoding"
    UPLOADING = "uploading"


class JobClass(IntEnum):
    """Urgency: a lower class is claimed first."""

    LIVE = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3


class State(NamedTuple):
    """Where a job stands: what its owner sees, and which work it asks for."""

    status: Status
    stage: Stage | None = None


QUEUED: Final = State(Status.QUEUED)
SYNTHESIZING: Final = State(Status.IN_PROGRESS, Stage.SYNTHESIZING)
ENCODING: Final = State(Status.IN_PROGRESS, Stage.ENCODING)
UPLOADING: Final = State(Status.IN_PROGRESS, Stage.UPLOADING)
COMPLETED: Final = State(Status.COMPLETED)
FAILED: Final = State(Status.FAILED)
CANCELLED: Final = State(Status.CANCELLED)
EXPIRED: Final = State(Status.EXPIRED)


class Move(StrEnum):
    """What may happen to a job."""

    #: A worker takes it; an upload that died with its holder starts over.
    CLAIM = "claim"
    #: Its holder lets go: to leave, to yield, or to try again later.
    LET_GO = "let go"
    #: A clip is recorded.
    RECORD = "record"
    #: The whole text is spoken.
    SPEAK_OUT = "speak out"
    #: A recorded clip was lost, and is to be made again.
    REMAKE = "remake"
    #: Its engine cannot speak it: another one is to speak the whole of it.
    HAND_OVER = "hand over"
    #: The audio is encoded; its key is in the ledger.
    UPLOAD = "upload"
    #: The audio is stored.
    COMPLETE = "complete"
    FAIL = "fail"
    #: Its owner does not want it any more.
    CANCEL = "cancel"
    #: Its deadline passed before it was started.
    EXPIRE = "expire"


#: Which move leads from where to where. The store makes no other change; `docs/explanation/job-life.md`
#: draws it.
MOVES: Final[Mapping[Move, Mapping[State, State]]] = {
    Move.CLAIM: {
        QUEUED: SYNTHESIZING,
        SYNTHESIZING: SYNTHESIZING,
        ENCODING: ENCODING,
        UPLOADING: ENCODING,
    },
    Move.LET_GO: {SYNTHESIZING: SYNTHESIZING, ENCODING: ENCODING, UPLOADING: UPLOADING},
    Move.RECORD: {SYNTHESIZING: SYNTHESIZING},
    Move.SPEAK_OUT: {SYNTHESIZING: ENCODING},
    Move.REMAKE: {ENCODING: SYNTHESIZING},
    Move.HAND_OVER: {SYNTHESIZING: SYNTHESIZING},
    Move.UPLOAD: {ENCODING: UPLOADING},
    Move.COMPLETE: {UPLOADING: COMPLETED},
    Move.FAIL: {SYNTHESIZING: FAILED, ENCODING: FAILED, UPLOADING: FAILED},
    Move.CANCEL: {
        QUEUED: CANCELLED,
        SYNTHESIZING: CANCELLED,
        ENCODING: CANCELLED,
        UPLOADING: CANCELLED,
    },
    Move.EXPIRE: {QUEUED: EXPIRED},
}
STATES: Final = (QUEUED, SYNTHESIZING, ENCODING, UPLOADING, COMPLETED, FAILED, CANCELLED, EXPIRED)
TERMINAL: Final = frozenset(
    state.status for state in STATES if not any(state in steps for steps in MOVES.values())
)


#: In `NewJob.fallback`: no other model may speak it.
NO_FALLBACK: Final = "none"


class JobNotFound(LookupError):
    """No such job, or it belongs to another tenant."""


class JobEnded(Exception):
    """The job has ended already, and cannot be ended another way.

    Attributes:
        status: how it ended.
    """

    def __init__(self, job_id: str, status: Status) -> None:
        super().__init__(f"{job_id} is {status.value}")
        self.status = status


class JobUnended(Exception):
    """The job has not ended yet: there is nothing to try again."""


class TooManyQueued(Exception):
    """The tenant has as many jobs waiting as it may have.

    Attributes:
        limit: how many.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} jobs are waiting already")
        self.limit = limit


class Fenced(Exception):
    """The row is no longer ours: another worker claimed it, or its job has ended. Stop at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """Why a job failed."""

    code: str
    message: str
    #: OpenAI's word for whose fault it is: `invalid_request_error` (the caller's) or `server_error`.
    type: str = "server_error"
    #: The request member at fault, if one is.
    param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWarning:
    """Something the owner should know about a job that goes on."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a text is to be said, beyond voice and language."""

    #: In words.
    style: str | None = None
    #: 1 is as the voice speaks by itself.
    speed: float = 1.0
    #: Options of the engine, as its own JSON Schema describes them.
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitute:
    """A model that speaks a job in the place of the one that was asked for, and how."""

    model: str
    queue: str
    voice: str
    language: str
    #: Those of the job's manner that it understands.
    manner: Manner = Manner()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedAudio:
    """The finished audio of a job, as it lies in the object store."""

    key: str
    content_type: str
    bytes: int
    #: From the PCM samples, not from the container.
    duration_ms: int
    sample_rate: int
    #: Bits per second.
    bitrate: int
    channels: int
    #: Lower-case hex.
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A valid request for speech, not stored yet."""

    tenant_id: TenantId
    input: str
    model: str
    #: The queue that asks for this job's first work, e.g. `cpu.hibari`.
    queue: str
    voice: str
    language: str
    response_format: str
    seed: int
    expires_in: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    webhook_url: str | None = None
    job_class: JobClass = JobClass.NORMAL
    #: Seconds within which it must be started, or it is not wanted any more.
    deadline: int | None = None
    manner: Manner = Manner()
    #: The model that speaks it when its own cannot; `NO_FALLBACK` for none, None for the fleet's.
    fallback: str | None = None
    #: What its owner should know from the start.
    warnings: tuple[JobWarning, ...] = ()
    #: Its own model cannot speak now: this one does, and `queue` is its queue.
    substitute: Substitute | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request for speech, and how far it has come. Times are UTC."""

    id: JobId
    tenant_id: TenantId
    kind: str
    job_class: JobClass
    status: Status
    stage: Stage | None
    model: str
    #: The queue whose work this job asks for now; None once it has ended.
    queue: str | None
    #: Whether a worker holds it now, as far as the row tells.
    held: bool
    #: Its place in its lane: the time from which it counts as waiting.
    queued_at: datetime
    voice: str
    language: str
    response_format: str
    #: Code points of the input.
    characters: int
    #: Code points that are still to be spoken.
    characters_left: int
    #: Length of the recorded clips.
    audio_ms: int
    chunks_total: int | None
    chunks_done: int
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    #: When it expires, if it has not been started by then.
    deadline: datetime | None
    #: The job that this one tries again.
    retry_of: JobId | None
    #: When the audio stops being served; None until there is some.
    expires_at: datetime | None
    #: Seconds between completion and `expires_at`.
    expires_in: int
    degraded: bool
    warnings: tuple[JobWarning, ...]
    metadata: Mapping[str, str]
    error: JobError | None
    audio: PublishedAudio | None
    #: Rises with every change that the owner can see.
    version: int
    #: Rises with every claim: the fence that each later write carries.
    epoch: int
    failures: int

    @property
    def progress(self) -> int:
        """Percent, 0 to 100; 100 only when completed. Encoding and upload are the last tenth."""
        if self.status is Status.COMPLETED:
            return 100
        if not self.chunks_total:
            return 0
        made = min(90, 90 * self.chunks_done // self.chunks_total)
        return 95 if self.stage is Stage.UPLOADING else made

    def audio_expired(self, now: datetime) -> bool:
        """Whether the audio has been promised until a time that has passed."""
        return self.expires_at is not None and now >= self.expires_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """The recorded audio of one chunk: a checkpoint. Offsets are code points of the spoken text."""

    seq: int
    text_start: int
    text_end: int
    #: Planned silence after this clip.
    pause_ms: int
    epoch: int
    key: str
    #: Lower-case hex, of the object's bytes.
    sha256: str
    samples: int
    #: Hz.
    sample_rate: int
    seed: int
    engine_revision: str
    #: Key of the engine's voice state that it goes on with, or began.
    voice_state_key: str | None = None

    @property
    def milliseconds(self) -> int:
        """How long it sounds."""
        return round(self.samples * 1000 / self.sample_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A job that this worker holds until its lease runs out, and what it needs to work on it."""

    job: Job
    input: str
    seed: int
    webhook_url: str | None
    #: The text as it is spoken, once some worker has prepared it.
    spoken_text: str | None
    pipeline_version: int | None
    #: What is recorded of the spoken text, as (start, end) in order; the rest is still to be spoken.
    recorded: tuple[tuple[int, int], ...]
    #: The next clip's `seq`. Clips are told apart by it, and heard in the order of the text.
    next_seq: int
    #: The queue that its text is spoken on; None for a job that an older release stored.
    synthesis_queue: str | None
    #: Codes of the errors since the last recorded clip that were tried again, oldest first.
    errors: tuple[str, ...] = ()
    #: Seconds of the lease, from the moment of the claim.
    lease_seconds: float
    #: How it is to be said, by the engine of its queue.
    manner: Manner = Manner()
    #: Its voice and language there.
    voice: str
    language: str
    #: See `NewJob`.
    fallback: str | None = None
    #: The model that speaks it in place of its own, if one does.
    substitute: str | None = None
    #: Key of the engine's voice state that its recorded clips were made with, if any was.
    voice_state_key: str | None = None


def new_id(prefix: str, *, now: float | None = None) -> str:
    """Return `prefix_` and a ULID: 48 bits of milliseconds, 80 random bits, in Crockford base 32."""
    milliseconds = int((time.time() if now is None else now) * 1000)
    number = (milliseconds << 80) | secrets.randbits(80)
    alphabet = "0123456789abcdefghjkmnpqrstvwxyz"
    return prefix + "_" + "".join(alphabet[(number >> shift) & 31] for shift in range(125, -1, -5))


def rfc3339(moment: datetime) -> str:
    """Return `moment` in UTC to the millisecond, e.g. `2026-12-01T03:20:25.123Z`."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def error_from(stored: Mapping[str, Any] | None) -> JobError | None:
    """Return the error as it was stored in the row."""
    return None if stored is None else JobError(**stored)
