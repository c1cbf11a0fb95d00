"""Request bodies: JSON, read strictly. What two parsers may read differently is refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from flask import Request
from werkzeug.exceptions import RequestEntityTooLarge

#: Holds the longest input in any script but the rarest, even where JSON escapes every character of it.
LARGEST_BODY: Final = 2 * 1024 * 1024
DEEPEST: Final = 32
#: A job has some fifty at most; building a million would hold up every other request.
MOST_VALUES: Final = 1000

#: One that is never closed reaches to the end: left alone, each quote in it would begin another search.
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
#: Each value brings a name and a string at most; a million strings would hold up every other request.
_MOST_STRINGS: Final = 2 * MOST_VALUES + 1


class BadBody(ValueError):
    """The body is no JSON that we read; the text says why, without quoting it."""


class WrongMediaType(ValueError):
    """The body is, or says that it is, something other than JSON."""


class LoneSurrogate(ValueError):
    """A string holds half of a surrogate pair: no text.

    Attributes:
        pointer: JSON pointer (RFC 6901) to it.
    """

    def __init__(self, pointer: str) -> None:
        super().__init__(f"{pointer or 'the body'} holds half of a surrogate pair")
        self.pointer = pointer


def read_json(request: Request) -> Any:
    """Return the JSON body of `request`.

    Raises:
        WrongMediaType, BadBody, LoneSurrogate.
        werkzeug.exceptions.RequestEntityTooLarge.
    """
    media_type = request.mimetype
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise WrongMediaType("send the job as application/json")
    body = request.get_data()
    if len(body) > LARGEST_BODY:
        raise RequestEntityTooLarge
    return parse(body)


def parse(body: bytes) -> Any:
    """Return the value of a JSON text (RFC 8259) in UTF-8: no doubled member names, no NaN, not too deep.

    Raises:
        BadBody, LoneSurrogate.
    """
    if not body:
        raise BadBody("the body is empty")
    if _values(body) > MOST_VALUES and _values(_STRING.sub(b"", body, _MOST_STRINGS)) > MOST_VALUES:
        raise BadBody(f"the body holds more than {MOST_VALUES} values")
    try:
        value = json.loads(
            body.decode(),
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        raise BadBody(f"the body is not UTF-8 (byte {error.start})") from error
    except json.JSONDecodeError as error:
        raise BadBody(
            f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from error
    except RecursionError as error:
        raise BadBody(f"the body is nested deeper than {DEEPEST}") from error
    except BadBody:
        raise
    except ValueError as error:
        # Python refuses integers of more than 4,300 digits.
        raise BadBody("the body holds a number that is too long") from error
    _check(value)
    return value


def pointer(*path: str | int) -> str:
    """Return the JSON pointer of `path`; long names are cut, since it is for people to read."""
    return "".join(f"/{_short(str(step)).replace('~', '~0').replace('/', '~1')}" for step in path)


def _values(body: bytes) -> int:
    """Return the most values that `body` may hold, where it holds no strings with these signs."""
    return sum(body.count(sign) for sign in (b",", b"[", b"{"))


def _short(name: str, limit: int = 64) -> str:
    printable = name.encode(errors="replace").decode()
    return printable if len(printable) <= limit else printable[: limit - 1] + "…"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise BadBody("an object has two members of the same name")
    return members


def _no_constant(name: str) -> NoReturn:
    raise BadBody(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise BadBody("the body holds a number that is too large")
    return number


def _check(value: Any) -> None:
    todo: list[tuple[Any, tuple[str | int, ...]]] = [(value, ())]
    while todo:
        value, path = todo.pop()
        if len(path) > DEEPEST:
            raise BadBody(f"the body is nested deeper than {DEEPEST}")
        if isinstance(value, str):
            _check_text(value, path)
        else:
            todo.extend(_children(value, path))


def _children(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[Any, tuple[str | int, ...]]]:
    if isinstance(value, dict):
        for name, member in value.items():
            _check_text(name, path)
            yield member, (*path, name)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield item, (*path, index)


def _check_text(value: str, path: tuple[str | int, ...]) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise LoneSurrogate(pointer(*path)) from error
