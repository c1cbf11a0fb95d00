"""Finding ffmpeg, and asking it whether it can do what we need."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from dataclasses import dataclass
from typing import Final

_REMEDY: Final = (
    "install it with `apt-get install ffmpeg` or `pip install imageio-ffmpeg`, "
    "or name its path in VOXFLEET_FFMPEG"
)
#: The real work takes a tenth of this; a cold disk may take the rest.
_PATIENCE_S: Final = 30
#: A tenth of a second of silence, 24 kHz f32le mono.
_SILENCE: Final = bytes(4 * 2400)


class FfmpegMissing(Exception):
    """No ffmpeg could be found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an ffmpeg has shown that it can do."""

    #: First word after `ffmpeg version`; empty if it does not run.
    version: str
    #: Resampling by libsoxr.
    soxr: bool
    #: Encoding by libmp3lame.
    mp3: bool


def find(configured: str | None = None) -> str:
    """Return the path of ffmpeg: the configured one, else the one on PATH, else that of `imageio-ffmpeg`.

    Raises:
        FfmpegMissing: with the remedies.
    """
    if configured:
        if path := shutil.which(configured):
            return path
        raise FfmpegMissing(f"VOXFLEET_FFMPEG names no program: {configured!r}; correct it, or {_REMEDY}")
    if path := shutil.which("ffmpeg"):
        return path
    try:
        bundled = importlib.import_module("imageio_ffmpeg")
        return str(bundled.get_ffmpeg_exe())
    except (ImportError, RuntimeError) as error:  # RuntimeError: the package came without its binary
        raise FfmpegMissing(f"ffmpeg was not found: {_REMEDY}") from error


def capabilities(path: str) -> Capabilities:
    """Try out what an ffmpeg can do: names in its lists of parts do not prove that they work.

    Raises:
        FfmpegMissing: it cannot be started.
    """
    said = _run(path, "-version").stdout.decode(errors="replace").split()
    version = said[2] if said[:2] == ["ffmpeg", "version"] and len(said) > 2 else ""
    source = ("-f", "f32le", "-ar", "24000", "-ac", "1", "-i", "pipe:0")
    soxr = _run(path, *source, "-af", "aresample=44100:resampler=soxr", "-f", "s16le", "pipe:1")
    mp3 = _run(path, *source, "-c:a", "libmp3lame", "-f", "mp3", "pipe:1")
    return Capabilities(version=version, soxr=_gave_sound(soxr), mp3=_gave_sound(mp3))


def problems(path: str) -> list[str]:
    """Return what keeps this ffmpeg from encoding our audio, one sentence each; empty if nothing."""
    try:
        able = capabilities(path)
    except FfmpegMissing as error:
        return [str(error)]
    if not able.version:
        return [f"{path} does not run as ffmpeg: {_REMEDY}"]
    needs = (("libsoxr", able.soxr), ("libmp3lame", able.mp3))
    return [
        f"{path} ({able.version}) lacks a working {part}: {_REMEDY}" for part, works in needs if not works
    ]


def _run(path: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [path, "-hide_banner", "-loglevel", "error", *arguments]
    try:
        return subprocess.run(command, input=_SILENCE, capture_output=True, timeout=_PATIENCE_S, check=False)
    except OSError as error:
        raise FfmpegMissing(f"{path} cannot be started ({error.strerror}): {_REMEDY}") from error
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, returncode=-1, stdout=b"", stderr=b"")


def _gave_sound(process: subprocess.CompletedProcess[bytes]) -> bool:
    return process.returncode == 0 and len(process.stdout) > 0
