"""The job as its owner sees it."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from jobs.job import Job, JobError, JobWarning, Stage, Status
from jobs.views import job_body

from .test_job import CREATED, a_job, completed_job, failed_job

URL = "https://speech.example"


def test_a_queued_job_has_every_member() -> None:
    assert job_body(a_job(metadata={"a": "é"}), public_url=URL) == {
        "id": "job_1",
        "object": "speech.job",
        "status": "queued",
        "stage": None,
        "progress": 0,
        "chunks": {"total": None, "done": 0},
        "class": "normal",
        "model": "tone",
        "voice": "sine",
        "language": "en",
        "characters": 5,
        "created_at": "2026-12-01T00:00:00.000Z",
        "started_at": None,
        "completed_at": None,
        "eta": None,
        "deadline": None,
        "expires_at": None,
        "degraded": False,
        "warnings": [],
        "metadata": {"a": "é"},
        "retry_of": None,
        "urls": {
            "self": f"{URL}/v1/speech/jobs/job_1",
            "audio": f"{URL}/v1/speech/jobs/job_1/audio",
            "cancel": f"{URL}/v1/speech/jobs/job_1/cancel",
        },
        "error": None,
        "result": None,
        "version": 1,
    }


def test_a_job_in_progress_tells_its_stage_and_chunks() -> None:
    job = a_job(
        status=Status.IN_PROGRESS,
        stage=Stage.SYNTHESIZING,
        chunks_total=4,
        chunks_done=1,
        started_at=CREATED,
        warnings=(JobWarning(code="language_guessed", message="taken for English"),),
        degraded=True,
    )

    body = job_body(job, public_url=URL)

    assert (body["status"], body["stage"], body["progress"]) == ("in_progress", "synthesizing", 22)
    assert body["chunks"] == {"total": 4, "done": 1}
    assert body["warnings"] == [{"code": "language_guessed", "message": "taken for English"}]
    assert body["degraded"] is True


def test_a_completed_job_shows_its_audio_but_not_where_it_lies() -> None:
    body = job_body(completed_job(), public_url=URL)

    assert body["progress"] == 100
    assert body["result"] == {
        "audio": {
            "url": f"{URL}/v1/speech/jobs/job_1/audio",
            "url_expires_at": None,
            "content_type": "audio/mpeg",
            "bytes": 16_000,
            "duration_ms": 1_000,
            "sample_rate": 44_100,
            "bitrate": 128_000,
            "channels": 1,
            "sha256": "ab" * 32,
        }
    }
    assert "audio/1d/" not in json.dumps(body)


def test_a_signed_link_takes_the_place_of_the_stable_one() -> None:
    body = job_body(
        completed_job(),
        public_url=URL,
        audio_url="https://bucket.example/signed",
        audio_url_expires_at=CREATED + timedelta(hours=1),
    )

    assert body["result"]["audio"]["url"] == "https://bucket.example/signed"
    assert body["result"]["audio"]["url_expires_at"] == "2026-12-01T01:00:00.000Z"


def test_a_failed_job_tells_why_and_has_no_result() -> None:
    error = JobError(code="unsayable", message="no words", type="invalid_request_error", param="input")

    body = job_body(failed_job(error=error), public_url=URL)

    assert body["error"] == {
        "code": "unsayable",
        "message": "no words",
        "type": "invalid_request_error",
        "param": "input",
    }
    assert body["result"] is None


@pytest.mark.parametrize("job", [a_job(), completed_job(), failed_job()], ids=lambda job: str(job.status))
def test_tenant_queue_and_fence_stay_inside(job: Job) -> None:
    body = job_body(job, public_url=URL)

    json.dumps(body)
    assert not {"tenant_id", "queue", "epoch", "failures", "holder"} & set(body)
