"""The routes: each parses, calls and renders."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from flask import Response, request

from api import pages
from api.bodies import read_json
from api.models import RecentModels
from api.openapi import describe
from api.problems import AudioExpired, JobHasNoAudio, JobUnfinished
from api.readiness import Readiness
from api.requests import tenant
from api.services import Services
from api.validation import new_job
from jobs.job import TERMINAL, Job, Status
from jobs.views import job_body
from jobs.workers import ServedModel
from storage.store import Link

#: When asking again makes sense; a short text takes about a second.
RETRY_SECONDS: Final = "1"
_VARY: Final = "Authorization, X-API-Key, xi-api-key"


class Routes:
    """One method per operation of `api.operations`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._models = RecentModels(services.workers.models)
        self._readiness = Readiness(
            checks=services.checks,
            models=services.workers.models,
            alive=services.workers.alive,
            default_model=services.default_model,
        )
        self._description = describe(public_url=services.public_url, max_input_chars=services.max_input_chars)

    def create_job(self) -> Response:
        """POST /v1/speech/jobs."""
        services = self._services
        new = new_job(
            read_json(request),
            tenant_id=tenant(),
            models=self._models.list(),
            default_model=services.default_model,
            max_input_chars=services.max_input_chars,
            check_target=services.check_target,
            new_seed=services.new_seed,
        )
        job = services.jobs.create(new)
        services.ringer.mark(new.queue)
        body = job_body(job, public_url=services.public_url)
        return _json(body, 202, Location=body["urls"]["self"], Retry_After=RETRY_SECONDS)

    def get_job(self, job_id: str) -> Response:
        """GET /v1/speech/jobs/{job_id}."""
        job = self._job(job_id)
        link = self._link(job, self._services.now())
        body = job_body(
            job,
            public_url=self._services.public_url,
            audio_url=link.url if link else None,
            audio_url_expires_at=link.expires_at if link else None,
        )
        if job.status in TERMINAL:
            return _json(body, Vary=_VARY)
        return _json(body, Vary=_VARY, Retry_After=RETRY_SECONDS)

    def get_audio(self, job_id: str) -> Response:
        """GET /v1/speech/jobs/{job_id}/audio."""
        job = self._job(job_id)
        if job.status not in TERMINAL:
            raise JobUnfinished(job.id)
        if job.status is not Status.COMPLETED:
            raise JobHasNoAudio(job.status.value)
        link = self._link(job, self._services.now())
        if link is None:
            raise AudioExpired(job.id)
        return Response(status=302, headers={"Location": link.url, "Vary": _VARY}, content_type="text/plain")

    def list_models(self) -> Response:
        """GET /v1/models."""
        return _json({"object": "list", "data": [_model(served) for served in self._models.list()]})

    def list_voices(self) -> Response:
        """GET /v1/voices."""
        voices = [
            {
                "id": voice["id"],
                "object": "voice",
                "name": voice["name"],
                "language": voice["language"],
                "model": served.model,
            }
            for served in self._models.list()
            for voice in served.info["voices"]
        ]
        return _json({"object": "list", "data": voices})

    def healthz(self) -> Response:
        """GET /healthz: asks nobody."""
        return _json({"status": "ok"})

    def readyz(self) -> Response:
        """GET /readyz."""
        parts = self._readiness.parts()
        ready = all(part.ok for part in parts.values() if part.required)
        checks = {name: asdict(part) for name, part in parts.items()}
        if ready:
            return _json({"status": "ready", "checks": checks})
        return _json({"status": "not_ready", "checks": checks}, 503, Retry_After=RETRY_SECONDS)

    def openapi(self) -> Response:
        """GET /openapi.json."""
        return _json(self._description, Cache_Control="public, max-age=300")

    def docs(self) -> Response:
        """GET /docs: a page that needs nothing but itself."""
        return pages.docs(self._description)

    def _job(self, job_id: str) -> Job:
        return self._services.jobs.get(job_id, tenant())

    def _link(self, job: Job, now: datetime) -> Link | None:
        """Return a link that works no longer than the audio is kept, or None where there is none."""
        if job.audio is None or job.expires_at is None:
            return None
        seconds = min(self._services.link_seconds, int((job.expires_at - now).total_seconds()))
        return self._services.links.sign(job.audio.key, seconds=seconds) if seconds >= 1 else None


def _model(served: ServedModel) -> dict[str, Any]:
    return {
        "id": served.model,
        "object": "model",
        "created": int(served.seen_at.timestamp()),
        "owned_by": "voxfleet",
        "available": served.alive,
        "languages": list(served.info["languages"]),
        "default_voice": served.info["default_voice"],
        "sample_rate": served.info.get("sample_rate"),
        "licence": served.info.get("licence"),
    }


def _json(body: Any, status: int = 200, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(json.dumps(body, ensure_ascii=False), status, named, content_type="application/json")
