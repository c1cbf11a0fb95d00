from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import keys

JOB_IDS = st.from_regex(r"job_[A-Za-z0-9_-]{1,40}", fullmatch=True)
COUNTS = st.integers(min_value=0, max_value=10**9)
LIVES = st.integers(min_value=1, max_value=31 * 86_400)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(1, "1d"), (86_400, "1d"), (86_401, "7d"), (604_800, "7d"), (604_801, "31d"), (31 * 86_400, "31d")],
)
def test_a_life_falls_into_the_smallest_class_that_holds_it(seconds: int, expected: str) -> None:
    assert keys.audio_class(seconds) == expected


@given(LIVES)
def test_no_class_deletes_early_and_no_smaller_one_would_do(seconds: int) -> None:
    days = keys.AUDIO_CLASSES[keys.audio_class(seconds)]

    assert seconds <= days * keys.DAY_SECONDS
    assert all(seconds > other * keys.DAY_SECONDS for other in keys.AUDIO_CLASSES.values() if other < days)


@pytest.mark.parametrize("seconds", [0, -1, 31 * 86_400 + 1, float("nan"), float("inf")])
def test_a_life_that_no_class_holds_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="no class"):
        keys.audio_class(seconds)


def test_audio_lies_under_its_class_and_job() -> None:
    key = keys.audio_key("job_1", epoch=3, extension="mp3", expires_in=7 * 86_400)

    assert key == "audio/7d/job_1/3.mp3"


@given(JOB_IDS, COUNTS, COUNTS, LIVES)
def test_attempts_never_write_to_the_same_audio(job_id: str, one: int, other: int, life: int) -> None:
    first = keys.audio_key(job_id, epoch=one, extension="mp3", expires_in=life)
    second = keys.audio_key(job_id, epoch=other, extension="mp3", expires_in=life)

    assert (first == second) == (one == other)


@given(JOB_IDS, COUNTS, COUNTS)
def test_a_staged_key_is_always_new_and_under_its_job(job_id: str, epoch: int, seq: int) -> None:
    first, second = (keys.staged_key(job_id, epoch=epoch, seq=seq) for _ in range(2))

    assert first != second
    assert first.startswith(f"staged/{job_id}/{epoch}-{seq}-")
    assert first.startswith(keys.staged_prefix(job_id))


@given(JOB_IDS, JOB_IDS)
def test_the_prefix_of_one_job_holds_no_clip_of_another(one: str, other: str) -> None:
    key = keys.staged_key(other, epoch=0, seq=0)

    assert key.startswith(keys.staged_prefix(one)) == (one == other)


@pytest.mark.parametrize("job_id", ["", "a/b", "..", "job 1", "jöb", "job_1\n", "a%2Fb"])
def test_an_id_that_would_change_the_key_is_refused(job_id: str) -> None:
    with pytest.raises(ValueError, match="part of a key"):
        keys.staged_prefix(job_id)
    with pytest.raises(ValueError, match="part of a key"):
        keys.staged_key(job_id, epoch=0, seq=0)
    with pytest.raises(ValueError, match="part of a key"):
        keys.audio_key(job_id, epoch=0, extension="mp3", expires_in=1)


def test_an_extension_or_number_that_would_change_the_key_is_refused() -> None:
    for extension in ("", ".mp3", "a/b"):
        with pytest.raises(ValueError, match="part of a key"):
            keys.audio_key("job_1", epoch=0, extension=extension, expires_in=1)
    with pytest.raises(ValueError, match="counts from zero"):
        keys.audio_key("job_1", epoch=-1, extension="mp3", expires_in=1)
    with pytest.raises(ValueError, match="counts from zero"):
        keys.staged_key("job_1", epoch=0, seq=-1)
