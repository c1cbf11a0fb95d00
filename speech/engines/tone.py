"""A tone instead of a voice: instant, exact, deterministic, faulty on request. The test bed of the fleet.

With `VOXFLEET_ENGINE_TONE_FAULTS=1` a marker in the text does harm where it stands, after the audio of the
text before it: `[[tone:fail]]` raises, `oom` runs out of memory, `hang` never returns, `gil` never returns
and holds the interpreter's lock, `segv` and `exit` end the process, `nan` puts a value that is no number into
the audio, `empty` gives no audio at all, `sleep=S` takes S seconds. Markers are not spoken. Without that
setting they are text like any other.

Its memory is a file (`VOXFLEET_ENGINE_TONE_MEMORY_FILE`): as long as it exists, a text longer than the number
in it is out of memory. The option `steps` of a call, 10 by default, makes it need more, or less.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from speech.engine import (
    ANY_LANGUAGE,
    EngineInfo,
    Features,
    Samples,
    SynthesisRequest,
    UnknownVoice,
    UnsupportedText,
    Voice,
    call_options,
    option_schema,
    read_options,
)

SAMPLE_RATE: Final = 24_000
#: 60 ms.
SAMPLES_PER_CHAR: Final = 1_440
PEAK: Final = 0.5
#: 5 ms at each end, so that a clip starts and ends at zero without a click.
RAMP_SAMPLES: Final = 120
#: 240 ms: short enough for progress, cancellation and death in the middle of a clip.
PIECE_SAMPLES: Final = 5_760
MARKER: Final = re.compile(r"\[\[tone:(fail|oom|hang|gil|segv|exit|nan|empty|sleep=(\d+(?:\.\d+)?))\]\]")


class ToneOptions(BaseModel):
    """Settings of the tone engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rtf: float = Field(default=0.0, ge=0, description="Processing seconds per second of audio.")
    load_seconds: float = Field(default=0.0, ge=0, description="How long loading takes.")
    leak_mb_per_chunk: float = Field(default=0.0, ge=0, description="Memory lost with every call, in MB.")
    device: str = Field(default="cpu", description="Device it pretends to run on.")
    max_chars: int = Field(default=300, ge=1, description="Longest text of one call, in code points.")
    faults: bool = Field(default=False, description="Whether `[[tone:...]]` markers do harm.")
    memory_file: Path | None = Field(
        default=None, description="File that holds the longest text that fits into memory, in code points."
    )
    log: Path | None = Field(default=None, description="File that gets one JSON line per call.")


class ToneCallOptions(BaseModel):
    """Options of one call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = Field(default=10, ge=1, le=100, description="Memory that the call needs; not heard.")


#: What is known before it is loaded.
ABOUT: Final = EngineInfo(
    name="tone",
    version="1",
    revision="tone-1",
    sample_rate=SAMPLE_RATE,
    languages=(ANY_LANGUAGE,),
    voices=(
        Voice(id="sine", name="Sine", language=ANY_LANGUAGE),
        Voice(id="square", name="Square", language=ANY_LANGUAGE),
    ),
    default_voice="sine",
    max_chars=300,
    device="cpu",
    deterministic=True,
    licence="Apache-2.0",
    min_seconds_per_char=0.9 * SAMPLES_PER_CHAR / SAMPLE_RATE,
    max_seconds_per_char=1.1 * SAMPLES_PER_CHAR / SAMPLE_RATE,
    max_extra_seconds=0.0,
    features=Features(streaming=True, seed=True),
    memory_mb=60,
    options=option_schema(ToneCallOptions),
    thrift={"steps": 5},
)


class ToneEngine:
    """60 ms of one frequency per code point."""

    def __init__(self, options: ToneOptions) -> None:
        self._options = options
        self._leaked: list[bytes] = []
        self.info = replace(
            ABOUT,
            max_chars=options.max_chars,
            device=options.device,
            # Markers are text to whoever checks the clip, but are not spoken.
            min_seconds_per_char=0.0 if options.faults else ABOUT.min_seconds_per_char,
        )

    def synthesize(self, request: SynthesisRequest) -> Iterator[Samples]:
        """Yield the tone of `request.text` in pieces of at most 240 ms.

        Raises:
            UnsupportedText: the text is blank.
            UnknownVoice: neither `sine` nor `square`.
        """
        self._record(request)
        self._leaked.append(b"\x01" * int(self._options.leak_mb_per_chunk * 1_000_000))
        spoken, faults = self._read(request.text)
        if request.voice not in ("sine", "square"):
            raise UnknownVoice(f"tone has no voice {request.voice!r}; it has sine, square")
        if not spoken.strip() and not faults:
            raise UnsupportedText("the text is blank")
        if any(fault == "empty" for _, fault in faults):
            return
        steps = call_options(ToneCallOptions, request.options, engine="tone").steps
        self._check_memory(len(request.text) * steps)
        clip = tone(spoken, seed=request.seed, square=request.voice == "square")
        done = 0
        for position, fault in faults:
            yield from self._pieces(clip[done:position])
            done = position
            _harm(fault, clip[position:])
        yield from self._pieces(clip[done:])

    def close(self) -> None:
        """Give back what was leaked."""
        self._leaked.clear()

    def _check_memory(self, needed: int) -> None:
        if self._options.memory_file is None:
            return
        with suppress(FileNotFoundError, ValueError):
            there = int(self._options.memory_file.read_text()) * ToneCallOptions().steps
            if needed > there:
                raise MemoryError(f"out of memory: {needed} needed, {there} there")

    def _pieces(self, clip: Samples) -> Iterator[Samples]:
        for start in range(0, clip.size, PIECE_SAMPLES):
            piece = clip[start : start + PIECE_SAMPLES]
            time.sleep(self._options.rtf * piece.size / SAMPLE_RATE)
            yield piece

    def _read(self, text: str) -> tuple[str, list[tuple[int, str]]]:
        """Return the text without markers, and each marker with the sample that it stands at."""
        if not self._options.faults:
            return text, []
        spoken, faults, last = "", [], 0
        for marker in MARKER.finditer(text):
            spoken += text[last : marker.start()]
            last = marker.end()
            faults.append((len(spoken) * SAMPLES_PER_CHAR, marker.group(1)))
        return spoken + text[last:], faults

    def _record(self, request: SynthesisRequest) -> None:
        if self._options.log is None:
            return
        entry = {"text": request.text, "seed": request.seed, "pid": os.getpid(), "t": time.time()}
        # One write to an append-only descriptor: lines of several processes never mix.
        fd = os.open(self._options.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(fd, json.dumps(entry).encode() + b"\n")
        finally:
            os.close(fd)


class ToneFactory:
    """Makes the tone engine; it needs nothing."""

    options = ToneOptions
    about = ABOUT

    def missing(self) -> str | None:
        """Nothing is ever missing."""
        return None

    def load(self, options: Mapping[str, str]) -> ToneEngine:
        """Return the engine, after `load_seconds`.

        Raises:
            EngineUnavailable: an option is unknown or out of its range.
        """
        read = read_options(ToneOptions, options, engine="tone")
        time.sleep(read.load_seconds)
        return ToneEngine(read)


def tone(text: str, *, seed: int, square: bool = False) -> Samples:
    """Return 60 ms per code point of one frequency, 200 to 2,000 Hz, that text and seed decide."""
    digest = hashlib.sha256(f"{seed}\0{text}".encode("utf-8", "surrogatepass")).digest()
    hertz = 200 + int.from_bytes(digest[:4], "big") % 1_801
    count = len(text) * SAMPLES_PER_CHAR
    wave = np.sin(2 * np.pi * hertz / SAMPLE_RATE * np.arange(count))
    ends = np.minimum(np.arange(count), np.arange(count)[::-1])
    shape = np.minimum(ends / RAMP_SAMPLES, 1) * (np.sign(wave) if square else wave)
    return np.asarray(PEAK * shape, dtype=np.float32)


def _harm(fault: str, rest: Samples) -> None:
    match fault:
        case "fail":
            raise RuntimeError("the tone engine fails, as the text asked")
        case "oom":
            raise MemoryError("the tone engine is out of memory, as the text asked")
        case "hang":
            while True:
                time.sleep(3600)
        case "gil":
            # A PyDLL call keeps the interpreter's lock: no thread and no signal handler of Python runs.
            while True:
                ctypes.PyDLL(None).sleep(3600)
        case "segv":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "nan":
            rest[:1] = np.nan
        case _:
            time.sleep(float(fault.removeprefix("sleep=")))


ENGINE: Final = ToneFactory()
