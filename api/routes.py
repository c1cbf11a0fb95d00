"""The routes: each parses, calls and renders."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

from flask import Response, request
from werkzeug.exceptions import NotFound

from actors.bell import MEDIA_QUEUE, WEBHOOK_QUEUE
from api import pages
from api.admission import Admission
from api.backlog import RecentBacklog
from api.bodies import read_json
from api.metrics import MEDIA_TYPE, Metrics, may_read
from api.models import Recent, RecentModels
from api.openapi import describe
from api.problems import AudioExpired, Busy, JobHasNoAudio, JobUnfinished
from api.readiness import Readiness
from api.requests import tenant
from api.services import Services, Workers
from api.validation import check_retry, new_job, read_no_members, served_model
from jobs.estimate import Media
from jobs.job import TERMINAL, Job, JobClass, Status, TooManyQueued
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
            sweeper=services.workers.sweeper,
            default_model=services.default_model,
        )
        backlog = RecentBacklog(services.jobs.backlog, services.jobs.running)
        self._admission = Admission(
            backlog,
            models=self._models.list,
            media=Recent(lambda: _media(services.workers)).get,
            ahead=services.jobs.ahead,
            limits=services.limits,
        )
        self.metrics = Metrics(backlog, services.workers, self._admission)
        self._description = describe(public_url=services.public_url, max_input_chars=services.max_input_chars)

    def create_job(self) -> Response:
        """POST /v1/speech/jobs."""
        services = self._services
        models = self._models.list()
        new = new_job(
            read_json(request),
            tenant_id=tenant(),
            models=models,
            default_model=services.default_model,
            max_input_chars=services.max_input_chars,
            check_target=services.check_target,
            new_seed=services.new_seed,
            fallback=services.fallback_model,
        )
        speaks = new.model if new.substitute is None else new.substitute.model
        return self._taken(
            served_model(speaks, models, default_model=services.default_model),
            job_class=new.job_class,
            characters=len(new.input),
            store=lambda most: services.jobs.create(new, max_queued=most),
        )

    def cancel_job(self, job_id: str) -> Response:
        """POST /v1/speech/jobs/{job_id}/cancel."""
        read_no_members(request)
        job = self._services.jobs.cancel(job_id, tenant())
        self._services.ringer.mark(WEBHOOK_QUEUE)
        return _json(job_body(job, public_url=self._services.public_url))

    def retry_job(self, job_id: str) -> Response:
        """POST /v1/speech/jobs/{job_id}/retry."""
        read_no_members(request)
        services = self._services
        before = self._job(job_id)
        # Asked again when it is stored; a full fleet is no answer to what could never be.
        check_retry(before)
        served = served_model(before.model, self._models.list(), default_model=services.default_model)
        return self._taken(
            served,
            job_class=before.job_class,
            characters=before.characters,
            store=lambda most: services.jobs.retry(job_id, tenant(), queue=served.queue, max_queued=most),
        )

    def get_job(self, job_id: str) -> Response:
        """GET /v1/speech/jobs/{job_id}."""
        job = self._job(job_id)
        link = self._link(job, self._services.now())
        body = job_body(
            job,
            public_url=self._services.public_url,
            audio_url=link.url if link else None,
            audio_url_expires_at=link.expires_at if link else None,
            eta=self._admission.eta(job, now=self._services.now()),
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
                "kind": voice.get("kind", "builtin"),
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

    def read_metrics(self) -> Response:
        """GET /metrics."""
        if not may_read(request, self._services.metrics_from):
            raise NotFound
        return Response(self.metrics.text(), content_type=MEDIA_TYPE)

    def openapi(self) -> Response:
        """GET /openapi.json."""
        return _json(self._description, Cache_Control="public, max-age=300")

    def docs(self) -> Response:
        """GET /docs: a page that needs nothing but itself."""
        return pages.docs(self._description)

    def _taken(
        self, served: ServedModel, *, job_class: JobClass, characters: int, store: Callable[[int], Job]
    ) -> Response:
        """Store a job, where the fleet and its tenant may have one more, and answer with it."""
        services = self._services
        try:
            seconds = self._admission.check(
                served, job_class=job_class, tenant_id=tenant(), characters=characters
            )
            job = store(services.limits.tenant_max_queued)
        except Busy as error:
            self.metrics.refused(error.code)
            raise
        except TooManyQueued as error:
            self.metrics.refused("too_many_jobs")
            raise self._admission.tenant_busy(tenant(), limit=error.limit) from error
        # It is stored: from here on nothing is asked that could fail.
        services.ringer.mark(served.queue)
        self._admission.accepted(job)
        eta = None if seconds is None else job.created_at + timedelta(seconds=seconds)
        body = job_body(job, public_url=services.public_url, eta=eta)
        return _json(body, 202, Location=body["urls"]["self"], Retry_After=RETRY_SECONDS)

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
        "watermark": served.info.get("watermark"),
        "features": served.info.get("features", {}),
        "max_chars": served.info.get("max_chars"),
        "max_chars_learned": served.max_chars_learned,
        "options": served.info.get("options", {}),
    }


def _media(workers: Workers) -> Media:
    return Media(count=workers.alive().get(MEDIA_QUEUE, 0), rtf=workers.rtf(MEDIA_QUEUE))


def _json(body: Any, status: int = 200, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(json.dumps(body, ensure_ascii=False), status, named, content_type="application/json")
