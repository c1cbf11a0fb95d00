"""The job as its owner sees it: one JSON body for the API and for webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jobs.job import Job, JobError, Status, rfc3339


def job_body(
    job: Job,
    *,
    public_url: str,
    audio_url: str | None = None,
    audio_url_expires_at: datetime | None = None,
    eta: datetime | None = None,
) -> dict[str, Any]:
    """Return the job object of the native API.

    Args:
        public_url: URL of the API as clients see it, without a trailing slash.
        audio_url: a signed link to the audio; without one the result carries the stable `/audio` URL,
            which signs a fresh link at each call.
        eta: when it is expected to be completed, where somebody knows.
    """
    self_url = f"{public_url}/v1/speech/jobs/{job.id}"
    return {
        "id": job.id,
        "object": "speech.job",
        "status": job.status.value,
        "stage": job.stage.value if job.stage else None,
        "progress": job.progress,
        "chunks": {"total": job.chunks_total, "done": job.chunks_done},
        "class": job.job_class.name.lower(),
        "model": job.model,
        "voice": job.voice,
        "language": job.language,
        "characters": job.characters,
        "created_at": rfc3339(job.created_at),
        "started_at": _moment(job.started_at),
        "completed_at": _moment(job.completed_at),
        "eta": _moment(eta),
        "deadline": _moment(job.deadline),
        "expires_at": _moment(job.expires_at),
        "degraded": job.degraded,
        "warnings": [{"code": warning.code, "message": warning.message} for warning in job.warnings],
        "metadata": dict(job.metadata),
        "retry_of": job.retry_of,
        "urls": {"self": self_url, "audio": f"{self_url}/audio", "cancel": f"{self_url}/cancel"},
        "error": _error(job.error),
        "result": _result(job, f"{self_url}/audio", audio_url, audio_url_expires_at),
        "version": job.version,
    }


def _result(
    job: Job, stable_url: str, audio_url: str | None, audio_url_expires_at: datetime | None
) -> dict[str, Any] | None:
    if job.status is not Status.COMPLETED or job.audio is None:
        return None
    return {
        "audio": {
            "url": audio_url or stable_url,
            "url_expires_at": _moment(audio_url_expires_at),
            "content_type": job.audio.content_type,
            "bytes": job.audio.bytes,
            "duration_ms": job.audio.duration_ms,
            "sample_rate": job.audio.sample_rate,
            "bitrate": job.audio.bitrate,
            "channels": job.audio.channels,
            "sha256": job.audio.sha256,
        }
    }


def _error(error: JobError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"code": error.code, "message": error.message, "type": error.type, "param": error.param}


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else rfc3339(moment)
