"""Reference clips from a folder: what is taken, what is left out, and why."""

from __future__ import annotations

import logging
import struct
import wave
from pathlib import Path

import numpy as np
import pytest

from speech.engine import BadReference
from speech.voices import read_wav, references


def write(
    path: Path,
    *,
    seconds: float = 2.0,
    rate: int = 16_000,
    channels: int = 1,
    width: int = 2,
    level: float = 0.5,
) -> np.ndarray:
    sound = level * np.sin(np.arange(int(seconds * rate)) / rate * 2 * np.pi * 220)
    if width == 1:
        whole = (sound * 127 + 128).astype(np.uint8).reshape(-1, 1)
    else:
        top = np.round(sound * (2 ** (8 * width - 1) - 1)).astype("<i4").reshape(-1, 1)
        whole = top.view(np.uint8)[:, :width]
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        file.writeframes(np.repeat(whole, channels, axis=0).tobytes())
    return sound


def test_clips_are_voices_by_their_names_with_what_they_say(tmp_path: Path) -> None:
    write(tmp_path / "ben.wav")
    write(tmp_path / "anna.WAV", seconds=3)
    (tmp_path / "ben.txt").write_text("﻿Good  morning,\n  everyone. ", encoding="utf-8")
    write(tmp_path / "_draft.wav")
    write(tmp_path / ".hidden.wav")
    (tmp_path / "notes.md").write_text("x")

    anna, ben = references(tmp_path)

    assert (anna.id, anna.transcript, anna.seconds) == ("anna", None, 3.0)
    assert (ben.id, ben.transcript) == ("ben", "Good morning, everyone.")
    assert references(None) == ()


def test_the_digest_changes_with_the_clip_and_with_its_words(tmp_path: Path) -> None:
    write(tmp_path / "a.wav")
    (first,) = references(tmp_path)
    (tmp_path / "a.txt").write_text("words")
    (second,) = references(tmp_path)
    write(tmp_path / "a.wav", level=0.4)
    (third,) = references(tmp_path)

    assert len({first.sha256, second.sha256, third.sha256}) == 3


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_pcm_of_every_width_is_read_and_mixed_to_mono(tmp_path: Path, width: int, channels: int) -> None:
    sound = write(tmp_path / "a.wav", width=width, channels=channels)

    samples, rate = read_wav(tmp_path / "a.wav")

    assert rate == 16_000
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples, sound, atol=1.5 / 127 if width == 1 else 1e-4)


def float_wav(path: Path) -> None:
    body = np.zeros(16_000, "<f4").tobytes()
    coding = struct.pack("<IHHIIHH", 16, 3, 1, 16_000, 64_000, 4, 32)
    head = b"RIFF" + struct.pack("<I", 36 + len(body)) + b"WAVE" + b"fmt " + coding
    path.write_bytes(head + b"data" + struct.pack("<I", len(body)) + body)


BAD = {
    "too short": (lambda p: write(p, seconds=0.5), "0.5 s"),
    "too long": (lambda p: write(p, seconds=61, rate=8_000), "61.0 s"),
    "silent": (lambda p: write(p, level=0.001), "silent"),
    "floats": (float_wav, "pcm_s16le"),
    "no WAV": (lambda p: p.write_bytes(b"ID3\x04 not a wav"), "no PCM WAV"),
    "empty": (lambda p: p.write_bytes(b""), "no PCM WAV"),
    "cut": (lambda p: (write(p), p.write_bytes(p.read_bytes()[:-1000])), "cut short"),
    "no UTF-8": (lambda p: (write(p), p.with_suffix(".txt").write_bytes(b"\xff\xfe\xfa")), "UTF-8"),
    "a long transcript": (lambda p: (write(p), p.with_suffix(".txt").write_text("a" * 2001)), "2000"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_clip_that_cannot_be_used_is_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    make, words = BAD[kind]
    make(tmp_path / "bad.wav")
    write(tmp_path / "good.wav")

    with caplog.at_level(logging.WARNING):
        found = references(tmp_path)

    assert [voice.id for voice in found] == ["good"]
    assert "bad.wav" in caplog.text
    assert words in caplog.text


@pytest.mark.parametrize("name", ["with space.wav", "ü.wav", "a" * 65 + ".wav"])
def test_a_name_that_cannot_be_a_voice_is_left_out(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)

    assert references(tmp_path) == ()


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadReference, match="folder"):
        references(tmp_path / "nowhere")


def test_an_engine_may_want_longer_clips(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", seconds=4)

    assert references(tmp_path, shortest=5.1) == ()
