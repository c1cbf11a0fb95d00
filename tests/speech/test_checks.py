import math
from dataclasses import replace

import numpy as np
import pytest

from speech.checks import check_clip, check_request
from speech.engine import (
    ANY_LANGUAGE,
    BadOutput,
    EngineInfo,
    SynthesisRequest,
    TextTooLong,
    UnknownVoice,
    UnsupportedLanguage,
    UnsupportedText,
    Voice,
)

INFO = EngineInfo(
    name="test",
    version="1",
    revision="1",
    sample_rate=1000,
    languages=("en", "en-US"),
    voices=(Voice(id="one", name="One", language="en"),),
    default_voice="one",
    max_chars=20,
    device="cpu",
    deterministic=True,
    licence="Apache-2.0",
    min_seconds_per_char=0.03,
    max_seconds_per_char=0.5,
    max_extra_seconds=1.0,
)
REQUEST = SynthesisRequest(text="Hello.", voice="one", language="en", seed=1)


def noise(seconds: float) -> np.ndarray:
    return np.full(round(seconds * INFO.sample_rate), 0.1, dtype=np.float32)


def test_a_clip_of_a_believable_length_passes():
    check_clip(noise(0.5), "Hello.", INFO)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_refused(value):
    clip = noise(0.5)
    clip[17] = value
    with pytest.raises(BadOutput, match="no numbers"):
        check_clip(clip, "Hello.", INFO)


def test_nothing_and_silence_are_refused():
    with pytest.raises(BadOutput, match="empty"):
        check_clip(noise(0), "Hello.", INFO)
    with pytest.raises(BadOutput, match="silent"):
        check_clip(noise(0.5) * np.float32(1e-6), "Hello.", INFO)


def test_a_clip_too_short_or_too_long_for_its_text_is_refused():
    with pytest.raises(BadOutput, match="least"):
        check_clip(noise(0.1), "Hello", INFO)
    with pytest.raises(BadOutput, match="most"):
        check_clip(noise(4), "Hello", INFO)


def test_signs_and_spaces_need_not_be_heard():
    check_clip(noise(0.1), "— Hi — " + " " * 100, INFO)


def test_a_request_within_what_the_engine_says_passes():
    check_request(REQUEST, INFO)
    check_request(replace(REQUEST, language="EN-us"), INFO)
    check_request(replace(REQUEST, language="ko"), replace(INFO, languages=(ANY_LANGUAGE,)))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"text": " \n"}, UnsupportedText),
        ({"text": "a" * 21}, TextTooLong),
        ({"voice": "two"}, UnknownVoice),
        ({"language": "ko"}, UnsupportedLanguage),
    ],
)
def test_a_request_beyond_what_the_engine_says_is_refused(change, error):
    with pytest.raises(error):
        check_request(replace(REQUEST, **change), INFO)


def test_what_an_engine_says_survives_json():
    assert EngineInfo.from_json(INFO.to_json()) == INFO
    odd = replace(REQUEST, text="안녕 \ud800 \0")
    assert SynthesisRequest.from_json(odd.to_json()) == odd


def test_a_clip_is_as_long_as_its_speed_makes_it() -> None:
    text = "a" * 100
    info = replace(INFO, min_seconds_per_char=0.05, max_seconds_per_char=0.1, max_extra_seconds=0.0)
    fast = np.full(4 * info.sample_rate, 0.5, np.float32)

    check_clip(fast, text, info, speed=2.0)
    with pytest.raises(BadOutput):
        check_clip(fast, text, info)
    with pytest.raises(BadOutput):
        check_clip(fast, text, info, speed=4.0)
