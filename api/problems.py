"""Errors as the caller sees them: one body (RFC 9457, with OpenAI's `error` inside), one table."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from flask import Response, request
from gunicorn.http.errors import ParseException
from werkzeug.exceptions import (
    HTTPException,
    MethodNotAllowed,
    NotFound,
    RequestEntityTooLarge,
)

from api.bodies import LARGEST_BODY, BadBody, LoneSurrogate, WrongMediaType
from api.requests import request_id
from jobs.database import DatabaseUnavailable
from jobs.job import JobEnded, JobNotFound, JobUnended

logger: Final = logging.getLogger("voxfleet.api")

MEDIA_TYPE: Final = "application/problem+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One member of a request that is at fault.

    Attributes:
        pointer: JSON pointer into the body.
        limit: the limit that was passed, if that is the fault.
        allowed: what is accepted instead.
    """

    pointer: str
    code: str
    detail: str
    limit: int | None = None
    allowed: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as it is sent; what does not apply is left out."""
        body: dict[str, Any] = {"pointer": self.pointer, "code": self.code, "detail": self.detail}
        if self.limit is not None:
            body["limit"] = self.limit
        if self.allowed is not None:
            body["allowed"] = list(self.allowed)
        return body


class Unauthenticated(Exception):
    """No key, or none that is valid."""


class RequestRefused(Exception):
    """The request is well formed, but asks for what we do not do."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(f"{fault.pointer or 'body'}: {fault.detail}" for fault in faults))
        self.faults = tuple(faults)


class NoWorker(Exception):
    """No worker has ever served the model, so nobody knows what it can do."""


class JobUnfinished(Exception):
    """The audio is not there yet."""


class JobHasNoAudio(Exception):
    """The job ended without audio; the first argument is its status."""


class AudioExpired(Exception):
    """The audio was kept until `expires_at`."""


class Busy(Exception):
    """The fleet has as much to do as it takes.

    Attributes:
        code: `queue_full` or `wait_too_long`.
        limit: jobs, or seconds.
        retry_after: seconds.
    """

    def __init__(self, code: str, limit: int, *, retry_after: int) -> None:
        what = f"{limit} jobs" if code == "queue_full" else f"more than {limit} seconds"
        super().__init__(f"the model's queue is full: {what} of work wait already")
        self.code = code
        self.limit = limit
        self.retry_after = retry_after


class TenantBusy(Exception):
    """The caller has as many jobs waiting as it may have.

    Attributes:
        limit: jobs.
        retry_after: seconds.
    """

    def __init__(self, limit: int, *, retry_after: int) -> None:
        super().__init__(f"{limit} of your jobs are waiting already, and no more may")
        self.limit = limit
        self.retry_after = retry_after


class Meaning(NamedTuple):
    """How an exception is answered."""

    status: int
    #: None: more than one is possible, see `_code`.
    code: str | None
    #: None: the exception's own text.
    detail: str | None = None
    retry_after: int | None = None


#: Which exception is answered how; the nearest class counts.
MEANINGS: Final[Mapping[type[Exception], Meaning]] = {
    BadBody: Meaning(400, "invalid_json"),
    ParseException: Meaning(400, "bad_request", "the request is not valid HTTP"),
    Unauthenticated: Meaning(401, "invalid_api_key"),
    NotFound: Meaning(404, "not_found", "there is nothing at this address"),
    JobNotFound: Meaning(404, "job_not_found", "there is no such job"),
    MethodNotAllowed: Meaning(405, "method_not_allowed", "this address does not take this method"),
    JobUnfinished: Meaning(409, "job_not_finished", "the audio is not finished yet", 1),
    JobHasNoAudio: Meaning(409, None, "the job ended without audio"),
    JobUnended: Meaning(409, "job_not_finished", "the job has not ended yet", 1),
    JobEnded: Meaning(409, None, "the job has ended already"),
    AudioExpired: Meaning(410, "audio_expired", "the audio is no longer kept"),
    RequestEntityTooLarge: Meaning(413, "body_too_large", f"the body is larger than {LARGEST_BODY} bytes"),
    WrongMediaType: Meaning(415, "unsupported_media_type"),
    LoneSurrogate: Meaning(422, "invalid_text"),
    RequestRefused: Meaning(422, None),
    HTTPException: Meaning(400, None),
    TenantBusy: Meaning(429, "too_many_jobs"),
    Busy: Meaning(503, None),
    NoWorker: Meaning(503, "no_worker", "no worker has served the default model yet", 5),
    DatabaseUnavailable: Meaning(503, "database_unavailable", "the database cannot be reached in time", 1),
    Exception: Meaning(500, "internal_error", "something went wrong on our side; it has been logged"),
}


def answer(error: Exception) -> Response:
    """Return the response to an `error` that rose from a request."""
    meaning = next(MEANINGS[kind] for kind in type(error).__mro__ if kind in MEANINGS)
    if meaning.status == 500:
        logger.error("request %s failed", request_id(), exc_info=error)
    status = _status(error, meaning)
    faults = _faults(error)
    code = meaning.code or _code(error, status)
    detail = meaning.detail or str(error) or HTTPStatus(status).phrase
    if isinstance(error, HTTPException) and meaning.detail is None:
        detail = HTTPStatus(status).phrase
    body = _body(status, code, detail, faults, instance=request.path, request_id=request_id())
    headers = _headers(error)
    if isinstance(error, Busy | TenantBusy):
        headers["Retry-After"] = str(error.retry_after)
    if meaning.retry_after is not None:
        headers["Retry-After"] = str(meaning.retry_after)
    return Response(json.dumps(body), status, headers, content_type=MEDIA_TYPE)


def unreadable(status: int) -> bytes:
    """Return the body of the answer to bytes that never became a request."""
    try:
        known = HTTPStatus(status)
    except ValueError:
        known = HTTPStatus.BAD_REQUEST
    detail = "the request is not valid HTTP, or one of its lines is too long"
    if known >= HTTPStatus.INTERNAL_SERVER_ERROR:
        detail = MEANINGS[Exception].detail or known.phrase
    body = _body(known.value, known.name.lower(), detail, (), instance=None, request_id=None)
    return json.dumps(body).encode()


def _body(
    status: int,
    code: str,
    detail: str,
    faults: Sequence[Fault],
    *,
    instance: str | None,
    request_id: str | None,
) -> dict[str, Any]:
    return {
        "type": f"/problems/{code.replace('_', '-')}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "instance": instance,
        "code": code,
        "request_id": request_id,
        "errors": [fault.to_json() for fault in faults],
        "error": {
            "message": detail,
            "type": _openai_type(status),
            "param": _param(faults),
            "code": code,
        },
    }


def _status(error: Exception, meaning: Meaning) -> int:
    if isinstance(error, HTTPException) and error.code is not None and error.code >= 400:
        return error.code
    return meaning.status


def _code(error: Exception, status: int) -> str:
    match error:
        case RequestRefused():
            return error.faults[0].code
        case JobHasNoAudio():
            return f"job_{error.args[0]}"
        case JobEnded():
            return f"job_{error.status.value}"
        case Busy():
            return error.code
        case _:
            return HTTPStatus(status).name.lower()


def _faults(error: Exception) -> tuple[Fault, ...]:
    match error:
        case RequestRefused():
            return error.faults
        case LoneSurrogate():
            return (Fault(pointer=error.pointer, code="invalid_text", detail=str(error)),)
        case Busy() | TenantBusy():
            code = error.code if isinstance(error, Busy) else "too_many_jobs"
            return (Fault(pointer="", code=code, detail=str(error), limit=error.limit),)
        case RequestEntityTooLarge():
            detail = f"the body is larger than {LARGEST_BODY} bytes"
            return (Fault(pointer="", code="body_too_large", detail=detail, limit=LARGEST_BODY),)
        case _:
            return ()


def _headers(error: Exception) -> dict[str, str]:
    match error:
        case Unauthenticated():
            return {"WWW-Authenticate": "Bearer"}
        case MethodNotAllowed(valid_methods=methods) if methods:
            return {"Allow": ", ".join(sorted(methods))}
        case _:
            return {}


def _openai_type(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def _param(faults: Sequence[Fault]) -> str | None:
    return faults[0].pointer.split("/")[1] if faults and faults[0].pointer else None
