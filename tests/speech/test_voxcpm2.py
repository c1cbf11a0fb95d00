from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import threading
import wave
import weakref
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from speech.checks import check_clip
from speech.engine import (
    BadOption,
    BadOutput,
    BadReference,
    EngineFailed,
    EngineInfo,
    EngineUnavailable,
    FreesMemory,
    KeepsVoice,
    SynthesisRequest,
    TellsMemory,
    TextTooLong,
    UnknownVoice,
    UnsupportedText,
)
from speech.engines.voxcpm2 import (
    ABOUT,
    ENGINE,
    INSTALL,
    LARGEST_STATE,
    SAMPLE_RATE,
    VoxCpm2Engine,
    VoxCpm2Options,
    _device,
    joint,
    plain,
    prepare_import,
    read_state,
    signs,
    styled,
)
from tests.speech.tiny_voxcpm2 import build

assert ENGINE.missing() is None, ENGINE.missing()
prepare_import()
torch: Any = import_module("torch")

PATCH = 7_680
#: Quick; every test that is not about quality.
QUICK = {"steps": 2}
TEXT = "The quick brown fox jumps."
NEXT = "Over the lazy dog it goes."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a voice that speaks 80 ms for each character."""
    return build(tmp_path_factory.mktemp("voxcpm2") / "paced")


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with a clip whose words are known, and one without."""
    made = tmp_path_factory.mktemp("clips")
    write_clip(made / "anna.wav", hertz=220)
    (made / "anna.txt").write_text("La la la.")
    write_clip(made / "bert.wav", hertz=140, seconds=1.5)
    write_clip(made / "default.wav", hertz=300)
    return made


@pytest.fixture(scope="module")
def voxcpm(folder: Path, clips: Path) -> Iterator[VoxCpm2Engine]:
    """Give the engine with the clips."""
    engine = load(folder, voices_dir=str(clips))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VoxCpm2Engine]:
    """Give an engine whose voice never ends by itself."""
    engine = load(build(tmp_path_factory.mktemp("voxcpm2") / "never", stop="never"))
    yield engine
    engine.close()


def load(folder: Path, *, device: str = "cpu", **options: str) -> VoxCpm2Engine:
    return ENGINE.load({"model": str(folder), "device": device, **options})


def write_clip(path: Path, *, hertz: float, seconds: float = 1.0, rate: int = 24_000) -> None:
    """Write a tone as 16-bit WAV."""
    tone = 8000 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(tone.astype("<i2").tobytes())


def ask(text: str = TEXT, *, seed: int = 1, voice: str = "default", **more: Any) -> SynthesisRequest:
    return SynthesisRequest(text=text, voice=voice, language="en", seed=seed, **{"options": QUICK, **more})


def speak(engine: VoxCpm2Engine, text: str = TEXT, **more: Any) -> np.ndarray:
    return np.concatenate(list(engine.synthesize(ask(text, **more))))


class Calls:
    """What the model was asked for, from here on."""

    def __init__(self, engine: VoxCpm2Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: list[str] = []
        self.prompts: list[Any] = []
        inner = engine._model.tts_model
        self._real = inner.generate_with_prompt_cache_streaming
        monkeypatch.setattr(inner, "generate_with_prompt_cache_streaming", self)

    def __call__(self, **call: Any) -> Any:
        self.texts.append(call["target_text"])
        self.prompts.append(call["prompt_cache"])
        return self._real(**call)


class Ballast:
    """Stands for the tensors of a frame."""


@contextmanager
def little_memory(engine: VoxCpm2Engine, *, positions: int) -> Iterator[list[weakref.ref[Ballast]]]:
    """Let the model run out of memory, as CUDA says it, once it holds `positions`; give what it held then."""
    cache = engine._model.tts_model.base_lm.kv_cache
    real = cache.step
    held = []

    def step() -> int:
        ballast = Ballast()
        held.append(weakref.ref(ballast))
        if cache.current_length >= positions:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return int(real())

    cache.step = step
    try:
        yield held
    finally:
        del cache.step


# What it says


def test_a_text_is_spoken_in_patches_of_160_ms_each_as_soon_as_it_is_decoded(voxcpm):
    pieces = list(voxcpm.synthesize(ask(options={})))

    assert {(piece.dtype, piece.shape) for piece in pieces} == {(np.dtype(np.float32), (PATCH,))}
    assert len(pieces) > 10
    check_clip(np.concatenate(pieces), TEXT, voxcpm.info)


def test_the_first_piece_comes_before_the_rest_is_made(voxcpm, monkeypatch):
    steps = []
    cache = voxcpm._model.tts_model.base_lm.kv_cache
    real = cache.step
    monkeypatch.setattr(cache, "step", lambda: steps.append(1) or real())

    pieces = voxcpm.synthesize(ask())
    next(pieces)
    assert not steps
    pieces.close()


@pytest.mark.parametrize("text", ["Go.", "7", "你好你好。", "Hello 🎉 there.", TEXT * 4])
def test_what_is_spoken_passes_the_clip_check(voxcpm, text):
    check_clip(speak(voxcpm, text), text, voxcpm.info)


def test_the_same_seed_gives_the_same_samples_bit_for_bit_and_another_does_not(voxcpm):
    first = speak(voxcpm, seed=3)
    assert np.array_equal(first, speak(voxcpm, seed=3))
    assert not np.array_equal(first[: 4 * PATCH], speak(voxcpm, seed=4)[: 4 * PATCH])
    assert np.isfinite(speak(voxcpm, seed=2**32 - 1)).all()


def test_a_stream_that_was_closed_midway_leaves_nothing_behind(voxcpm):
    whole = speak(voxcpm)
    pieces = voxcpm.synthesize(ask(NEXT, keeps_voice=True))
    next(pieces)
    next(pieces)
    pieces.close()

    assert voxcpm.voice_state() is None
    assert np.array_equal(speak(voxcpm), whole)


def test_whoever_takes_the_pieces_is_not_in_inference_mode_between_them(voxcpm):
    pieces = voxcpm.synthesize(ask())
    next(pieces)
    assert not torch.is_inference_mode_enabled()
    pieces.close()
    assert not torch.is_inference_mode_enabled()


def test_steps_and_guidance_change_what_is_spoken(voxcpm):
    plainly = speak(voxcpm, options={})
    assert not np.array_equal(plainly, speak(voxcpm, options={"cfg": 1.0}))
    assert not np.array_equal(plainly, speak(voxcpm, options=dict(voxcpm.info.thrift)))


@pytest.mark.parametrize(
    "options", [{"steps": 1}, {"steps": 101}, {"steps": "5"}, {"cfg": 0.0}, {"cfg": 11}, {"depth": 3}]
)
def test_options_out_of_their_range_are_refused_by_name(voxcpm, options):
    with pytest.raises(BadOption, match=next(iter(options))):
        speak(voxcpm, options=options)


def test_texts_and_voices_that_it_does_not_take_are_refused(voxcpm):
    with pytest.raises(UnknownVoice, match="emma"):
        speak(voxcpm, voice="emma")
    with pytest.raises(TextTooLong, match="121 characters"):
        speak(voxcpm, "a" * 121)
    for text in ("...", "🎉", "()", "\ud800a"):
        with pytest.raises(UnsupportedText):
            speak(voxcpm, text)


def until_bad_output(engine: VoxCpm2Engine, text: str) -> list[np.ndarray]:
    """Return what was heard before the call ended as a bad clip."""
    heard: list[np.ndarray] = []
    with pytest.raises(BadOutput, match="had not ended"):
        heard.extend(engine.synthesize(ask(text, keeps_voice=True)))
    return heard


def test_a_voice_that_does_not_end_is_a_bad_clip_after_the_makers_own_measure(endless):
    # The digit, and the space before it.
    assert len(until_bad_output(endless, "7")) == 2 * 6 + 10
    assert endless.voice_state() is None


def test_a_runaway_of_many_tokens_is_longer_than_the_clip_check_believes(endless):
    text = "a" * 60
    with pytest.raises(BadOutput, match="most believable"):
        check_clip(np.concatenate(until_bad_output(endless, text)), text, endless.info)


# Markup


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Hello (there), you.", "Hello (there), you."),
        ("(Applause) Thank you.", "Applause, Thank you."),
        ("(Applause.) Thank you.", "Applause. Thank you."),
        ("(Well), then.", "Well, then."),
        ("(whispering)Hello", "whispering, Hello"),
        ("(whispering", "whispering"),
        ("  ( a (b) c ) d", "a (b) c, d"),
        ("((loud)) Hello", "loud, Hello"),
        ("(a) (b) c", "a, (b) c"),
        ("（低声）你好", "低声, 你好"),
        ("(only this)", "only this"),
        ("()", ""),
        ("() (x) y", "x, y"),
        ("two\n lines\t here", "two lines here"),
        ("a</s>b <s>", "a< /s>b < s>"),
    ],
)
def test_a_text_is_never_read_as_markup_and_keeps_its_words(text, spoken):
    assert plain(text, markup=("</s>", "<s>")) == spoken
    assert plain(spoken, markup=("</s>", "<s>")) == spoken


def test_only_what_cannot_be_text_counts_as_a_sign_of_the_tokenizer():
    assert signs({"<s>": 1, "<|audio_start|>": 101, "a": 5, "word": 6, " ": 7, "▁the": 8}) == (
        "<|audio_start|>",
        "▁the",
        "<s>",
    )


def test_a_parenthesis_in_the_text_and_a_sign_of_the_tokenizer_are_spoken_as_words(voxcpm, monkeypatch):
    calls = Calls(voxcpm, monkeypatch)
    speak(voxcpm, "(Angrily) No</s>!")
    assert calls.texts == ["Angrily, No< /s>!"]
    ids = voxcpm._model.tts_model.text_tokenizer(calls.texts[0])
    assert not {1, 2} & set(ids)


@pytest.mark.parametrize(
    "style", ["a (b", "a) b", "（a", "two\nlines", "bell\x07", "x" * 201, "warm</s>", "two\u2028lines"]
)
def test_a_style_that_could_be_anything_else_is_refused(voxcpm, style):
    with pytest.raises(BadOption, match="style"):
        speak(voxcpm, style=style)


def test_no_style_is_no_parenthesis():
    assert styled(None) == styled("  ") == ""
    assert styled(" a warm voice ") == "(a warm voice)"


def test_words_of_a_prompt_keep_apart_from_the_next_ones():
    assert joint("One.") == "One. "
    assert joint("你好。") == "你好。"


# Voices


def test_a_style_stands_before_every_chunk_and_no_prompt_with_it(voxcpm, monkeypatch):
    speak(voxcpm, keeps_voice=True)
    state = voxcpm.voice_state()
    calls = Calls(voxcpm, monkeypatch)
    first = speak(voxcpm, style="a deep, slow voice", keeps_voice=True)
    assert voxcpm.voice_state() is None
    speak(voxcpm, NEXT, style="a deep, slow voice", keeps_voice=True, voice_state=state)

    assert calls.texts == [f"(a deep, slow voice){TEXT}", f"(a deep, slow voice){NEXT}"]
    assert calls.prompts == [None, None]
    assert not np.array_equal(first[: 4 * PATCH], speak(voxcpm)[: 4 * PATCH])


def test_the_drawn_voice_goes_on_in_another_process_bit_for_bit(voxcpm, folder, tmp_path, monkeypatch):
    speak(voxcpm, keeps_voice=True)
    state = voxcpm.voice_state()
    assert state == voxcpm.voice_state()
    assert 1_000 < len(state) < 20_000
    calls = Calls(voxcpm, monkeypatch)
    here = speak(voxcpm, NEXT, keeps_voice=True, voice_state=state)

    # The first chunk stays the voice for all later ones.
    assert voxcpm.voice_state() is None
    assert calls.prompts[0]["prompt_text"] == f"{TEXT} "
    assert calls.texts == [NEXT]
    shutil.copytree(folder, tmp_path / "copy")
    other = load(tmp_path / "copy")
    assert np.array_equal(speak(other, NEXT, voice_state=state), here)
    assert not np.array_equal(speak(other, NEXT), here)
    other.close()


def test_a_call_that_nobody_asked_to_keep_keeps_nothing(voxcpm):
    speak(voxcpm, keeps_voice=True)
    speak(voxcpm)
    assert voxcpm.voice_state() is None


def test_a_voice_state_is_read_once_for_all_the_chunks_of_a_job(voxcpm, monkeypatch):
    speak(voxcpm, keeps_voice=True, seed=77)
    state = voxcpm.voice_state()
    voxcpm._prompts.clear()
    reads = []
    real = torch.load
    monkeypatch.setattr(torch, "load", lambda *a, **k: reads.append(1) or real(*a, **k))
    for text in (NEXT, TEXT, NEXT):
        speak(voxcpm, text, voice_state=state)
    assert len(reads) == 1


def test_what_goes_on_from_a_prompt_sounds_streamed_as_it_does_whole(voxcpm):
    # The package's stream forgets what its decoder should have heard before.
    speak(voxcpm, keeps_voice=True)
    state = voxcpm.voice_state()
    streamed = speak(voxcpm, NEXT, voice_state=state, seed=9)
    torch.manual_seed(9)
    whole, _, _ = voxcpm._model.tts_model.generate_with_prompt_cache(
        target_text=NEXT,
        prompt_cache=voxcpm._read_state(state),
        max_len=200,
        inference_timesteps=2,
    )
    assert np.abs(streamed - whole[0].numpy()).max() < 1e-4


def test_a_clip_is_a_voice_with_or_without_its_words(voxcpm, monkeypatch):
    calls = Calls(voxcpm, monkeypatch)
    heard = {voice: speak(voxcpm, voice=voice) for voice in ("anna", "bert", "default")}

    assert [voice.id for voice in voxcpm.info.voices] == ["default", "anna", "bert"]
    assert {voice.kind for voice in voxcpm.info.voices[1:]} == {"reference"}
    assert calls.prompts[0]["mode"] == "ref_continuation"
    assert calls.prompts[0]["prompt_text"] == "La la la. "
    assert calls.prompts[1]["mode"] == "reference"
    first = [clip[:PATCH].tobytes() for clip in heard.values()]
    assert len(set(first)) == 3
    assert np.array_equal(speak(voxcpm, voice="anna"), heard["anna"])


def test_a_clip_with_a_style_is_not_gone_on_from(voxcpm, monkeypatch):
    calls = Calls(voxcpm, monkeypatch)
    for text in (TEXT, NEXT):
        speak(voxcpm, text, voice="anna", style="whispering", keeps_voice=True)
    assert voxcpm.voice_state() is None
    assert calls.texts == [f"(whispering){TEXT}", f"(whispering){NEXT}"]
    assert [sorted(prompt) for prompt in calls.prompts] == [["mode", "ref_audio_feat"]] * 2
    assert calls.prompts[0]["mode"] == "reference"


def test_a_clip_is_encoded_once_and_its_voice_state_is_its_own(voxcpm, monkeypatch):
    speak(voxcpm, voice="bert")
    monkeypatch.delattr(type(voxcpm._model.tts_model), "build_prompt_cache")
    speak(voxcpm, NEXT, voice="bert", keeps_voice=True)
    assert voxcpm.voice_state() is None


def test_a_clip_that_has_changed_or_gone_is_refused(folder, tmp_path):
    write_clip(tmp_path / "one.wav", hertz=200)
    write_clip(tmp_path / "two.wav", hertz=200)
    engine = load(folder, voices_dir=str(tmp_path))
    write_clip(tmp_path / "one.wav", hertz=250)
    (tmp_path / "two.wav").unlink()
    for voice in ("one", "two"):
        with pytest.raises(BadReference):
            speak(engine, voice=voice)
    engine.close()


def test_forty_voices_leave_no_more_than_the_limit_in_memory(folder, tmp_path):
    for number in range(40):
        write_clip(tmp_path / f"v{number:02}.wav", hertz=100 + 5 * number)
    engine = load(folder, voices_dir=str(tmp_path), voices_cached="3")
    held = []
    for number in range(40):
        pieces = engine.synthesize(ask("Hi.", voice=f"v{number:02}"))
        next(pieces)
        pieces.close()
        digest = engine._references[f"v{number:02}"].sha256
        held.append(weakref.ref(engine._prompts._kept[digest]["ref_audio_feat"]))
        assert len(engine._prompts) <= 3
    assert [number for number, feature in enumerate(held) if feature() is not None] == [37, 38, 39]
    engine.close()
    assert not len(engine._prompts)


# Voice states from elsewhere


def saved(**changed: Any) -> bytes:
    buffer = io.BytesIO()
    state = {"prompt_text": "Hi. ", "audio_feat": torch.zeros(5, 4, 16), "mode": "continuation"}
    torch.save({name: value for name, value in (state | changed).items() if value is not None}, buffer)
    return buffer.getvalue()


def compressed(state: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(state)) as old, zipfile.ZipFile(buffer, "w") as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry), compress_type=zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def with_nan() -> Any:
    features = torch.zeros(5, 4, 16)
    features[2, 1, 3] = float("nan")
    return features


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"junk" * 100,
        saved()[:-30],
        saved()[:200],
        compressed(saved()),
        bytes(LARGEST_STATE + 1),
        saved(prompt_text=None),
        saved(more=1),
        saved(mode="reference"),
        saved(prompt_text=5),
        saved(prompt_text=" "),
        saved(prompt_text="a" * 1001),
        saved(audio_feat=[1, 2]),
        saved(audio_feat=torch.zeros(5, 4, 16, dtype=torch.float64)),
        saved(audio_feat=torch.zeros(5, 64)),
        saved(audio_feat=torch.zeros(5, 4, 64)),
        saved(audio_feat=torch.zeros(0, 4, 16)),
        saved(audio_feat=torch.zeros(1, 4, 16).expand(10**9, 4, 16)),
        saved(audio_feat=with_nan()),
        saved(audio_feat=torch.full((5, 4, 16), float("inf"))),
        saved(audio_feat=torch.full((5, 4, 16), 1e6)),
    ],
)
def test_a_voice_state_that_is_none_is_refused(voxcpm, state):
    with pytest.raises(BadReference, match="voice state"):
        speak(voxcpm, voice_state=state)


def test_a_voice_state_with_any_byte_changed_is_refused_or_harmless():
    state, random = saved(), np.random.default_rng(5)
    for _ in range(400):
        changed = bytearray(state)
        for place in random.integers(0, len(state), random.integers(1, 4)):
            changed[place] = random.integers(0, 256)
        try:
            prompt = read_state(bytes(changed), patch_size=4, width=16)
        except BadReference:
            continue
        assert prompt["audio_feat"].shape == (5, 4, 16)


# Memory and room


def test_an_error_for_lack_of_memory_leaves_a_voice_that_is_as_before(voxcpm, endless):
    before = speak(voxcpm)
    with little_memory(voxcpm, positions=35) as held:
        with pytest.raises(torch.OutOfMemoryError):
            speak(voxcpm)
        # A shorter text finds room.
        speak(voxcpm, "Hello.")
    assert len(held) > 3
    voxcpm.free()
    assert [ref() for ref in held] == [None] * len(held)
    assert np.array_equal(speak(voxcpm), before)


def test_a_closed_engine_holds_no_model(folder):
    engine = load(folder)
    speak(engine, keeps_voice=True)
    held = [weakref.ref(engine._model.tts_model), weakref.ref(engine._model.tts_model.audio_vae)]
    engine.close()
    assert [ref() for ref in held] == [None, None]


def test_it_tells_its_memory_and_keeps_its_voice(voxcpm):
    assert isinstance(voxcpm, KeepsVoice)
    assert isinstance(voxcpm, FreesMemory)
    assert isinstance(voxcpm, TellsMemory)
    assert voxcpm.device_bytes() == 0


def test_a_text_for_which_there_are_no_positions_is_refused_before_the_model_sees_it(tmp_path, monkeypatch):
    engine = load(build(tmp_path / "small", stop="never", max_length=96))
    calls = Calls(engine, monkeypatch)
    with pytest.raises(TextTooLong, match="the model has 96"):
        speak(engine, "a" * 20)
    assert not calls.texts

    # Were the sum wrong, the model's own errors would say the same.
    engine._positions = 10_000
    for text in ("a" * 20, "a" * 119):
        with pytest.raises(TextTooLong, match="longer than the model"):
            speak(engine, text)
    engine.close()


def test_a_clip_with_far_too_many_words_is_refused(folder, tmp_path):
    write_clip(tmp_path / "long.wav", hertz=200)
    (tmp_path / "long.txt").write_text("word " * 150)
    engine = load(folder, voices_dir=str(tmp_path))
    with pytest.raises(BadReference, match="too long"):
        speak(engine, voice="long")
    engine.close()


# Loading


def test_it_says_what_it_is(voxcpm, folder):
    info = voxcpm.info
    assert EngineInfo.from_json(info.to_json()) == info
    assert (info.name, info.version, info.device, info.dtype) == ("voxcpm2", "2.0.3", "cpu", "float32")
    assert (info.sample_rate, info.weights, info.max_chars) == (SAMPLE_RATE, "paced", 120)
    assert info.deterministic
    assert info.speaks("xx-any")
    assert ENGINE.about is ABOUT
    assert (ABOUT.device, ABOUT.memory_mb, ABOUT.deterministic) == ("cuda", 5300, False)
    assert set(info.options["properties"]) == {"cfg", "steps"}
    assert info.options["additionalProperties"] is False


def test_the_revision_changes_with_weights_and_clips_alone(voxcpm, folder, clips, tmp_path, endless):
    again = load(folder, voices_dir=str(clips), threads="2", max_chars="60")
    assert again.info.revision == voxcpm.info.revision
    assert not again.info.deterministic
    assert again.info.max_chars == 60
    without = load(folder)
    assert len({voxcpm.info.revision, without.info.revision, endless.info.revision}) == 3


def test_nothing_is_written_to_stdout_and_no_progress_bar_anywhere(folder, clips):
    # In a process of its own: tqdm reads its variable where it is first imported.
    source = """
import sys
from speech.engine import SynthesisRequest
from speech.engines.voxcpm2 import ENGINE
engine = ENGINE.load({"model": sys.argv[1], "voices_dir": sys.argv[2], "device": "cpu"})
request = SynthesisRequest(text="Hello there.", voice="anna", language="en", seed=1)
assert sum(len(piece) for piece in engine.synthesize(request))
engine.close()
"""
    command = [sys.executable, "-c", source, str(folder), str(clips)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "it/s" not in done.stderr
    assert "Loading" not in done.stderr


def test_weights_in_bfloat16_and_in_a_pickle_are_read_as_well(folder, voxcpm, tmp_path):
    half = load(build(tmp_path / "half", dtype="bfloat16"))
    assert half.info.dtype == "bfloat16"
    speak(half, keeps_voice=True)
    check_clip(speak(half, NEXT, voice_state=half.voice_state()), NEXT, half.info)

    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, tmp_path / "bin")
    weights = tmp_path / "bin" / "model.safetensors"
    torch.save({"state_dict": load_file(weights)}, weights.with_name("pytorch_model.bin"))
    weights.unlink()
    decoder = tmp_path / "bin" / "audiovae.pth"
    save_file(torch.load(decoder)["state_dict"], decoder.with_name("audiovae.safetensors"))
    decoder.unlink()
    assert np.array_equal(speak(load(tmp_path / "bin")), speak(voxcpm))


def edit_config(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    config = json.loads((path / "config.json").read_text())
    change(config)
    (path / "config.json").write_text(json.dumps(config))


def edit_weights(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(path / "model.safetensors")
    change(weights)
    save_file(weights, path / "model.safetensors")


def edit_decoder(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    state = torch.load(path / "audiovae.pth")["state_dict"]
    change(state)
    torch.save({"state_dict": state}, path / "audiovae.pth")


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


def drop_layer(weights: dict[str, Any]) -> None:
    for name in [name for name in weights if name.startswith("base_lm.layers.1.")]:
        del weights[name]


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "no config": (r"config\.json cannot be read in \w+: No such", lambda p: (p / "config.json").unlink()),
    "config no JSON": (r"config\.json is no JSON", lambda p: (p / "config.json").write_text("{")),
    "config a list": (r"architecture None", lambda p: (p / "config.json").write_text("[]")),
    "first model": (r"architecture 'voxcpm'", lambda p: edit_config(p, lambda c: c.pop("architecture"))),
    "other model": (r"architecture 'x'", lambda p: edit_config(p, lambda c: c.update(architecture="x"))),
    "config short": (r"config\.json: lm_config", lambda p: edit_config(p, lambda c: c.pop("lm_config"))),
    "no weights": (
        r"holds neither model\.safetensors nor pytorch_model\.bin",
        lambda p: (p / "model.safetensors").unlink(),
    ),
    "weights cut": (r"model\.safetensors has \d+ bytes, and", lambda p: cut(p / "model.safetensors", -10)),
    "weights longer": (
        r"model\.safetensors has \d+ bytes, and",
        lambda p: (p / "model.safetensors").write_bytes((p / "model.safetensors").read_bytes() + b"x"),
    ),
    "header cut": (r"model\.safetensors is cut short", lambda p: cut(p / "model.safetensors", 100)),
    "header gone": (r"model\.safetensors is cut short", lambda p: cut(p / "model.safetensors", 5)),
    "header no JSON": (
        r"header of model\.safetensors is damaged",
        lambda p: (p / "model.safetensors").write_bytes((4).to_bytes(8, "little") + b"nope"),
    ),
    "weights no weights": (
        r"model\.safetensors is cut short, or no safetensors",
        lambda p: (p / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n"),
    ),
    "no stop head": (
        r"model\.safetensors lacks 1 tensors: stop_head\.weight$",
        lambda p: edit_weights(p, lambda w: w.pop("stop_head.weight")),
    ),
    "a layer gone": (
        r"lacks 9 tensors: (base_lm\.layers\.1\.[\w.]+, ){5}\.\.\.$",
        lambda p: edit_weights(p, drop_layer),
    ),
    "config of another size": (
        r"tensors of model\.safetensors have another shape",
        lambda p: edit_config(p, lambda c: c["lm_config"].update(vocab_size=600)),
    ),
    "a tensor of another shape": (
        r"1 tensors of model\.safetensors have another shape than by config\.json: stop_proj\.bias",
        lambda p: edit_weights(p, lambda w: w.update({"stop_proj.bias": torch.zeros(3)})),
    ),
    "no decoder": (
        r"holds neither audiovae\.safetensors nor audiovae\.pth",
        lambda p: (p / "audiovae.pth").unlink(),
    ),
    "decoder cut": (r"audiovae\.pth cannot be read", lambda p: cut(p / "audiovae.pth", -2000)),
    "decoder no tensors": (
        r"audiovae\.pth holds no tensors",
        lambda p: torch.save([1, 2], p / "audiovae.pth"),
    ),
    "decoder lacks": (
        r"audiovae\.pth lacks 1 tensors: decoder\.model\.0\.bias",
        lambda p: edit_decoder(p, lambda d: d.pop("decoder.model.0.bias")),
    ),
    "no tokenizer": (r"tokenizer\.json cannot be read", lambda p: (p / "tokenizer.json").unlink()),
    "no tokenizer config": (
        r"tokenizer_config\.json cannot be read",
        lambda p: (p / "tokenizer_config.json").unlink(),
    ),
    "tokenizer no JSON": (r"tokenizer\.json is no JSON", lambda p: cut(p / "tokenizer.json", 1000)),
    "tokenizer of another model": (
        r"tokenizer\.json has the id 363, the model 300",
        lambda p: edit_config(p, lambda c: c["lm_config"].update(vocab_size=300)),
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_by_the_name_of_what_is_wrong(folder, tmp_path, damage):
    said, harm = DAMAGES[damage]
    path = shutil.copytree(folder, tmp_path / "folder")
    harm(path)
    with pytest.raises(EngineUnavailable, match=said):
        load(path)


def test_tensors_beyond_those_that_the_model_needs_may_be_there_or_not(folder, tmp_path, voxcpm):
    path = shutil.copytree(folder, tmp_path / "folder")
    edit_weights(path, lambda weights: weights.update(spare=torch.zeros(3)))
    edit_decoder(path, lambda decoder: decoder.pop("decoder.sr_bin_boundaries"))
    assert np.array_equal(speak(load(path)), speak(voxcpm))


@pytest.mark.parametrize(
    "model", ["/nowhere/at/all", "./nowhere", "~/nowhere", "C:\\voices", "a/b/c", "nowhere"]
)
def test_a_folder_that_is_not_there_is_not_asked_of_the_hub(model, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with pytest.raises(EngineUnavailable, match="there is no folder"):
        ENGINE.load({"model": model, "device": "cpu"})


def test_a_file_in_place_of_the_folder_is_refused(folder):
    with pytest.raises(EngineUnavailable, match="is a file"):
        ENGINE.load({"model": str(folder / "model.safetensors"), "device": "cpu"})


def test_weights_that_were_never_downloaded_are_refused_offline_with_the_way_to_get_them():
    with pytest.raises(EngineUnavailable, match=r"hf download nobody/no-such-voice --local-dir DIR"):
        ENGINE.load({"model": "nobody/no-such-voice", "device": "cpu", "offline": "true"})


def test_weights_from_the_hub_are_named_by_their_commit(folder, tmp_path, monkeypatch):
    import huggingface_hub

    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = shutil.copytree(folder, tmp_path / "snapshots" / commit)
    asked = []

    def download(repository: str, **options: Any) -> str:
        asked.append((repository, options))
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    engine = ENGINE.load({"model": "openbmb/VoxCPM2", "revision": "main", "device": "cpu"})
    assert engine.info.weights == f"openbmb/VoxCPM2@{commit}"
    ((repository, options),) = asked
    assert (repository, options["revision"], options["local_files_only"]) == (
        "openbmb/VoxCPM2",
        "main",
        False,
    )


@pytest.mark.parametrize(
    "option",
    [{"device": "cuda:0"}, {"threads": "0"}, {"memory_fraction": "0"}, {"max_chars": "9"}, {"fast": "1"}],
)
def test_an_option_out_of_its_range_is_refused_by_name(folder, option):
    with pytest.raises(EngineUnavailable, match=next(iter(option))):
        ENGINE.load({"model": str(folder), "device": "cpu"} | option)


def test_a_folder_of_clips_that_is_not_there_is_refused(folder, tmp_path):
    with pytest.raises(EngineUnavailable, match="folder of reference voices"):
        load(folder, voices_dir=str(tmp_path / "none"))


def test_what_is_not_installed_is_named_with_the_remedy(folder, tmp_path, monkeypatch):
    assert ENGINE.missing() is None
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "einops", None)
        assert ENGINE.missing() == INSTALL
        with pytest.raises(EngineUnavailable, match="not installed: pip install"):
            load(folder)
    metadata = tmp_path / "voxcpm-2.0.4.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: voxcpm\nVersion: 2.0.4\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EngineUnavailable, match=r"voxcpm 2\.0\.4 is installed, 2\.0\.3 is needed"):
        load(folder)


def a_torch(*, gpu: bool) -> Any:
    return SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: gpu))


def test_the_gpu_is_taken_by_the_one_name_under_which_the_package_compiles():
    assert _device(VoxCpm2Options(), a_torch(gpu=True)) == "cuda"
    assert _device(VoxCpm2Options(), a_torch(gpu=False)) == "cpu"
    assert _device(VoxCpm2Options(device="cpu"), a_torch(gpu=True)) == "cpu"
    with pytest.raises(EngineUnavailable, match="no GPU"):
        _device(VoxCpm2Options(device="cuda"), a_torch(gpu=False))
    with pytest.raises(EngineUnavailable, match="memory_fraction"):
        _device(VoxCpm2Options(memory_fraction=0.5), a_torch(gpu=False))


def test_it_is_compiled_on_the_main_thread_alone():
    said: list[str] = []

    def elsewhere(options: VoxCpm2Options) -> None:
        try:
            said.append(_device(options, a_torch(gpu=True)))
        except EngineUnavailable as error:
            said.append(str(error))

    for options in (VoxCpm2Options(), VoxCpm2Options(optimize=False), VoxCpm2Options(device="cpu")):
        thread = threading.Thread(target=elsewhere, args=(options,))
        thread.start()
        thread.join()
    assert "main thread" in said[0]
    assert said[1:] == ["cuda", "cpu"]


def test_the_environment_is_set_before_torch_reads_it_and_what_was_set_stays():
    environ = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}
    prepare_import(environ)
    assert environ == {
        "PYTORCH_ALLOC_CONF": "max_split_size_mb:64",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TQDM_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def test_a_torchaudio_that_cannot_be_loaded_is_no_obstacle(folder, tmp_path):
    broken = tmp_path / "torchaudio"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise OSError('libc10_cuda.so: cannot open shared object file')")
    program = (
        "import sys\n"
        "from speech.engines.voxcpm2 import ENGINE\n"
        "assert not {'torch', 'voxcpm', 'transformers'} & set(sys.modules)\n"
        f"engine = ENGINE.load({{'model': {str(folder)!r}, 'device': 'cpu'}})\n"
        "print(engine.info.name)\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.stdout, run.returncode) == ("voxcpm2\n", 0), run.stderr


# With an accelerator


@pytest.fixture
def gpu() -> None:
    """Skip where there is none: no computer of the CI has one."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")


@pytest.mark.gpu
def test_a_gpu_that_is_full_is_an_error_after_which_the_voice_goes_on(gpu, folder, tmp_path):
    write_clip(tmp_path / "long.wav", hertz=200, seconds=59)
    engine = load(folder, device="cuda", optimize="false", voices_dir=str(tmp_path), memory_fraction="0.9")
    before = speak(engine)
    held = engine.device_bytes()
    assert held > 0
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        # 59 s at 16 kHz are 15 MB for each of the encoder's layers.
        torch.cuda.set_per_process_memory_fraction((held + 8 * 1024 * 1024) / total)
        with pytest.raises(torch.OutOfMemoryError):
            speak(engine, voice="long")
        engine.free()
        assert engine.device_bytes() <= held + 8 * 1024 * 1024
        assert len(speak(engine)) == len(before)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        engine.close()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_compiled_voice_speaks_as_the_other_and_refuses_another_thread(gpu, folder):
    plain_engine = load(folder, device="cuda", optimize="false")
    engine = load(folder, device="cuda")
    assert hasattr(engine._model.tts_model, "_feat_encoder_raw")
    assert engine.info.device == "cuda"
    assert not engine.info.deterministic
    first = speak(engine, keeps_voice=True, options={})
    state = engine.voice_state()
    check_clip(first, TEXT, engine.info)
    check_clip(speak(engine, NEXT, voice_state=state, options={}), NEXT, engine.info)
    assert abs(len(first) - len(speak(plain_engine, options={}))) <= 2 * PATCH

    refused: list[BaseException] = []

    def elsewhere() -> None:
        try:
            speak(engine)
        except EngineFailed as error:
            refused.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert refused
