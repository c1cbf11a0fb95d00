from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speech.audio import Audio, clipped, from_pcm_s16le, join, overlap_between, pcm_s16le

RATE = 24_000


def tone(seconds: float, *, rate: int = RATE, amplitude: float = 0.5, begin: int = 0) -> Audio:
    at = np.arange(begin, begin + round(seconds * rate))
    return Audio((amplitude * np.sin(2 * np.pi * 440 * at / rate)).astype(np.float32), rate)


def flat(value: float, length: int, rate: int = RATE) -> Audio:
    return Audio(np.full(length, value, np.float32), rate)


def joined(clips: list[Audio], **options: Any) -> np.ndarray:
    return np.concatenate([np.empty(0, np.float32), *(part.samples for part in join(clips, **options))])


def level_db(samples: np.ndarray) -> float:
    return 20 * float(np.log10(np.sqrt(np.mean(samples.astype(np.float64) ** 2))))


@given(
    lengths=st.lists(st.integers(0, 5000), max_size=12),
    rate=st.sampled_from([8000, 16_000, 24_000, 48_000]),
    crossfade_ms=st.sampled_from([0, 1, 5, 50, 100]),
)
def test_the_joined_length_is_the_clips_less_their_overlaps(
    lengths: list[int], rate: int, crossfade_ms: int
) -> None:
    got = len(joined([flat(0.1, length, rate) for length in lengths], crossfade_ms=crossfade_ms))
    heard = [length for length in lengths if length]
    overlaps = [overlap_between(a, b, rate, crossfade_ms) for a, b in pairwise(heard)]
    assert got == sum(heard) - sum(overlaps)
    # The overlaps at the two ends of a clip never meet.
    for left, length, right in zip(overlaps, heard[1:], overlaps[1:], strict=False):
        assert left + right <= length


@given(st.binary(max_size=400).map(lambda pcm: pcm[: len(pcm) // 2 * 2]))
def test_pcm_survives_the_round_trip(pcm: bytes) -> None:
    assert pcm_s16le(from_pcm_s16le(pcm)) == pcm


def test_a_single_clip_is_untouched() -> None:  # C025
    clip = tone(1)
    assert abs(clip.samples[-1]) > 0
    quiet_end = Audio(np.append(clip.samples, np.float32(0)), RATE)
    assert joined([quiet_end]).tobytes() == quiet_end.samples.tobytes()


def test_an_end_on_a_step_is_faded_out() -> None:  # C028
    clip = tone(0.5 + 1 / 440 / 4)
    assert abs(clip.samples[-1]) > 0.4
    got = joined([clip])
    assert len(got) == len(clip.samples)
    assert abs(got[-1]) < 0.01
    untouched = len(got) - RATE * 5 // 1000
    assert got[:untouched].tobytes() == clip.samples[:untouched].tobytes()


def test_seams_do_not_click() -> None:  # C027
    clips = [flat(0.8 if k % 2 == 0 else -0.8, RATE) for k in range(4)]
    got = joined(clips, crossfade_ms=50)
    body = got[: -RATE // 100]  # the end is faded out more steeply, on purpose
    assert np.abs(np.diff(body)).max() <= 2 * 0.8 / (0.050 * RATE) * 1.5


def test_a_tone_that_goes_on_in_phase_keeps_its_level() -> None:  # C027
    first = tone(1)
    got = joined([first, tone(1, begin=RATE - RATE * 50 // 1000)], crossfade_ms=50)
    want = level_db(first.samples)
    for start in range(0, len(got) - RATE // 50, RATE // 100):
        assert level_db(got[start : start + RATE // 50]) == pytest.approx(want, abs=1)


def test_unrelated_sounds_keep_their_power() -> None:
    noise = np.random.default_rng(7)
    clips = [Audio(noise.normal(0, 0.1, RATE).astype(np.float32), RATE) for _ in range(2)]
    got = joined(clips, crossfade_ms=500)
    seam = got[RATE // 2 + RATE // 8 : RATE - RATE // 8]
    assert level_db(seam) == pytest.approx(level_db(clips[0].samples), abs=0.5)


def test_audio_comes_out_before_the_next_clip_is_asked_for() -> None:
    asked = []

    def clips() -> Iterator[Audio]:
        for index in range(3):
            asked.append(index)
            yield flat(0.1, RATE)

    parts = join(clips(), crossfade_ms=50)
    assert len(next(parts).samples) == RATE - RATE * 50 // 1000
    assert asked == [0]


def test_rates_never_mix() -> None:
    with pytest.raises(ValueError, match="16000 Hz among clips at 24000 Hz"):
        joined([flat(0, 10), flat(0, 10, 16_000)])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_refused(bad: float) -> None:
    clip = Audio(np.array([0, bad], np.float32), RATE)
    with pytest.raises(ValueError, match="not finite"):
        joined([clip])
    with pytest.raises(ValueError, match="not finite"):
        pcm_s16le(clip.samples)


def test_audio_is_float32_in_one_row_at_some_rate() -> None:
    with pytest.raises(ValueError, match="not float32"):
        Audio(np.zeros((2, 2), np.float32), RATE)
    with pytest.raises(ValueError, match="sample rate 0"):
        Audio(np.zeros(2, np.float32), 0)


def test_loud_samples_are_clipped_never_wrapped() -> None:  # C064
    loud = tone(0.1, amplitude=1.05).samples
    pcm = np.frombuffer(pcm_s16le(loud), "<i2").astype(int)
    assert np.abs(np.diff(pcm)).max() < 32768 * 0.13
    assert (np.sign(pcm)[np.abs(loud) > 0.01] == np.sign(loud)[np.abs(loud) > 0.01]).all()
    assert np.abs(from_pcm_s16le(pcm_s16le(loud))).max() <= 1
    assert clipped(loud) == int((np.abs(loud) > 1).sum()) > 0
    assert clipped(tone(0.1).samples) == 0
    assert (
        pcm_s16le(np.array([1.02, -1.02, 1, -1], np.float32))
        == np.array([32767, -32768, 32767, -32768], "<i2").tobytes()
    )
