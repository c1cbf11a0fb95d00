"""The job as a value."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.job import (
    TERMINAL,
    TRANSITIONS,
    Job,
    JobClass,
    JobError,
    JobId,
    PublishedAudio,
    Stage,
    Status,
    TenantId,
    new_id,
    rfc3339,
)

CREATED = datetime(2026, 12, 1, tzinfo=UTC)
AUDIO = PublishedAudio(
    key="audio/1d/job_1/2.mp3",
    content_type="audio/mpeg",
    bytes=16_000,
    duration_ms=1_000,
    sample_rate=44_100,
    bitrate=128_000,
    channels=1,
    sha256="ab" * 32,
)


def a_job(**changes: Any) -> Job:
    """Return a queued job."""
    job = Job(
        id=JobId("job_1"),
        tenant_id=TenantId("ten_a"),
        kind="speech",
        job_class=JobClass.NORMAL,
        status=Status.QUEUED,
        stage=None,
        model="tone",
        queue="cpu.tone",
        voice="sine",
        language="en",
        response_format="mp3",
        characters=5,
        chunks_total=None,
        chunks_done=0,
        created_at=CREATED,
        started_at=None,
        completed_at=None,
        expires_at=None,
        expires_in=86_400,
        degraded=False,
        warnings=(),
        metadata={},
        error=None,
        audio=None,
        version=1,
        epoch=0,
        failures=0,
    )
    return replace(job, **changes)


def completed_job(**changes: Any) -> Job:
    """Return a completed job."""
    return replace(
        a_job(
            status=Status.COMPLETED,
            queue=None,
            chunks_total=2,
            chunks_done=2,
            started_at=CREATED + timedelta(seconds=1),
            completed_at=CREATED + timedelta(seconds=2),
            expires_at=CREATED + timedelta(days=1),
            audio=AUDIO,
            version=7,
        ),
        **changes,
    )


def failed_job(**changes: Any) -> Job:
    """Return a failed job."""
    error = JobError(code="engine_failed", message="no sound")
    return replace(a_job(status=Status.FAILED, queue=None, error=error, completed_at=CREATED), **changes)


def test_terminal_states_are_those_that_nothing_follows() -> None:
    assert {Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.EXPIRED} == TERMINAL
    assert all(not TRANSITIONS[status] for status in TERMINAL)


def test_every_status_stands_in_the_table_and_can_be_reached() -> None:
    reached = {Status.QUEUED}
    while more := {after for status in reached for after in TRANSITIONS[status]} - reached:
        reached |= more

    assert set(TRANSITIONS) == reached == set(Status)


def test_only_a_job_that_was_worked_on_completes_and_only_one_that_was_not_expires() -> None:
    assert {status for status, after in TRANSITIONS.items() if Status.COMPLETED in after} == {
        Status.IN_PROGRESS
    }
    assert {status for status, after in TRANSITIONS.items() if Status.EXPIRED in after} == {Status.QUEUED}


def test_a_job_is_a_value() -> None:
    with pytest.raises(FrozenInstanceError):
        a_job().status = Status.FAILED  # type: ignore[misc]


@given(
    status=st.sampled_from(Status),
    stage=st.none() | st.sampled_from(Stage),
    total=st.none() | st.integers(0, 10_000),
    done=st.integers(0, 20_000),
)
def test_progress_is_a_percentage_and_whole_only_at_the_end(
    status: Status, stage: Stage | None, total: int | None, done: int
) -> None:
    job = a_job(status=status, stage=stage, chunks_total=total, chunks_done=done)

    assert isinstance(job.progress, int)
    assert 0 <= job.progress <= 100
    assert (job.progress == 100) == (status is Status.COMPLETED)


@given(total=st.integers(1, 1000))
def test_progress_never_falls_while_chunks_are_made(total: int) -> None:
    job = a_job(status=Status.IN_PROGRESS, stage=Stage.SYNTHESIZING, chunks_total=total)
    shown = [replace(job, chunks_done=done).progress for done in range(total + 1)]
    shown.append(replace(job, chunks_done=total, stage=Stage.ENCODING).progress)
    shown.append(replace(job, chunks_done=total, stage=Stage.UPLOADING).progress)

    assert shown == sorted(shown)


def test_audio_expires_at_its_time() -> None:
    job = completed_job()
    expiry = CREATED + timedelta(days=1)

    assert not job.audio_expired(expiry - timedelta(milliseconds=1))
    assert job.audio_expired(expiry)
    assert not a_job().audio_expired(expiry)


def test_ids_are_unique() -> None:
    made = {new_id("job", now=1_796_083_200.0) for _ in range(10_000)}

    assert len(made) == 10_000
    assert all(re.fullmatch(r"job_[0-9a-hjkmnp-tv-z]{26}", made_id) for made_id in made)


@given(first=st.integers(0, 2**48 - 2), later=st.integers(1, 2**40))
def test_ids_sort_by_the_time_they_were_made_at(first: int, later: int) -> None:
    second = min(first + later, 2**48 - 1)

    # A quarter of a millisecond keeps clear of rounding.
    assert new_id("job", now=(first + 0.25) / 1000) < new_id("job", now=(second + 0.25) / 1000)


def test_an_id_without_a_time_is_made_now() -> None:
    assert new_id("job", now=0) < new_id("job") < new_id("job", now=2**48 / 1000 - 1)


@pytest.mark.parametrize(
    ("moment", "written"),
    [
        (datetime(2026, 12, 1, 3, 20, 25, 123_456, UTC), "2026-12-01T03:20:25.123Z"),
        (datetime(2026, 12, 1, tzinfo=UTC), "2026-12-01T00:00:00.000Z"),
        (datetime(2026, 12, 1, 9, tzinfo=timezone(timedelta(hours=9))), "2026-12-01T00:00:00.000Z"),
        (datetime(2026, 12, 1, 0, 0, 0, 999_999, UTC), "2026-12-01T00:00:00.999Z"),
    ],
)
def test_times_are_written_in_utc_to_the_millisecond(moment: datetime, written: str) -> None:
    assert rfc3339(moment) == written
