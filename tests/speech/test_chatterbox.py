"""The chatterbox-turbo engine over a stand-in of its package: what we ask of it, not how it sounds.

The real package pins torch 2.6 and cannot be installed beside the others; nothing here shows that it speaks.
"""

from __future__ import annotations

import sys
import types
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from speech.engine import (
    BadOption,
    BadOutput,
    BadReference,
    EngineUnavailable,
    SynthesisRequest,
    TextTooLong,
    UnknownVoice,
    UnsupportedText,
)
from speech.engines import chatterbox, packages
from speech.engines.chatterbox import ENGINE, FILES, ChatterboxEngine

from .test_voices import write


class Conditionals:
    """What a voice is made into."""

    def __init__(self, of: str) -> None:
        self.of = of


class Turbo:
    """`chatterbox.tts_turbo.ChatterboxTurboTTS`, as far as it is called."""

    sr = 24_000

    def __init__(self, folder: str, device: str) -> None:
        self.folder, self.device = folder, device
        self.conds: Conditionals | None = (
            Conditionals("own") if (Path(folder) / "conds.pt").exists() else None
        )
        self.calls: list[dict[str, Any]] = []
        self.prepared: list[str] = []

    @classmethod
    def from_local(cls, ckpt_dir: str, device: str) -> Turbo:
        return cls(ckpt_dir, device)

    def prepare_conditionals(self, wav_fpath: str) -> None:
        assert "bad" not in wav_fpath, "Audio prompt must be longer than 5 seconds!"
        self.prepared.append(Path(wav_fpath).stem)
        self.conds = Conditionals(Path(wav_fpath).stem)

    def generate(
        self,
        text: str,
        repetition_penalty: float = 1.2,
        min_p: float = 0.0,
        top_p: float = 0.95,
        audio_prompt_path: str | None = None,
        exaggeration: float = 0.0,
        cfg_weight: float = 0.0,
        temperature: float = 0.8,
        top_k: int = 1000,
        norm_loudness: bool = True,
    ) -> torch.Tensor:
        assert self.conds is not None
        assert torch.is_inference_mode_enabled()
        self.calls.append({"text": text, "voice": self.conds.of, "temperature": temperature, "top_k": top_k})
        seconds = 40.0 if "endless" in text else 0.07 * len(text)
        return torch.rand(1, int(seconds * self.sr)) - 0.5


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("chatterbox.tts_turbo")
    module.ChatterboxTurboTTS = Turbo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "chatterbox", types.ModuleType("chatterbox"))
    monkeypatch.setitem(sys.modules, "chatterbox.tts_turbo", module)
    monkeypatch.setattr(chatterbox, "find_spec", lambda name: object())
    monkeypatch.setattr(packages, "version", lambda name: "0.1.7")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    for name in (*FILES, "conds.pt"):
        (model / name).write_bytes(name.encode())
    (tmp_path / "voices").mkdir()
    return model


def load(folder: Path, **options: str) -> ChatterboxEngine:
    return ENGINE.load(
        {"model": str(folder), "device": "cpu", "voices_dir": str(folder.parent / "voices"), **options}
    )


def speak(
    engine: ChatterboxEngine, text: str, *, voice: str = "default", seed: int = 1, **options: Any
) -> Any:
    request = SynthesisRequest(text=text, voice=voice, language="en", seed=seed, options=options)
    return np.concatenate([*engine.synthesize(request)])


def test_it_speaks_in_its_own_voice_and_repeats_with_its_seed(folder: Path) -> None:
    engine = load(folder)

    first = speak(engine, "Hello there [laugh].")

    assert first.dtype == np.float32
    assert np.array_equal(first, speak(engine, "Hello there [laugh]."))
    assert not np.array_equal(first, speak(engine, "Hello there [laugh].", seed=2))
    assert engine.info.sample_rate == 24_000
    assert engine.info.watermark == "Perth"


def test_a_voice_is_prepared_once_and_the_least_used_is_let_go(folder: Path) -> None:
    for name in ("anna", "ben", "cleo"):
        write(folder.parent / "voices" / f"{name}.wav", seconds=6)
    write(folder.parent / "voices" / "short.wav", seconds=4)
    engine = load(folder, voices_cached="2")
    model = engine._model

    assert [voice.id for voice in engine.info.voices] == ["default", "anna", "ben", "cleo"]
    for voice in ("anna", "ben", "anna", "default", "anna"):
        speak(engine, "Hello.", voice=voice)
    gone = weakref.ref(engine._ready["ben"])
    speak(engine, "Hello.", voice="cleo")

    assert model.prepared == ["anna", "ben", "cleo"]
    assert [call["voice"] for call in model.calls] == ["anna", "ben", "anna", "own", "anna", "cleo"]
    assert gone() is None
    assert speak(engine, "Hello.", voice="ben") is not None
    assert model.prepared[-1] == "ben"


def test_audio_as_long_as_its_limit_was_cut_off_and_is_refused(folder: Path) -> None:
    with pytest.raises(BadOutput, match="cut off"):
        speak(load(folder), "An endless story.")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"voice": "nobody"}, UnknownVoice),
        ({"text": "a" * 301}, TextTooLong),
        ({"text": "…"}, UnsupportedText),
        ({"temperature": 9}, BadOption),
        ({"cfg_weight": 0.5}, BadOption),
        ({"voice": "bad"}, BadReference),
    ],
)
def test_what_it_cannot_do_is_refused(folder: Path, change: dict[str, Any], error: type[Exception]) -> None:
    write(folder.parent / "voices" / "bad.wav", seconds=6)

    with pytest.raises(error):
        speak(load(folder), **{"text": "Hello.", **change})


def test_options_reach_the_model(folder: Path) -> None:
    engine = load(folder)
    speak(engine, "Hello.", temperature=0.5, top_k=50)

    assert engine._model.calls[-1]["temperature"] == 0.5
    assert engine._model.calls[-1]["top_k"] == 50
    assert engine.device_bytes() == 0
    engine.free()


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()

    with pytest.raises(EngineUnavailable, match=name):
        load(folder)


def test_without_any_voice_it_is_of_no_use(folder: Path) -> None:
    (folder / "conds.pt").unlink()

    with pytest.raises(EngineUnavailable, match="no voice"):
        load(folder)


def test_another_version_or_no_folder_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineUnavailable, match="VOXFLEET_ENGINE_CHATTERBOX_TURBO_MODEL"):
        ENGINE.load({})
    monkeypatch.setattr(packages, "version", lambda name: "0.1.6")
    with pytest.raises(EngineUnavailable, match=r"0\.1\.6"):
        load(folder)


def test_a_gpu_that_is_not_there_is_named(folder: Path) -> None:
    if torch.cuda.is_available():
        return
    with pytest.raises(EngineUnavailable, match="cuda"):
        load(folder, device="cuda")
