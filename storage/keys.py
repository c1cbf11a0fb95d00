"""Where things lie in the bucket.

    audio/{1d|7d|31d}/{job}/{epoch}.{ext}     published audio, under the class of its life
    staged/{job}/{epoch}-{seq}-{random}       one clip, until its job is published
    staged/{job}/{epoch}-voice-{sha256}       the engine's voice state that its clips go on with

A key carries the epoch of the attempt that wrote it, so a fenced attempt can never overwrite the audio
of the one that replaced it. The lifecycle rules of the bucket go by the prefixes (see `storage.lifecycle`).
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import Final, Literal

AudioClass = Literal["1d", "7d", "31d"]

DAY_SECONDS: Final = 86_400
#: Days that each class promises to keep an object, shortest first.
AUDIO_CLASSES: Final[dict[AudioClass, int]] = {"1d": 1, "7d": 7, "31d": 31}

AUDIO_PREFIX: Final = "audio/"
STAGED_PREFIX: Final = "staged/"

#: One level of a key: no slash, no dot, nothing that a URL or a file system would read otherwise.
_SEGMENT: Final = re.compile(r"[A-Za-z0-9_-]+")


def audio_class(expires_in_seconds: float) -> AudioClass:
    """Return the smallest class that does not delete before `expires_in_seconds` have passed.

    Raises:
        ValueError: not above zero, or longer than the largest class.
    """
    if expires_in_seconds > 0:
        for name, days in AUDIO_CLASSES.items():
            if expires_in_seconds <= days * DAY_SECONDS:
                return name
    raise ValueError(f"no class keeps an object for {expires_in_seconds} s; allowed are 1 s to 31 days")


def audio_class_prefix(name: AudioClass) -> str:
    """Return the prefix of everything in one class."""
    return f"{AUDIO_PREFIX}{name}/"


def audio_key(job_id: str, *, epoch: int, extension: str, expires_in: float) -> str:
    """Return the key of a job's published audio.

    Args:
        job_id: the job's id.
        epoch: the attempt that publishes it.
        extension: of the container, without a dot (`mp3`).
        expires_in: seconds until the API stops giving it out; chooses the class.

    Raises:
        ValueError: an id or extension that cannot be part of a key, a negative epoch, or see `audio_class`.
    """
    prefix = audio_class_prefix(audio_class(expires_in))
    return f"{prefix}{_segment(job_id)}/{_count(epoch)}.{_segment(extension)}"


def staged_key(job_id: str, *, epoch: int, seq: int) -> str:
    """Return a new key for clip `seq` of a job: two calls never return the same one.

    Raises:
        ValueError: an id that cannot be part of a key, or a negative number.
    """
    return f"{staged_prefix(job_id)}{_count(epoch)}-{_count(seq)}-{secrets.token_hex(8)}"


def voice_state_key(job_id: str, *, epoch: int, body: bytes) -> str:
    """Return the key of an engine's voice state, which says what its body must be.

    Raises:
        ValueError: an id that cannot be part of a key, or a negative epoch.
    """
    return f"{staged_prefix(job_id)}{_count(epoch)}-voice-{hashlib.sha256(body).hexdigest()}"


def is_voice_state(key: str, body: bytes) -> bool:
    """Whether `body` is what was stored under a `voice_state_key`."""
    return key.endswith(f"-voice-{hashlib.sha256(body).hexdigest()}")


def staged_prefix(job_id: str) -> str:
    """Return the prefix of all clips of one job, and of no other.

    Raises:
        ValueError: an id that cannot be part of a key.
    """
    return f"{STAGED_PREFIX}{_segment(job_id)}/"


def _segment(text: str) -> str:
    if not _SEGMENT.fullmatch(text):
        raise ValueError(f"{text!r} cannot be part of a key: letters, digits, _ and - only")
    return text


def _count(number: int) -> int:
    if number < 0:
        raise ValueError(f"{number} cannot be part of a key: it counts from zero")
    return number
