"""The description of the API (OpenAPI 3.1.0), made of the table of routes and the pydantic models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any, Final

from pydantic.json_schema import JsonSchemaMode, models_json_schema

from api import problems, schemas
from api.operations import HEADERS, OPERATIONS, PROBLEM_HEADERS, Operation, Reply
from jobs.events import ENDINGS

_PARAMETER: Final = re.compile(r"<(\w+)>")
_REF: Final = "#/components/schemas/{model}"
#: Of every route that needs a key.
_ALWAYS: Final = (401, 500)

_DESCRIPTIONS: Final[Mapping[int, str]] = {
    400: "The body is no JSON that is read here.",
    401: "No API key, or none that is valid.",
    404: "There is nothing of that name, or it is not for you.",
    409: "The job has not ended yet (`job_not_finished`, with `Retry-After`), or in another way.",
    410: "The audio is no longer kept.",
    413: "The body is too large.",
    415: "The body is not `application/json`.",
    422: "Members of the body are at fault; `errors` names each, with its limit or what is allowed.",
    429: "As many of your jobs wait as may.",
    500: "Something went wrong on the server's side.",
    503: "The database cannot be reached in time, no worker has served the model yet, or the queue is full.",
}
_WEBHOOK_HEADERS: Final[Mapping[str, str]] = {
    "webhook-id": "The same at each attempt.",
    "webhook-timestamp": "Unix time of this attempt, in seconds.",
    "webhook-signature": "`v1,` and a base64 HMAC-SHA256 over `{id}.{timestamp}.{body}`.",
}


def describe(*, public_url: str, max_input_chars: int) -> dict[str, Any]:
    """Return the whole description."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "voxfleet",
            "version": version("voxfleet"),
            "summary": "Text in, a durable job, an MP3 behind a presigned link.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": public_url}],
        "security": [{"bearer": []}, {"xi-api-key": []}, {"X-API-Key": []}],
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in OPERATIONS)],
        "paths": _paths(),
        "webhooks": {event: _webhook(event) for event in ENDINGS.values()},
        "components": {
            "schemas": _schemas(max_input_chars),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "xi-api-key": {"type": "apiKey", "in": "header", "name": "xi-api-key"},
                "X-API-Key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _schemas(max_input_chars: int) -> dict[str, Any]:
    replies = {reply.model for operation in OPERATIONS for reply in operation.replies.values() if reply.model}
    modes: list[tuple[Any, JsonSchemaMode]] = [
        (schemas.JobRequest, "validation"),
        *((model, "serialization") for model in sorted(replies, key=lambda model: model.__name__)),
        (schemas.ProblemView, "serialization"),
        (schemas.Event, "serialization"),
    ]
    _, definitions = models_json_schema(modes, ref_template=_REF)
    known: dict[str, Any] = definitions["$defs"]
    known["JobRequest"]["properties"]["input"]["maxLength"] = max_input_chars
    # Left out where they do not apply.
    known["ProblemItem"]["required"] = ["pointer", "code", "detail"]
    return known


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        path = _PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation)
    return paths


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _responses(operation),
    }
    if operation.open:
        described["security"] = []
    if names := _PARAMETER.findall(operation.path):
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if operation.request is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _reference(operation.request.__name__)}},
        }
    return described


def _responses(operation: Operation) -> dict[str, Any]:
    responses = {str(status): _reply(reply) for status, reply in operation.replies.items()}
    always = (500,) if operation.open else _ALWAYS
    for status in sorted({*operation.problems, *always}):
        responses[str(status)] = {
            "description": _DESCRIPTIONS[status],
            "headers": _headers(PROBLEM_HEADERS.get(status, ())),
            "content": {problems.MEDIA_TYPE: {"schema": _reference("ProblemView")}},
        }
    return responses


def _reply(reply: Reply) -> dict[str, Any]:
    described: dict[str, Any] = {"description": reply.description, "headers": _headers(reply.headers)}
    if reply.model is not None:
        described["content"] = {reply.media_type: {"schema": _reference(reply.model.__name__)}}
    elif reply.media_type != "application/json":
        described["content"] = {reply.media_type: {"schema": {"type": "string"}}}
    return described


def _headers(names: Iterable[str]) -> dict[str, Any]:
    own = {name: _header(HEADERS[name]) for name in names}
    return own | {"X-Request-Id": _header("The request's id: yours, if you sent one.")}


def _header(description: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}}


def _webhook(event: str) -> dict[str, Any]:
    return {
        "post": {
            "operationId": event.replace(".", "_"),
            "summary": f"`{event}`, sent to the job's `webhook_url`",
            "tags": ["Speech"],
            "security": [],
            "parameters": [
                {
                    "name": name,
                    "in": "header",
                    "required": True,
                    "description": description,
                    "schema": {"type": "string"},
                }
                for name, description in _WEBHOOK_HEADERS.items()
            ],
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": _reference("Event")}},
            },
            "responses": {"2XX": {"description": "Taken. Anything else is tried again, five times in all."}},
        }
    }


def _reference(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(model=name)}
