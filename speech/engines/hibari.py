"""Hibari 0.2.1: a small English voice whose weights are inside its package. CPU, 24 kHz.

Measured with one thread: loaded in 0.9 s, 220 times faster than real time. What it cannot read it leaves out
without a word; here that is an error, since a job is never completed with words missing.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
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
from speech.engines.packages import require

VERSION: Final = "0.2.1"
INSTALL: Final = "pip install 'voxfleet[hibari]'"
#: The only voice inside the package; asking for another goes to the network.
VOICE: Final = "heart"
#: Time grows faster than length: 300 characters 0.09 s, 1,000 0.39 s, 4,000 3.3 s.
MAX_CHARS: Final = 300

#: sha256 of every file that is loaded for the voice, below the package's `assets/`.
ASSETS: Final[dict[str, str]] = {
    "hibari.onnx": "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8",
    "lexicon_us_gold.json.gz": "63ae94f8ef0e906d5b24fe9b59ffcbd1529aca5686a774610e43973cbaa86ad2",
    "lexicon_us_silver.json.gz": "c4c2546ebf1eb07010331e7ef785a431aa17ba8e7bfb6b4af8d654ee96a71fd3",
    "normalize.json": "d478ff05404bc43ac3e0468e306674e51085f1b1afc94cdef7c7ea4fb0d56bd8",
    "oov.json": "b462e6e5dbdf0e7346c732385d0dd844f612f1770871441c56932bff4ca75d8c",
    "oov.onnx": "d3cfd8122c5f172a98c8de38268bf1213ee09f2c2ae4df6e055fc6532590fe76",
    "tagger.json.gz": "d2da7502284bbbe45d49e0b7ce3ce67bdab82254150f4317f1b8559b4d38d0eb",
    "tokenizer_exceptions.json": "ddf3a3da07bdcf5144270ea4530191d8580fb4fd6f5ae93296e87916e795659a",
    "vocab.json": "70abefbe8a1c8865e43e0a43bbdc25b91a33e4aa053479d443ccf23e20a59e5d",
    "voices.json": "f8b7657ecd0e0e362d3403e99538c0e5bfe20d6a903dfcd04c772b2c73abb204",
}

#: Its reader of unknown words takes 24 letters and drops the rest of the word.
LONGEST_WORD: Final = 24
#: Its number words end at nonillions: 34 digits are an IndexError. Digits one by one have no end.
LONG_NUMBER: Final = re.compile(r"\d[\d,]{30,}")
WORD: Final = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
#: One Greek letter is read by its name; a word of them is not Greek.
GREEK_WORD: Final = re.compile(r"[\u0370-\u03ff]{2,}")
#: Sounds, as opposed to pauses, in what the phonemizer returns.
SOUND: Final = re.compile(r"[^\W\d_]")


class HibariOptions(BaseModel):
    """Settings of the hibari engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    threads: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Threads of one call; with more than one, audio no longer repeats exactly.",
    )


#: What is known before it is loaded.
ABOUT: Final = EngineInfo(
    name="hibari",
    version=VERSION,
    revision=f"{VERSION}+{ASSETS['hibari.onnx'][:12]}",
    sample_rate=24_000,
    languages=("en", "en-US"),
    voices=(Voice(id=VOICE, name="Heart", language="en-US"),),
    default_voice=VOICE,
    max_chars=MAX_CHARS,
    device="cpu",
    deterministic=True,
    licence="Apache-2.0",
    # Measured: 0.04 for "through thought though" at length, 0.07 for prose; a word cut off at 24 of 300
    # letters gives 0.016.
    min_seconds_per_char=0.025,
    # Measured: 0.06 for prose, 0.75 for "777", 0.9 for "^" ("to the power of"), 1.5 for a lone "÷".
    max_seconds_per_char=1.2,
    max_extra_seconds=2.0,
    # A piece for each sentence; its noise follows the seed.
    features=Features(streaming=True, seed=True),
    memory_mb=244,
    weights=f"hibari-tts {VERSION}",
)


class HibariEngine:
    """The voice `heart`."""

    def __init__(self, model: Any, *, threads: int) -> None:
        """Args:
        model: a loaded `hibari.Hibari`.
        """
        self._model = model
        # Characters that its reader of unknown words was trained on. It reads Cyrillic and other letters too,
        # as something between letter names and noise: those are not speech.
        self._letters = frozenset(c for c in model.g2p.oov.cin if _latin(c) or GREEK_WORD.fullmatch(c * 2))
        self.info = replace(ABOUT, sample_rate=int(model.sample_rate), deterministic=threads == 1)

    def synthesize(self, request: SynthesisRequest) -> Iterator[Samples]:
        """Yield the audio of `request.text`, sentence by sentence.

        Raises:
            TextTooLong: above `MAX_CHARS`.
            UnknownVoice: another voice than `heart`.
            UnsupportedText: letters or digits that would not be spoken, or nothing to speak.
        """
        if request.voice != VOICE:
            raise UnknownVoice(f"hibari has no voice {request.voice!r}; it has {VOICE}")
        if len(request.text) > MAX_CHARS:
            raise TextTooLong(f"{len(request.text)} characters; hibari takes {MAX_CHARS} in one call")
        text = readable(request.text, letters=self._letters)
        noise = np.random.default_rng(request.seed)
        phonemes = self._model.phonemize(text)
        if not any(SOUND.search(sentence) for sentence in phonemes):
            raise UnsupportedText(f"nothing to speak in {text[:40]!r}")
        for sentence in phonemes:
            yield np.asarray(self._model.from_ids(self._model.ids(sentence), 1.0, noise), dtype=np.float32)

    def close(self) -> None:
        """Let the model go."""
        self._model = None


class HibariFactory:
    """Loads the voice from its package, after checking every file it reads."""

    options = HibariOptions
    about = ABOUT

    def missing(self) -> str | None:
        """Return how to install hibari, or None when it is here."""
        if find_spec("hibari") is None or find_spec("onnxruntime") is None:
            return INSTALL
        return None

    def load(self, options: Mapping[str, str]) -> HibariEngine:
        """Load the voice.

        Raises:
            EngineUnavailable: the package is absent, of another version or damaged, or an option is wrong.
        """
        read = read_options(HibariOptions, options, engine="hibari")
        require("hibari-tts", VERSION, engine="hibari", install=INSTALL, missing=self.missing())
        import hibari  # noqa: PLC0415  # the model's runtime: in the engine's process alone

        verify(Path(hibari.__file__).parent / "assets")
        return HibariEngine(hibari.Hibari(voice=VOICE, threads=read.threads), threads=read.threads)


def verify(assets: Path, expected: Mapping[str, str] = ASSETS) -> None:
    """Compare the files of the voice with their known sha256.

    Raises:
        EngineUnavailable: names the file that is missing or differs.
    """
    for name, digest in expected.items():
        try:
            found = hashlib.sha256((assets / name).read_bytes()).hexdigest()
        except OSError as error:
            raise EngineUnavailable(f"hibari: {name} cannot be read: {error.strerror}") from error
        if found != digest:
            raise EngineUnavailable(f"hibari: {name} is damaged: sha256 {found}, expected {digest}")


def readable(text: str, *, letters: Collection[str]) -> str:
    """Return `text` with nothing in it that hibari would drop.

    Letters and digits that it does not know become those they are made of ("È" is E, "ⅷ" viii, "٣" 3);
    words and numbers beyond what it reads whole are cut. Signs and emoji stay: without them no word is lost.

    Args:
        letters: those beyond ASCII that it reads.

    Raises:
        UnsupportedText: names up to ten letters or digits that have no sound.
    """
    spoken, lost = [], []
    for character in unicodedata.normalize("NFC", text):
        known = _known(character, letters)
        spoken.append(character if known is None else known)
        if known is None:
            lost.append(character)
    joined = "".join(spoken)
    lost.extend("".join(GREEK_WORD.findall(joined)))
    if lost:
        names = " ".join(list(dict.fromkeys(lost))[:10])
        raise UnsupportedText(f"hibari speaks English; it has no sound for {names}")
    # "[words](/phonemes/)" is its syntax for "words" alone.
    joined = joined.replace("](", "] (")
    joined = LONG_NUMBER.sub(lambda number: " ".join(number.group().replace(",", "")), joined)
    return WORD.sub(lambda word: _cut(word.group()), joined)


def _known(character: str, letters: Collection[str]) -> str | None:
    """Return what to read for one character, or None when it is a letter or digit without a sound."""
    category = unicodedata.category(character)
    if character.isascii() or character in letters or category[0] not in "LNM":
        return character
    if category in ("Mn", "Me") or (category == "Lm" and not unicodedata.decomposition(character)):
        # An accent of its own, the okina of "Hawaiʻi". Letters of the scripts where it is more are refused.
        return ""
    if category == "Nd":
        return str(unicodedata.digit(character))
    base = unicodedata.normalize("NFKD", character)
    if "\u2044" in base:
        # "2⅓" is 2 1/3.
        base = " " + base.replace("\u2044", "/")
    parts = "".join(part for part in base if unicodedata.category(part) != "Mn")
    return parts if all(part.isascii() or part in letters for part in parts) else None


def _latin(character: str) -> bool:
    return (
        not character.isalpha() or unicodedata.name(character, "").startswith("LATIN") or character in "ªºµ"
    )


def _cut(word: str) -> str:
    return " ".join(word[start : start + LONGEST_WORD] for start in range(0, len(word), LONGEST_WORD))


ENGINE: Final = HibariFactory()
