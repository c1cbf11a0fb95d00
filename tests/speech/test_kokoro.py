"""The kokoro engine over a tiny folder of random weights, with the real reader of English."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from speech.checks import check_clip
from speech.engine import EngineUnavailable, SynthesisRequest, TextTooLong, UnknownVoice, UnsupportedText
from speech.engines.hibari import HibariEngine
from speech.engines.kokoro import ABOUT, ENGINE, KokoroEngine, cut, most_phonemes, sounding
from speech.host import EngineHost

from . import tiny_kokoro

TEXT = "The harbour was quiet before dawn. Nobody spoke."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_kokoro.build(tmp_path_factory.mktemp("models") / "kokoro")


@pytest.fixture(scope="module")
def engine(folder: Path) -> KokoroEngine:
    return ENGINE.load({"model": str(folder)})


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def ask(text: str, *, voice: str = "af_heart", **more: object) -> SynthesisRequest:
    return SynthesisRequest(text=text, voice=voice, language="en", seed=0, **more)  # type: ignore[arg-type]


def parts(engine: KokoroEngine, text: str, **more: object) -> list[np.ndarray]:
    return list(engine.synthesize(ask(text, **more)))


def test_each_sentence_is_a_piece_as_long_as_its_phonemes(engine: KokoroEngine) -> None:
    phrases = engine.phonemes(TEXT, british=False)
    pieces = parts(engine, TEXT)

    assert len(pieces) == len(phrases) == 2
    for phrase, piece in zip(phrases, pieces, strict=True):
        assert len(piece) == (len(phrase) + 2) * tiny_kokoro.SAMPLES_PER_PHONEME
    check_clip(np.concatenate(pieces), TEXT, engine.info)
    assert all(np.array_equal(a, b) for a, b in zip(pieces, parts(engine, TEXT), strict=True))


def test_voices_and_speeds_are_heard(engine: KokoroEngine) -> None:
    (usual,) = parts(engine, "Hello.")
    (fast,) = parts(engine, "Hello.", speed=2.0)

    assert len(fast) * 2 == len(usual)
    assert not np.array_equal(usual, parts(engine, "Hello.", voice="jf_alpha")[0])
    assert [voice.id for voice in engine.info.voices] == sorted(tiny_kokoro.VOICES)
    assert engine.info.voices[1].language == "en-GB"


def test_british_voices_read_as_the_british_do(engine: KokoroEngine) -> None:
    word = "A tomato schedule."

    assert engine.phonemes(word, british=True) != engine.phonemes(word, british=False)


@pytest.mark.parametrize("text", ["9" * 280, "W" * 280, "strengths lengths breadths " * 10, "Hello, " * 40])
def test_a_long_row_of_phonemes_is_cut_and_nothing_of_it_is_lost(engine: KokoroEngine, text: str) -> None:
    phrases = engine.phonemes(text, british=False)

    assert max(map(len, phrases)) <= 510
    pieces = parts(engine, text)
    expected = sum((len(phrase) + 2) * tiny_kokoro.SAMPLES_PER_PHONEME for phrase in phrases)
    assert sum(map(len, pieces)) == expected


def test_a_cut_loses_spaces_alone() -> None:
    row = "ab cde f " * 100
    pieces = cut(row, 17)

    assert "".join(pieces).replace(" ", "") == row.replace(" ", "")
    assert max(map(len, pieces)) <= 17
    assert cut("x" * 40, 17) == ["x" * 10] * 4
    assert cut("  ", 17) == []


def test_a_row_is_cut_at_a_pause_near_its_middle_sooner_than_at_a_space() -> None:
    assert cut("one two three, four five six seven", 20) == ["one two three,", "four five six seven"]
    assert cut("a, one two three four five six seven", 20) == ["a, one two three", "four five six seven"]


def test_slow_speech_is_cut_sooner_and_takes_no_more_memory(engine: KokoroEngine) -> None:
    assert tuple(map(most_phonemes, (0.5, 1.0, 2.0))) == (255, 510, 510)
    usual = parts(engine, "9" * 280)
    slow = parts(engine, "9" * 280, speed=0.5)
    assert max(map(len, slow)) <= 512 * tiny_kokoro.SAMPLES_PER_PHONEME
    assert len(slow) > len(usual)


@pytest.mark.parametrize("text", ["Søren", "straße", "Łukasz", "Æthelred", "π", "5 µm", "café", "½ cup"])
def test_letters_that_hibari_reads_are_read(engine: KokoroEngine, text: str) -> None:
    assert engine.phonemes(text, british=False)
    assert engine.phonemes(text, british=True)


def test_it_reads_the_letters_that_the_hibari_engine_reads(engine: KokoroEngine) -> None:
    import hibari

    voice = HibariEngine(hibari.Hibari(), threads=1)
    assert engine._letters["a"] == voice._letters


def test_a_mark_that_espeak_left_in_a_spelling_is_no_reason_to_refuse_it(engine: KokoroEngine) -> None:
    assert engine.phonemes("QskRjYXXW", british=False)


def test_pauses_alone_join_a_neighbour_and_are_never_a_row() -> None:
    assert sounding(["həlˈO.", "...", "wˈɜɹld."]) == ["həlˈO. ...", "wˈɜɹld."]
    assert sounding(["…", "həlˈO."]) == ["… həlˈO."]
    assert sounding(["...", "ˈ", ""]) == []


def test_a_pause_without_end_has_one(engine: KokoroEngine) -> None:
    (phrase,) = engine.phonemes("Stop" + "!" * 200 + " now", british=False)
    assert phrase.count("!") == 8


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"voice": "zz_top"}, UnknownVoice, "zz_top"),
        ({"text": "a" * 301}, TextTooLong, "300"),
        ({"text": "안녕하세요"}, UnsupportedText, "안"),
        ({"text": "Hello мир"}, UnsupportedText, "м"),
        ({"text": "... !? 😀"}, UnsupportedText, "nothing"),
    ],
)
def test_what_it_cannot_say_is_refused_by_name(
    engine: KokoroEngine, change: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        parts(engine, **{"text": TEXT, **change})  # type: ignore[arg-type]


def test_there_are_fifty_four_voices() -> None:
    assert len({voice.id for voice in ABOUT.voices}) == 54


def cut_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no graph": (lambda d: (d / "kokoro-tiny.onnx").unlink(), "0 files"),
    "two graphs": (lambda d: shutil.copy(d / "kokoro-tiny.onnx", d / "other.onnx"), "2 files"),
    "half a graph": (
        lambda d: (d / "kokoro-tiny.onnx").write_bytes((d / "kokoro-tiny.onnx").read_bytes()[:500]),
        "kokoro-tiny.onnx cannot be loaded",
    ),
    "another graph": (
        lambda d: (
            shutil.rmtree(d),
            tiny_kokoro.build(d, inputs=("text", "style", "speed")),
        ),
        "has the inputs",
    ),
    "no voices": (lambda d: shutil.rmtree(d / "voices"), "no voice"),
    "a cut voice": (lambda d: cut_file(d / "voices/bm_george.bin"), "bm_george.bin"),
    "a voice of NaN": (
        lambda d: np.full(510 * 256, np.nan, "<f4").tofile(d / "voices/jf_alpha.bin"),
        "jf_alpha.bin is damaged",
    ),
    "no default voice": (lambda d: (d / "voices/af_heart.bin").unlink(), "af_heart.bin is missing"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_by_name(copy: Path, damage: str) -> None:
    harm, words = DAMAGES[damage]
    harm(copy)

    with pytest.raises(EngineUnavailable, match=words):
        ENGINE.load({"model": str(copy)})


def test_a_folder_must_be_named_and_there_and_may_be_pinned(folder: Path) -> None:
    with pytest.raises(EngineUnavailable, match="VOXFLEET_ENGINE_KOKORO_MODEL"):
        ENGINE.load({})
    with pytest.raises(EngineUnavailable, match="no folder"):
        ENGINE.load({"model": "/nowhere"})
    with pytest.raises(EngineUnavailable, match="sha256"):
        ENGINE.load({"model": str(folder), "sha256": "0" * 64})


@pytest.mark.slow
def test_it_speaks_through_its_child(folder: Path, engine: KokoroEngine) -> None:
    with EngineHost("kokoro", {"model": str(folder)}, nice=0, chunk_seconds=30) as host:
        heard = list(host.synthesize(ask(TEXT)))

    assert np.array_equal(np.concatenate(heard), np.concatenate(parts(engine, TEXT)))
