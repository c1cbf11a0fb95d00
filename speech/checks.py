"""What is refused before and after a call of an engine, whatever the engine. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from speech.engine import (
    BadOutput,
    EngineInfo,
    Samples,
    SynthesisRequest,
    TextTooLong,
    UnknownVoice,
    UnsupportedLanguage,
    UnsupportedText,
)

#: -80 dBFS: below the noise floor of every engine, above the dither of a silent one.
SILENCE_PEAK: Final = 1e-4


def check_request(request: SynthesisRequest, info: EngineInfo) -> None:
    """Refuse what the engine has said that it cannot do.

    Raises:
        UnsupportedText, TextTooLong, UnknownVoice, UnsupportedLanguage
    """
    if not request.text.strip():
        raise UnsupportedText("the text is empty")
    if len(request.text) > (most := info.longest(request.language)):
        raise TextTooLong(f"{len(request.text)} characters; {info.name} takes {most} in one call")
    voices = [voice.id for voice in info.voices]
    if request.voice not in voices:
        raise UnknownVoice(f"{info.name} has no voice {request.voice!r}; it has {', '.join(voices)}")
    if not info.speaks(request.language):
        raise UnsupportedLanguage(
            f"{info.name} does not speak {request.language!r}; it speaks {', '.join(info.languages)}"
        )


def check_clip(samples: Samples, text: str, info: EngineInfo, *, speed: float = 1.0) -> None:
    """Refuse audio that cannot be `text`.

    Args:
        samples: the whole clip.
        speed: that it was asked for with.

    Raises:
        BadOutput: empty, not finite, silent, or too short or too long for the text by the bounds of `info`.
    """
    if samples.size == 0:
        raise BadOutput("the clip is empty")
    if not bool(np.isfinite(samples).all()):
        raise BadOutput("the clip holds values that are no numbers")
    if float(np.abs(samples).max()) < SILENCE_PEAK:
        raise BadOutput("the clip is silent")
    # As long as it would be at the voice's own speed.
    seconds = speed * samples.size / info.sample_rate
    shortest = info.min_seconds_per_char * sum(character.isalnum() for character in text)
    longest = info.max_seconds_per_char * len(text) + info.max_extra_seconds
    if seconds < shortest:
        raise BadOutput(
            f"{seconds:.2f} s for {len(text)} characters; at least {shortest:.2f} s is believable"
        )
    if seconds > longest:
        raise BadOutput(f"{seconds:.2f} s for {len(text)} characters; {longest:.2f} s is the most believable")
