"""Supertonic 3 by its own package, supertonic 1.3.1: 99 million parameters, 31 languages, 44.1 kHz, on a CPU.

Four ONNX graphs: how long a text takes, what it sounds like, the sound out of noise in a few steps, samples.
The package's front door (`TTS`) is left shut: it can delete the folder of the model, sets no option of
onnxruntime but the threads, takes its noise from the global generator of NumPy, and fills its audio up to
whole frames. Behind it are the same classes.

Nothing was measured with the released weights by the authors of this file; figures of others are marked so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from speech.diagnosis import diagnose
from speech.engine import (
    ANY_LANGUAGE,
    BadOption,
    BadOutput,
    EngineInfo,
    EngineUnavailable,
    Features,
    Samples,
    SynthesisRequest,
    TextTooLong,
    UnknownVoice,
    UnsupportedLanguage,
    UnsupportedText,
    Voice,
    VoiceKind,
    call_options,
    option_schema,
    read_options,
)
from speech.engines.cores import physical_cores
from speech.engines.hub import weights
from speech.engines.onnx import failures, load_graph
from speech.engines.packages import require
from speech.text import speakable

NAME: Final = "supertonic-3"
VERSION: Final = "1.3.1"
INSTALL: Final = "pip install 'voxfleet[supertonic-3]'"
NEEDED: Final = ("supertonic", "onnxruntime", "huggingface_hub")

HUB: Final = "Supertone/supertonic-3"
#: The commit that version 1.3.1 of the package was tested with (`supertonic.config.MODEL_CONFIGS`).
REVISION: Final = "724fb5abbf5502583fb520898d45929e62f02c0b"

SAMPLE_RATE: Final = 44_100
#: What a text is tagged with whose language nobody knows: the package's word, and BCP 47's.
UNKNOWN: Final = "na"
UNDETERMINED: Final = "und"
#: Those that the model was trained on, as the package lists them.
LANGUAGES: Final = (
    *("en", "ko", "ja", "ar", "bg", "cs", "da", "de", "el", "es", "et", "fi", "fr", "hi", "hr", "hu"),
    *("id", "it", "lt", "lv", "nl", "pl", "pt", "ro", "ru", "sk", "sl", "sv", "tr", "uk", "vi"),
)
#: The README counts ten and names these three. The rest are not known, and a word in brackets is read.
TAGS: Final = ("<laugh>", "<breath>", "<sigh>")

#: Of the package; where its own speed of 1.05 leaves 0.67 to 1.9 to a request.
SLOWEST: Final = 0.7
FASTEST: Final = 2.0
NATURAL: Final = 1.05
STEPS: Final = 8

#: Where the package cuts a text by itself, if it can: after a full stop and a space.
MAX_CHARS: Final = 300
MAX_CHARS_KOREAN: Final = 120
#: Reckoned, not measured: 13 s at 15 characters a second is 195. The makers say that words go missing where
#: a text is longer than those the model learnt from (supertone-oss-archive/supertonic issue 39), and a port
#: renders 13 s at most. Another port, with 4-bit weights, found more wrong words from 90 characters on
#: (FluidInference/FluidAudio issue 669): to be listened for.
PREFERRED_CHARS: Final = 180
#: Likewise: a character is a syllable of 0.13 s, or, in Japanese, often more than one.
PREFERRED_BY_LANGUAGE: Final = {"ko": 100, "ja": 75}
MAX_SECONDS: Final = 13.0
#: For each letter: English takes 0.08 here (351 characters in 23.3 s, FluidInference/FluidAudio pull request
#: 737), French about 0.05, hurried texts of short words less. A bound that found 300 characters cut off at
#: 13 s would be 0.053, and refuse those. So it is the preferred length that keeps a clip clear of 13 s, and
#: this bound that finds one with less than half of its text, whose words were skipped. The length does not
#: hang on the seed: a bound that is too high would refuse the same text for ever.
MIN_SECONDS_PER_CHAR: Final = 0.035
#: Reckoned: "777" is 2 s, "1/4" 1 s; few characters are longer.
MAX_SECONDS_PER_CHAR: Final = 0.8
MAX_EXTRA_SECONDS: Final = 3.0

#: Every file without which the model does not speak.
CONFIG: Final = "onnx/tts.json"
INDEXER: Final = "onnx/unicode_indexer.json"
STYLES: Final = "voice_styles"
#: One index for each code point of the Basic Multilingual Plane.
INDEXER_LENGTH: Final = 65_536
#: Graphs by file: their inputs with element type and rank. The order is that of the package's constructor.
GRAPHS: Final[dict[str, dict[str, tuple[str, int]]]] = {
    "onnx/duration_predictor.onnx": {
        "text_ids": ("tensor(int64)", 2),
        "style_dp": ("tensor(float)", 3),
        "text_mask": ("tensor(float)", 3),
    },
    "onnx/text_encoder.onnx": {
        "text_ids": ("tensor(int64)", 2),
        "style_ttl": ("tensor(float)", 3),
        "text_mask": ("tensor(float)", 3),
    },
    "onnx/vector_estimator.onnx": {
        "noisy_latent": ("tensor(float)", 3),
        "text_emb": ("tensor(float)", 3),
        "style_ttl": ("tensor(float)", 3),
        "text_mask": ("tensor(float)", 3),
        "latent_mask": ("tensor(float)", 3),
        "current_step": ("tensor(float)", 1),
        "total_step": ("tensor(float)", 1),
    },
    "onnx/vocoder.onnx": {"latent": ("tensor(float)", 3)},
}
#: The start of a file that `git clone` leaves where Git LFS is not installed.
LFS_POINTER: Final = b"version https://git-lfs"
#: It becomes the id of a voice.
_VOICE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: What is raised where a file is not what it should be.
UNREADABLE: Final = (OSError, ValueError, TypeError, LookupError, AttributeError)

#: Characters named in one message.
MOST_NAMES: Final = 10

log = logging.getLogger("voxfleet.engine")


class SupertonicOptions(BaseModel):
    """Settings of the supertonic-3 engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(
        default=HUB,
        min_length=1,
        description="Folder with the weights (`onnx/`, `voice_styles/`), or their name on the Hugging Face "
        "hub.",
    )
    revision: str | None = Field(
        default=None,
        min_length=1,
        description="Commit, tag or branch on the hub; without, the commit that the package was tested with.",
    )
    offline: bool = Field(
        default=False, description="Whether to take only what was downloaded before, and ask no hub."
    )
    threads: int | None = Field(
        default=None,
        ge=1,
        le=64,
        description="Threads of one call, at most one for each physical core that this process may use, "
        "which is also the default. 1 where each core has its own worker; with more than one, audio may no "
        "longer repeat exactly.",
    )
    steps: int = Field(
        default=STEPS,
        ge=1,
        le=100,
        description="Steps from noise to sound where a job does not say: time grows with them. 5 to 12 is "
        "usual.",
    )
    speed: float = Field(
        default=NATURAL,
        ge=SLOWEST,
        le=FASTEST,
        description="Speed of the model at which a voice counts as speaking naturally; a job's `speed` "
        "multiplies it.",
    )
    unsupported: Literal["replace", "refuse"] = Field(
        default="replace",
        description="What to do with characters that the model does not know: `replace` writes them with "
        "those it knows, leaves out signs and emoji, and refuses letters and digits that would be lost; "
        "`refuse` refuses all of them.",
    )
    voice_styles: Path | None = Field(
        default=None,
        description="Folder of further voices, `name.json` each, as Supertone's Voice Builder exports them.",
    )


class SupertonicCallOptions(BaseModel):
    """Engine options of a job."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = Field(
        default=STEPS,
        ge=1,
        le=100,
        description="Steps from noise to sound: time grows with them. 5 to 12 is usual.",
    )


def _builtin(stem: str) -> str:
    return f"{'Male' if stem[0] == 'M' else 'Female'} {stem[1:]}"


#: The voices of the released model, by file.
BUILTIN: Final = {f"{kind}{number}": _builtin(f"{kind}{number}") for kind in "MF" for number in range(1, 6)}
DEFAULT_VOICE: Final = "M1"

#: What is known without weights.
ABOUT: Final = EngineInfo(
    name=NAME,
    version=VERSION,
    revision=VERSION,
    sample_rate=SAMPLE_RATE,
    # A job that says no language has that of its voice, which is any: it comes as `und`.
    languages=(*LANGUAGES, UNKNOWN, UNDETERMINED),
    voices=tuple(Voice(id=stem, name=name, language=ANY_LANGUAGE) for stem, name in BUILTIN.items()),
    default_voice=DEFAULT_VOICE,
    max_chars=MAX_CHARS,
    max_chars_by_language={"ko": MAX_CHARS_KOREAN},
    preferred_chars=PREFERRED_CHARS,
    preferred_chars_by_language=PREFERRED_BY_LANGUAGE,
    # Not ours, and not of this package, whose graphs take any length: of a port with fixed ones. What is said
    # of longer clips of the package is that words go missing in them.
    max_seconds=MAX_SECONDS,
    speeds=(round(SLOWEST / NATURAL, 3), round(FASTEST / NATURAL, 3)),
    device="cpu",
    # A sum over several threads has no fixed order.
    deterministic=False,
    # SPDX knows BigScience's OpenRAIL-M, and not this one. Its restrictions of use pass on to who speaks.
    licence="LicenseRef-OpenRAIL-M",
    min_seconds_per_char=MIN_SECONDS_PER_CHAR,
    max_seconds_per_char=MAX_SECONDS_PER_CHAR,
    max_extra_seconds=MAX_EXTRA_SECONDS,
    features=Features(speed=True, seed=True, tags=TAGS, batch=True),
    # Not ours: two field reports have peaks of 900 and 920 MB, on 2 virtual cores.
    memory_mb=900,
    weights=f"{HUB}@{REVISION}",
    options=option_schema(SupertonicCallOptions),
    # Half the steps are half the time; the memory of a call they hardly change.
    thrift={"steps": 4},
)


@dataclass(frozen=True, slots=True)
class StyledVoice:
    """A voice, and how the graphs are told of it.

    Attributes:
        style: a `supertonic.Style`.
        sha256: of its file, lower-case hex.
    """

    voice: Voice
    style: Any
    sha256: str


class SupertonicEngine:
    """The model in this process; one call at a time."""

    def __init__(
        self, model: Any, info: EngineInfo, voices: Iterable[StyledVoice], options: SupertonicOptions
    ) -> None:
        """Args:
        model: what `seeded` made; nobody else uses it.
        """
        self.info = info
        self._model = model
        self._styles = {styled.voice.id: styled.style for styled in voices}
        self._options = options
        self._known = frozenset(model.text_processor.supported_character_set)

    def synthesize(self, request: SynthesisRequest) -> Iterator[Samples]:
        """Yield the audio of `request.text`, whole.

        Raises:
            UnknownVoice, UnsupportedLanguage, UnsupportedText, TextTooLong, BadOption: the request.
            BadOutput: the model gives the text a length that it cannot have.
        """
        style = self._styles.get(request.voice)
        if style is None:
            raise UnknownVoice(f"{NAME} has no voice {request.voice!r}; it has {', '.join(self._styles)}")
        language = tag(request.language)
        if len(request.text) > (most := self.info.longest(request.language)):
            raise TextTooLong(f"{len(request.text)} characters; {NAME} takes {most} in one call")
        call = call_options(SupertonicCallOptions, request.options, engine=NAME)
        steps = call.steps if "steps" in call.model_fields_set else self._options.steps
        speed = self._speed(request.speed)
        text = readable(request.text, known=self._known, strict=self._options.unsupported == "refuse")
        if not speakable(text):
            raise UnsupportedText(f"nothing to speak in {request.text[:40]!r}")
        self._check_indices(text, language)
        longest = self.info.max_seconds_per_char * len(request.text) + self.info.max_extra_seconds
        self._model.begin(request.seed, longest=longest / request.speed)
        audio, seconds = self._model([text], style, steps, speed, language)
        # What is beyond is the rest of a frame of 70 ms.
        count = int(float(seconds[0]) * self.info.sample_rate)
        yield np.ascontiguousarray(audio[0, :count], dtype=np.float32)

    def close(self) -> None:
        """Let the model go."""
        self._model = None

    def _speed(self, asked: float) -> float:
        """Return the model's own speed for that of a request."""
        # The slowest that is allowed, 0.7 / 1.05, must not come out slower than 0.7.
        speed = round(self._options.speed * asked, 6)
        if not SLOWEST <= speed <= FASTEST:
            slowest, fastest = SLOWEST / self._options.speed, FASTEST / self._options.speed
            raise BadOption(f"speed: {NAME} takes {slowest:.2f} to {fastest:.2f}")
        return speed

    def _check_indices(self, text: str, language: str) -> None:
        """Refuse a character that the model would take for another: index -1 is the last one's."""
        indices, _ = self._model.text_processor([text], language)
        if bool((indices < 0).any()):
            raise UnsupportedText(f"{NAME} cannot read {text[:40]!r}")


class SupertonicFactory:
    """Loads the model from a folder, or from the hub, after comparing all of it with what it must be."""

    options = SupertonicOptions
    about = ABOUT

    def missing(self) -> str | None:
        """Return how to install supertonic, or None when it is here."""
        return INSTALL if any(find_spec(name) is None for name in NEEDED) else None

    def load(self, options: Mapping[str, str]) -> SupertonicEngine:
        """Load the model, and say a word with it.

        Raises:
            EngineUnavailable: the package or a part of the weights is absent or damaged, or an option is
                wrong.
        """
        read = read_options(SupertonicOptions, options, engine=NAME)
        require("supertonic", VERSION, engine=NAME, install=INSTALL, missing=self.missing())
        try:
            runtime: Any = import_module("onnxruntime")
            core: Any = import_module("supertonic.core")
            loader: Any = import_module("supertonic.loader")
        except (ImportError, OSError) as error:
            raise EngineUnavailable(f"supertonic cannot be imported: {error}") from error
        folder, named = weights(
            read.model,
            engine=NAME,
            revision=read.revision or (REVISION if read.model == HUB else None),
            offline=read.offline,
            # The repository holds samples and pictures too.
            patterns=[CONFIG, INDEXER, *GRAPHS, f"{STYLES}/*.json"],
        )
        verify(folder)
        threads = min(read.threads or 64, physical_cores())
        sessions = [
            load_graph(folder / name, inputs=inputs, engine=NAME, runtime=runtime, threads=threads, name=name)
            for name, inputs in GRAPHS.items()
        ]
        try:
            model = seeded(core)(loader.load_configs(folder), loader.load_text_processor(folder), *sessions)
        except UNREADABLE as error:
            raise EngineUnavailable(f"{NAME}: the package does not take {folder.name}: {error}") from error
        voices = _voices(folder, read.voice_styles, model, loader)
        ids = [styled.voice.id for styled in voices]
        info = replace(
            ABOUT,
            revision=_revision(folder, voices, read, runtime=runtime.__version__),
            sample_rate=int(model.sample_rate),
            voices=tuple(styled.voice for styled in voices),
            default_voice=DEFAULT_VOICE if DEFAULT_VOICE in ids else ids[0],
            deterministic=threads == 1,
            speeds=(round(SLOWEST / read.speed, 3), round(FASTEST / read.speed, 3)),
            # They are of the speed 1.05.
            min_seconds_per_char=MIN_SECONDS_PER_CHAR * NATURAL / read.speed,
            max_seconds_per_char=MAX_SECONDS_PER_CHAR * NATURAL / read.speed,
            weights=named,
            options=_schema(read.steps),
            thrift={"steps": min(ABOUT.thrift["steps"], read.steps)},
        )
        _try_out(model, voices[0].style, runtime)
        return SupertonicEngine(model, info, voices, read)


def seeded(core: Any) -> Any:
    """Return the package's engine with a generator of its own; its noise comes from the global one of NumPy,
    which other calls of this process use and set.

    Args:
        core: the module `supertonic.core`; importing it imports onnxruntime, so this class is made late.
    """

    class Seeded(core.Supertonic):  # type: ignore[misc]
        def begin(self, seed: int, *, longest: float) -> None:
            """Prepare the next call, of one text.

            Args:
                longest: seconds beyond which its length is not believed.
            """
            self._noise = np.random.default_rng(seed)
            self._longest = longest

        def sample_noisy_latent(self, duration: Any) -> tuple[Any, Any]:
            """Return the noise that becomes the sound, (1, channels, frames), and its mask (1, 1, frames).

            Args:
                duration: seconds, (1,).
            """
            seconds = float(duration[0])
            # Before the steps, which would take as long as the clip, and its memory.
            if not (math.isfinite(seconds) and seconds * self.sample_rate >= 1):
                raise BadOutput(f"the text would last {seconds} s")
            if seconds > self._longest:
                raise BadOutput(f"the text would last {seconds:.2f} s; {self._longest:.2f} s is believable")
            lengths = (duration * self.sample_rate).astype(np.int64)
            mask = core.get_latent_mask(lengths, self.base_chunk_size, self.chunk_compress_factor)
            channels = self.ldim * self.chunk_compress_factor
            shape = (len(duration), channels, mask.shape[-1])
            return self._noise.standard_normal(shape, dtype=np.float32) * mask, mask

    return Seeded


def tag(language: str) -> str:
    """Return the package's code for a language in BCP 47.

    Raises:
        UnsupportedLanguage: it has none.
    """
    primary = language.replace("_", "-").partition("-")[0].lower()
    if primary in (UNKNOWN, UNDETERMINED):
        return UNKNOWN
    if primary not in LANGUAGES:
        raise UnsupportedLanguage(f"{NAME} does not speak {language!r}; it speaks {', '.join(LANGUAGES)}")
    return primary


# --- the text ---------------------------------------------------------------------------------------------

#: What the package itself writes otherwise or takes out, where it then no longer joins two words ("a\b",
#: "I♥you"), and three that it means to: NFKD comes first there, and makes other characters of them (¯ ´ ‑).
PLAIN: Final[dict[str, str]] = {
    **dict.fromkeys("‐‑–—", "-"),
    **dict.fromkeys("“”", '"'),
    **dict.fromkeys("‘’´`", "'"),
    **dict.fromkeys("¯_[]|/#→←\\", " "),
    "@": " at ",
}
#: Further signs, where the model does not know them.
SIGNS: Final[dict[str, str]] = {
    **dict.fromkeys("‒―−⁃〜～﹣", "-"),
    **dict.fromkeys("„‟«»″「」『』《》〝〞", '"'),
    **dict.fromkeys("‚‛‹›′ʼʻʹʽ՚׳", "'"),
    **dict.fromkeys("。।॥։۔", "."),
    **dict.fromkeys("、،", ","),
    "؛": ";",
    "؟": "?",
    "…": "...",
    "‽": "?!",
    # A stroke that makes an Arabic word longer on paper.
    "ـ": "",
}
#: Letters of their own that have no decomposition.
LETTERS: Final[dict[str, str]] = {
    **{"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "đ": "d", "ð": "d", "þ": "th", "ħ": "h", "ł": "l"},
    **{"ı": "i", "ŋ": "ng", "ĸ": "k", "ŧ": "t", "ƒ": "f", "ə": "e", "ȷ": "j", "ƀ": "b", "ǥ": "g"},
    **{"ς": "σ", "ґ": "г"},
}
#: What the package takes for emoji and takes out; digits in circles are among them.
DECORATION: Final = re.compile(
    "[\u2600-\u27bf♥☆♡©\\\\\U0001f1e6-\U0001f1ff\U0001f300-\U0001f64f\U0001f680-\U0001faff]"
)
#: Without a sound, though Unicode counts some of them as letters and marks: variation selectors, the grapheme
#: joiner that `speech.text` puts into long runs of marks, the fillers of Hangul.
UNSEEN: Final = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef\u034f\u115f\u1160\u3164\uffa0]")
_TAGGED: Final = re.compile(f"({'|'.join(map(re.escape, TAGS))})")


def readable(text: str, *, known: Collection[str], strict: bool = False) -> str:
    """Return `text` in characters that the model knows, with every letter and digit of it.

    What is written in angle brackets and is no expression tag is text: the model would take "<ko>" for an
    order. Signs and emoji that it does not know become spaces.

    Args:
        known: characters that the model has an index for.
        strict: refuse whatever the model does not know, signs too.

    Raises:
        UnsupportedText: names up to ten characters that would be lost.
    """
    spoken: list[str] = []
    lost: list[str] = []
    number = False
    for part in _TAGGED.split(unicodedata.normalize("NFC", text)):
        if part in TAGS:
            spoken.append(part)
            continue
        for character in part:
            said = _spoken(character, known, strict=strict)
            if said is None:
                lost.append(character)
                continue
            # "10²" and "2½" are not 102 and 21/2.
            before, number = number, unicodedata.category(character) == "No"
            if (before or number) and said[:1].isdigit() and spoken and spoken[-1][-1:].isdigit():
                spoken.append(" ")
            spoken.append(said)
    if lost:
        names = " ".join(_named(character) for character in list(dict.fromkeys(lost))[:MOST_NAMES])
        raise UnsupportedText(f"{NAME} has no sound for {names}")
    return "".join(spoken)


def _spoken(character: str, known: Collection[str], *, strict: bool) -> str | None:
    """Return what to write for one character, or None when it would be lost."""
    if character.isspace():
        return " "
    if (plain := PLAIN.get(character)) is not None:
        return plain if _all(plain, known) else " "
    pieces = unicodedata.normalize("NFKD", character)
    # "<" may have been a wide one. The decomposition of an accent that stands by itself begins with a space.
    if "<" in pieces or ">" in pieces or (pieces[0] == " " and unicodedata.category(character) == "Sk"):
        return " "
    if _is_known(pieces, known):
        return pieces
    if strict:
        return None
    written = [_piece(piece, known) for piece in _parts(character, pieces)]
    return None if None in written else "".join(part for part in written if part is not None)


def _parts(character: str, pieces: str) -> str:
    """Return what a character is looked up as, part by part."""
    if character in SIGNS or character in LETTERS:
        return character
    if unicodedata.category(character) == "No" and pieces == character:
        # A digit in a black circle has a value and no decomposition.
        value = unicodedata.numeric(character, -1.0)
        return str(int(value)) if value >= 0 and value == int(value) else character
    return pieces


def _piece(piece: str, known: Collection[str]) -> str | None:
    """Return what to write for one part of a character: nothing for what is mute, None for what is lost."""
    if _is_known(piece, known):
        return piece
    for written in _alternatives(piece):
        if _all(written, known):
            return written
    category = unicodedata.category(piece)
    if category in ("Cf", "Me") or UNSEEN.match(piece):
        return ""
    if category in ("Mn", "Mc"):
        # An accent goes, and its letter stays. Marks of the classes 0 and 2 to 9 are vowels, or make another
        # consonant of the one before: nukta, kana voicing, virama (The Unicode Standard, table 4-6).
        accent = unicodedata.combining(piece) == 1 or unicodedata.combining(piece) >= 10
        return "" if accent else None
    # A code point of private use may be an icon, or a letter of somebody's own: not for us to leave out.
    return " " if category[0] in "PSZ" or category in ("Cc", "Cs") else None


def _alternatives(piece: str) -> Iterator[str]:
    """Yield what says the same as a character that is not known, best first."""
    for table in (PLAIN, SIGNS, LETTERS):
        if piece in table:
            yield table[piece]
    category = unicodedata.category(piece)
    if category == "Nd":
        yield str(unicodedata.digit(piece))
    if category in ("Lu", "Ll", "Lt"):
        if piece.lower() in LETTERS:
            yield LETTERS[piece.lower()].title()
        yield piece.lower()
        yield piece.upper()


def _is_known(characters: str, known: Collection[str]) -> bool:
    return _all(characters, known) and not DECORATION.search(characters)


def _all(characters: str, known: Collection[str]) -> bool:
    return all(character in known for character in characters)


def _named(character: str) -> str:
    seen = character.isprintable() and unicodedata.category(character)[0] != "M"
    return character if seen else f"U+{ord(character):04X}"


# --- the folder -------------------------------------------------------------------------------------------


def verify(folder: Path) -> None:
    """Look at the files of a model before anything of it is loaded; nothing is ever written.

    Raises:
        EngineUnavailable: names the file that is missing or damaged.
    """
    for name in (CONFIG, INDEXER, *GRAPHS):
        try:
            with (folder / name).open("rb") as file:
                start = file.read(len(LFS_POINTER))
        except OSError as error:
            raise EngineUnavailable(
                f"{NAME}: {name} cannot be read in {folder.name}: {error.strerror}"
            ) from error
        if not start:
            raise EngineUnavailable(f"{NAME}: {name} is empty")
        if start == LFS_POINTER:
            raise EngineUnavailable(
                f"{NAME}: {name} is a pointer of Git LFS; `git lfs pull` fetches the file"
            )
    _check_config(folder)
    _check_indexer(folder)


def _check_config(folder: Path) -> None:
    config = _json(folder / CONFIG, CONFIG)
    for part, names in (
        ("ae", ("sample_rate", "base_chunk_size")),
        ("ttl", ("chunk_compress_factor", "latent_dim")),
    ):
        section = config.get(part) if isinstance(config, dict) else None
        for name in names:
            value = section.get(name) if isinstance(section, dict) else None
            if type(value) is not int or value < 1:
                raise EngineUnavailable(f"{NAME}: {CONFIG} has no {part}.{name}")


def _check_indexer(folder: Path) -> None:
    indexer = _json(folder / INDEXER, INDEXER)
    if not isinstance(indexer, list) or len(indexer) != INDEXER_LENGTH:
        length = len(indexer) if isinstance(indexer, list) else "no"
        raise EngineUnavailable(f"{NAME}: {INDEXER} has {length} entries, {INDEXER_LENGTH} are needed")
    if not all(type(index) is int and index >= -1 for index in indexer):
        raise EngineUnavailable(f"{NAME}: {INDEXER} holds something else than indices")
    # Without these no text can be said to be of a language, or ended.
    needed = sorted(set("<>/. ".join((*LANGUAGES, UNKNOWN))))
    if absent := [character for character in needed if indexer[ord(character)] < 0]:
        raise EngineUnavailable(f"{NAME}: {INDEXER} does not know {' '.join(absent)}")


def _json(path: Path, name: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise EngineUnavailable(f"{NAME}: {name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise EngineUnavailable(f"{NAME}: {name} is no JSON: {error}") from error


def _voices(folder: Path, further: Path | None, model: Any, loader: Any) -> list[StyledVoice]:
    """Read the voices of the model, then those of the operator. The model's come first, men before women as
    in the package's documentation.
    """
    own = _read_styles(folder / STYLES, STYLES, "builtin", model, loader)
    order = list(BUILTIN)
    own.sort(key=lambda styled: order.index(styled.voice.id) if styled.voice.id in BUILTIN else len(order))
    if not own:
        raise EngineUnavailable(f"{NAME}: there is no voice in {STYLES} of {folder.name}")
    if further is None:
        return own
    taken = {styled.voice.id: styled.sha256 for styled in own}
    for styled in _read_styles(further, further.name, "style", model, loader):
        if taken.get(styled.voice.id, styled.sha256) != styled.sha256:
            raise EngineUnavailable(
                f"{NAME}: {further.name}/{styled.voice.id}.json has the name of a voice of the model"
            )
        if styled.voice.id not in taken:
            own.append(styled)
    return own


def _read_styles(folder: Path, called: str, kind: VoiceKind, model: Any, loader: Any) -> list[StyledVoice]:
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except OSError as error:
        raise EngineUnavailable(f"{NAME}: {called} cannot be read: {error.strerror}") from error
    found = []
    for path in paths:
        # Left over from a copy or a mount.
        if path.name.startswith((".", "_")):
            continue
        name = f"{called}/{path.name}"
        if not _VOICE.fullmatch(path.stem):
            raise EngineUnavailable(
                f"{NAME}: {name}: a voice's name is 1 to 64 letters, digits, dots, _ and -"
            )
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            style = loader.load_voice_style_from_json_file(path)
        except UNREADABLE as error:
            raise EngineUnavailable(f"{NAME}: {name} is no voice style: {_first_line(error)}") from error
        _check_style(name, "style_ttl", style.ttl, model.text_enc_ort)
        _check_style(name, "style_dp", style.dp, model.dp_ort)
        title = BUILTIN.get(path.stem, path.stem) if kind == "builtin" else path.stem
        voice = Voice(id=path.stem, name=title, language=ANY_LANGUAGE, kind=kind)
        found.append(StyledVoice(voice, style, digest))
    return found


def _check_style(name: str, part: str, values: Any, session: Any) -> None:
    """Compare a part of a style with what the graph takes; a free dimension is a name, or None."""
    needed = next(value.shape for value in session.get_inputs() if value.name == part)
    fits = values.ndim == 3 and values.shape[0] == 1 and len(needed) in (3, 0)
    fits = fits and all(
        size == wanted
        for size, wanted in zip(values.shape[1:], needed[1:], strict=False)
        if isinstance(wanted, int)
    )
    if not fits:
        raise EngineUnavailable(f"{NAME}: {part} of {name} is {values.shape}; the model takes {needed}")
    if not bool(np.isfinite(values).all()):
        raise EngineUnavailable(f"{NAME}: {part} of {name} holds values that are no numbers")


def _try_out(model: Any, style: Any, runtime: Any) -> None:
    """Run all graphs once: whether they belong together shows in no file alone.

    Raises:
        EngineUnavailable: they do not, or the indices are those of another model.
    """
    last = max(model.text_processor.indexer)
    # An index beyond its table would end a call in the middle of a job, at the first rare character.
    inputs = {
        "text_ids": np.array([[last]], np.int64),
        "style_dp": style.dp,
        "text_mask": np.ones((1, 1, 1), np.float32),
    }
    expected: tuple[type[Exception], ...] = (*failures(runtime), *UNREADABLE, BadOutput)
    try:
        model.dp_ort.run(None, inputs)
    except expected as error:
        if diagnose(error).memory:
            raise
        raise EngineUnavailable(
            f"{NAME}: {INDEXER} has the index {last}, which the graphs do not take: {_first_line(error)}"
        ) from error
    try:
        model.begin(0, longest=MAX_SECONDS)
        audio, seconds = model(["Hello."], style, 1, NATURAL, "en")
        fits = audio.ndim == 2 and audio.shape[0] == 1
        fits = fits and audio.shape[1] >= int(float(seconds[0]) * model.sample_rate)
    except expected as error:
        if diagnose(error).memory:
            raise
        raise EngineUnavailable(f"{NAME}: the graphs do not fit together: {_first_line(error)}") from error
    if not fits or not bool(np.isfinite(audio).all()):
        raise EngineUnavailable(
            f"{NAME}: the graphs give no audio for {seconds[0]:.2f} s, but {audio.dtype} of {audio.shape}"
        )


def _revision(
    folder: Path, voices: Iterable[StyledVoice], options: SupertonicOptions, *, runtime: str
) -> str:
    """Return what changes with everything that is heard. 400 MB are read for it, in about half a second."""
    digests = []
    for name in (CONFIG, INDEXER, *GRAPHS):
        with (folder / name).open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    parts = [
        digests,
        [(styled.voice.id, styled.sha256) for styled in voices],
        [options.steps, options.speed, options.unsupported],
        runtime,
    ]
    return f"{VERSION}+{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]}"


def _schema(steps: int) -> dict[str, Any]:
    """Return the options of a call, with the default that is set here."""
    schema = option_schema(SupertonicCallOptions)
    schema["properties"]["steps"]["default"] = steps
    return schema


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]


ENGINE: Final = SupertonicFactory()
