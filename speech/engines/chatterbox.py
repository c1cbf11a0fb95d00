"""Chatterbox Turbo, `chatterbox-tts` 0.1.7: English with cloning and tags, 24 kHz, a whole clip at a time.

Its package pins torch 2.6 and numpy 1, so that it needs an environment of its own. Written from the package's
source and tested over a stand-in of its interface; it has not been run with the real one here.
"""

from __future__ import annotations

import gc
import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from speech.engine import (
    BadOutput,
    BadReference,
    EngineInfo,
    EngineUnavailable,
    Features,
    Samples,
    SynthesisRequest,
    TextTooLong,
    UnknownVoice,
    UnsupportedText,
    Voice,
    call_options,
    option_schema,
    read_options,
)
from speech.engines.packages import require
from speech.voices import Reference, references

VERSION: Final = "0.1.7"
INSTALL: Final = "pip install 'voxfleet[chatterbox-turbo]', in an environment of its own"
#: Files of the folder that the package reads.
FILES: Final = ("ve.safetensors", "t3_turbo_v1.safetensors", "s3gen_meanflow.safetensors")
#: The voice that comes with the weights.
CONDITIONALS: Final = "conds.pt"
DEFAULT: Final = "default"
#: It stops at 1,000 speech tokens, 25 a second, without a word: whatever is as long was cut off.
MAX_SECONDS: Final = 40.0
CUT_SECONDS: Final = 39.5
#: 300 characters at ten a second, which is slow, are 30 s.
MAX_CHARS: Final = 300
#: The package asserts more than 5 s.
SHORTEST_REFERENCE: Final = 5.1
TAGS: Final = ("[laugh]", "[cough]", "[chuckle]")


class ChatterboxOptions(BaseModel):
    """Settings of the chatterbox-turbo engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Path | None = Field(default=None, description="Folder of the weights. It has no default.")
    device: Literal["auto", "cuda", "cpu"] = Field(
        default="auto", description="Where it runs; `auto` is `cuda` where there is one."
    )
    voices_dir: Path | None = Field(
        default=None, description="Folder of reference voices. Default: `VOXFLEET_VOICES_DIR`."
    )
    voices_cached: int = Field(default=16, ge=1, le=1000, description="Voices that are kept ready.")


class ChatterboxCallOptions(BaseModel):
    """Options of one call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(default=0.8, ge=0.05, le=2, description="More varied above, flatter below.")
    top_p: float = Field(default=0.95, gt=0, le=1, description="Share of the likeliest tokens.")
    top_k: int = Field(default=1000, ge=1, le=5000, description="Number of the likeliest tokens.")
    repetition_penalty: float = Field(default=1.2, ge=1, le=3, description="Against tokens said before.")


#: What is known before it is loaded.
ABOUT: Final = EngineInfo(
    name="chatterbox-turbo",
    version=VERSION,
    revision=VERSION,
    sample_rate=24_000,
    languages=("en",),
    voices=(Voice(id=DEFAULT, name="Default", language="en"),),
    default_voice=DEFAULT,
    max_chars=MAX_CHARS,
    preferred_chars=200,
    max_seconds=MAX_SECONDS,
    device="cuda",
    deterministic=False,
    licence="MIT",
    # Reckoned, not measured: English is read at 0.05 to 0.09.
    min_seconds_per_char=0.025,
    max_seconds_per_char=0.5,
    max_extra_seconds=3.0,
    features=Features(cloning=True, seed=True, tags=TAGS),
    # As reported from an RTX A6000.
    memory_mb=5340,
    watermark="Perth",
    options=option_schema(ChatterboxCallOptions),
)


class ChatterboxEngine:
    """The model, and the voices that it was made ready for."""

    def __init__(
        self, model: Any, info: EngineInfo, voices: Mapping[str, Reference], *, torch: Any, cached: int
    ) -> None:
        """Args:
        model: a `ChatterboxTurboTTS`; its `conds` are those of the voice in use.
        torch: the runtime.
        cached: how many voices are kept ready.
        """
        self.info = info
        self._model = model
        self._own = model.conds
        self._voices = voices
        self._torch = torch
        self._cached = cached
        self._ready: OrderedDict[str, Any] = OrderedDict()

    def synthesize(self, request: SynthesisRequest) -> Iterator[Samples]:
        """Yield the audio of `request.text`, whole.

        Raises:
            UnknownVoice, UnsupportedText, TextTooLong, BadReference, BadOption, BadOutput
        """
        options = call_options(ChatterboxCallOptions, request.options, engine=self.info.name)
        if len(request.text) > MAX_CHARS:
            raise TextTooLong(f"{len(request.text)} characters; chatterbox-turbo takes {MAX_CHARS}")
        if not any(character.isalnum() for character in request.text):
            raise UnsupportedText("nothing to speak")
        self._model.conds = self._conditionals(request.voice)
        self._torch.manual_seed(request.seed)
        if self.info.device == "cuda":
            self._torch.cuda.manual_seed_all(request.seed)
        with self._torch.inference_mode():
            sound = self._model.generate(request.text, **options.model_dump())
        samples = np.asarray(sound.detach().cpu().numpy(), dtype=np.float32).reshape(-1)
        if len(samples) >= CUT_SECONDS * self.info.sample_rate:
            raise BadOutput(f"{len(samples) / self.info.sample_rate:.1f} s: it was cut off at its limit")
        yield samples

    def free(self) -> None:
        """Give back what torch keeps."""
        gc.collect()
        if self.info.device == "cuda":
            self._torch.cuda.empty_cache()

    def device_bytes(self) -> int:
        """Return what torch holds of the device."""
        return int(self._torch.cuda.memory_reserved()) if self.info.device == "cuda" else 0

    def close(self) -> None:
        """Let the model go."""
        self._ready.clear()
        self._model = self._own = None

    def _conditionals(self, voice: str) -> Any:
        """Return what the model needs to speak in a voice; the least recently used ones are made again."""
        if voice in self._ready:
            self._ready.move_to_end(voice)
            return self._ready[voice]
        if voice not in self._voices:
            if voice == DEFAULT and self._own is not None:
                return self._own
            raise UnknownVoice(f"chatterbox-turbo has no voice {voice!r}")
        while len(self._ready) >= self._cached:
            self._ready.popitem(last=False)
        try:
            self._model.prepare_conditionals(str(self._voices[voice].path))
        except (AssertionError, OSError, ValueError) as error:
            raise BadReference(f"voice {voice} cannot be used: {error}") from error
        self._ready[voice] = self._model.conds
        return self._model.conds


class ChatterboxFactory:
    """Loads the model from a folder."""

    options = ChatterboxOptions
    about = ABOUT

    def missing(self) -> str | None:
        """Return how to install chatterbox, or None when it is here."""
        if find_spec("chatterbox") is None or find_spec("torch") is None:
            return INSTALL
        return None

    def load(self, options: Mapping[str, str]) -> ChatterboxEngine:
        """Load the model.

        Raises:
            EngineUnavailable: the package is absent or of another version, a file is missing, or an option is
                wrong.
        """
        read = read_options(ChatterboxOptions, options, engine=ABOUT.name)
        require("chatterbox-tts", VERSION, engine=ABOUT.name, install=INSTALL, missing=self.missing())
        if read.model is None:
            raise EngineUnavailable("VOXFLEET_ENGINE_CHATTERBOX_TURBO_MODEL must name a folder of weights")
        for name in FILES:
            if not (read.model / name).is_file():
                raise EngineUnavailable(f"chatterbox-turbo: {name} is missing from {read.model}")
        torch = import_module("torch")
        device = read.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device == "cuda" and not torch.cuda.is_available():
            raise EngineUnavailable("chatterbox-turbo: device cuda was asked for, and there is none")
        try:
            clips = references(read.voices_dir, shortest=SHORTEST_REFERENCE)
        except BadReference as error:
            raise EngineUnavailable(f"chatterbox-turbo: {error}") from error
        turbo = import_module("chatterbox.tts_turbo").ChatterboxTurboTTS
        model = turbo.from_local(str(read.model), device)
        voices = {clip.id: clip for clip in clips if clip.id != DEFAULT}
        listed = (
            *(ABOUT.voices if model.conds is not None else ()),
            *(Voice(id=name, name=name, language="en", kind="reference") for name in voices),
        )
        if not listed:
            raise EngineUnavailable(
                f"chatterbox-turbo: no voice: {CONDITIONALS} is missing from {read.model}, and no "
                "reference clip of more than 5 s was found"
            )
        info = replace(
            ABOUT,
            revision=f"{VERSION}+{_digest(read.model, clips)[:12]}",
            sample_rate=int(model.sr),
            voices=listed,
            default_voice=listed[0].id,
            device=device,
            weights=read.model.resolve().name,
        )
        return ChatterboxEngine(model, info, voices, torch=torch, cached=read.voices_cached)


def _digest(folder: Path, clips: tuple[Reference, ...]) -> str:
    """Return a digest of sizes and heads: the files hold gigabytes."""
    digest = hashlib.sha256()
    for name in (*FILES, CONDITIONALS):
        path = folder / name
        if path.is_file():
            with path.open("rb") as file:
                digest.update(f"{name} {path.stat().st_size}".encode() + file.read(1 << 20))
    for clip in clips:
        digest.update(f"{clip.id} {clip.sha256}".encode())
    return digest.hexdigest()


ENGINE: Final = ChatterboxFactory()
