"""Sound as a value, and the joiner: clips in, one gapless sound out, as soon as each part is final."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import soxr

#: float32, shape (n,), nominally within [-1, 1].
Samples = npt.NDArray[np.float32]

#: s16le counts from -32768 to 32767; a power of two makes the round trip exact.
_FULL_SCALE: Final = 32768.0
#: A sound whose last sample is louder than this ends on a step that is heard as a click.
_STEP: Final = 0.01
#: Long enough to hide that step, too short to be heard as a fade.
_END_FADE_MS: Final = 5


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """Mono PCM.

    Attributes:
        samples: float32, shape (n,), nominally within [-1, 1].
        sample_rate: Hz.
    """

    samples: Samples
    sample_rate: int

    def __post_init__(self) -> None:
        if self.samples.ndim != 1 or self.samples.dtype != np.float32:
            raise ValueError(f"samples are {self.samples.dtype} {self.samples.shape}, not float32 (n,)")
        if self.sample_rate <= 0:
            raise ValueError(f"sample rate {self.sample_rate}")


def overlap_between(len_a: int, len_b: int, rate: int, crossfade_ms: float) -> int:
    """Return how many samples two neighbouring clips share.

    Never more than half of either clip, so that the overlaps at the two ends of one clip cannot meet.
    """
    return min(round(rate * crossfade_ms / 1000), len_a // 2, len_b // 2)


def join(clips: Iterable[Audio], *, crossfade_ms: float = 50) -> Iterator[Audio]:
    """Join clips by equal-power crossfades, yielding each part as soon as it is final.

    The sum of the yielded lengths is the sum of the clips' lengths less the overlaps between
    neighbours, to the sample; clips without samples are left out. A single clip passes through bit for
    bit, except that a sound which would end on a step is faded out over its last 5 ms. Between two
    clips no more than one overlap is held.

    Raises:
        ValueError: a clip has another sample rate than the first, or samples that are not finite.
    """
    held: Samples | None = None
    before = rate = 0
    for clip in clips:
        rate = rate or clip.sample_rate
        if clip.sample_rate != rate:
            raise ValueError(f"a clip at {clip.sample_rate} Hz among clips at {rate} Hz")
        samples = clip.samples
        if not np.isfinite(samples).all():
            raise ValueError("a clip has samples that are not finite")
        if not len(samples):
            continue
        overlap = 0
        if held is not None:
            overlap = overlap_between(before, len(samples), rate, crossfade_ms)
            yield from _part(held[: len(held) - overlap], rate)
            yield from _part(_crossfade(held[len(held) - overlap :], samples[:overlap]), rate)
        hold = min(round(rate * max(crossfade_ms, _END_FADE_MS) / 1000), len(samples) - overlap)
        yield from _part(samples[overlap : len(samples) - hold], rate)
        # A copy: a view would keep the whole clip alive.
        held, before = samples[len(samples) - hold :].copy(), len(samples)
    if held is not None:
        yield from _part(_without_step(held, rate), rate)


def pcm_s16le(samples: Samples) -> bytes:
    """Return the samples as 16-bit little-endian integers, rounded; too loud ones are clipped, never wrapped.

    Raises:
        ValueError: samples that are not finite.
    """
    if not np.isfinite(samples).all():
        raise ValueError("samples that are not finite")
    scaled = np.rint(samples.astype(np.float64) * _FULL_SCALE)
    return np.clip(scaled, -_FULL_SCALE, _FULL_SCALE - 1).astype("<i2").tobytes()


def from_pcm_s16le(pcm: bytes) -> Samples:
    """Return the samples of 16-bit little-endian integers: the exact inverse of `pcm_s16le`."""
    return np.frombuffer(pcm, dtype="<i2").astype(np.float32) / np.float32(_FULL_SCALE)


def resampled(samples: Samples, rate: int, to_rate: int) -> Samples:
    """Return a whole sound at another rate, in Hz."""
    if rate == to_rate:
        return samples
    return np.asarray(soxr.resample(samples, rate, to_rate), dtype=np.float32)


def clipped(samples: Samples) -> int:
    """Return how many samples are beyond full scale."""
    return int(np.count_nonzero(np.abs(samples) > 1))


def _part(samples: Samples, rate: int) -> Iterator[Audio]:
    if len(samples):
        yield Audio(samples, rate)


def _crossfade(old: Samples, new: Samples) -> Samples:
    """Mix two sounds of equal length at constant power.

    cos/sin gains keep the power of unrelated sounds; what two alike sounds would gain on top (3 dB
    halfway) is taken back in proportion to their correlation.
    """
    if not len(old):
        return old
    angle = (np.arange(len(old)) + 0.5) / len(old) * (np.pi / 2)
    out, into = np.cos(angle), np.sin(angle)
    a, b = old.astype(np.float64), new.astype(np.float64)
    scale = float(np.sqrt((a @ a) * (b @ b)))
    alike = min(1.0, max(0.0, float(a @ b) / scale)) if scale > 0 else 0.0
    return ((a * out + b * into) / np.sqrt(1 + 2 * alike * out * into)).astype(np.float32)


def _without_step(tail: Samples, rate: int) -> Samples:
    if abs(float(tail[-1])) < _STEP:
        return tail
    fade = min(len(tail), max(1, round(rate * _END_FADE_MS / 1000)))
    gain = (1 + np.cos(np.arange(1, fade + 1) / fade * np.pi)) / 2
    ended = tail.copy()
    ended[len(tail) - fade :] *= gain.astype(np.float32)
    return ended
