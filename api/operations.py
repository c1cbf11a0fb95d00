"""The routes as a table: `api.app` serves it, `api.openapi` describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import BaseModel

from api import schemas


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One possible answer. `model` None is a page or nothing at all."""

    description: str
    model: type[BaseModel] | None = None
    headers: tuple[str, ...] = ()
    media_type: str = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route.

    Attributes:
        id: the name of the method of `api.routes.Routes` that serves it.
        path: as Flask writes it.
        problems: HTTP statuses of the errors it may answer with, beside those that every route may.
        open: needs no key.
    """

    id: str
    method: str = "GET"
    path: str
    summary: str
    tag: str
    replies: Mapping[int, Reply]
    problems: tuple[int, ...] = ()
    request: type[BaseModel] | None = None
    open: bool = field(default=False)


HEADERS: Final[Mapping[str, str]] = {
    "Location": "Where to go.",
    "Retry-After": "Seconds after which asking again makes sense.",
    "WWW-Authenticate": "`Bearer`.",
    "Allow": "The methods that this address takes.",
}
#: Headers of error answers.
PROBLEM_HEADERS: Final[Mapping[int, tuple[str, ...]]] = {
    401: ("WWW-Authenticate",),
    409: ("Retry-After",),
    429: ("Retry-After",),
    503: ("Retry-After",),
}

OPERATIONS: Final = (
    Operation(
        id="create_job",
        method="POST",
        path="/v1/speech/jobs",
        summary="Ask for a text to be spoken",
        tag="Speech",
        request=schemas.JobRequest,
        replies={
            202: Reply(
                description="The job is stored and will be done.",
                model=schemas.JobView,
                headers=("Location", "Retry-After"),
            )
        },
        problems=(400, 413, 415, 422, 429, 503),
    ),
    Operation(
        id="get_job",
        path="/v1/speech/jobs/<job_id>",
        summary="See how far a job has come",
        tag="Speech",
        replies={
            200: Reply(
                description="The job. `Retry-After` while it is not finished.",
                model=schemas.JobView,
                headers=("Retry-After",),
            )
        },
        problems=(404, 503),
    ),
    Operation(
        id="get_audio",
        path="/v1/speech/jobs/<job_id>/audio",
        summary="Go to the audio of a completed job",
        tag="Speech",
        replies={302: Reply(description="A fresh link to the audio.", headers=("Location",))},
        problems=(404, 409, 410, 503),
    ),
    Operation(
        id="cancel_job",
        method="POST",
        path="/v1/speech/jobs/<job_id>/cancel",
        summary="Cancel a job that has not ended",
        tag="Speech",
        replies={
            200: Reply(
                description="The job is cancelled; whoever works on it stops within a chunk. Saying it again "
                "changes nothing.",
                model=schemas.JobView,
            )
        },
        problems=(400, 404, 409, 413, 415, 422, 503),
    ),
    Operation(
        id="retry_job",
        method="POST",
        path="/v1/speech/jobs/<job_id>/retry",
        summary="Ask again for what a job that failed, expired or was cancelled had asked for",
        tag="Speech",
        replies={
            202: Reply(
                description="A new job, with `retry_of`.",
                model=schemas.JobView,
                headers=("Location", "Retry-After"),
            )
        },
        problems=(400, 404, 409, 413, 415, 422, 429, 503),
    ),
    Operation(
        id="list_models",
        path="/v1/models",
        summary="List the models",
        tag="Models",
        replies={200: Reply(description="Every model.", model=schemas.Models)},
        problems=(503,),
    ),
    Operation(
        id="list_voices",
        path="/v1/voices",
        summary="List the voices of all models",
        tag="Models",
        replies={200: Reply(description="Every voice.", model=schemas.Voices)},
        problems=(503,),
    ),
    Operation(
        id="healthz",
        path="/healthz",
        summary="Ask whether the process answers",
        tag="Operation",
        open=True,
        replies={200: Reply(description="It does.", model=schemas.Health)},
    ),
    Operation(
        id="readyz",
        path="/readyz",
        summary="Ask every part whether it is ready",
        tag="Operation",
        open=True,
        replies={
            200: Reply(description="All required parts are ready.", model=schemas.Ready),
            503: Reply(description="Some are not.", model=schemas.Ready, headers=("Retry-After",)),
        },
    ),
    Operation(
        id="read_metrics",
        path="/metrics",
        summary="Read the metrics",
        tag="Operation",
        open=True,
        replies={
            200: Reply(description="Prometheus's text format.", media_type="text/plain"),
        },
        problems=(404,),
    ),
    Operation(
        id="openapi",
        path="/openapi.json",
        summary="Read this description",
        tag="Operation",
        open=True,
        replies={200: Reply(description="OpenAPI 3.1.")},
    ),
    Operation(
        id="docs",
        path="/docs",
        summary="Browse this description",
        tag="Operation",
        open=True,
        replies={200: Reply(description="A page.", media_type="text/html")},
    ),
)
