"""From a parsed body to a job that can be done, or to what is wrong with it. Never quotes the input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from flask import Request
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from api.bodies import pointer, read_json
from api.manner import manner
from api.problems import Fault, NoWorker, RequestRefused
from api.schemas import CLASSES, DEFAULT_LIFE, FORMATS, JobRequest, VoiceRef
from jobs.job import (
    NO_FALLBACK,
    TERMINAL,
    Job,
    JobClass,
    JobEnded,
    JobUnended,
    JobWarning,
    NewJob,
    Status,
    TenantId,
)
from jobs.substitutes import engine_language, substitute, voice_language
from jobs.targets import TargetRefused, TargetUnresolved
from jobs.workers import ServedModel
from speech.text import prepare, speakable

#: A body may hold a hundred thousand unknown members; nobody reads so long an answer.
MOST_FAULTS: Final = 16
#: Nearly every text says something within its first characters.
_HEAD: Final = 1000

_MEMBERS: Final = tuple(field.alias or name for name, field in JobRequest.model_fields.items())

#: Checks that a webhook may go to a URL; raises TargetRefused.
CheckTarget = Callable[[str], object]


def new_job(
    body: Any,
    *,
    tenant_id: TenantId,
    models: Sequence[ServedModel],
    default_model: str,
    max_input_chars: int,
    check_target: CheckTarget,
    new_seed: Callable[[], int],
    fallback: str | None = None,
) -> NewJob:
    """Return the job that `body` asks for.

    Args:
        body: a parsed JSON value without lone surrogates.
        models: what workers serve or have served.
        default_model: the model of a body that names none.
        max_input_chars: longest input, in code points.
        check_target: asked last, and only for a body without any other fault: it may take a while.
        new_seed: makes the seed of a body that names none.
        fallback: the fallback model of a body that names none.

    Raises:
        RequestRefused: names every member at fault.
        NoWorker: nothing is known of the default model yet.
    """
    request = _parsed(body)
    faults = [*_input_faults(request.input, max_input_chars), *_nul_faults(request)]
    served = _served(request.model or default_model, models)
    if served is None and request.model in (None, default_model):
        _refuse(faults)
        raise NoWorker(default_model)
    if served is None:
        raise RequestRefused([*faults, _unknown_model(models, default_model, pointer="/model")])
    voice = _voice(request.voice, served.info)
    if voice is None:
        voices = tuple(str(known["id"]) for known in served.info["voices"])
        faults.append(
            Fault(
                pointer="/voice" if not isinstance(request.voice, VoiceRef) else "/voice/id",
                code="voice_not_found",
                detail=f"{served.model} has no such voice",
                allowed=voices,
            )
        )
    language = _language(request.language, voice, served.info)
    if language is None:
        faults.append(
            Fault(
                pointer="/language",
                code="language_not_supported",
                detail=f"{served.model} does not speak this language",
                allowed=tuple(served.info["languages"]),
            )
        )
    asked, ignored, wrong = manner(
        instructions=request.instructions,
        speed=request.speed,
        options=request.engine_options,
        served=served,
        models=models,
    )
    faults += wrong
    if request.fallback not in (None, NO_FALLBACK) and _served(request.fallback, models) is None:
        faults.append(_unknown_model(models, default_model, pointer="/fallback"))
    _refuse(faults)
    if request.webhook_url is not None:
        _check_webhook(request.webhook_url, check_target)
    new = NewJob(
        tenant_id=tenant_id,
        input=request.input,
        model=served.model,
        queue=served.queue,
        voice=str((voice or {})["id"]),
        language=str(language),
        response_format=request.response_format or FORMATS[0],
        seed=new_seed() if request.seed is None else request.seed,
        expires_in=DEFAULT_LIFE if request.expires_in is None else request.expires_in,
        metadata=request.metadata or {},
        webhook_url=request.webhook_url,
        job_class=JobClass[(request.job_class or "normal").upper()],
        deadline=request.deadline,
        manner=asked,
        fallback=request.fallback,
        warnings=ignored,
    )
    return _rerouted(new, served, models, fallback=request.fallback or fallback)


def _rerouted(
    new: NewJob, served: ServedModel, models: Sequence[ServedModel], *, fallback: str | None
) -> NewJob:
    """Return the job as another model speaks it, while every worker of its own leaves its engine alone."""
    if served.workers or not served.breakers_open or fallback in (None, NO_FALLBACK, served.model):
        return new
    other = _served(fallback or "", models)
    spoken = None
    if other is not None:
        spoken = substitute(other, voice=new.voice, language=new.language, manner=new.manner)
    if other is None or spoken is None:
        return new
    said = JobWarning(
        code="fallback_model",
        message=f"spoken by {other.model} in place of {served.model}, which is out of memory",
    )
    return replace(new, substitute=spoken, warnings=(*new.warnings, said))


def served_model(name: str, models: Sequence[ServedModel], *, default_model: str) -> ServedModel:
    """Return a model that some worker serves or has served.

    Raises:
        RequestRefused: nobody knows it any more.
        NoWorker: likewise, and it is the default model.
    """
    served = _served(name, models)
    if served is not None:
        return served
    if name == default_model:
        raise NoWorker(name)
    raise RequestRefused([_unknown_model(models, default_model, pointer="")])


def check_retry(job: Job) -> None:
    """Return when a job ended without audio, so that it may be tried again.

    Raises:
        JobUnended, JobEnded.
    """
    if job.status not in TERMINAL:
        raise JobUnended(job.id)
    if job.status is Status.COMPLETED:
        raise JobEnded(job.id, job.status)


def read_no_members(request: Request) -> None:
    """Return when there is no body, or one that says nothing: this route takes no members.

    Raises:
        RequestRefused: names every member.
        Others, of `api.bodies.read_json`.
    """
    if not request.get_data():
        return
    body = read_json(request)
    if not isinstance(body, dict):
        raise RequestRefused([Fault(pointer="", code="wrong_type", detail="the body must be an object")])
    faults = [
        Fault(pointer=pointer(name), code="unknown_member", detail="this member is not known", allowed=())
        for name in list(body)[:MOST_FAULTS]
    ]
    _refuse(faults)


def _parsed(body: Any) -> JobRequest:
    if not isinstance(body, dict):
        raise RequestRefused([Fault(pointer="", code="wrong_type", detail="the body must be an object")])
    try:
        return JobRequest.model_validate(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        faults: dict[str, Fault] = {}
        for item in found:
            fault = _fault(item)
            faults.setdefault(fault.pointer, fault)
            if len(faults) == MOST_FAULTS:
                break
        # Without the cause: it holds the input.
        raise RequestRefused([*faults.values()]) from None


#: pydantic's names of errors, and ours: https://docs.pydantic.dev/latest/errors/validation_errors/
_CODES: Final[Mapping[str, tuple[str, str]]] = {
    "missing": ("missing_member", "this member is required"),
    "string_type": ("wrong_type", "this must be a string"),
    "int_type": ("wrong_type", "this must be a whole number"),
    "float_type": ("wrong_type", "this must be a number"),
    "int_parsing_size": ("out_of_range", "this number is too large"),
    "dict_type": ("wrong_type", "this must be an object"),
    "string_too_short": ("too_short", "this must not be empty"),
    "string_too_long": ("too_long", "this is longer than {max_length} characters"),
    "too_long": ("too_many", "there are more than {max_length} members"),
    "greater_than_equal": ("out_of_range", "this must be {ge} or more"),
    "less_than_equal": ("out_of_range", "this must be {le} or less"),
    "string_pattern_mismatch": ("language_not_supported", "this must be a BCP 47 tag such as `en`"),
}
_LIMITS: Final = ("max_length", "ge", "le")


def _fault(item: ErrorDetails) -> Fault:
    kind, location, context = item["type"], item["loc"], item.get("ctx", {})
    if location[0] == "voice":
        # pydantic reports each branch of the union.
        detail = 'this must be the id of a voice, or {"id": it}, of 1 to 128 characters'
        return Fault(pointer="/voice", code="wrong_type", detail=detail)
    if kind == "extra_forbidden":
        return Fault(
            pointer=pointer(*location),
            code="unknown_member",
            detail="this member is not known",
            allowed=_MEMBERS,
        )
    if location[0] == "class":
        return Fault(
            pointer="/class", code="out_of_range", detail="this is no class of urgency", allowed=CLASSES
        )
    if location[0] == "response_format":
        return Fault(
            pointer="/response_format",
            code="format_not_supported",
            detail="this format is not made",
            allowed=FORMATS,
        )
    path = tuple(step for step in location if step != "[key]")
    code, detail = _CODES.get(kind, ("invalid", "this is not valid"))
    limit = next((context[name] for name in _LIMITS if isinstance(context.get(name), int)), None)
    return Fault(pointer=pointer(*path), code=code, detail=detail.format_map(context), limit=limit)


def _input_faults(text: str, max_input_chars: int) -> list[Fault]:
    if len(text) > max_input_chars:
        detail = f"the input has {len(text)} characters; {max_input_chars} are allowed"
        return [Fault(pointer="/input", code="input_too_long", detail=detail, limit=max_input_chars)]
    if not _says_something(text):
        detail = "the input holds no letter and no number to speak"
        return [Fault(pointer="/input", code="no_speakable_text", detail=detail)]
    return []


def _says_something(text: str) -> bool:
    head = text[:_HEAD]
    # An escape sequence may be cut in the middle, and its letters are not spoken.
    if "\x1b" not in head and "\x9b" not in head and speakable(prepare(head)):
        return True
    return speakable(prepare(text))


def _nul_faults(request: JobRequest) -> list[Fault]:
    # A NUL in `model` or `voice` makes it one that nobody has.
    paths: list[tuple[str, ...]] = [
        ("metadata", name) for name, text in (request.metadata or {}).items() if "\0" in name + text
    ]
    texts = {"webhook_url": request.webhook_url, "instructions": request.instructions}
    paths += [(name,) for name, text in texts.items() if text is not None and "\0" in text]
    detail = "this holds a NUL character"
    return [Fault(pointer=pointer(*path), code="invalid_text", detail=detail) for path in paths]


def _served(name: str, models: Sequence[ServedModel]) -> ServedModel | None:
    return next((model for model in models if model.model == name), None)


def _unknown_model(models: Sequence[ServedModel], default_model: str, *, pointer: str) -> Fault:
    return Fault(
        pointer=pointer,
        code="model_not_found",
        detail="no worker has served this model",
        allowed=tuple(sorted({default_model, *(model.model for model in models)})),
    )


def _voice(asked: str | VoiceRef | None, info: Mapping[str, Any]) -> Mapping[str, Any] | None:
    wanted = asked.id if isinstance(asked, VoiceRef) else asked
    if wanted is None:
        wanted = info["default_voice"]
    return next((voice for voice in info["voices"] if voice["id"] == wanted), None)


def _language(asked: str | None, voice: Mapping[str, Any] | None, info: Mapping[str, Any]) -> str | None:
    if asked is not None:
        return engine_language(asked, info)
    return voice_language(voice) if voice else ""


def _check_webhook(url: str, check_target: CheckTarget) -> None:
    try:
        check_target(url)
    except TargetRefused as error:
        unresolved = isinstance(error, TargetUnresolved)
        code = "webhook_url_unresolved" if unresolved else "webhook_url_rejected"
        fault = Fault(pointer="/webhook_url", code=code, detail=str(error))
        raise RequestRefused([fault]) from error


def _refuse(faults: Sequence[Fault]) -> None:
    if faults:
        raise RequestRefused(faults)
