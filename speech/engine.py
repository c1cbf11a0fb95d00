"""The engine port: what a loaded speech model says of itself, and what may go wrong with it.

An engine runs on the main thread of a child process of its worker (`speech.child`); nothing here is
called from two threads. A third party adds one by an entry point in the group `voxfleet.engines` whose
object is an `EngineFactory` (`speech.registry`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final, Literal, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, TypeAdapter, ValidationError

#: float32, shape (n,), nominally within [-1, 1], at the engine's rate.
Samples = npt.NDArray[np.float32]

#: In `EngineInfo.languages`: the engine takes any language.
ANY_LANGUAGE: Final = "*"

#: `EngineInfo.options` of an engine that has none.
NO_OPTIONS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}

Options = TypeVar("Options", bound=BaseModel)


class EngineError(Exception):
    """An engine could not speak a text. The set of subclasses is closed: `ERRORS` names them all."""

    #: Stable name, as a job's `error.code` and on the wire between child and worker.
    code: ClassVar[str] = "engine_error"
    #: Whether the same call may succeed later (in a fresh child, with another seed, on another worker).
    transient: ClassVar[bool] = False


class UnsupportedText(EngineError):
    """The engine has no sound for this text."""

    code = "unsupported_text"


class UnsupportedLanguage(EngineError):
    """The engine does not speak this language."""

    code = "unsupported_language"


class UnknownVoice(EngineError):
    """The engine has no such voice."""

    code = "unknown_voice"


class BadReference(EngineError):
    """The reference clip of a voice cannot be used: unreadable, too short, too long, silent."""

    code = "bad_reference"


class BadOption(EngineError):
    """The engine has no such option, or it is out of its range."""

    code = "invalid_engine_option"


class TextTooLong(EngineError):
    """The text is longer than the engine takes in one call."""

    code = "text_too_long"


class BadOutput(EngineError):
    """The audio cannot be the text: empty, silent, not finite, or far too short or long for it."""

    code = "bad_output"
    transient = True


class OutOfMemory(EngineError):
    """The engine ran out of memory for this text."""

    code = "engine_out_of_memory"
    transient = True


class EngineFailed(EngineError):
    """The engine raised an error of its own."""

    code = "engine_failed"
    transient = True


class EngineDied(EngineError):
    """The engine's process ended in the middle of a call."""

    code = "engine_died"
    transient = True


class EngineTimedOut(EngineError):
    """The engine took longer than allowed and was killed."""

    code = "engine_timed_out"
    transient = True


class EngineUnavailable(EngineError):
    """The engine cannot be loaded: package or weights missing, or damaged."""

    code = "engine_unavailable"


ERRORS: Final[dict[str, type[EngineError]]] = {
    error.code: error
    for error in (
        UnsupportedText,
        UnsupportedLanguage,
        UnknownVoice,
        BadReference,
        BadOption,
        TextTooLong,
        BadOutput,
        OutOfMemory,
        EngineFailed,
        EngineDied,
        EngineTimedOut,
        EngineUnavailable,
    )
}


#: Where a voice comes from: the engine's own, a clip of a speaker, a file of the engine's own format, or the
#: words of each request alone.
VoiceKind = Literal["builtin", "reference", "style", "design"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A voice that an engine has."""

    id: str
    name: str
    #: BCP 47; `ANY_LANGUAGE` when it speaks whatever the engine does.
    language: str
    kind: VoiceKind = "builtin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What an engine can do beyond speaking a text in one of its voices."""

    #: A call gives several pieces of audio, the first long before the last.
    streaming: bool = False
    #: It speaks in the voice of a reference clip.
    cloning: bool = False
    #: A call can go on in the voice of an earlier one (`KeepsVoice`).
    continuation: bool = False
    #: `SynthesisRequest.style`: words that describe voice or delivery.
    design: bool = False
    #: `SynthesisRequest.speed`.
    speed: bool = False
    #: `SynthesisRequest.seed` decides the audio.
    seed: bool = False
    #: Expression tags that it acts out, as they are written in a text: `<laugh>`.
    tags: tuple[str, ...] = ()
    #: The model could take several texts in one call; this host gives it one at a time.
    batch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a loaded engine is and can do. Serialised to JSON in the `workers` table."""

    name: str
    version: str
    #: Changes whenever the same text and seed may sound different.
    revision: str
    #: Hz.
    sample_rate: int
    #: BCP 47; `ANY_LANGUAGE` alone when the engine takes every language (`speaks`).
    languages: tuple[str, ...]
    voices: tuple[Voice, ...]
    default_voice: str
    #: Longest text of one call, in Unicode code points; `longest` knows the exceptions.
    max_chars: int
    #: `cpu`, `cuda`, ...: everything but `cpu` is served from a `gpu.` queue.
    device: str
    #: Whether the same text, voice and seed give the same samples, bit for bit.
    deterministic: bool
    #: SPDX identifier of the weights' licence.
    licence: str
    #: A believable clip lasts at least this, per letter or digit of its text (spaces and signs may be mute).
    min_seconds_per_char: float
    #: A believable clip lasts at most this, per code point of its text, plus `max_extra_seconds`.
    max_seconds_per_char: float
    #: What the shortest text may take on top: breaths, leading and trailing silence.
    max_extra_seconds: float
    features: Features = Features()
    #: The slowest and the fastest `SynthesisRequest.speed` that it takes.
    speeds: tuple[float, float] = (0.25, 4.0)
    #: `max_chars` of single languages, by primary subtag.
    max_chars_by_language: Mapping[str, int] = field(default_factory=dict)
    #: Length at which it sounds best, where that is shorter than what it takes, likewise.
    preferred_chars: int | None = None
    preferred_chars_by_language: Mapping[str, int] = field(default_factory=dict)
    #: Seconds of audio after which a call ends, finished or not; None where it does not.
    max_seconds: float | None = None
    #: Calls that one loaded engine can serve at a time.
    concurrency: int = 1
    #: Number format of the weights in memory.
    dtype: str = "float32"
    #: Memory on the device, or of the process where that is `cpu`, in MB; None while nobody has measured it.
    memory_mb: int | None = None
    #: What was loaded: a hub id with its revision, a folder's name, a URL without credentials.
    weights: str = ""
    #: Name of the inaudible mark on all of its audio, or None.
    watermark: str | None = None
    #: JSON Schema (2020-12) of `SynthesisRequest.options`: an object without additional properties.
    options: Mapping[str, Any] = field(default_factory=lambda: dict(NO_OPTIONS))
    #: Options that make a call take less memory at some cost in quality; tried when nothing else helps.
    thrift: Mapping[str, Any] = field(default_factory=dict)

    def longest(self, language: str) -> int:
        """Return how many code points of `language` (BCP 47) one call takes."""
        return self.max_chars_by_language.get(_primary(language), self.max_chars)

    def preferred(self, language: str) -> int:
        """Return how long a chunk of `language` should be at most; never more than `longest`."""
        wished = self.preferred_chars_by_language.get(_primary(language), self.preferred_chars)
        longest = self.longest(language)
        return longest if wished is None else min(wished, longest)

    def speaks(self, language: str) -> bool:
        """Whether `language` (BCP 47, compared without regard to case) is one of `languages`."""
        return ANY_LANGUAGE in self.languages or language.lower() in (
            known.lower() for known in self.languages
        )

    def to_json(self) -> str:
        """Return this as a JSON object; `from_json` reads it back."""
        return TypeAdapter(type(self)).dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what `to_json` wrote; fields of a later version are ignored.

        Raises:
            pydantic.ValidationError: the text is something else.
        """
        return TypeAdapter(cls).validate_json(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisRequest:
    """One call of an engine."""

    text: str
    voice: str
    #: BCP 47.
    language: str
    #: 0 to 2**32 - 1.
    seed: int
    #: How to say it, in words; only for engines with `Features.design`.
    style: str | None = None
    #: 1 is as the voice speaks by itself, 2 twice as fast; only for engines with `Features.speed`.
    speed: float = 1.0
    #: As `EngineInfo.options` describes them.
    options: Mapping[str, Any] = field(default_factory=dict)
    #: What `KeepsVoice.voice_state` returned after an earlier call of the same job, here or elsewhere.
    voice_state: bytes | None = None
    #: Whether the voice state of this call is wanted.
    keeps_voice: bool = False

    def to_json(self) -> str:
        """Return this as a JSON object in ASCII: even a lone surrogate passes. `from_json` reads it back."""
        state = None if self.voice_state is None else base64.b64encode(self.voice_state).decode()
        return json.dumps(asdict(self) | {"options": dict(self.options), "voice_state": state})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what `to_json` wrote.

        Raises:
            ValueError, TypeError: the text is something else.
        """
        values = json.loads(text)
        if values.get("voice_state") is not None:
            values["voice_state"] = base64.b64decode(values["voice_state"], validate=True)
        return cls(**values)


class Engine(Protocol):
    """A loaded model. Not thread-safe: one call at a time, each iterated to its end or closed."""

    @property
    def info(self) -> EngineInfo: ...

    def synthesize(self, request: SynthesisRequest) -> Iterator[Samples]:
        """Yield the audio of `request.text` as soon as each part of it is final.

        A generator is closed when its call is not wanted any more: what its `finally` frees is freed then.

        Raises:
            EngineError: one of `ERRORS`.
        """
        ...

    def close(self) -> None:
        """Free what the engine holds."""
        ...


@runtime_checkable
class KeepsVoice(Protocol):
    """An engine that draws a voice where none is given, and can go on in it."""

    def voice_state(self) -> bytes | None:
        """Return what makes a later call, in whatever process, go on in the voice of the last one, which
        ended whole; None where the request decided the voice.
        """
        ...


@runtime_checkable
class FreesMemory(Protocol):
    """An engine whose runtime keeps memory that it does not need."""

    def free(self) -> None:
        """Give it back. Called after a call that failed, when nothing holds its frames any more."""
        ...


@runtime_checkable
class TellsMemory(Protocol):
    """An engine on a device with memory of its own."""

    def device_bytes(self) -> int:
        """Return how much of it this process holds now."""
        ...


class EngineFactory(Protocol):
    """What the entry point of an engine names: importing it must not import the model's runtime."""

    @property
    def options(self) -> type[BaseModel]:
        """Validates the engine's settings, `VOXFLEET_ENGINE_<NAME>_<FIELD>`; forbids unknown ones."""
        ...

    def missing(self) -> str | None:
        """Return how to install what this engine needs, or None when all of it is here."""
        ...

    def load(self, options: Mapping[str, str]) -> Engine:
        """Load the model, on the calling thread.

        Raises:
            EngineUnavailable: with what is missing and how to get it.
        """
        ...


class DescribedFactory(EngineFactory, Protocol):
    """A factory that can tell of its engine before loading it; documentation and `voxfleet models` ask it."""

    @property
    def about(self) -> EngineInfo:
        """What is known without weights: voices and device may be others once it is loaded."""
        ...


def read_options(model: type[Options], values: Mapping[str, str], *, engine: str) -> Options:
    """Read an engine's options from their text, for `EngineFactory.load`.

    Raises:
        EngineUnavailable: with the name of the option that is unknown or out of its range; never its value.
    """
    unknown = sorted(values.keys() - model.model_fields.keys())
    if unknown:
        known = ", ".join(sorted(model.model_fields))
        raise EngineUnavailable(
            f"engine {engine} has no option {', '.join(unknown)}; its options are {known}"
        )
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise EngineUnavailable(f"options of engine {engine}: {faults}") from None


def call_options(model: type[Options], values: Mapping[str, Any], *, engine: str) -> Options:
    """Read `SynthesisRequest.options`, for `Engine.synthesize`.

    Raises:
        BadOption: with the name of the option that is unknown or out of its range; never its value.
    """
    try:
        return model.model_validate(dict(values), strict=True)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise BadOption(f"options of engine {engine}: {faults}") from None


def option_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return `EngineInfo.options` of a pydantic model that forbids unknown members."""
    return model.model_json_schema()


def _primary(language: str) -> str:
    return language.replace("_", "-").partition("-")[0].lower()
