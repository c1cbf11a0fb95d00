"""Kokoro-82M v1.0 by onnxruntime itself: English in 54 voices on a CPU, 24 kHz, a piece for each sentence.

Phonemes come from hibari's reader, whose alphabet is Kokoro's: espeak, which is GPL, has no part in it. The
weights are a folder with one `*.onnx` (`kokoro-v1.0.int8.onnx`) and `voices/*.bin`, float32 [510, 1, 256]
each; docs/reference/engines.md says where they can be had.

Measured with the int8 model: ready in 1.2 s, RTF 0.24 (a short sentence) to 0.35 (200 letters) on one thread
and 0.16 to 0.2 on two; 0.5 GB resident between calls.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
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
#: hibari's net for unknown words learned this mark from espeak; it has no sound.
MUTE: Final = str.maketrans("", "", "-")
PAUSES: Final = ';:,.!?—…"()“” '
#: Symbols that are no sound by themselves: pauses, stress, length.
SOUNDLESS: Final = frozenset(PAUSES + "ˈˌː")
#: "!" is 0.08 s: a row of hundreds is a long noise. The longest pause of prose, `?!”) “`, is shorter.
LONG_PAUSE: Final = re.compile(rf"([{PAUSES}]{{8}})[{PAUSES}]+")
#: A space after a pause: where a sentence may be cut unheard.
CLAUSE: Final = re.compile(r'(?<=[;:,.!?—…"”)]) ')
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
    # Measured: the peak of the longest call, 510 phonemes, after both readers have read.
    memory_mb=950,
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
        # Letters beyond ASCII that hibari's net for unknown words reads: "ø", "ß", "π", "µ".
        self._letters = {
            name: frozenset(filter(_is_read, reader.oov.cin))
            for name, reader in readers.items()
            if name != "sentences"
        }
        self._run_options = import_module("onnxruntime").RunOptions()
        # Between two calls the process holds 0.5 GB, and not what the longest one took (2.4 GB were seen);
        # a call takes no longer for it.
        self._run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

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
        phrases = self.phonemes(
            request.text, british=request.voice.startswith("b"), longest=most_phonemes(request.speed)
        )
        for phrase in phrases:
            tokens = [self._vocabulary[phoneme] for phoneme in phrase]
            given = {
                "tokens": np.array([[0, *tokens, 0]], np.int64),
                "style": style[min(len(tokens), ROWS - 1)][np.newaxis],
                "speed": np.array([request.speed], np.float32),
            }
            yield np.asarray(self._graph.run(None, given, self._run_options)[0], dtype=np.float32).reshape(-1)

    def phonemes(self, text: str, *, british: bool, longest: int = MAX_PHONEMES) -> list[str]:
        """Return what is to be spoken, in phrases of at most `longest` phonemes.

        Raises:
            UnsupportedText: see `synthesize`.
        """
        name = "b" if british else "a"
        read = hibari.readable(text, letters=self._letters[name])
        sentences = [self._symbols(self._readers[name](part)) for part in self._readers["sentences"](read)]
        phrases = sounding(sentences)
        if not phrases:
            raise UnsupportedText(f"nothing to speak in {text[:40]!r}")
        return [piece for phrase in phrases for piece in cut(phrase, longest)]

    def _symbols(self, phonemes: str) -> str:
        said = phonemes.translate(MUTE)
        unknown = sorted({phoneme for phoneme in said if phoneme not in self._vocabulary})
        if unknown:
            raise UnsupportedText(f"kokoro has no sound for {' '.join(unknown[:10])}")
        return said

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


def most_phonemes(speed: float) -> int:
    """Return the most phonemes of a call: memory goes with the audio, and slow speech shall take no more."""
    return int(MAX_PHONEMES * min(1.0, speed))


def sounding(sentences: Iterable[str]) -> list[str]:
    """Return the sentences, each with a sound in it. One of pauses alone joins its neighbour: by itself it is
    half a second of breath. No pause is longer than eight signs.
    """
    joined: list[str] = []
    waiting = ""
    for sentence in sentences:
        if not SOUNDLESS.issuperset(sentence):
            joined.append(waiting + sentence)
            waiting = ""
        elif joined:
            joined[-1] += " " + sentence
        else:
            waiting += sentence + " "
    return [LONG_PAUSE.sub(r"\1 ", sentence).strip() for sentence in joined]


def cut(phonemes: str, longest: int) -> list[str]:
    """Return a row of phonemes in pieces of at most `longest`, cut at pauses or else at spaces near their
    middles, so that none is a word alone. Nothing is lost but the spaces at the cuts.
    """
    row = phonemes.strip()
    if len(row) <= longest:
        return [row] if row else []
    middle = len(row) / 2
    clauses = [found.start() for found in CLAUSE.finditer(row)]
    spaces = [at for at, phoneme in enumerate(row) if phoneme == " "]
    for places in (clauses, spaces, [int(middle)]):
        central = [at for at in places if abs(at - middle) <= middle / 2]
        if central:
            at = min(central, key=lambda place: abs(place - middle))
            break
    return [*cut(row[:at], longest), *cut(row[at:], longest)]


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


def _is_read(character: str) -> bool:
    # It reads Cyrillic and other letters too, as something between letter names and noise.
    return (
        not character.isalpha()
        or character in "ªºµ"
        or hibari.GREEK_WORD.fullmatch(character * 2) is not None
        or unicodedata.name(character, "").startswith("LATIN")
    )


ENGINE: Final = KokoroFactory()
