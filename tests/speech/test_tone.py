import json
import time

import numpy as np
import pytest

from speech.checks import check_clip
from speech.engine import OutOfMemory, SynthesisRequest, UnknownVoice, UnsupportedText
from speech.engines.tone import ENGINE, PIECE_SAMPLES


def ask(text: str, *, seed: int = 0, voice: str = "sine") -> SynthesisRequest:
    return SynthesisRequest(text=text, voice=voice, language="en", seed=seed)


def speak(text: str, *, seed: int = 0, voice: str = "sine", **options: str) -> np.ndarray:
    return np.concatenate(list(ENGINE.load(options).synthesize(ask(text, seed=seed, voice=voice))))


def test_every_code_point_takes_sixty_milliseconds():
    clip = speak("안녕, 🎉!")

    assert clip.dtype == np.float32
    assert clip.size == 6 * 1440


def test_the_same_text_and_seed_sound_the_same_and_others_do_not():
    assert np.array_equal(speak("hello", seed=1), speak("hello", seed=1))
    assert not np.array_equal(speak("hello", seed=1), speak("hello", seed=2))
    assert not np.array_equal(speak("hello", seed=1), speak("jello", seed=1))


@pytest.mark.parametrize("voice", ["sine", "square"])
def test_a_clip_peaks_at_half_and_starts_and_ends_at_zero(voice):
    clip = speak("Loudness.", voice=voice)

    assert np.abs(clip).max() == pytest.approx(0.5, abs=0.01)
    assert clip[0] == 0
    assert clip[-1] == 0
    check_clip(clip, "Loudness.", ENGINE.load({}).info)


def test_a_clip_comes_in_pieces_at_the_speed_that_was_set():
    started = time.monotonic()
    pieces = list(ENGINE.load({"rtf": "0.5"}).synthesize(ask("a" * 10)))

    assert 0.3 <= time.monotonic() - started < 0.6
    assert [piece.size for piece in pieces] == [PIECE_SAMPLES, PIECE_SAMPLES, 14_400 - 2 * PIECE_SAMPLES]


def test_loading_takes_as_long_as_was_set():
    started = time.monotonic()
    ENGINE.load({"load_seconds": "0.2"})
    assert time.monotonic() - started >= 0.2


def test_markers_are_text_unless_faults_are_on():
    text = "ab[[tone:fail]]"
    assert speak(text).size == len(text) * 1440


def test_markers_are_not_counted_and_act_where_they_stand():
    heard = []
    engine = ENGINE.load({"faults": "1"})
    with pytest.raises(RuntimeError):
        heard.extend(engine.synthesize(ask("ab[[tone:fail]]cd")))
    assert sum(piece.size for piece in heard) in (0, 2 * 1440)

    calls = engine.synthesize(ask("ab[[tone:oom]]cd"))
    assert next(calls).size == 2 * 1440
    with pytest.raises((MemoryError, OutOfMemory)):
        next(calls)

    assert list(engine.synthesize(ask("ab[[tone:empty]]"))) == []
    assert speak("ab[[tone:sleep=0.01]]cd", faults="1").size == 4 * 1440
    assert np.isnan(speak("ab[[tone:nan]]cd", faults="1")).any()


def test_every_call_is_one_line_of_the_log(tmp_path):
    log = tmp_path / "calls"
    speak("one", seed=7, log=str(log))
    speak("two\n", seed=8, log=str(log))

    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(entry["text"], entry["seed"]) for entry in entries] == [("one", 7), ("two\n", 8)]
    assert all(entry["pid"] and entry["t"] for entry in entries)


def test_blank_text_and_an_unknown_voice_are_refused():
    with pytest.raises(UnsupportedText):
        speak(" ")
    with pytest.raises(UnknownVoice):
        speak("hello", voice="heart")
