"""A job that another model speaks, and what its owner is told, on every database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.database import Database
from jobs.job import Fenced, JobWarning, Manner, Status, Substitute

from .job_steps import MEDIA, QUEUE, clip, job_store, new

TEXT = "Hello there."
OTHER = Substitute(
    model="other", queue="cpu.other", voice="heart", language="en-US", manner=Manner(speed=1.5)
)
SAID = JobWarning(code="fallback_model", message="spoken by other")


def test_a_job_is_said_in_its_manner(database: Database) -> None:
    jobs = job_store(database)
    manner = Manner(style="slow 😀", speed=0.5, options={"steps": 3, "deep": {"a": [1, None]}})
    warning = JobWarning(code="option_ignored", message="x")
    job = jobs.create(new(TEXT, manner=manner, fallback="other", warnings=(warning,)))

    claim = jobs.claim(QUEUE, holder="w")

    assert claim is not None
    assert (claim.manner, claim.fallback, claim.substitute) == (manner, "other", None)
    assert (claim.voice, claim.language) == ("sine", "en")
    assert (job.warnings, job.degraded) == ((warning,), False)


def test_a_job_is_handed_over_whole(database: Database) -> None:
    jobs = job_store(database)
    job = jobs.create(new(TEXT))
    claim = jobs.claim(QUEUE, holder="w")
    assert claim is not None
    jobs.begin(claim, spoken_text=TEXT, chunks_total=2, characters_left=len(TEXT))
    jobs.record(claim, clip(claim, end=5))

    jobs.hand_over(claim, OTHER, SAID)

    after = jobs.get(job.id, job.tenant_id)
    assert (after.queue, after.model, after.voice, after.degraded) == ("cpu.other", "tone", "sine", True)
    assert (after.warnings, after.held, after.characters_left) == ((SAID,), False, len(TEXT))
    assert (after.chunks_total, after.chunks_done, after.audio_ms) == (None, 0, 0)
    assert jobs.clips(job.id) == []
    with pytest.raises(Fenced):
        jobs.record(claim, clip(claim, end=5))
    assert jobs.claim(QUEUE, holder="w") is None
    other = jobs.claim("cpu.other", holder="x")
    assert other is not None
    assert (other.voice, other.language, other.manner) == ("heart", "en-US", Manner(speed=1.5))
    assert (other.substitute, other.spoken_text, other.recorded) == ("other", TEXT, ())


def test_its_lost_clips_come_back_to_the_model_that_speaks_it(database: Database) -> None:
    jobs = job_store(database)
    jobs.create(new(TEXT))
    claim = jobs.claim(QUEUE, holder="w")
    assert claim is not None
    jobs.hand_over(claim, OTHER, SAID)
    claim = jobs.claim("cpu.other", holder="x")
    assert claim is not None
    jobs.begin(claim, spoken_text=TEXT, chunks_total=1, characters_left=len(TEXT))
    made = clip(claim, end=len(TEXT))
    jobs.record(claim, made)
    jobs.synthesized(claim, queue=MEDIA)
    encoder = jobs.claim(MEDIA, holder="m")
    assert encoder is not None

    assert jobs.remake(encoder, [made]) is None

    assert jobs.claim("cpu.other", holder="x") is not None


def test_a_fenced_worker_hands_nothing_over_and_drops_nothing(database: Database) -> None:
    jobs = job_store(database)
    job = jobs.create(new(TEXT))
    old = jobs.claim(QUEUE, holder="w")
    assert old is not None
    jobs.begin(old, spoken_text=TEXT, chunks_total=2, characters_left=len(TEXT))
    jobs.record(old, clip(old, end=5))
    jobs.release(old)
    assert jobs.claim(QUEUE, holder="x") is not None

    with pytest.raises(Fenced):
        jobs.hand_over(old, OTHER, SAID)
    with pytest.raises(Fenced):
        jobs.warn(old, SAID, degraded=True)

    assert len(jobs.clips(job.id)) == 1
    assert jobs.get(job.id, job.tenant_id).warnings == ()


def test_a_warning_of_a_code_is_given_once_and_moves_the_version(database: Database) -> None:
    jobs = job_store(database)
    job = jobs.create(new(TEXT))
    claim = jobs.claim(QUEUE, holder="w")
    assert claim is not None
    first, second = JobWarning(code="a", message="1"), JobWarning(code="b", message="2")

    jobs.warn(claim, first, degraded=False)
    jobs.warn(claim, JobWarning(code="a", message="again"), degraded=False)
    jobs.warn(claim, second, degraded=True)

    after = jobs.get(job.id, job.tenant_id)
    assert (after.warnings, after.degraded) == ((first, second), True)
    assert after.version > job.version


def test_a_job_may_be_another_models_from_the_start_and_its_retry_is_its_own_again(
    database: Database,
) -> None:
    jobs = job_store(database)
    job = jobs.create(new(TEXT, substitute=OTHER, warnings=(SAID,)))
    assert (job.queue, job.degraded, job.warnings) == ("cpu.other", True, (SAID,))
    jobs.cancel(job.id, job.tenant_id)

    again = jobs.retry(job.id, job.tenant_id, queue=QUEUE)

    assert (again.queue, again.degraded, again.status) == (QUEUE, False, Status.QUEUED)
    claim = jobs.claim(QUEUE, holder="w")
    assert claim is not None
    assert (claim.voice, claim.substitute) == ("sine", None)


def test_the_voice_state_of_a_job_is_that_of_its_clips(database: Database) -> None:
    jobs = job_store(database)
    jobs.create(new(TEXT))
    claim = jobs.claim(QUEUE, holder="w")
    assert claim is not None
    assert claim.voice_state_key is None
    jobs.begin(claim, spoken_text=TEXT, chunks_total=2, characters_left=len(TEXT))

    jobs.record(claim, replace(clip(claim, end=5), voice_state_key="staged/x/1-voice-ab"))
    jobs.release(claim)

    claim = jobs.claim(QUEUE, holder="w")

    assert claim is not None
    assert claim.voice_state_key == "staged/x/1-voice-ab"
    assert [made.voice_state_key for made in jobs.clips(claim.job.id)] == ["staged/x/1-voice-ab"]
