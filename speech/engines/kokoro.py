"""Kokoro-82M v1.0 by onnxruntime itself: English in 54 voices on a CPU, 24 kHz, a piece for each sentence.

Phonemes come from hibari's reader, whose alphabet is Kokoro's: espeak, which is GPL, has no part in it. The
weights are a folder with one `*.onnx` (`kokoro-v1.0.int8.onnx`) and `voices/*.bin`, float32 [510, 1, 256]
each; docs/reference/engines.md says where they can be had.

Measured with the int8 model: ready in 1.2 s, RTF 0.24 with one thread and 0.155 with two, 580 MB resident.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from speech.engine import (
    EngineInfo,
    EngineUnavailable,
    Features,
    Samples,
    SynthesisRequest,
    TextTooLong,
    UnknownVoice,
    UnsupportedText,
    Voice,
    read_options,
)
from speech.engines import hibari
from speech.engines.onnx import load_graph
from speech.engines.packages import require

INSTALL: Final = "pip install 'voxfleet[kokoro]'"
#: A call of the graph takes 510 phonemes; this is about half of that in prose, and what is spelled out is cut
#: by phonemes.
MAX_CHARS: Final = 300
MAX_PHONEMES: Final = 510
#: Rows of a voice, one for each length of a phrase, and numbers in a row.
ROWS, STYLE = 510, 256
INPUTS: Final = {"tokens": ("tensor(int64)", 2), "style": ("tensor(float)", 2), "speed": ("tensor(float)", 1)}
SPEEDS: Final = (0.5, 2.0)
DEFAULT: Final = "af_heart"
#: hibari's reader of British spelling.
BRITISH_ASSETS: Final[dict[str, str]] = {
    "lexicon_gb_gold.json.gz": "66e675f23eb007d6707d23fe6603ba5e19f3513aefe42e3c8cd6c078a85f2ce0",
    "lexicon_gb_silver.json.gz": "637f887dd557d193af8c106f5c26624850db3e7bf0ec751ba917aac6d75e948d",
    "oov_gb.json": "e29077fc3548f08f2fab82a87e03309f614658d91d0ba464e653265e9a4d0cad",
    "oov_gb.onnx": "0997e3219543247de5646078d770f8ca77011d8fd0abb29fe48d12c60f53e9e1",
}
#: The released voices: a language, a sex, a name. Those of other languages speak English with an accent.
VOICES: Final = {
    "af": "alloy aoede bella heart jessica kore nicole nova river sarah sky",
    "am": "adam echo eric fenrir liam michael onyx puck santa",
    "bf": "alice emma isabella lily",
    "bm": "daniel fable george lewis",
    "ef": "dora",
    "em": "alex santa",
    "ff": "siwis",
    "hf": "alpha beta",
    "hm": "omega psi",
    "if": "sara",
    "im": "nicola",
    "jf": "alpha gongitsune nezumi tebukuro",
    "jm": "kumo",
    "pf": "dora",
    "pm": "alex santa",
    "zf": "xiaobei xiaoni xiaoxiao xiaoyi",
    "zm": "yunjian yunxi yunxia yunyang",
}
_ORIGINS: Final = {
    "a": "American", "b": "British", "e": "Spanish", "f": "French", "h": "Hindi", "i": "Italian",
    "j": "Japanese", "p": "Portuguese", "z": "Chinese",
}  # fmt: skip


class KokoroOptions(BaseModel):
    """Settings of the kokoro engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Path | None = Field(
        default=None, description="Folder with one `*.onnx` and `voices/*.bin`. It has no default."
    )
    sha256: str | None = Field(
        default=None, pattern="^[0-9a-f]{64}$", description="What the sha256 of the `*.onnx` must be."
    )
    default_voice: str = Field(default=DEFAULT, description="Voice of a request that names none.")
    threads: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Threads of one call; two workers of one thread each do more than one of two.",
    )


def _voice(name: str) -> Voice:
    """Return a voice by the released names, such as `bf_emma`."""
    prefix, _, given = name.partition("_")
    origin = _ORIGINS.get(prefix[:1], "")
    title = f"{given.capitalize()} ({origin})" if given and origin else name
    return Voice(id=name, name=title, language="en-GB" if prefix.startswith("b") else "en-US")


#: What is known before it is loaded.
ABOUT: Final = EngineInfo(
    name="kokoro",
    version="1.0",
    revision="1.0",
    sample_rate=24_000,
    languages=("en", "en-US", "en-GB"),
    voices=tuple(_voice(f"{prefix}_{name}") for prefix, names in VOICES.items() for name in names.split()),
    default_voice=DEFAULT,
    max_chars=MAX_CHARS,
    device="cpu",
    deterministic=True,
    licence="Apache-2.0",
    # Measured on the int8 model: 0.046 for "through thought though" at length, 0.07 for prose, 1.75 for a
    # lone "÷" and 0.5 for digits; half a second of silence comes with each sentence.
    min_seconds_per_char=0.02,
    max_seconds_per_char=1.2,
    max_extra_seconds=2.0,
    features=Features(streaming=True, speed=True),
    speeds=SPEEDS,
    # Measured: resident, after some sentences.
    memory_mb=580,
    weights="kokoro-v1.0",
)


class KokoroEngine:
    """The graph, its voices, and hibari's readers of English."""

    def __init__(
        self,
        graph: Any,
        info: EngineInfo,
        voices: Mapping[str, Samples],
        *,
        readers: Mapping[str, Any],
        vocabulary: Mapping[str, int],
    ) -> None:
        """Args:
        graph: an `onnxruntime.InferenceSession`.
        voices: float32 (510, 256) by name.
        readers: of words, by the first letter of a voice's name; `a` is anybody's.
        vocabulary: numbers of phonemes.
        """
        self.info = info
        self._graph = graph
        self._voices = voices
        self._readers = readers
        self._vocabulary = vocabulary

    def synthesize(self, request: SynthesisRequest) -> Iterator[Samples]:
        """Yield the audio of `request.text`, sentence by sentence.

        Raises:
            UnknownVoice, TextTooLong
            UnsupportedText: letters or digits that would not be spoken, or nothing to speak.
        """
        style = self._voices.get(request.voice)
        if style is None:
            raise UnknownVoice(f"kokoro has no voice {request.voice!r}")
        if len(request.text) > MAX_CHARS:
            raise TextTooLong(f"{len(request.text)} characters; kokoro takes {MAX_CHARS} in one call")
        phrases = self.phonemes(request.text, british=request.voice.startswith("b"))
        for phrase in phrases:
            tokens = [self._vocabulary[phoneme] for phoneme in phrase]
            given = {
                "tokens": np.array([[0, *tokens, 0]], np.int64),
                "style": style[min(len(tokens), ROWS - 1)][np.newaxis],
                "speed": np.array([request.speed], np.float32),
            }
            yield np.asarray(self._graph.run(None, given)[0], dtype=np.float32).reshape(-1)

    def phonemes(self, text: str, *, british: bool) -> list[str]:
        """Return what is to be spoken, in phrases that the graph takes.

        Raises:
            UnsupportedText: see `synthesize`.
        """
        read = hibari.readable(text, letters=frozenset())
        reader = self._readers["b" if british else "a"]
        phrases: list[str] = []
        for sentence in self._readers["sentences"](read):
            said = reader(sentence) or ""
            unknown = sorted({phoneme for phoneme in said if phoneme not in self._vocabulary})
            if unknown:
                names = " ".join(unknown[:10])
                raise UnsupportedText(f"kokoro has no sound for {names}")
            phrases += cut(said, MAX_PHONEMES)
        if not any(hibari.SOUND.search(phrase) for phrase in phrases):
            raise UnsupportedText(f"nothing to speak in {text[:40]!r}")
        # A phrase of marks alone is half a second of breath: it goes with the one before.
        return [phrase for phrase in phrases if hibari.SOUND.search(phrase)]

    def close(self) -> None:
        """Let the graph go."""
        self._graph = None


class KokoroFactory:
    """Loads the model from a folder, after looking at every file of it."""

    options = KokoroOptions
    about = ABOUT

    def missing(self) -> str | None:
        """Return how to install what it needs, or None when all of it is here."""
        if find_spec("hibari") is None or find_spec("onnxruntime") is None:
            return INSTALL
        return None

    def load(self, options: Mapping[str, str]) -> KokoroEngine:
        """Load the model.

        Raises:
            EngineUnavailable: a package is absent or of another version, a file is missing or damaged, or an
                option is wrong.
        """
        read = read_options(KokoroOptions, options, engine="kokoro")
        require("hibari-tts", hibari.VERSION, engine="kokoro", install=INSTALL, missing=self.missing())
        if read.model is None:
            raise EngineUnavailable("VOXFLEET_ENGINE_KOKORO_MODEL must name a folder of weights and voices")
        path = _graph(read.model)
        digest = hashlib.sha256(path.read_bytes())
        if read.sha256 not in (None, digest.hexdigest()):
            raise EngineUnavailable(
                f"kokoro: sha256 of {path.name} is {digest.hexdigest()}, not {read.sha256}"
            )
        voices = _styles(read.model / "voices")
        if read.default_voice not in voices:
            raise EngineUnavailable(
                f"kokoro: {read.default_voice}.bin is missing from {read.model / 'voices'}"
            )
        graph = load_graph(
            path,
            inputs=INPUTS,
            engine="kokoro",
            runtime=import_module("onnxruntime"),
            threads=read.threads,
        )
        for array in voices.values():
            digest.update(array.tobytes())
        readers, vocabulary = _readers()
        info = replace(
            ABOUT,
            revision=f"1.0+{digest.hexdigest()[:12]}",
            voices=tuple(_voice(name) for name in voices),
            default_voice=read.default_voice,
            deterministic=read.threads == 1,
            weights=path.stem,
        )
        return KokoroEngine(graph, info, voices, readers=readers, vocabulary=vocabulary)


def cut(phonemes: str, longest: int) -> list[str]:
    """Return a row of phonemes in pieces of at most `longest`, cut at spaces where there are any; nothing is
    lost but the spaces at the cuts.
    """
    pieces = []
    rest = phonemes.strip()
    while len(rest) > longest:
        at = rest.rfind(" ", 1, longest + 1)
        at = longest if at <= 0 else at
        pieces.append(rest[:at].strip())
        rest = rest[at:].strip()
    return [*pieces, rest] if rest else pieces


def _graph(folder: Path) -> Path:
    """Return the one graph of a folder."""
    if not folder.is_dir():
        raise EngineUnavailable(f"kokoro: there is no folder {folder}")
    graphs = sorted(folder.glob("*.onnx"))
    if len(graphs) != 1:
        raise EngineUnavailable(f"kokoro: {len(graphs)} files *.onnx in {folder}; there must be one")
    return graphs[0]


def _styles(folder: Path) -> dict[str, Samples]:
    """Return the voices of a folder by name."""
    voices: dict[str, Samples] = {}
    for path in sorted(folder.glob("*.bin")):
        raw = np.fromfile(path, dtype="<f4")
        if raw.size != ROWS * STYLE or path.stat().st_size != 4 * raw.size:
            raise EngineUnavailable(f"kokoro: voice {path.name} is not float32 [{ROWS}, 1, {STYLE}]")
        if not np.isfinite(raw).all():
            raise EngineUnavailable(f"kokoro: voice {path.name} is damaged")
        voices[path.stem] = raw.astype(np.float32).reshape(ROWS, STYLE)
    if not voices:
        raise EngineUnavailable(f"kokoro: there is no voice in {folder}")
    return voices


def _readers() -> tuple[dict[str, Any], dict[str, int]]:
    """Return hibari's readers of American and British English, and the numbers of its phonemes."""
    import hibari as package  # noqa: PLC0415  # in the engine's process alone
    from hibari.g2p import G2P  # noqa: PLC0415

    assets = Path(package.__file__).parent / "assets"
    hibari.verify(assets)
    hibari.verify(assets, BRITISH_ASSETS)
    vocabulary = json.loads((assets / "vocab.json").read_text(encoding="utf-8"))
    readers = {
        "a": G2P(british=False),
        "b": G2P(british=True),
        "sentences": package.Hibari.split_sentences,
    }
    return readers, vocabulary


ENGINE: Final = KokoroFactory()
