"""What goes over the wire, as pydantic models: requests are read with them, and described by them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from jobs.job import JobClass

SHORTEST_LIFE: Final = 3600
LONGEST_LIFE: Final = 31 * 86_400
DEFAULT_LIFE: Final = 7 * 86_400
LARGEST_SEED: Final = 2**32 - 1
METADATA_MEMBERS: Final = 16
METADATA_KEY: Final = 64
METADATA_VALUE: Final = 512
FORMATS: Final = ("mp3",)
LONGEST_INSTRUCTIONS: Final = 4096
SLOWEST: Final = 0.25
FASTEST: Final = 4.0
ENGINE_OPTIONS: Final = 16
LONGEST_DEADLINE: Final = 31 * 86_400
CLASSES: Final = tuple(job_class.name.lower() for job_class in JobClass)


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class VoiceRef(_Request):
    """A voice, by its id."""

    id: str = Field(min_length=1, max_length=128)


class JobRequest(_Request):
    """A text to be spoken. A member that is null counts as absent."""

    # The upper limit is a setting: `api.validation` checks it, `api.openapi` writes it into the schema.
    input: str = Field(min_length=1, description="The text. It must hold at least one letter or number.")
    model: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        default=None, description="One of `GET /v1/models`. Default: the server's default model."
    )
    voice: Annotated[str, Field(min_length=1, max_length=128)] | VoiceRef | None = Field(
        default=None,
        description="A voice of the model (`GET /v1/voices`): its id, or an object with it. "
        "Default: the model's default voice.",
    )
    language: Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*$", max_length=35)] | None = (
        Field(
            default=None,
            description="BCP 47 tag that the model speaks, such as `en`. Default: the voice's language.",
        )
    )
    response_format: Literal["mp3"] | None = Field(
        default=None, description="`mp3`: 44.1 kHz mono, 128 kbit/s. The default."
    )
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] | None = Field(
        default=None, description="Same seed, text, voice and engine: same audio. Default: a random one."
    )
    instructions: Annotated[str, Field(min_length=1, max_length=LONGEST_INSTRUCTIONS)] | None = Field(
        default=None,
        description="How to say it, in words: `a calm old man, slowly`. A model without that feature "
        "ignores it, and a warning says so.",
    )
    speed: Annotated[float, Field(ge=SLOWEST, le=FASTEST)] | None = Field(
        default=None,
        description="1 is as the voice speaks by itself, 2 twice as fast. A model without that feature "
        "ignores it, and a warning says so. Default: 1.",
    )
    engine_options: Annotated[dict[str, Any], Field(max_length=ENGINE_OPTIONS)] | None = Field(
        default=None,
        description="Options of the model's engine, by the JSON Schema in `options` of `GET /v1/models`. One "
        "that other engines have and this one has not is ignored, and a warning says so.",
    )
    fallback: Annotated[str, Field(min_length=1, max_length=128)] | None = Field(
        default=None,
        description="Model that speaks the whole job when its own has no memory for it, or `none`. "
        "Default: the server's.",
    )
    job_class: Literal["live", "high", "normal", "low"] | None = Field(
        default=None,
        alias="class",
        description="How urgent it is: a more urgent job is begun first, and a running one gives way to it "
        "between two chunks. `live` is for somebody who listens. Default: `normal`.",
    )
    deadline: Annotated[int, Field(ge=1, le=LONGEST_DEADLINE)] | None = Field(
        default=None,
        description="Seconds within which it must be begun, or it is not wanted any more and becomes "
        "`expired` (1 second to 31 days). Default: none.",
    )
    metadata: (
        Annotated[
            dict[
                Annotated[str, Field(min_length=1, max_length=METADATA_KEY)],
                Annotated[str, Field(max_length=METADATA_VALUE)],
            ],
            Field(max_length=METADATA_MEMBERS),
        ]
        | None
    ) = Field(default=None, description="Notes of your own; they come back with the job and its webhooks.")
    webhook_url: Annotated[str, Field(min_length=1, max_length=2048)] | None = Field(
        default=None,
        description="Where to tell that the job completed or failed: https, on a public address. "
        "Signed after Standard Webhooks 1.0.0.",
    )
    expires_in: Annotated[int, Field(ge=SHORTEST_LIFE, le=LONGEST_LIFE)] | None = Field(
        default=None,
        description="Seconds that the audio is kept after completion (1 hour to 31 days). Default: 7 days.",
    )


class _Reply(BaseModel):
    """Replies may gain members; clients should ignore those that they do not know."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


class Chunks(_Reply):
    """The pieces of text that the engine speaks one by one."""

    total: int | None = Field(description="Null until the text has been split.")
    done: int


class JobWarning(_Reply):
    """Something the owner should know about a job that goes on."""

    code: str
    message: str


class Urls(_Reply):
    """Where to go from here."""

    self: str
    audio: str = Field(description="Redirects to a fresh link at each call.")
    cancel: str = Field(description="POST here when you do not want it any more.")


class JobFailure(_Reply):
    """Why a job failed."""

    code: str
    message: str
    type: str
    param: str | None


class Audio(_Reply):
    """The finished audio."""

    url: str = Field(description="A link that needs no key, until `url_expires_at`; else `urls.audio`.")
    url_expires_at: datetime | None
    content_type: str
    bytes: int
    duration_ms: int
    sample_rate: int = Field(description="Hz.")
    bitrate: int = Field(description="Bits per second.")
    channels: int
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Result(_Reply):
    """What a completed job made."""

    audio: Audio


class JobView(_Reply):
    """A job, and how far it has come."""

    id: str = Field(pattern="^job_[0-9a-z]{26}$")
    object: Literal["speech.job"]
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled", "expired"]
    stage: Literal["synthesizing", "encoding", "uploading"] | None
    progress: int = Field(ge=0, le=100, description="Percent.")
    chunks: Chunks
    job_class: Literal["live", "high", "normal", "low"] = Field(alias="class")
    model: str
    voice: str
    language: str
    characters: int = Field(description="Unicode code points of the input.")
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    eta: datetime | None = Field(
        description="When it is expected to be completed, by the speed measured so far and what waits now. "
        "Null once it has ended, and while nobody can know."
    )
    deadline: datetime | None = Field(description="When it expires, if it has not been begun.")
    expires_at: datetime | None = Field(description="When the audio stops being served.")
    degraded: bool
    warnings: list[JobWarning]
    metadata: dict[str, str]
    retry_of: str | None = Field(description="The job that this one tries again.")
    urls: Urls
    error: JobFailure | None
    result: Result | None
    version: int = Field(description="Rises with every change.")


class ProblemItem(_Reply):
    """One member of the request that is at fault."""

    pointer: str = Field(description="JSON pointer (RFC 6901) into the request's body.")
    code: str
    detail: str
    limit: int | None = Field(default=None, description="The limit that was passed.")
    allowed: list[str] | None = Field(default=None, description="What is accepted there.")


class ProblemError(_Reply):
    """The same, for clients of OpenAI's API."""

    message: str
    type: Literal["invalid_request_error", "authentication_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str


class ProblemView(_Reply):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    request_id: str
    errors: list[ProblemItem]
    error: ProblemError


class Voice(_Reply):
    """A voice of a model."""

    id: str
    object: Literal["voice"]
    name: str
    language: str
    model: str
    kind: Literal["builtin", "reference", "style", "design"] = Field(
        description="The engine's own, a clip of a speaker, a file of the engine's format, or words alone."
    )


class Voices(_Reply):
    """Every voice."""

    object: Literal["list"]
    data: list[Voice]


class Model(_Reply):
    """A model that some worker serves or has served."""

    id: str
    object: Literal["model"]
    created: int = Field(description="Unix time when a worker last reported it.")
    owned_by: str
    available: bool = Field(description="Whether a worker serves it now; jobs are accepted either way.")
    languages: list[str] = Field(description='BCP 47; `["*"]` for any.')
    default_voice: str
    sample_rate: int | None = Field(description="The engine's own, in Hz.")
    licence: str | None = Field(description="SPDX identifier of the weights' licence.")
    watermark: str | None = Field(description="Name of the inaudible mark on its audio.")
    features: dict[str, Any] = Field(
        description="What it can do beyond speaking: `streaming`, `cloning`, `continuation`, `design`, "
        "`speed`, `seed`, `batch`, and the expression `tags` that it acts out."
    )
    max_chars: int | None = Field(description="Longest text of one call of the engine, in code points.")
    max_chars_learned: int | None = Field(description="The same for want of memory now, where that is less.")
    options: dict[str, Any] = Field(description="JSON Schema of `engine_options`.")


class Models(_Reply):
    """Every model."""

    object: Literal["list"]
    data: list[Model]


class Health(_Reply):
    """The process answers."""

    status: Literal["ok"]


class Check(_Reply):
    """The state of one part."""

    ok: bool
    required: bool = Field(description="Whether the fleet is ready only with it.")
    detail: str


class Ready(_Reply):
    """The state of every part."""

    status: Literal["ready", "not_ready"]
    checks: dict[str, Check]


class Event(_Reply):
    """What a webhook says (Standard Webhooks 1.0.0)."""

    id: str
    object: Literal["event"]
    type: Literal["speech.job.completed", "speech.job.failed", "speech.job.cancelled", "speech.job.expired"]
    timestamp: datetime
    data: JobView
