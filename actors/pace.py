"""How fast an engine or an encoder is: measured, recent work counting most."""

from __future__ import annotations

import threading
from typing import Final

#: What one piece of work leaves of the weight of those before it: the last twenty or so count.
_KEPT: Final = 0.95
#: How many times as long as usual a chunk may take before it hangs, and how long in any case: a machine that
#: is busy with other things slows down as much.
_SLACK: Final = 12.0
_LEAST_SECONDS: Final = 20.0


class Pace:
    """Processing seconds per code point and per second of audio. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = self._characters = self._audio_seconds = 0.0

    def made(self, *, seconds: float, audio_seconds: float, characters: int = 0) -> None:
        """Count one piece of work.

        Args:
            seconds: how long it took.
            audio_seconds: how long it sounds.
            characters: code points of its text, where it has one.
        """
        with self._lock:
            self._seconds = _KEPT * self._seconds + seconds
            self._characters = _KEPT * self._characters + characters
            self._audio_seconds = _KEPT * self._audio_seconds + audio_seconds

    @property
    def rtf(self) -> float | None:
        """Processing seconds per second of audio, or None before the first piece."""
        with self._lock:
            return self._seconds / self._audio_seconds if self._audio_seconds else None

    @property
    def seconds_per_char(self) -> float | None:
        """Processing seconds per code point, or None before the first text."""
        with self._lock:
            return self._seconds / self._characters if self._characters else None

    def limit(self, characters: int) -> float | None:
        """Return after how many seconds a chunk can be taken to hang; None before the first piece."""
        usual = self.seconds_per_char
        return None if usual is None else max(_LEAST_SECONDS, _SLACK * usual * characters)
