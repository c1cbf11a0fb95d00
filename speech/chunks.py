"""Cutting a text into chunks that an engine takes in one call. Lengths are Unicode code points.

Two laws hold for every text. The spans of the chunks tile it, so nothing can be lost. And where a cut
falls depends on the text alone, not on the place where the work began: `split` resumed at the end of
one of its chunks gives the chunks that would have followed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Final, NamedTuple

import sentencex


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a text.

    Attributes:
        start: code point at which the span begins.
        end: code point after the span.
        text: the span without the white space at its edges; never empty.
    """

    start: int
    end: int
    text: str


class Border(IntEnum):
    """What a chunk may end at, best first."""

    SENTENCE = 0
    #: `;` or `:`, a question or exclamation inside a sentence.
    STRONG_CLAUSE = 1
    CLAUSE = 2
    SPACE = 3
    #: A space beside a digit: `5 kg`, `+82 2-555-0142`, `3.5 million`.
    NUMBER = 4
    #: Between two characters of a run without any of the above.
    CHARACTER = 5


#: What a cut costs, in the currency of `_chunk_cost`: one more chunk costs 1, an almost empty one 2.
COSTS: Final[dict[Border, float]] = {
    Border.SENTENCE: 0.0,
    Border.STRONG_CLAUSE: 2.0,
    Border.CLAUSE: 2.5,
    Border.SPACE: 8.0,
    Border.NUMBER: 14.0,
    Border.CHARACTER: 20.0,
}
#: A chunk without a letter or number is refused by some engines and babbled at by others.
_UNSPEAKABLE_COST: Final = 40.0
#: A chunk of a few letters makes neural engines babble: worth a cut at a clause, not one at a space.
_TINY_COST: Final = 3.0
_TINY: Final = 20

#: sentencex is quadratic in unmatched brackets: 4 s for 100,000 characters, 7 ms for this many.
_WINDOW: Final = 4000

#: Ends of sentence that are none, on top of those which sentencex knows; lower case, by base language.
_ABBREVIATIONS: Final[dict[str, frozenset[str]]] = {
    "en": frozenset(
        {"approx", "ext", "est", "resp", "mt", "messrs", "gov", "gen", "capt", "col", "sgt", "lt"}
    ),
    "fr": frozenset({"m", "mm", "mme", "mmes", "mlle", "mlles", "dr", "pr", "me", "mgr", "env", "av", "p"}),
    "es": frozenset({"sr", "sra", "srta", "dr", "dra", "ud", "uds", "aprox", "núm"}),
    "de": frozenset({"dr", "prof", "hr", "fr", "nr", "ca", "bzw", "evtl", "ggf"}),
    "it": frozenset({"sig", "dott", "prof", "ing", "avv"}),
    "pt": frozenset({"sr", "sra", "dr", "dra", "prof"}),
}
_LAST_WORD: Final = re.compile(r"([^\W\d_]{1,8})\.\s*\Z")
_PARAGRAPH: Final = re.compile(r"\n\s*\n\s*")
#: Japanese goes on after a quotation: 「行きます。」と彼は言った。
_JA_QUOTE_GOES_ON: Final = re.compile(
    r"って|なんて|など|と(?!ても|ころ|りあえず|もかく|にかく|もだち|き)",
)
#: 那我们走吧，别迟到……路上小心。
_CJK_ELLIPSIS: Final = re.compile(r"(?:…{2,}|\.{6,})[”’」』）]*(?=[\u3040-\u30ff\u3400-\u9fff])")

_CLOSERS: Final = r"[\"'”’»)\]」』）】》]*"
# Possessive, and begun only at the first of several marks: linear for any text.
_CLAUSE: Final = re.compile(
    rf"(?P<strong>(?<![;:!?])[;:!?]++{_CLOSERS}+\s+|[；：؛。！？؟।]+{_CLOSERS}\s*)"
    rf"|(?P<weak>(?<!,),++{_CLOSERS}+\s+|[，、،…—]+{_CLOSERS}\s*|\s[-–]++\s+)"
    r"|(?P<space>\s+)"
)
_WHOLE: Final = re.compile(
    r"(?:https?://|www\.)[!-~]+"
    r"|<[^<>\n]{1,200}>|\[\[[^\[\]\n]{1,200}\]\]|\[[^\[\]\n]{1,200}\]"
    r"|[\U0001f1e6-\U0001f1ff]{2}"  # a flag
    r"|\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)"
    r"|\d+(?:[.,:/'’，．·-]\d+)*"
)
_LEADING_VOWELS: Final = frozenset("เแโใไເແໂໃໄ")
_JOINING: Final = frozenset("\u200c\u200dำຳ")


class _Cut(NamedTuple):
    at: int
    border: Border


def sentences(text: str, language: str) -> list[tuple[int, int]]:
    """Return the spans of the sentences of `text`, in order, tiling it.

    White space belongs to the sentence before it. A blank line always ends a sentence. A text of
    nothing but white space has none.

    Args:
        text: the text.
        language: BCP 47; an unknown one is read by the common rules.
    """
    base = language.replace("_", "-").partition("-")[0].lower()
    spans: list[tuple[int, int]] = []
    start = 0
    for end in _sentence_ends(text, base):
        if not text[start:end].strip():
            if spans:
                spans[-1] = (spans[-1][0], end)
                start = end
            continue
        spans.append((start, end))
        start = end
    return spans


def split(text: str, *, start: int = 0, max_chars: int, language: str) -> list[Chunk]:
    """Cut `text`, from `start` to its end, into chunks of at most `max_chars` code points.

    A chunk is as many whole sentences of one paragraph as fit. A longer sentence is cut at the mark of
    a clause, else at a space, else between characters; never inside a number, a tag, a URL or a
    character made of several code points, unless that alone is longer than `max_chars`.

    Args:
        text: the text, as `speech.text.prepare` gives it.
        start: code point to begin at; the end of any chunk, or any other place.
        max_chars: longest `Chunk.text`.
        language: BCP 47.
    """
    if max_chars < 1:
        raise ValueError(f"max_chars {max_chars}")
    spans = sentences(text, language)
    whole = _unbreakable(text, max_chars)
    chunks: list[Chunk] = []
    for first, last in _passages(text, spans):
        end = spans[last - 1][1]
        origin = _past_space(text, max(start, spans[first][0]))
        if origin >= end:
            continue
        cuts = _cuts(text, spans[first:last], whole, max_chars)
        for at in _cheapest(text, origin, [cut for cut in cuts if cut.at > origin], max_chars):
            begin = chunks[-1].end if chunks else start
            chunks.append(Chunk(begin, at, text[begin:at].strip()))
    if chunks and chunks[-1].end < len(text):
        chunks[-1] = Chunk(chunks[-1].start, len(text), chunks[-1].text)
    return chunks


def _sentence_ends(text: str, base: str) -> Iterator[int]:
    """Yield where sentences end, the end of the text last; white-space-only ones are left to the caller."""
    start = 0
    for blank in (*_PARAGRAPH.finditer(text), None):
        end = blank.end() if blank else len(text)
        previous = start
        for at in _ends_in_paragraph(text, start, end, base):
            if at > previous and _goes_apart(text, previous, at, base):
                yield at
                previous = at
        # A mark after a blank line has nothing to stand on but what came before.
        if end > previous and (end == len(text) or _may_begin(text, end)):
            yield end
        start = end


def _ends_in_paragraph(text: str, start: int, end: int, base: str) -> Iterator[int]:
    """Yield the ends that sentencex finds, window by window, each window begun at a sentence."""
    while start < end:
        window = text[start : min(end, start + _WINDOW)]
        found = [boundary["end_index"] for boundary in sentencex.get_sentence_boundaries(base, window)]
        if start + len(window) < end:
            # The window, not the text, ended the last one: it is read again, unless it fills the window.
            found = found[:-1]
        if base in ("zh", "ja", "yue"):
            found = sorted({*found, *(match.end() for match in _CJK_ELLIPSIS.finditer(window))})
        yield from (start + at for at in found if at < len(window))
        read_all = start + len(window) == end
        start = end if read_all else start + (found[-1] if found else len(window))


def _goes_apart(text: str, start: int, at: int, base: str) -> bool:
    """Whether a sentence that began at `start` may end at `at`."""
    if not _may_begin(text, at):
        return False
    before = text[max(start, at - 40) : at]
    word = _LAST_WORD.search(before)
    if word and word[1].lower() in _ABBREVIATIONS.get(base, ()):
        return False
    return not (base == "ja" and before.endswith(("」", "』")) and _JA_QUOTE_GOES_ON.match(text, at))


def _passages(text: str, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield ranges of sentences which chunks may span: paragraphs, those without a word added to another."""
    first = 0
    said = False
    for index, (start, end) in enumerate(spans):
        said = said or _has_word(text[start:end])
        more = index + 1 < len(spans)
        if more and said and _ends_paragraph(text, end) and not _mute_paragraph(text, spans, index + 1):
            yield first, index + 1
            first, said = index + 1, False
    if first < len(spans):
        yield first, len(spans)


def _mute_paragraph(text: str, spans: list[tuple[int, int]], index: int) -> bool:
    """Whether no sentence from `index` to the end of its paragraph has a word."""
    while index < len(spans):
        start, end = spans[index]
        if _has_word(text[start:end]):
            return False
        if _ends_paragraph(text, end):
            return True
        index += 1
    return True


def _ends_paragraph(text: str, end: int) -> bool:
    return text.count("\n", _before_space(text, end), end) > 1


def _cuts(text: str, spans: list[tuple[int, int]], whole: bytearray, max_chars: int) -> list[_Cut]:
    """Return where the passage may be cut, in order, its end last; no two further apart than `max_chars`."""
    found: list[_Cut] = []
    for start, end in spans:
        long = _before_space(text, end) - _past_space(text, start) > max_chars
        for mark in _CLAUSE.finditer(text, start, end):
            at = mark.end()
            if at < end and not whole[at] and _may_begin(text, at):
                border = _border(text, mark)
                if long or border < Border.SPACE:
                    found.append(_Cut(at, border))
        if not whole[end] or end == spans[-1][1]:
            found.append(_Cut(end, Border.SENTENCE))
    return list(_filled(text, _past_space(text, spans[0][0]), _thinned(found, max_chars), whole, max_chars))


def _border(text: str, mark: re.Match[str]) -> Border:
    if mark["strong"]:
        return Border.STRONG_CLAUSE
    if mark["weak"]:
        return Border.CLAUSE
    beside_digit = text[mark.end()].isdigit() or (mark.start() > 0 and text[mark.start() - 1].isdigit())
    return Border.NUMBER if beside_digit else Border.SPACE


def _thinned(cuts: list[_Cut], max_chars: int) -> list[_Cut]:
    """Leave out cuts that lie close before another as good: the choice among the rest stays quick."""
    close = max_chars // 24
    kept: list[_Cut] = []
    for index, cut in enumerate(cuts):
        last = kept[-1].at if kept else cuts[0].at
        following = cuts[index + 1] if index + 1 < len(cuts) else None
        if following and following.border <= cut.border and following.at - last <= close:
            continue
        kept.append(cut)
    return kept


def _filled(text: str, origin: int, cuts: list[_Cut], whole: bytearray, max_chars: int) -> Iterator[_Cut]:
    """Yield the cuts, and cuts between characters wherever two are too far apart."""
    last = origin
    for cut in cuts:
        end = _before_space(text, cut.at)
        while end - last > max_chars:
            pieces = -(-(end - last) // max_chars)
            last = _between_characters(text, last, -(-(end - last) // pieces), whole, max_chars)
            if last >= cut.at:
                break
            yield _Cut(last, Border.CHARACTER)
        yield cut
        last = cut.at


def _between_characters(text: str, start: int, ideal: int, whole: bytearray, max_chars: int) -> int:
    """Return a cut at most `max_chars` after `start`, near `ideal` after it, that parts no character."""
    limit = start + max_chars
    near: list[int] = [*range(start + ideal, start, -1), *range(start + ideal + 1, limit + 1)]
    for parts_nothing in (_parts_no_word, _may_begin):
        for at in near:
            if not whole[at] and parts_nothing(text, at):
                return at
    # One endless character, or one tag longer than the limit.
    return _past_space(text, next((at for at in range(limit, start, -1) if _may_begin(text, at)), limit))


def _cheapest(text: str, origin: int, cuts: list[_Cut], max_chars: int) -> list[int]:
    """Return the cuts, out of `cuts`, that together cost least; the last one always."""
    begins = [origin, *(cut.at for cut in cuts)]
    ends = [_before_space(text, begin) for begin in begins]
    words = [0]
    for begin, end in pairwise(begins):
        words.append(words[-1] + _has_word(text[begin:end]))
    last = len(cuts)
    prices = [_chunk_cost(size, max_chars) for size in range(max_chars + 1)]
    borders = [0.0, *(COSTS[cut.border] for cut in cuts)]
    cost = [0.0] * (last + 1)
    choice = [last] * (last + 1)
    for here in range(last - 1, -1, -1):
        best = float("inf")
        for there in range(here + 1, last + 1):
            size = ends[there] - begins[here]
            if size > max_chars:
                break
            price = cost[there] + prices[size] + borders[there]
            if words[there] == words[here]:
                price += _UNSPEAKABLE_COST
            if price <= best:
                best, choice[here] = price, there
        cost[here] = best
    chosen = []
    here = 0
    while here < last:
        here = choice[here]
        chosen.append(begins[here])
    return chosen


def _chunk_cost(size: int, max_chars: int) -> float:
    """Return what a chunk costs by its size: few and even ones are best."""
    slack = 1 - size / max_chars
    tiny = _TINY_COST if size < min(_TINY, max_chars // 5) else 0.0
    return 1 + slack * slack + tiny


def _unbreakable(text: str, max_chars: int) -> bytearray:
    """Mark the places in `text` that are inside a number, tag, flag or URL short enough for a chunk."""
    flags = bytearray(len(text) + 1)
    for match in _WHOLE.finditer(text):
        inside = match.end() - match.start() - 1
        if inside < max_chars:
            flags[match.start() + 1 : match.end()] = b"\x01" * inside
    return flags


def _may_begin(text: str, at: int) -> bool:
    """Whether a piece may begin at `at`: no character of several code points is parted there (UAX #29)."""
    if at <= 0 or at >= len(text):
        return True
    char, before = text[at], text[at - 1]
    if char.isascii() and before.isascii():
        return not char.isspace()
    return not (
        char.isspace()
        or unicodedata.category(char)[0] == "M"
        or char in _JOINING
        or before == "\u200d"
        or before in _LEADING_VOWELS
        or unicodedata.combining(before) == 9  # a virama joins two consonants
        or "\U0001f3fb" <= char <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= char <= "\U000e007f"  # the tags of a flag
        or "\u1160" <= char <= "\u11ff"  # conjoining jamo
    )


def _parts_no_word(text: str, at: int) -> bool:
    """Whether a piece may begin at `at` without parting a word of ASCII or a run of one mark."""
    if not _may_begin(text, at):
        return False
    if at >= len(text):
        return True
    before, char = text[at - 1], text[at]
    if before == char and not char.isalnum():
        return False
    return not (_in_word(before) and _in_word(char))


def _in_word(char: str) -> bool:
    # Scripts that are written without spaces have no case; those with case part their words by spaces.
    return char.isascii() or char.lower() != char.upper()


def _has_word(text: str) -> bool:
    return any(map(str.isalnum, text))


def _past_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _before_space(text: str, at: int) -> int:
    while at > 0 and text[at - 1].isspace():
        at -= 1
    return at
