"""The job as a value."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.events import ENDINGS
from jobs.job import (
    COMPLETED,
    ENCODING,
    EXPIRED,
    FAILED,
    MOVES,
    QUEUED,
    STATES,
    SYNTHESIZING,
    TERMINAL,
    UPLOADING,
    Clip,
    Job,
    JobClass,
    JobEnded,
    JobError,
    JobId,
    Move,
    PublishedAudio,
    Stage,
    State,
    Status,
    TenantId,
    TooManyQueued,
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
        held=False,
        queued_at=CREATED,
        voice="sine",
        language="en",
        response_format="mp3",
        characters=5,
        characters_left=5,
        audio_ms=0,
        chunks_total=None,
        chunks_done=0,
        created_at=CREATED,
        started_at=None,
        completed_at=None,
        deadline=None,
        retry_of=None,
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
            characters_left=0,
            audio_ms=1_000,
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


def test_terminal_states_are_those_that_no_move_leaves() -> None:
    assert {Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.EXPIRED} == TERMINAL
    left = {state for steps in MOVES.values() for state in steps}
    assert left == {state for state in STATES if state.status not in TERMINAL}


def test_every_state_stands_in_the_table_and_can_be_reached() -> None:
    reached = {QUEUED}
    while more := {steps[state] for state in reached for steps in MOVES.values() if state in steps} - reached:
        reached |= more

    assert reached == set(STATES)
    assert {state.status for state in STATES} == set(Status)
    assert {state.stage for state in STATES} == {None, *Stage}
    assert set(MOVES) == set(Move)


def test_a_job_can_end_from_everywhere() -> None:
    for state in STATES:
        if state.status not in TERMINAL:
            assert state in MOVES[Move.CANCEL]
            assert any(after == COMPLETED for after in _onwards(state))


def _onwards(state: State) -> set[State]:
    reached = {state}
    while more := {steps[at] for at in reached for steps in MOVES.values() if at in steps} - reached:
        reached |= more
    return reached


def test_only_an_upload_completes_and_only_a_job_that_was_not_begun_expires() -> None:
    assert _sources(COMPLETED) == {UPLOADING}
    assert _sources(EXPIRED) == {QUEUED}
    # Nobody has looked at it yet, so nobody can say that it cannot be spoken.
    assert _sources(FAILED) == {SYNTHESIZING, ENCODING, UPLOADING}


def _sources(after: State) -> set[State]:
    return {before for steps in MOVES.values() for before, to in steps.items() if to == after}


def test_a_move_that_changes_the_state_leads_to_one_state_alone() -> None:
    # The store writes it without a look at where the row stands.
    for move, steps in MOVES.items():
        unchanged = all(before == after for before, after in steps.items())
        assert move is Move.CLAIM or unchanged or len(set(steps.values())) == 1, move


def test_every_end_has_its_event() -> None:
    assert set(ENDINGS) == TERMINAL


def test_refusals_say_why() -> None:
    assert str(JobEnded("job_1", Status.COMPLETED)) == "job_1 is completed"
    assert JobEnded("job_1", Status.COMPLETED).status is Status.COMPLETED
    assert str(TooManyQueued(3)) == "3 jobs are waiting already"
    assert TooManyQueued(3).limit == 3


@given(samples=st.integers(0, 10**9), rate=st.sampled_from([8_000, 16_000, 22_050, 24_000, 44_100, 48_000]))
def test_a_clip_is_as_long_as_its_samples(samples: int, rate: int) -> None:
    clip = Clip(
        seq=0,
        text_start=0,
        text_end=1,
        pause_ms=0,
        epoch=1,
        key="staged/x",
        sha256="ab" * 32,
        samples=samples,
        sample_rate=rate,
        seed=1,
        engine_revision="tone-1",
    )

    assert abs(clip.milliseconds - samples / rate * 1000) <= 0.5


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
