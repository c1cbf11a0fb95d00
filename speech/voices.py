"""Reference clips: a folder of `name.wav`, each with an optional `name.txt`, as voices to speak in."""

from __future__ import annotations

import hashlib
import logging
import re
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from speech.audio import Samples
from speech.engine import BadReference

#: Shorter ones hold too little of a voice; longer ones cost memory in every call and sound no better.
SHORTEST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 60.0
#: -40 dBFS: a microphone that was off.
QUIETEST_PEAK: Final = 0.01
LARGEST_BYTES: Final = 64 * 1024 * 1024
LONGEST_TRANSCRIPT: Final = 2000
MOST_VOICES: Final = 1000
#: It becomes the id of a voice.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

log = logging.getLogger("voxfleet.engine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A clip of a speaker."""

    #: The file's name without its suffix.
    id: str
    path: Path
    #: What is said in it, word for word; None where nobody wrote it down.
    transcript: str | None
    seconds: float
    #: Of the clip and its transcript, lower-case hex: changes with either.
    sha256: str


def references(
    folder: Path | None, *, shortest: float = SHORTEST_SECONDS, longest: float = LONGEST_SECONDS
) -> tuple[Reference, ...]:
    """Return the usable reference clips of a folder by name; those that are not are named in the log.

    Files whose names begin with `_` or `.` are left out.

    Args:
        folder: None has none.
        shortest: seconds that a clip must last, for this engine.
        longest: seconds that it may last.

    Raises:
        BadReference: the folder cannot be read.
    """
    if folder is None:
        return ()
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".wav")
    except OSError as error:
        raise BadReference(f"the folder of reference voices cannot be read: {error.strerror}") from error
    found: dict[str, Reference] = {}
    for path in paths:
        if path.name.startswith(("_", ".")):
            continue
        try:
            voice = reference(path, shortest=shortest, longest=longest)
        except BadReference as error:
            log.warning("voice %s is left out: %s", path.name, error)
            continue
        if len(found) == MOST_VOICES:
            log.warning("voice %s and those after it are left out: %d are taken", path.name, MOST_VOICES)
            break
        found.setdefault(voice.id, voice)
    return tuple(found.values())


def reference(path: Path, *, shortest: float, longest: float) -> Reference:
    """Read and judge one clip.

    Raises:
        BadReference: with what is wrong with it.
    """
    if not _NAME.fullmatch(path.stem):
        raise BadReference("its name must be 1 to 64 letters, digits, dots, _ or -")
    try:
        body = path.read_bytes() if path.stat().st_size <= LARGEST_BYTES else None
        transcript = _transcript(path.with_suffix(".txt"))
    except OSError as error:
        raise BadReference(f"it cannot be read: {error.strerror}") from error
    if body is None:
        raise BadReference(f"it is larger than {LARGEST_BYTES} bytes")
    samples, rate = read_wav(path)
    seconds = len(samples) / rate
    if not shortest <= seconds <= longest:
        raise BadReference(f"it lasts {seconds:.1f} s; {shortest:g} to {longest:g} s are taken")
    if float(np.abs(samples).max()) < QUIETEST_PEAK:
        raise BadReference("it is silent")
    digest = hashlib.sha256(body + b"\0" + (transcript or "").encode()).hexdigest()
    return Reference(id=path.stem, path=path, transcript=transcript, seconds=seconds, sha256=digest)


def read_wav(path: Path) -> tuple[Samples, int]:
    """Return the sound of a PCM WAV file, its channels mixed, and its rate in Hz.

    Raises:
        BadReference: it is none, or it is cut short.
    """
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate, count = file.getparams()[:4]
            pcm = file.readframes(count)
    except (wave.Error, EOFError, OSError, RuntimeError, ValueError) as error:
        raise BadReference(
            f"it is no PCM WAV file ({error}); `ffmpeg -i IN -c:a pcm_s16le OUT.wav` makes one"
        ) from error
    if not rate or not channels or width not in (1, 2, 3, 4) or len(pcm) < count * channels * width:
        raise BadReference("it is damaged or cut short")
    raw = np.frombuffer(pcm, np.uint8).reshape(-1, width)
    if width == 1:
        whole = (raw[:, 0].astype(np.float32) - 128) / 128
    else:
        # The upper bytes of a 32-bit number, so that its sign is right.
        padded = np.zeros((len(raw), 4), np.uint8)
        padded[:, 4 - width :] = raw
        whole = (padded.reshape(-1).view("<i4") / 2147483648.0).astype(np.float32)
    return whole.reshape(-1, channels).mean(axis=1, dtype=np.float32), rate


def _transcript(path: Path) -> str | None:
    """Return what a clip says, or None where nobody wrote it down."""
    if not path.exists():
        return None
    try:
        text = " ".join(path.read_text(encoding="utf-8-sig").split())
    except UnicodeDecodeError as error:
        raise BadReference(f"{path.name} is not UTF-8") from error
    if len(text) > LONGEST_TRANSCRIPT:
        raise BadReference(f"{path.name} has more than {LONGEST_TRANSCRIPT} characters")
    return text or None
