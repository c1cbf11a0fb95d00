"""How a text is to be said, judged by what its engine tells of itself. Never quotes the input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry

from api.bodies import pointer
from api.problems import Fault
from api.schemas import FASTEST, SLOWEST
from jobs.job import JobWarning, Manner
from jobs.workers import ServedModel

#: Options that some engine in this field has: where this one has them not, they are ignored, and it is said.
#: Any other name is taken for a misspelling.
COMMON: Final = frozenset(
    {
        "cfg",
        "cfg_weight",
        "exaggeration",
        "min_p",
        "repetition_penalty",
        "steps",
        "temperature",
        "top_k",
        "top_p",
    }
)
#: Longest text of an option.
LONGEST_VALUE: Final = 200
_MANY: Final = 16


def manner(
    *,
    instructions: str | None,
    speed: float | None,
    options: Mapping[str, Any] | None,
    served: ServedModel,
    models: Sequence[ServedModel],
) -> tuple[Manner, tuple[JobWarning, ...], list[Fault]]:
    """Return the manner as the engine will be asked, what it ignores of it, and what is wrong with it.

    Args:
        models: what other workers serve: an option that one of them has is none that nobody knows.
    """
    features = served.info.get("features", {})
    warnings: list[JobWarning] = []
    if instructions is not None and not features.get("design"):
        warnings.append(_ignored("instructions", served))
        instructions = None
    faults: list[Fault] = []
    if speed is not None and speed != 1.0:
        slowest, fastest = served.info.get("speeds", (SLOWEST, FASTEST))
        if not features.get("speed"):
            warnings.append(_ignored("speed", served))
            speed = None
        elif not slowest <= speed <= fastest:
            detail = f"{served.model} takes {slowest:g} to {fastest:g}"
            faults.append(Fault(pointer="/speed", code="out_of_range", detail=detail))
    schema = _schema(served)
    known = {name: value for name, value in (options or {}).items() if name in schema["properties"]}
    elsewhere = COMMON.union(*(_schema(model)["properties"] for model in models))
    for name in options or {}:
        if name in known:
            continue
        if name in elsewhere:
            warnings.append(_ignored("engine_option", served, name=name))
        else:
            faults.append(
                Fault(
                    pointer=pointer("engine_options", name),
                    code="unknown_member",
                    detail=f"{served.model} has no such option",
                    allowed=tuple(sorted(schema["properties"])),
                )
            )
    faults += _faults(known, schema)
    asked = Manner(style=instructions, speed=1.0 if speed is None else speed, options=known)
    return asked, tuple(warnings), faults[:_MANY]


def _ignored(what: str, served: ServedModel, *, name: str | None = None) -> JobWarning:
    return JobWarning(
        code=f"{what}_ignored", message=f"{served.model} cannot heed it, and ignores it: {name or what}"
    )


def _schema(served: ServedModel) -> Mapping[str, Any]:
    schema = served.info.get("options")
    # Workers of the release before tell of none.
    return schema if isinstance(schema, dict) and "properties" in schema else {"properties": {}}


def _faults(options: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterable[Fault]:
    if not options:
        return ()
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        # An engine of somebody else's: it judges for itself when it is called.
        return ()
    # No schema is fetched from anywhere.
    judge = Draft202012Validator(schema, registry=Registry())
    return [_fault(error) for error in judge.iter_errors(dict(options))]


def _fault(error: ValidationError) -> Fault:
    limits = {
        "minimum": "this must be {limit} or more",
        "maximum": "this must be {limit} or less",
        "exclusiveMinimum": "this must be more than {limit}",
        "exclusiveMaximum": "this must be less than {limit}",
        "maxLength": "this is longer than {limit} characters",
    }
    at = pointer("engine_options", *(str(step) for step in error.absolute_path))
    # Of several forms, most often a value or null, the first one is meant.
    told = error.context[0] if error.validator == "anyOf" and error.context else error
    kind, limit = str(told.validator), told.validator_value
    if kind in limits:
        whole = limit if isinstance(limit, int) else None
        return Fault(pointer=at, code="out_of_range", detail=limits[kind].format(limit=limit), limit=whole)
    if kind == "enum":
        allowed = tuple(str(value)[:LONGEST_VALUE] for value in limit)
        return Fault(pointer=at, code="out_of_range", detail="this is none of its values", allowed=allowed)
    if kind == "type":
        return Fault(pointer=at, code="wrong_type", detail=f"this must be of the type {limit}")
    return Fault(pointer=at, code="invalid", detail=f"this is not valid: {kind}")
