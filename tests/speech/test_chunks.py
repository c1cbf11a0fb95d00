import time
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speech.chunks import Chunk, sentences, split

LIMITS = st.sampled_from([1, 7, 20, 60, 120, 300])
LANGUAGES = st.sampled_from(["en", "zh", "ja", "de", "fr", "th", "hi", "ar", "und", ""])
WORDS = [
    "word",
    "a",
    "Dr. ",
    "No. ",
    "***",
    "天气很好",
    "การทดสอบ",
    "क्षेत्र ",
    "Llanfairpwllgwyngyllgogerychwyrndrobwll",
]
MARKS = [
    "! ",
    "?! ",
    "... ",
    "…",
    "。",
    "，",
    "、",
    ", ",
    "; ",
    " - ",
    "—",
    "\n",
    "\n\n",
    "  ",
    "(",
    "“",
    "”",
]
WHOLES = [
    "3.14",
    "1,250",
    "5 kg",
    "10:30",
    "[laugh]",
    "<b>",
    "[[tag: some words]]",
    "https://a.example/b?c=d ",
]
CLUSTERS = ["\u0301", "👩\u200d🌾", "👍🏽", "🇰🇷", "「はい。」", "と"]
PIECES = st.sampled_from(WORDS + MARKS + WHOLES + CLUSTERS)
TEXTS = st.one_of(st.text(), st.lists(PIECES, max_size=60).map("".join))


def spoken(text: str, language: str) -> list[str]:
    return [text[start:end].strip() for start, end in sentences(text, language)]


def texts(chunks: list[Chunk]) -> list[str]:
    return [chunk.text for chunk in chunks]


def assert_unbroken(text: str, chunks: list[Chunk], *wholes: str) -> None:
    for whole in wholes:
        at = text.index(whole)
        assert not [c.end for c in chunks if at < c.end < at + len(whole)], whole


@given(text=TEXTS, max_chars=LIMITS, language=LANGUAGES, begin=st.floats(0, 1))
def test_chunks_tile_the_text_and_keep_the_limit(
    text: str, max_chars: int, language: str, begin: float
) -> None:
    start = int(begin * len(text))
    chunks = split(text, start=start, max_chars=max_chars, language=language)
    if not text[start:].strip():
        assert chunks == []
        return
    assert chunks[0].start == start
    assert chunks[-1].end == len(text)
    assert all(one.end == other.start for one, other in pairwise(chunks))
    for chunk in chunks:
        assert chunk.text == text[chunk.start : chunk.end].strip()
        assert 0 < len(chunk.text) <= max_chars


@given(text=TEXTS, max_chars=LIMITS, language=LANGUAGES)
def test_work_resumed_at_a_chunk_end_goes_on_with_the_same_chunks(
    text: str, max_chars: int, language: str
) -> None:
    chunks = split(text, max_chars=max_chars, language=language)
    assert chunks == split(text, max_chars=max_chars, language=language)
    for index, chunk in enumerate(chunks):
        rest = split(text, start=chunk.end, max_chars=max_chars, language=language)
        assert rest == chunks[index + 1 :]


@given(text=TEXTS, max_chars=st.sampled_from([20, 60, 120, 300]), language=LANGUAGES)
def test_no_chunk_begins_with_a_combining_mark_while_there_is_another_way(
    text: str, max_chars: int, language: str
) -> None:
    chunks = split(text, max_chars=max_chars, language=language)
    for before, chunk in pairwise(chunks):
        if unicodedata.category(chunk.text[0])[0] == "M":
            assert not [char for char in before.text[1:] if char.isalnum()]


@given(text=TEXTS, language=LANGUAGES)
def test_sentences_tile_the_text(text: str, language: str) -> None:
    spans = sentences(text, language)
    assert "".join(text[start:end] for start, end in spans) == (text if text.strip() else "")
    assert all(text[start:end].strip() for start, end in spans)


@pytest.mark.parametrize(
    ("language", "text", "want"),
    [
        (  # C015
            "en",
            "Dr. Osei flew to the U.S. base on Tuesday, e.g. for tests. Mrs. Lind stayed at St. Ives. "
            "It ended at 5 p.m. sharp.",
            [
                "Dr. Osei flew to the U.S. base on Tuesday, e.g. for tests.",
                "Mrs. Lind stayed at St. Ives.",
                "It ended at 5 p.m. sharp.",
            ],
        ),
        (  # C019
            "zh",
            "今天风很大。你带伞了吗？带了！那我们走吧，别迟到……路上小心。",
            ["今天风很大。", "你带伞了吗？", "带了！", "那我们走吧，别迟到……", "路上小心。"],
        ),
        (  # C023
            "en",
            "Chapter One\n\nThe rain began\n\n*waves* Nice to see you.",
            ["Chapter One", "The rain began", "*waves* Nice to see you."],
        ),
        (  # C032
            "hi",
            "बारिश हो रही है। क्या आप छाता लाए हैं? हाँ।",
            ["बारिश हो रही है।", "क्या आप छाता लाए हैं?", "हाँ।"],
        ),
        ("ar", "هل وصلت؟ نعم، وصلت. شكرا!", ["هل وصلت؟", "نعم، وصلت.", "شكرا!"]),  # C032
        (  # P10
            "ar",
            "مَرْحَبًا بِكُمْ! هل الاجتماع يوم 5 مايو؟ نعم، الساعة 10:30.",
            ["مَرْحَبًا بِكُمْ!", "هل الاجتماع يوم 5 مايو؟", "نعم، الساعة 10:30."],
        ),
        (
            "en",
            "Well... maybe. Wait - what?! No… yes.",
            ["Well... maybe.", "Wait - what?!", "No… yes."],
        ),  # P14
        (  # P20
            "en",
            "Mr. Ito paid 3.5 million yen, i.e. approx. 1.2% of GDP. Dr. Reyes vs. the U.S. team: 2-1. "
            "It ended at 5 p.m. Then we left.",
            [
                "Mr. Ito paid 3.5 million yen, i.e. approx. 1.2% of GDP.",
                "Dr. Reyes vs. the U.S. team: 2-1.",
                "It ended at 5 p.m.",
                "Then we left.",
            ],
        ),
        ("fr", "M. Dupont est là. Bonjour.", ["M. Dupont est là.", "Bonjour."]),
        (
            "ja-JP",
            "「行きます。」と彼は言った。「はい。」彼女は去った。",
            ["「行きます。」と彼は言った。", "「はい。」", "彼女は去った。"],
        ),
        (
            "en",
            "Upgrade from v2.9.1 to 2.10.0-rc.1 on 10.0.0.7:8080. Restart.",  # P19
            ["Upgrade from v2.9.1 to 2.10.0-rc.1 on 10.0.0.7:8080.", "Restart."],
        ),
    ],
)
def test_sentences_end_where_a_reader_pauses(language: str, text: str, want: list[str]) -> None:
    assert spoken(text, language) == want


def test_a_sentence_longer_than_the_window_of_the_segmenter_stays_whole() -> None:
    long = "word " * 3000 + "end."
    assert spoken(f"First one. {long} Last one.", "en") == ["First one.", long, "Last one."]


def test_a_small_budget_cuts_at_sentences_then_clauses_then_spaces() -> None:  # C016
    text = (
        "The first part is here. The second follows it closely. A third one arrives now, and a fourth, "
        "rather longer than the others, runs past the place where a small budget would have to cut. "
        "Finally a fifth."
    )
    assert texts(split(text, max_chars=60, language="en")) == [
        "The first part is here. The second follows it closely.",
        "A third one arrives now, and a fourth,",
        "rather longer than the others,",
        "runs past the place where a small budget would have to cut.",
        "Finally a fifth.",
    ]
    words = [word for chunk in split(text, max_chars=20, language="en") for word in chunk.text.split()]
    assert words == text.split()


def test_the_limit_counts_code_points() -> None:  # C021
    chinese = "天气很好我们去公园散步吧，" * 9 + "好。"
    english = "Pi is 3.14, e is 2.718, and 2,500 people agree."
    assert texts(split(chinese, max_chars=120, language="zh")) == [chinese]
    assert texts(split(english, max_chars=120, language="en")) == [english]


@pytest.mark.parametrize("max_chars", [12, 16, 20, 30])
def test_numbers_tags_links_and_characters_stay_whole(max_chars: int) -> None:
    text = "Tell 1,234,567.89 now[sigh]—10:30 <em>—[[tone:x y]] www.a.bc/d"
    text += "👩\u200d🌾👍🏽🇰🇷🇰🇷e\u0301 2026-03-05,v2.9"
    wholes = (
        "1,234,567.89",
        "[sigh]",
        "10:30",
        "<em>",
        "[[tone:x y]]",
        "👩\u200d🌾",
        "👍🏽",
        "🇰🇷",
        "2026-03-05",
    )
    chunks = split(text, max_chars=max_chars, language="en")
    assert_unbroken(text, chunks, *(whole for whole in wholes if len(whole) <= max_chars))


def test_a_number_stays_with_its_unit_while_there_is_another_space() -> None:  # P01, P04, P17
    text = (
        "they carry the other things and 5 kg more of it to the house on the hill with +82 2-555-0142 on it"
    )
    assert_unbroken(text, split(text, max_chars=35, language="en"), "5 kg", "+82 2-555-0142")


def test_thai_is_never_cut_before_a_mark_or_after_a_leading_vowel() -> None:  # C032, P12
    text = "การทดสอบระบบเสียงอัตโนมัติสำหรับห้องสมุดของโรงเรียน" * 6
    for max_chars in (20, 60, 120):
        chunks = split(text, max_chars=max_chars, language="th")
        assert "".join(texts(chunks)) == text
        assert not [
            c.text for c in chunks if unicodedata.category(c.text[0])[0] == "M" or c.text[-1] in "เแโใไ"
        ]
    assert len(chunks) >= 3


def test_short_sentences_share_a_chunk() -> None:  # C024
    text = "No. Yes. Fine. We will meet at the station after lunch."
    assert texts(split(text, max_chars=60, language="en")) == [text]


def test_a_leftover_of_a_few_letters_is_shared() -> None:
    text = (
        "The committee, which had met for all of a long afternoon, could not agree on the plan at all. Yes."
    )
    chunks = texts(split(text, max_chars=len(text) - 3, language="en"))
    assert len(chunks) == 2
    assert chunks[1].endswith("at all. Yes.")
    words = texts(split("mountain " * 20, max_chars=170, language="en"))
    assert [len(chunk.split()) for chunk in words] == [10, 10]


def test_a_blank_line_parts_chunks_but_a_mute_paragraph_does_not_stand_alone() -> None:
    chunks = split("Title\n\nFirst words.\n\n* * *\n\nSecond words.", max_chars=120, language="en")
    assert texts(chunks) == ["Title", "First words.\n\n* * *", "Second words."]
    assert texts(split("...\n\nWell.", max_chars=120, language="en")) == ["...\n\nWell."]


def test_a_text_of_white_space_has_no_chunks() -> None:
    assert split(" \n\n \t", max_chars=20, language="en") == []
    assert sentences("", "en") == []


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_chars 0"):
        split("a", max_chars=0, language="en")


def test_twenty_thousand_words_without_a_mark_are_cut_at_spaces() -> None:  # P26
    began = time.perf_counter()
    chunks = split("word " * 20_000, max_chars=120, language="en")
    assert time.perf_counter() - began < 2
    assert [word for chunk in chunks for word in chunk.text.split()] == ["word"] * 20_000


ENDLESS = [
    "a",
    "a ",
    "a, ",
    "a,",
    ",",
    ", ",
    "。",
    "天",
    "天，",
    "\u0301",
    " \u0301",
    "「a。",
    "「",
    '"a. ',
    "“a.” ",
]
ENDLESS += [
    "(a. ",
    "Dr. ",
    "A. ",
    "a.\n\n",
    "*\n\n",
    "*. ",
    "\n",
    " ",
    "—",
    "1 ",
    "1.",
    "[[",
    "<a",
    "http://",
    "🇰",
]
ENDLESS += ["\u200d", "เ", "a\n\n\u0301", ".", "! ", 'a:"', ";"]


@pytest.mark.slow
@pytest.mark.parametrize("unit", ENDLESS)
def test_two_hundred_thousand_characters_of_anything_are_split_quickly(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    began = time.perf_counter()
    chunks = split(text, max_chars=120, language="en")
    #: Measured 0.1 to 1.5 s; anything quadratic takes minutes.
    assert time.perf_counter() - began < 5
    assert all(0 < len(chunk.text) <= 120 for chunk in chunks)
