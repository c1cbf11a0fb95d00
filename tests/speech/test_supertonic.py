from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speech.checks import check_clip, check_request
from speech.engine import (
    BadOption,
    BadOutput,
    EngineInfo,
    EngineUnavailable,
    SynthesisRequest,
    TextTooLong,
    UnknownVoice,
    UnsupportedLanguage,
    UnsupportedText,
)
from speech.engines import packages
from speech.engines import supertonic as module
from speech.engines.cores import physical_cores
from speech.engines.supertonic import (
    ABOUT,
    CONFIG,
    ENGINE,
    GRAPHS,
    HUB,
    INDEXER,
    INSTALL,
    LANGUAGES,
    NATURAL,
    REVISION,
    SupertonicEngine,
    readable,
    tag,
)
from speech.host import EngineHost
from tests.speech.test_host import plug
from tests.speech.tiny_supertonic import (
    FRAME,
    LATENT,
    SAMPLE_RATE,
    SECONDS_PER_CHAR,
    STYLE_DP,
    STYLE_TTL,
    VOICES,
    build,
    indexer,
    write_style,
)

assert ENGINE.missing() is None, ENGINE.missing()

TEXT = "The quick brown fox jumps over the lazy dog."
KNOWN = frozenset(chr(point) for point, index in enumerate(indexer()) if index >= 0)
FILES = (CONFIG, INDEXER, *GRAPHS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a whole model; nobody changes it."""
    return build(tmp_path_factory.mktemp("supertonic") / "tiny")


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> Path:
    """Give a copy to damage."""
    return shutil.copytree(folder, tmp_path / "damaged")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[SupertonicEngine]:
    engine = load(folder)
    yield engine
    engine.close()


def load(folder: Path, **options: str) -> SupertonicEngine:
    return ENGINE.load({"model": str(folder), "threads": "1", **options})


def ask(text: str = TEXT, *, voice: str = "M1", language: str = "en", seed: int = 1, **more: Any) -> Any:
    return SynthesisRequest(text=text, voice=voice, language=language, seed=seed, **more)


def speak(engine: SupertonicEngine, text: str = TEXT, **more: Any) -> np.ndarray:
    return np.concatenate(list(engine.synthesize(ask(text, **more))))


def samples(characters: int, *, speed: float = NATURAL) -> int:
    """Return how long the tiny model speaks; it counts `<en>`, `</en>` and the full stop."""
    seconds = np.float32(SECONDS_PER_CHAR) * np.float32(characters) / speed
    return int(float(seconds) * SAMPLE_RATE)


def contents(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in folder.rglob("*")
        if path.is_file()
    }


class Hub:
    """In the place of the hub's client: notes what it is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Path | Exception) -> None:
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self._answer = answer
        monkeypatch.setattr(import_module("huggingface_hub"), "snapshot_download", self)

    def __call__(self, name: str, **how: Any) -> str:
        self.asked.append((name, how))
        if isinstance(self._answer, Exception):
            raise self._answer
        return str(self._answer)


class Heard:
    """What the model was given to read, from here on."""

    def __init__(self, engine: SupertonicEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: list[str] = []
        processor = engine._model.text_processor
        self._real = processor._preprocess_text
        monkeypatch.setattr(processor, "_preprocess_text", self)

    def __call__(self, text: str, lang: str | None = None) -> str:
        read: str = self._real(text, lang)
        self.texts.append(unicodedata.normalize("NFC", read))
        return read


# --- a call -----------------------------------------------------------------------------------------------


def test_a_sentence_lasts_to_the_sample_what_the_model_said(engine):
    clip = speak(engine)

    assert clip.dtype == np.float32
    assert clip.shape == (samples(len("<en>") + len(TEXT) + len("</en>")),)
    assert clip.size % FRAME
    assert 0.1 < np.abs(clip).max() <= 1
    check_clip(clip, TEXT, engine.info)


def test_a_call_gives_one_piece(engine):
    assert len(list(engine.synthesize(ask("First. Second? Third!")))) == 1
    assert not engine.info.features.streaming


def test_the_same_seed_repeats_bit_for_bit_and_another_does_not(engine):
    first, again, other = speak(engine, seed=3), speak(engine, seed=3), speak(engine, seed=4)

    assert np.array_equal(first, again)
    assert first.shape == other.shape
    assert not np.array_equal(first, other)
    assert engine.info.features.seed
    assert engine.info.deterministic


def test_numpys_own_generator_is_neither_heard_nor_moved(engine):
    np.random.seed(5)
    first = speak(engine)
    drawn = np.random.random()
    np.random.seed(5)
    untouched = np.random.random()

    assert np.array_equal(first, speak(engine))
    assert drawn == untouched


def test_two_engines_in_one_process_do_not_disturb_each_other(folder, engine, tmp_path):
    other = load(build(tmp_path / "other", seed=9))
    apart = [(speak(engine, seed=seed), speak(other, seed=seed)) for seed in (1, 2)]

    mixed = engine.synthesize(ask(seed=1)), other.synthesize(ask(seed=1))
    first, second = next(mixed[0]), next(mixed[1])
    third, fourth = speak(other, seed=2), speak(engine, seed=2)

    assert np.array_equal(first, apart[0][0])
    assert np.array_equal(second, apart[0][1])
    assert np.array_equal(third, apart[1][1])
    assert np.array_equal(fourth, apart[1][0])
    assert not np.array_equal(first, second)
    assert engine.info.revision != other.info.revision
    other.close()


def test_every_voice_is_its_own(engine):
    assert [voice.id for voice in engine.info.voices] == list(VOICES)
    assert engine.info.default_voice == "M1"
    clips = [speak(engine, voice=voice) for voice in VOICES]

    assert len({clip.tobytes() for clip in clips}) == len(VOICES)
    with pytest.raises(UnknownVoice, match="Z9"):
        speak(engine, voice="Z9")


def test_a_faster_request_is_shorter(engine):
    characters = len("<en>") + len(TEXT) + len("</en>")

    assert speak(engine, speed=1.5).size == samples(characters, speed=1.5 * NATURAL)
    assert speak(engine, speed=0.7 / NATURAL).size == samples(characters, speed=0.7)
    assert speak(engine, speed=2.0 / NATURAL).size == samples(characters, speed=2.0)
    check_clip(speak(engine, speed=1.9), TEXT, engine.info, speed=1.9)
    assert engine.info.features.speed


@pytest.mark.parametrize("speed", [0.66, 1.91, 2.0, 0.0, -1.0, float("nan"), float("inf")])
def test_a_speed_that_the_model_does_not_take_is_refused(engine, speed):
    with pytest.raises(BadOption, match=r"speed: supertonic-3 takes 0\.67 to 1\.90"):
        speak(engine, speed=speed)


def test_what_counts_as_natural_speed_is_a_setting_and_moves_the_bounds(folder):
    slow = load(folder, speed="0.8")

    assert speak(slow).size == samples(len("<en>") + len(TEXT) + len("</en>"), speed=0.8)
    check_clip(speak(slow), TEXT, slow.info)
    assert slow.info.min_seconds_per_char == pytest.approx(ABOUT.min_seconds_per_char * 1.05 / 0.8)


def test_steps_are_heard_and_have_the_engines_setting_as_their_default(folder, engine):
    five = load(folder, steps="5")

    assert np.array_equal(speak(five), speak(engine, options={"steps": 5}))
    assert not np.array_equal(speak(five), speak(engine))
    assert five.info.options["properties"]["steps"]["default"] == 5
    assert engine.info.options["properties"]["steps"]["default"] == 8
    assert five.info.revision != engine.info.revision
    assert speak(engine, options=engine.info.thrift).size


def test_thrift_is_never_more_than_the_default(folder):
    assert load(folder, steps="3").info.thrift == {"steps": 3}


@pytest.mark.parametrize(
    "options", [{"steps": 0}, {"steps": 101}, {"steps": "8"}, {"steps": 8.0}, {"pace": 1}]
)
def test_options_of_a_call_are_checked(engine, options):
    with pytest.raises(BadOption, match="options of engine supertonic-3"):
        speak(engine, options=options)


def test_a_text_beyond_the_limit_is_refused_and_korean_has_its_own(engine):
    assert speak(engine, "a" * 300).size
    assert speak(engine, "가" * 120, language="ko").size
    with pytest.raises(TextTooLong, match="300"):
        speak(engine, "a" * 301)
    with pytest.raises(TextTooLong, match="120"):
        speak(engine, "가" * 121, language="ko-KR")
    assert engine.info.preferred("en") == 180
    assert engine.info.preferred("ko") < engine.info.longest("ko") == 120


def test_a_length_that_no_text_has_is_found_before_the_steps(tmp_path):
    drawling = load(build(tmp_path / "drawling", seconds_per_char=0.7))
    drawling._model.vector_est_ort = None

    with pytest.raises(BadOutput, match="believable"):
        speak(drawling, "Five.")


@pytest.mark.parametrize("broken", [0.0, float("nan"), -1.0])
def test_a_length_that_is_none_is_found(engine, broken):
    with pytest.raises(BadOutput, match="would last"):
        engine._model.sample_noisy_latent(np.array([broken], np.float32))


def test_nothing_is_written_to_standard_output(folder, capfd):
    engine = load(folder)
    speak(engine)
    engine.close()

    assert capfd.readouterr().out == ""


# --- languages --------------------------------------------------------------------------------------------


def test_the_languages_are_those_of_the_package():
    config = import_module("supertonic.config")

    assert list(LANGUAGES) == config.SUPPORTED_LANGUAGES
    assert ABOUT.languages == (*config.AVAILABLE_LANGUAGES, "und")


@pytest.mark.parametrize(
    ("language", "code"),
    [("en", "en"), ("en-US", "en"), ("pt_BR", "pt"), ("KO", "ko"), ("na", "na"), ("und", "na")],
)
def test_a_language_is_told_to_the_model_by_its_primary_subtag(engine, monkeypatch, language, code):
    heard = Heard(engine, monkeypatch)

    speak(engine, "Hello.", language=language)

    assert heard.texts[-1] == f"<{code}>Hello.</{code}>"


def test_a_language_that_the_model_does_not_speak_is_refused(engine):
    for language in ("zh", "xx", "", "*"):
        with pytest.raises(UnsupportedLanguage):
            tag(language)
    with pytest.raises(UnsupportedLanguage, match="zh-CN"):
        speak(engine, "Hello.", language="zh-CN")


def test_a_job_that_says_no_language_is_taken(engine):
    check_request(ask(language="und"), engine.info)


# --- texts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "read"),
    [
        # The letters of 0xShug0/audio.cpp issue 115: the model knows them as two.
        ("йод ёж їжак", "йод ёж їжак"),
        ("Ausrüstung, niño", "Ausrüstung, niño"),
        ("한국어", "한국어"),
        # U+1EA1 of issue 223: where the dot below is not known the letter stays.
        ("phạm ạ", "pham a"),
        ("Straße, Łódź, Ørsted, æ, Æ", "Strasse, Lódź, Orsted, ae, Ae"),
        ("٣٤ ७", "34 7"),
        ("❶ ⓵ Ⅷ", "1 1 VIII"),
        ("10² is 100, m²", "10 2 is 100, m2"),
        ("2½", "2 1 2"),
        ("𝐇𝐞𝐥𝐥𝐨 ﬁn", "Hello fin"),
        # U+2019, U+00B4 and U+02BC: never a word less, or two.
        ("I’ve, I´ve, Iʼve", "I've, I've, I've"),
        ("a\u2011b", "a-b"),
        # What the package takes out joined the words around it.
        ("a\\b, I♥you, good😀bye", "a b, I you, good bye"),
        ("and/or [x] a|b #1 c_d", "and or x a b 1 c d"),
        ("ab\u00adcd", "abcd"),
        ("one\ntwo\tthree\u00a0four", "one two three four"),
        ("me@example.org", "me at example.org"),
        ("👍🏽 1️⃣ 🇫🇷 ok", "1 ok"),
    ],
)
def test_no_word_is_lost(engine, monkeypatch, text, read):
    heard = Heard(engine, monkeypatch)

    speak(engine, text)

    said = heard.texts[-1].removeprefix("<en>").removesuffix("</en>").removesuffix(".").strip()
    assert said == read


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("日本語 is Japanese", "日 本 語"),
        ("Բարև", "Բ ա ր և"),
        ("a 〆 b", "〆"),
        # Half of it is known; the mark that makes it another consonant is not.
        ("パン", "パ"),
        ("ক", "ক"),
        ("abc \ue000", "U+E000"),
        ("abc \u0b47", "U+0B47"),
    ],
)
def test_letters_and_digits_that_would_be_lost_are_named(engine, text, named):
    for strict in (False, True):
        with pytest.raises(UnsupportedText, match=rf"no sound for .*{re.escape(named)}"):
            readable(text, known=KNOWN, strict=strict)
    with pytest.raises(UnsupportedText):
        speak(engine, text)


def test_ten_characters_are_named_at_most():
    with pytest.raises(UnsupportedText) as caught:
        readable("".join(chr(0x531 + number) for number in range(30)), known=KNOWN)

    assert len(str(caught.value).partition("for ")[2].split()) == 10


@pytest.mark.parametrize("text", ["ạ", "ł", "😀 hi", "♥", "５😀", "☎ 1", "½"])
def test_by_the_other_policy_whatever_the_model_does_not_know_is_refused(folder, engine, text):
    strict = load(folder, unsupported="refuse")

    with pytest.raises(UnsupportedText, match="no sound for"):
        speak(strict, f"Hello {text}")
    assert speak(engine, f"Hello {text}").size
    assert speak(strict, "Привет, ёж – “naïve” 한국어 [x] 3 €!").size
    assert strict.info.revision != engine.info.revision


@pytest.mark.parametrize("text", ["😀", "...", "[ ] | / # _", "\u200d\ufe0f", "← →", "<>", "\\", "?!"])
def test_a_text_with_nothing_to_say_is_refused(engine, text):
    with pytest.raises(UnsupportedText, match="nothing to speak"):
        speak(engine, text)


def test_expression_tags_reach_the_model_and_other_brackets_do_not(engine, monkeypatch):
    heard = Heard(engine, monkeypatch)

    speak(engine, "<laugh> Well <breath> no <sigh> ok <ko> <b>bold</b> a < b ＜ja＞ ≮ <laugh >")

    assert heard.texts[-1] == "<en><laugh> Well <breath> no <sigh> ok ko b bold b a b ja laugh.</en>"
    assert engine.info.features.tags == ("<laugh>", "<breath>", "<sigh>")


def test_a_tag_alone_is_a_sound(engine):
    clip = speak(engine, "<laugh>")

    check_clip(clip, "<laugh>", engine.info)


def test_a_character_that_slips_through_is_not_read_as_another(engine, monkeypatch):
    monkeypatch.setattr(engine, "_known", KNOWN | {"ա"})

    with pytest.raises(UnsupportedText, match="cannot read"):
        speak(engine, "abc ա")


@given(st.text(st.characters(codec="utf-16-le"), max_size=40), st.booleans())
def test_whatever_is_read_the_model_knows(text, strict):
    try:
        read = readable(text, known=KNOWN, strict=strict)
    except UnsupportedText:
        return
    assert set(unicodedata.normalize("NFKD", read)) <= KNOWN
    # A digit that Unicode has in many scripts is one; letters and digits never become fewer words.
    if any(unicodedata.category(character) in ("Lu", "Ll", "Nd") for character in text):
        assert any(character.isalnum() for character in read)


# --- the folder -------------------------------------------------------------------------------------------


def test_the_setting_of_a_folder_is_said_without_its_path(folder, engine):
    info = EngineInfo.from_json(engine.info.to_json())

    assert info.weights == "tiny"
    assert info.licence == "LicenseRef-OpenRAIL-M"
    assert info.sample_rate == 44_100
    assert info.memory_mb == 900
    assert info.revision == load(folder).info.revision


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(damaged, name):
    (damaged / name).unlink()

    refused(damaged, rf"{name} cannot be read in damaged: No such file")


@pytest.mark.parametrize("name", FILES)
def test_an_empty_file_is_named(damaged, name):
    (damaged / name).write_bytes(b"")

    refused(damaged, rf"{name} is empty")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_a_file_that_is_cut_short_is_named(damaged, name, share):
    body = (damaged / name).read_bytes()
    (damaged / name).write_bytes(body[: int(share * len(body))])

    refused(damaged, rf"{name} (cannot be loaded|is no JSON)")


@pytest.mark.parametrize("name", FILES)
def test_a_pointer_of_git_lfs_is_known_as_one(damaged, name):
    (damaged / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")

    refused(damaged, rf"{name} is a pointer of Git LFS")


def test_a_graph_with_other_inputs_is_named(damaged):
    shutil.copy(damaged / "onnx/text_encoder.onnx", damaged / "onnx/vocoder.onnx")

    refused(damaged, r"onnx/vocoder.onnx has the inputs .*style_ttl.*; latent: tensor\(float\) of rank 3 are")


def test_graphs_that_do_not_go_with_the_configuration_are_refused(tmp_path):
    refused(build(tmp_path / "other", latent=LATENT + 1), "the graphs do not fit together")


@pytest.mark.parametrize(
    "config", ["[]", "{}", '{"ae": {"sample_rate": 44100}}', '{"ae": {"sample_rate": "44100"}}']
)
def test_a_configuration_that_lacks_a_number_is_refused(damaged, config):
    (damaged / CONFIG).write_text(config)

    refused(damaged, "onnx/tts.json has no ae.")


def test_a_configuration_with_longer_frames_than_the_graphs_is_refused(damaged):
    config = json.loads((damaged / CONFIG).read_text())
    config["ae"]["base_chunk_size"] = 1024
    (damaged / CONFIG).write_text(json.dumps(config))

    refused(damaged, "the graphs give no audio for")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda index: index[:-1], "has 65535 entries, 65536 are needed"),
        (lambda index: [*index, 1], "has 65537 entries, 65536 are needed"),
        (lambda _: {}, "has no entries, 65536 are needed"),
        (lambda index: [*index[:-1], "7"], "holds something else than indices"),
        (lambda index: [*index[:-1], 100_000], "has the index 100000, which the graphs do not take"),
        (lambda index: [-1 if point == ord("<") else i for point, i in enumerate(index)], "does not know <"),
    ],
)
def test_an_indexer_that_is_not_the_models_is_refused(
    damaged: Path, change: Callable[[list[int]], Any], said: str
) -> None:
    (damaged / INDEXER).write_text(json.dumps(change(indexer())))

    refused(damaged, f"{INDEXER} {said}")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "is no voice style"),
        ('{"style_ttl": {"dims": [1, 6, 8], "data": [[', "is no voice style"),
        ("[]", "is no voice style"),
        ('{"style_ttl": 1, "style_dp": 2}', "is no voice style"),
        (
            '{"style_ttl": {"dims": 1, "data": [1]}, "style_dp": {"dims": [1], "data": [1]}}',
            "is no voice style",
        ),
        ('{"style_ttl": {"dims": [1], "data": [1]}, "style_dp": {"dims": [1], "data": [1]}}', "style_ttl of"),
    ],
)
def test_a_damaged_voice_is_named(damaged, body, said):
    (damaged / "voice_styles/F3.json").write_text(body)

    refused(damaged, rf"{said}.*F3\.json|F3\.json {said}")


def test_a_voice_with_values_that_are_no_numbers_is_named(damaged):
    style = {
        "style_ttl": {"dims": list(STYLE_TTL), "data": np.full(STYLE_TTL, np.nan).tolist()},
        "style_dp": {"dims": list(STYLE_DP), "data": np.zeros(STYLE_DP).tolist()},
    }
    (damaged / "voice_styles/M2.json").write_text(json.dumps(style))

    refused(damaged, "style_ttl of voice_styles/M2.json holds values that are no numbers")


def test_a_model_without_voices_is_refused(damaged, tmp_path):
    shutil.rmtree(damaged / "voice_styles")
    refused(damaged, "voice_styles cannot be read: No such file")
    (damaged / "voice_styles").mkdir()
    refused(damaged, "there is no voice in voice_styles of damaged")


def test_the_first_voice_is_the_default_where_the_usual_one_is_missing(damaged):
    for voice in ("M1", "M2", "M3", "M4", "M5", "F1"):
        (damaged / f"voice_styles/{voice}.json").unlink()

    assert load(damaged).info.default_voice == "F2"


def refused(folder: Path, said: str) -> None:
    """Load a folder in vain; it is as it was."""
    before = contents(folder)
    with pytest.raises(EngineUnavailable, match=said) as caught:
        load(folder)
    assert contents(folder) == before
    assert "\n" not in str(caught.value)


# --- further voices ---------------------------------------------------------------------------------------


def test_exported_voices_of_another_folder_are_voices(folder, tmp_path, engine):
    shutil.copy(folder / "voice_styles/M1.json", tmp_path / "M1.json")
    write_style(tmp_path / "anna.json", np.random.default_rng(7))
    (tmp_path / "notes.txt").write_text("no voice")
    (tmp_path / ".anna.json.swp.json").write_text("no voice either")

    more = load(folder, voice_styles=str(tmp_path))

    assert [(voice.id, voice.kind) for voice in more.info.voices][-2:] == [
        ("F5", "builtin"),
        ("anna", "style"),
    ]
    assert not np.array_equal(speak(more, voice="anna"), speak(more))
    assert np.array_equal(speak(more), speak(engine))
    assert more.info.revision != engine.info.revision


def test_a_further_voice_that_cannot_be_one_is_named(folder, tmp_path):
    def refuse(said: str) -> None:
        with pytest.raises(EngineUnavailable, match=said):
            load(folder, voice_styles=str(tmp_path / "mine"))

    refuse("mine cannot be read: No such file")
    (tmp_path / "mine").mkdir()
    write_style(tmp_path / "mine/F1.json", np.random.default_rng(7))
    refuse("mine/F1.json has the name of a voice of the model")
    (tmp_path / "mine/F1.json").rename(tmp_path / "mine/my voice.json")
    refuse("mine/my voice.json: a voice's name is")
    (tmp_path / "mine/my voice.json").unlink()
    (tmp_path / "mine/bert.json").write_text("{")
    refuse("mine/bert.json is no voice style")


# --- where it comes from ----------------------------------------------------------------------------------


def test_the_pinned_revision_is_that_of_the_package():
    pinned = import_module("supertonic.config").MODEL_CONFIGS["supertonic-3"]

    assert (pinned["repo"], pinned["revision"]) == (HUB, REVISION)
    assert ABOUT.weights == f"{HUB}@{REVISION}"


def test_without_a_folder_the_hub_is_asked_for_the_pinned_revision(folder, monkeypatch, tmp_path):
    hub = Hub(monkeypatch, shutil.copytree(folder, tmp_path / REVISION))

    engine = ENGINE.load({"threads": "1"})

    (name, how), *more = hub.asked
    assert (name, how["revision"], how["local_files_only"], more) == (HUB, REVISION, False, [])
    assert set(how["allow_patterns"]) == {*FILES, "voice_styles/*.json"}
    assert engine.info.weights == f"{HUB}@{REVISION}"


@pytest.mark.parametrize(
    ("options", "revision"),
    [
        ({"revision": "main"}, "main"),
        ({"model": "somebody/else"}, None),
        ({"model": "somebody/else", "revision": "v2"}, "v2"),
    ],
)
def test_another_revision_or_model_is_asked_for_as_it_is_set(folder, monkeypatch, options, revision):
    hub = Hub(monkeypatch, folder)

    ENGINE.load({"threads": "1", "offline": "1", **options})

    (name, how), *_ = hub.asked
    assert (name, how["revision"]) == (options.get("model", HUB), revision)
    assert how["local_files_only"] is True


@pytest.mark.parametrize("model", ["/nowhere/at/all", "./nowhere", "~/nowhere", "nowhere", "models/nowhere"])
def test_a_folder_that_is_not_there_is_never_downloaded(monkeypatch, tmp_path, model):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    hub = Hub(monkeypatch, tmp_path)

    with pytest.raises(EngineUnavailable, match=f"there is no folder {model}"):
        ENGINE.load({"model": model})

    assert hub.asked == []
    assert [path.name for path in tmp_path.rglob("*")] == ["models"]


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"x")

    with pytest.raises(EngineUnavailable, match="is a file"):
        ENGINE.load({"model": str(tmp_path / "model.onnx")})


def test_a_hub_that_cannot_be_reached_is_said_with_the_remedy(monkeypatch):
    Hub(monkeypatch, OSError("no route"))

    with pytest.raises(EngineUnavailable, match=r"cannot be had from the hub \(OSError\); `hf download"):
        ENGINE.load({})


# --- what is installed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["supertonic", "onnxruntime", "huggingface_hub"])
def test_a_package_that_is_missing_is_said_with_the_remedy(folder, monkeypatch, name):
    real = module.find_spec
    monkeypatch.setattr(module, "find_spec", lambda wanted: None if wanted == name else real(wanted))

    assert ENGINE.missing() == INSTALL
    with pytest.raises(EngineUnavailable, match=r"not installed: pip install 'voxfleet\[supertonic-3\]'"):
        load(folder)


def test_another_version_of_the_package_is_refused(folder, monkeypatch):
    monkeypatch.setattr(packages, "version", lambda _: "1.2.0")

    with pytest.raises(EngineUnavailable, match=r"supertonic 1\.2\.0 is installed, 1\.3\.1 is needed"):
        load(folder)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threads": "0"}, "threads"),
        ({"steps": "101"}, "steps"),
        ({"speed": "0.5"}, "speed"),
        ({"unsupported": "ignore"}, "unsupported"),
        ({"auto_download": "1"}, "has no option auto_download"),
    ],
)
def test_settings_are_checked(options, said):
    with pytest.raises(EngineUnavailable, match=said):
        ENGINE.load(options)


def test_memory_that_runs_out_while_loading_is_not_said_to_be_damage(folder, monkeypatch):
    class Poor:
        def __init__(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("std::bad_alloc")

    monkeypatch.setattr(import_module("onnxruntime"), "InferenceSession", Poor)

    with pytest.raises(RuntimeError, match="bad_alloc"):
        load(folder)


# --- threads ----------------------------------------------------------------------------------------------


def test_the_options_of_onnxruntime_are_set_on_all_graphs(folder, monkeypatch):
    monkeypatch.setattr(module, "physical_cores", lambda: 2)
    runtime = import_module("onnxruntime")
    engine = ENGINE.load({"model": str(folder)})
    model = engine._model

    for session in (model.dp_ort, model.text_enc_ort, model.vector_est_ort, model.vocoder_ort):
        options = session.get_session_options()
        assert options.intra_op_num_threads == 2
        assert options.inter_op_num_threads == 1
        assert options.execution_mode == runtime.ExecutionMode.ORT_SEQUENTIAL
        assert options.graph_optimization_level == runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
        assert options.enable_cpu_mem_arena
        assert options.get_session_config_entry("session.dynamic_block_base") == "4"
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
        assert session.get_providers() == ["CPUExecutionProvider"]
    assert not engine.info.deterministic
    assert speak(engine).size


@pytest.mark.parametrize(("setting", "cores", "threads"), [("3", 8, 3), ("8", 2, 2), ("1", 4, 1)])
def test_threads_are_as_many_as_cores_or_fewer(folder, monkeypatch, setting, cores, threads):
    monkeypatch.setattr(module, "physical_cores", lambda: cores)
    engine = ENGINE.load({"model": str(folder), "threads": setting})

    assert engine._model.dp_ort.get_session_options().intra_op_num_threads == threads
    assert engine.info.deterministic is (threads == 1)


class Machine:
    """The files of a machine, as Linux shows them."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, siblings: Mapping[int, str]) -> None:
        self._root = root
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(siblings), raising=False)
        for cpu, threads in siblings.items():
            if threads:
                self.write(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{threads}\n")

    def write(self, name: str, text: str) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def cores(self) -> int:
        return physical_cores(self._root)


FOUR_OF_TWO = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}


def test_two_threads_of_a_core_are_one_core(tmp_path, monkeypatch):
    assert Machine(tmp_path, monkeypatch, FOUR_OF_TWO).cores() == 4


def test_the_affinity_mask_bounds_the_cores(tmp_path, monkeypatch):
    assert Machine(tmp_path, monkeypatch, {1: "1,5", 5: "1,5", 2: "2,6"}).cores() == 2


def test_a_machine_that_does_not_show_its_cores_has_one_for_each_processor(tmp_path, monkeypatch):
    assert Machine(tmp_path, monkeypatch, {0: "", 1: "", 2: ""}).cores() == 3


@pytest.mark.parametrize(
    ("name", "quota", "cores"),
    [
        ("sys/fs/cgroup/cpu.max", "max 100000\n", 4),
        ("sys/fs/cgroup/cpu.max", "250000 100000\n", 2),
        ("sys/fs/cgroup/cpu.max", "50000 100000\n", 1),
        ("sys/fs/cgroup/cpu.max", "900000 100000\n", 4),
        ("sys/fs/cgroup/box/cpu.max", "300000 100000\n", 3),
        ("sys/fs/cgroup/box/inner/cpu.max", "100000 100000\n", 1),
        ("sys/fs/cgroup/other/cpu.max", "100000 100000\n", 4),
    ],
)
def test_the_quota_of_the_group_or_one_above_bounds_the_cores(tmp_path, monkeypatch, name, quota, cores):
    machine = Machine(tmp_path, monkeypatch, FOUR_OF_TWO)
    machine.write("proc/self/cgroup", "0::/box/inner\n")
    machine.write(name, quota)

    assert machine.cores() == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 4), ("200000", 2)])
def test_the_quota_of_the_first_version_of_control_groups_counts_too(tmp_path, monkeypatch, quota, cores):
    machine = Machine(tmp_path, monkeypatch, FOUR_OF_TWO)
    machine.write("proc/self/cgroup", "4:memory:/elsewhere\n1:cpu,cpuacct:/box\n")
    machine.write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", quota)
    machine.write("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000")

    assert machine.cores() == cores


# --- in its process ---------------------------------------------------------------------------------------


PLUG = "from speech.engines.supertonic import ENGINE"


@pytest.mark.slow
def test_it_speaks_in_the_process_of_a_worker(folder, engine, tmp_path):
    environ = plug(tmp_path, "supertonic3", PLUG)
    options = {"model": str(folder), "threads": "1"}

    with EngineHost("supertonic3", options, nice=0, chunk_seconds=10, environ=environ) as host:
        info = host.start()
        clip = np.concatenate(list(host.synthesize(ask())))
        with pytest.raises(UnsupportedText, match="日"):
            list(host.synthesize(ask("日")))
        again = np.concatenate(list(host.synthesize(ask())))

    assert info == engine.info
    assert np.array_equal(clip, speak(engine))
    assert np.array_equal(clip, again)


@pytest.mark.slow
def test_weights_that_were_downloaded_before_need_no_hub(folder, tmp_path):
    environ = plug(tmp_path, "supertonic3", PLUG, HF_HUB_CACHE=str(tmp_path / "hub"))
    options = {"offline": "1", "threads": "1"}
    with (
        EngineHost("supertonic3", options, nice=0, chunk_seconds=10, environ=environ) as host,
        pytest.raises(EngineUnavailable, match=r"cannot be had from the hub \(LocalEntryNotFoundError\)"),
    ):
        host.start()
    shutil.copytree(folder, tmp_path / f"hub/models--Supertone--supertonic-3/snapshots/{REVISION}")

    with EngineHost("supertonic3", options, nice=0, chunk_seconds=10, environ=environ) as host:
        assert host.start().weights == f"{HUB}@{REVISION}"
        assert sum(piece.size for piece in host.synthesize(ask()))
