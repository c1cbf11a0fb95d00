"""The package that an engine drives: there, and of the version that it was written for."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from speech.engine import EngineUnavailable


def require(package: str, wanted: str, *, engine: str, install: str, missing: str | None) -> None:
    """Return when an engine's package can be used.

    Args:
        package: its name on PyPI.
        wanted: its version, exactly.
        install: how to get it.
        missing: `EngineFactory.missing` of the engine.

    Raises:
        EngineUnavailable: with how to get it.
    """
    if missing is not None:
        raise EngineUnavailable(f"engine {engine} is not installed: {missing}")
    try:
        found = version(package)
    except PackageNotFoundError:
        found = "an unknown version"
    if found != wanted:
        raise EngineUnavailable(f"{package} {found} is installed, {wanted} is needed: {install}")
