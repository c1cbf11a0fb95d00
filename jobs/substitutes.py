"""Which model speaks a job when its own cannot. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jobs.job import Manner, Substitute
from jobs.workers import ServedModel

#: A voice that speaks any language leaves that of its text undetermined (RFC 5646).
UNDETERMINED = "und"


def substitute(served: ServedModel, *, voice: str, language: str, manner: Manner) -> Substitute | None:
    """Return how a model would speak a job of another one; None where it does not speak its language, or
    nobody serves it now.

    Args:
        voice: the job's; the model's default stands in for one that it does not have.
        language: BCP 47.
        manner: what the model does not understand of it is left out.
    """
    if not served.workers:
        return None
    info = served.info
    voices = {str(known["id"]): known for known in info["voices"]}
    chosen = voices.get(voice) or voices[str(info["default_voice"])]
    spoken = _language(language, chosen, info)
    if spoken is None:
        return None
    features = info.get("features", {})
    known = info.get("options", {}).get("properties", {})
    return Substitute(
        model=served.model,
        queue=served.queue,
        voice=str(chosen["id"]),
        language=spoken,
        manner=Manner(
            style=manner.style if features.get("design") else None,
            speed=manner.speed if features.get("speed") else 1.0,
            options={name: value for name, value in manner.options.items() if name in known},
        ),
    )


def engine_language(asked: str, info: Mapping[str, Any]) -> str | None:
    """Return the engine's own tag for a language, since engines compare whole tags, or None."""
    known = [str(language) for language in info["languages"]]
    if "*" in known:
        return asked
    exact = (tag for tag in known if tag.lower() == asked.lower())
    near = (tag for tag in known if _primary(tag) == _primary(asked))
    return next(exact, None) or next(near, None)


def voice_language(voice: Mapping[str, Any]) -> str:
    """Return the language of a text for which only the voice was said."""
    return str(voice["language"]).replace("*", UNDETERMINED)


def _language(language: str, voice: Mapping[str, Any], info: Mapping[str, Any]) -> str | None:
    return voice_language(voice) if language == UNDETERMINED else engine_language(language, info)


def _primary(tag: str) -> str:
    return tag.partition("-")[0].lower()
