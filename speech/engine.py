"""The engine port: what a loaded speech model says of itself, and what may go wrong with it.

An engine runs on the main thread of a child process of its worker (`speech.child`); nothing here is
called from two threads. A third party adds one by an entry point in the group `voxfleet.engines` whose
object is an `EngineFactory` (`speech.registry`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Final, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, TypeAdapter, ValidationError

#: float32, shape (n,), nominally within [-1, 1], at the engine's rate.
Samples = npt.NDArray[np.float32]

#: In `EngineInfo.languages`: the engine takes any language.
ANY_LANGUAGE: Final = "*"

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
        TextTooLong,
        BadOutput,
        OutOfMemory,
        EngineFailed,
        EngineDied,
        EngineTimedOut,
        EngineUnavailable,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A voice that an engine has."""

    id: str
    name: str
    #: BCP 47.
    language: str


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
    #: Longest text of one call, in Unicode code points.
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

    def to_json(self) -> str:
        """Return this as a JSON object in ASCII: even a lone surrogate passes. `from_json` reads it back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what `to_json` wrote.

        Raises:
            ValueError, TypeError: the text is something else.
        """
        return cls(**json.loads(text))


class Engine(Protocol):
    """A loaded model. Not thread-safe: one call at a time, each iterated to its end or closed."""

    @property
    def info(self) -> EngineInfo: ...

    def synthesize(self, request: SynthesisRequest) -> Iterator[Samples]:
        """Yield the audio of `request.text` as soon as each part of it is final.

        Raises:
            EngineError: one of `ERRORS`.
        """
        ...

    def close(self) -> None:
        """Free what the engine holds."""
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
