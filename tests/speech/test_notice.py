"""The notice: recorded beforehand, heard when nothing can be spoken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from speech.notice import FOLDER, SENTENCES, main, notice
from tests.journeys.listener import transcribe, word_error_rate


@pytest.mark.parametrize("language", ["en", "en-GB", "fr", "und", "../../etc/passwd"])
def test_whoever_has_none_in_their_language_hears_it_in_english(language: str) -> None:
    assert np.array_equal(notice(language, 16_000), notice("en", 16_000))


@pytest.mark.parametrize("language", list(SENTENCES))
@pytest.mark.parametrize("rate", [16_000, 24_000, 44_100, 48_000])
def test_it_is_as_long_at_every_rate_and_never_clips(language: str, rate: int) -> None:
    sound = notice(language, rate)

    assert len(sound) / rate == pytest.approx(len(notice(language, 16_000)) / 16_000, abs=0.001)
    assert 3 < len(sound) / rate < 10
    assert 0.1 < np.abs(sound).max() < 1


def test_the_korean_one_is_another_recording() -> None:
    assert not np.array_equal(notice("ko-KR", 16_000), notice("en", 16_000))


@pytest.mark.slow
def test_the_english_one_says_its_sentence() -> None:
    assert word_error_rate(SENTENCES["en"], transcribe(FOLDER / "en.wav")) <= 0.1


@pytest.mark.slow
def test_it_can_be_recorded_again(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0

    made = (tmp_path / "en.wav").stat().st_size
    assert made == pytest.approx(2 * len(notice("en", 16_000)) + 44, rel=0.02)
