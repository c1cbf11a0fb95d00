"""The spoken text: what a caller sent, freed of everything that no voice can say."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
# ECMA-48: CSI sequences (7 and 8 bit) and OSC strings; then the designations that terminfo's `sgr0` sends.
_ANSI: Final = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[@-~]|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|\x1b[()][0-9A-B]",
)
_LINE_END: Final = re.compile("\r\n|[\r\x0b\x0c\x85\u2028]")
#: A tab, or a control that stood between two words: a space, so that the words do not run together.
_CONTROL: Final = re.compile("[\x00-\x09\x0e-\x1f\x7f-\x9f]")
_INVISIBLE: Final = re.compile(
    "["
    "\u00ad\u180e\u200b\ufeff"  # soft hyphen, Mongolian vowel separator, zero-width space, BOM
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # UAX #9: bidi controls
    "\u2060-\u2064\u206a-\u206f\ufff9-\ufffb"  # word joiner, invisible operators, deprecated, interlinear
    "]"
)
_JOINERS: Final = re.compile("[\u200c\u200d]+")
# UAX #15, section 13 (Stream-Safe Text Format): a longer run of marks makes normalisation quadratic.
_MARKS_IN_A_ROW: Final = 30
_COMBINING_GRAPHEME_JOINER: Final = "\u034f"


def prepare(text: str) -> str:
    """Return the text to speak: NFC, lines ended by `\\n`, nothing invisible.

    Letters and combining marks all stay. The joiners ZWJ and ZWNJ stay inside words, where Indic and
    Persian spelling needs them. Linear in the length; idempotent.

    Raises:
        ValueError: the text holds a lone surrogate, which no encoding can carry.
    """
    if lone := _SURROGATE.search(text):
        raise ValueError(f"lone surrogate U+{ord(lone[0]):04X} at {lone.start()}")
    text = _ANSI.sub("", text)
    text = _LINE_END.sub("\n", text).replace("\u2029", "\n\n")
    text = _CONTROL.sub(" ", text)
    if text.isascii():
        return text
    text = _INVISIBLE.sub("", text)
    text = unicodedata.normalize("NFC", _stream_safe(text))
    text = _JOINERS.sub(_within_words, text)
    return unicodedata.normalize("NFC", _stream_safe(text))


def speakable(text: str) -> bool:
    """Whether `text` has at least one letter or number."""
    return any(unicodedata.category(char)[0] in "LN" for char in text)


def _within_words(joiners: re.Match[str]) -> str:
    text, start, end = joiners.string, joiners.start(), joiners.end()
    inside = start > 0 and end < len(text) and _of_word(text[start - 1]) and _of_word(text[end])
    return joiners[0][0] if inside else ""


def _of_word(char: str) -> bool:
    return unicodedata.category(char)[0] in "LM"


def _stream_safe(text: str) -> str:
    parts: list[str] = []
    done = marks = 0
    for index, char in enumerate(text):
        if not unicodedata.combining(char):
            marks = 0
            continue
        # A few marks decompose into two.
        size = len(unicodedata.normalize("NFD", char))
        if marks + size > _MARKS_IN_A_ROW:
            parts += text[done:index], _COMBINING_GRAPHEME_JOINER
            done, marks = index, 0
        marks += size
    return "".join((*parts, text[done:])) if parts else text
