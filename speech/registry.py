"""The engines that are installed here, by the entry points of the group `voxfleet.engines`.

Looking an engine up imports its module and nothing more; the model's runtime is imported by `load` alone.
"""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast

from speech.engine import EngineFactory

GROUP: Final = "voxfleet.engines"

#: What importing someone else's module raises when it is broken or made for another version.
IMPORT_FAILURES: Final = (
    ImportError,
    AttributeError,
    SyntaxError,
    NameError,
    TypeError,
    ValueError,
    OSError,
    RuntimeError,
)

log = logging.getLogger("voxfleet.engine")


class UnknownEngine(LookupError):
    """No engine of this name is installed, or it cannot be imported; the message lists those that are."""


def _points() -> dict[str, EntryPoint]:
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def installed() -> dict[str, EngineFactory]:
    """Return the engines by name. One that cannot be imported is left out, with a warning in the log."""
    engines = {}
    for name, point in _points().items():
        try:
            engines[name] = cast(EngineFactory, point.load())
        except IMPORT_FAILURES as error:
            log.warning(
                "engine %s (%s) cannot be imported: %s: %s", name, point.value, type(error).__name__, error
            )
    return engines


def find(name: str) -> EngineFactory:
    """Return one engine; no other is imported.

    Raises:
        UnknownEngine: no such engine, or its module cannot be imported.
    """
    points = _points()
    point = points.get(name)
    if point is None:
        raise UnknownEngine(f"no engine {name!r}; installed: {', '.join(points) or 'none'}")
    try:
        return cast(EngineFactory, point.load())
    except IMPORT_FAILURES as error:
        raise UnknownEngine(
            f"engine {name!r} ({point.value}) cannot be imported: {type(error).__name__}: {error}"
        ) from error


def settings() -> set[str]:
    """Return the full names of the variables that the installed engines read."""
    return {
        f"VOXFLEET_ENGINE_{name.upper().replace('-', '_')}_{field.upper()}"
        for name, factory in installed().items()
        for field in factory.options.model_fields
    }
