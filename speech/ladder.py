"""What to do when an engine runs out of memory. Pure: the actor asks, and acts.

Every piece of text climbs by itself: it is tried again after everything that can be freed is free, cut in two
down to some twenty characters, spoken with the options that spare memory, and spoken by a fresh child, whose
device is empty. What still does not fit does not fit.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Final

#: Shorter pieces make neural engines babble, and need hardly less memory.
FLOOR_CHARS: Final = 20
#: A learned limit is raised after so many calls near it went well, by so much.
RAISE_AFTER: Final = 8
RAISE_FACTOR: Final = 1.25
#: What "near it" is.
NEAR: Final = 0.75


class Rung(StrEnum):
    """What was tried, in this order."""

    #: Freed what the failed call held, and called again.
    RETRIED = "retried"
    #: Cut in two.
    SPLIT = "split"
    #: Spoken with the engine's own options that spare memory: audibly worse.
    SPARED = "spared"
    #: Spoken by a fresh child.
    RESTARTED = "restarted"
    #: Given to another engine, as a whole.
    HANDED_OVER = "handed_over"
    #: Replaced by the notice, for somebody who listens.
    NOTICE = "notice"


def climb(tried: Collection[Rung], *, chars: int, can_spare: bool) -> Rung | None:
    """Return what to do with a piece for which there was too little memory; None when nothing is left that
    this worker could do.

    Args:
        tried: what was done for it before, and for the piece that it was cut from.
        chars: its length in code points.
        can_spare: whether the engine has options that spare memory.
    """
    if Rung.RETRIED not in tried:
        return Rung.RETRIED
    if chars > FLOOR_CHARS:
        return Rung.SPLIT
    if can_spare and Rung.SPARED not in tried:
        return Rung.SPARED
    if Rung.RESTARTED not in tried:
        return Rung.RESTARTED
    return None


def half(chars: int) -> int:
    """Return the longest piece that a text of `chars` code points is cut into; the best border may lie a
    little beside the middle.
    """
    return max(FLOOR_CHARS, -(-chars * 5 // 8))


class Learned:
    """How long a text may be for the memory there is: lowered at once, raised slowly. One thread writes."""

    def __init__(self) -> None:
        self._limit: int | None = None
        self._worked = 0
        self._near = 0

    @property
    def limit(self) -> int | None:
        """In code points; None while the engine's own limit holds."""
        return self._limit

    def within(self, most: int) -> int:
        """Return the longest text to ask for, where the engine takes `most` code points."""
        return most if self._limit is None else min(most, self._limit)

    def too_long(self, chars: int) -> None:
        """Note that a text was cut because there was too little memory for it."""
        if self._worked >= chars:
            # It worked once, when there was more memory.
            self._worked = 0
        fits = max(FLOOR_CHARS, self._worked, chars // 2)
        self._limit = fits if self._limit is None else min(self._limit, fits)
        self._near = 0

    def hopeless(self) -> None:
        """Note that even the shortest piece did not fit: it is not the length that is wrong."""
        self._limit = None
        self._worked = self._near = 0

    def made(self, chars: int, *, most: int) -> None:
        """Note that a text was spoken.

        Args:
            most: what the engine takes by itself.
        """
        self._worked = max(self._worked, chars)
        if self._limit is None or chars < NEAR * self._limit:
            return
        self._near += 1
        if self._near >= RAISE_AFTER:
            self._near = 0
            raised = int(self._limit * RAISE_FACTOR) + 1
            self._limit = None if raised >= most else raised
