import numpy as np
import pytest

from speech.checks import check_clip
from speech.engine import (
    BadOutput,
    EngineUnavailable,
    SynthesisRequest,
    TextTooLong,
    UnknownVoice,
    UnsupportedText,
)
from speech.engines.hibari import ASSETS, ENGINE, readable, verify


@pytest.fixture(scope="module")
def hibari():
    engine = ENGINE.load({})
    yield engine
    engine.close()


def ask(text: str, *, seed: int = 0, voice: str = "heart") -> SynthesisRequest:
    return SynthesisRequest(text=text, voice=voice, language="en", seed=seed)


def speak(engine, text: str, **options) -> np.ndarray:
    return np.concatenate(list(engine.synthesize(ask(text, **options))))


def test_a_sentence_is_spoken_bit_for_bit_alike_and_in_good_time(hibari):
    text = "The quick brown fox jumps over the lazy dog."
    first, again, other = (
        speak(hibari, text, seed=3),
        speak(hibari, text, seed=3),
        speak(hibari, text, seed=4),
    )

    check_clip(first, text, hibari.info)
    assert first.dtype == np.float32
    assert 2.0 < first.size / hibari.info.sample_rate < 5.0
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_audio_comes_sentence_by_sentence(hibari):
    assert len(list(hibari.synthesize(ask("First. Second? Third!")))) == 3


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "Go.",
        "7",
        "÷",
        "777 777 777 777",
        "1,234,567,890",
        "$999.99 at 7:37:37 pm on 12/27/1999",
        "WWWWWWWW",
        "^^^^ %%%% ####",
        "through thought though tough thorough " * 7,
        "https://example.com/a?b=1",
        "Č. Dvořák, Èlan, Nguyễn, Hawaiʻi: 2⅓, ⅷ, ٣ and π 🎉",
        "9" * 120,
        "hello" * 60,
        "[see](/nothing/)",
    ],
)
def test_what_can_be_spoken_passes_the_clip_check(hibari, text):
    check_clip(speak(hibari, text), text, hibari.info)


@pytest.mark.parametrize("text", ["", "   ", "...", "🎉🎉", "안녕하세요", "Привет", "日本語", "αβγ"])
def test_text_without_a_sound_is_refused(hibari, text):
    with pytest.raises(UnsupportedText):
        speak(hibari, text)


def test_words_that_would_be_left_out_are_refused_by_their_letters(hibari):
    with pytest.raises(UnsupportedText, match="안 녕") as refused:
        speak(hibari, "Hello 안녕 world 안녕")
    assert "H" not in str(refused.value).partition("sound for")[2]


def test_letters_beyond_what_it_reads_become_those_they_are_made_of():
    assert readable("È ḍ \u0661 e\u0301", letters="é") == "E d 1 é"


def test_a_word_longer_than_it_reads_is_cut_so_that_all_of_it_is_heard(hibari):
    whole = speak(hibari, "hello" * 20).size
    assert whole > 1.8 * speak(hibari, "hello" * 9).size


def test_a_clip_that_lost_most_of_a_word_is_refused(hibari):
    # What the model itself makes of a word without end: the first 24 letters.
    text = "qwrtpsdf" * 375
    clip = hibari._model(text, seed=0)
    assert clip.size > hibari.info.sample_rate
    with pytest.raises(BadOutput):
        check_clip(clip, text, hibari.info)
    with pytest.raises(BadOutput):
        check_clip(clip, text[: hibari.info.max_chars], hibari.info)


def test_a_voice_that_is_not_in_the_package_and_a_text_too_long_are_refused(hibari):
    with pytest.raises(UnknownVoice):
        speak(hibari, "Hello.", voice="emma")
    with pytest.raises(TextTooLong):
        speak(hibari, "a" * 301)


def test_a_damaged_or_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(EngineUnavailable, match=r"hibari\.onnx"):
        verify(tmp_path)
    (tmp_path / "hibari.onnx").write_bytes(b"damaged")
    with pytest.raises(EngineUnavailable, match=r"hibari\.onnx is damaged"):
        verify(tmp_path, {"hibari.onnx": ASSETS["hibari.onnx"]})
