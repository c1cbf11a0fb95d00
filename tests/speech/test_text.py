import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speech.text import prepare, speakable

TEXTS = st.text(
    st.one_of(
        st.characters(exclude_categories=("Cs",)),
        st.sampled_from(
            "\r\n\t\x1b[0m]\x07\x9b\u200b\u200c\u200d\u0301\u0316\u0344क्षa\u2028\u2029\u00ad\ufeff"
        ),
    )
)


def marks(text: str) -> int:
    return sum(unicodedata.category(char)[0] == "M" for char in text)


@given(TEXTS)
def test_preparing_twice_changes_nothing_more(text: str) -> None:
    once = prepare(text)
    assert prepare(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert not [char for char in once if unicodedata.category(char) == "Cc" and char != "\n"]


@given(
    st.text(st.characters(categories=("L", "M", "N", "P", "Zs"), exclude_characters="\u180e"), max_size=25)
)
def test_no_letter_mark_or_sign_is_lost(text: str) -> None:
    assert prepare(text) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize(
    "text", ["สวัสดีครับ", "नमस्ते दुनिया।", "مَرْحَبًا بِكُمْ؟", "cafe\u0301", "안녕하세요。좋아요！"]
)
def test_letters_marks_and_full_stops_of_every_script_survive(text: str) -> None:  # C033
    assert prepare(text) == unicodedata.normalize("NFC", text)
    assert marks(prepare(text)) == marks(unicodedata.normalize("NFC", text))


def test_every_line_end_becomes_a_newline() -> None:  # P30
    text = "Title\r\n\r\nFirst line\r\nsecond line.\rOld mac line.\u2028Sep line.\u0085Nel line.\u2029Para."
    want = "Title\n\nFirst line\nsecond line.\nOld mac line.\nSep line.\nNel line.\n\nPara."
    assert prepare(text) == want


def test_escape_sequences_and_controls_go_and_words_stay_apart() -> None:  # P23
    assert prepare("line one\x00line two\x07 \x1b[31mred\x1b[0m end.\tx") == "line one line two  red end. x"
    assert prepare("\x1b]0;title\x07shown \x9b1mbold") == "shown bold"


def test_an_escape_sequence_made_by_removing_another_leaves_no_escape() -> None:
    assert "\x1b" not in prepare("\x1b\x1b[0m[31mred")


def test_invisible_characters_go() -> None:  # P21
    assert prepare("zero\u200bwidth joi\u2060ner soft\u00adhyphen \ufeffBOM end.") == (
        "zerowidth joiner softhyphen BOM end."
    )
    assert prepare("a\u202eb\u2066c\u200fd") == "abcd"


def test_joiners_stay_inside_words_alone() -> None:
    assert prepare("می\u200cخواهم") == "می\u200cخواهم"
    assert prepare("क्\u200dष") == "क्\u200dष"
    assert prepare("\u200dक \u200c- \U0001f469\u200d\U0001f33e") == "क - \U0001f469\U0001f33e"


def test_a_lone_surrogate_is_refused() -> None:  # C035
    with pytest.raises(ValueError, match=r"U\+D83D at 4"):
        prepare("bad \ud83d end")
    assert prepare("ok \U0001f600 end") == "ok \U0001f600 end"


@pytest.mark.parametrize(
    ("text", "can_be_said"),
    [
        ("!!! … —— ?? .,;:", False),  # P27
        ("🙂👩\u200d🌾❤\ufe0f", False),  # P28
        ("", False),
        (" \n\u0301", False),
        ("…a", True),
        ("5", True),
        ("好", True),
        ("Ⅷ", True),
    ],
)
def test_only_letters_and_numbers_can_be_spoken(text: str, can_be_said: bool) -> None:
    assert speakable(text) is can_be_said


@pytest.mark.parametrize("unit", ["\u0301\u0316", "\u0344", "क्\u200d", "\x1b]", "\x1b[0", "語", "\r"])
def test_long_texts_take_linear_time(unit: str) -> None:
    text = "a" + unit * (200_000 // len(unit))
    began = time.perf_counter()
    prepare(text)
    assert time.perf_counter() - began < 2
