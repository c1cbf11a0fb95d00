"""Writes what each engine can do into its page: `python -m tests.docs.engines`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from speech import registry
from speech.engine import ANY_LANGUAGE, EngineInfo

PAGE: Final = Path(__file__).parents[2] / "docs/reference/engines.md"
_BLOCK: Final = re.compile(r"(?<=<!-- from the code -->\n).*?(?=<!-- to here -->)", re.DOTALL)
#: The order of the page; engines of other packages are none of its business.
ENGINES: Final = ("voxcpm2", "chatterbox-turbo", "supertonic-3", "kokoro", "hibari", "openai-http", "tone")


def write() -> str:
    """Return the tables."""
    installed = registry.installed()
    factories = {name: installed[name] for name in ENGINES if name in installed}
    abouts: dict[str, EngineInfo] = {name: factory.about for name, factory in factories.items()}  # type: ignore[attr-defined]
    lines = ["", "| | " + " | ".join(f"`{name}`" for name in abouts) + " |", "|---" * (len(abouts) + 1) + "|"]
    rows: dict[str, Any] = {
        "languages": _languages,
        "voices": lambda info: f"{len(info.voices)}; default `{info.default_voice}`",
        "sample rate": lambda info: f"{info.sample_rate} Hz",
        "device": lambda info: info.device,
        "memory": lambda info: "?" if info.memory_mb is None else f"{info.memory_mb} MB",
        "longest chunk": _longest,
        "sounds best up to": lambda info: f"{info.preferred('en')} characters",
        "audio of one call": lambda info: f"{info.max_seconds:g} s" if info.max_seconds else "no limit",
        "streams": lambda info: _yes(info.features.streaming),
        "clones a voice": lambda info: _yes(info.features.cloning),
        "draws a voice and keeps it": lambda info: _yes(info.features.continuation),
        "`instructions`": lambda info: _yes(info.features.design),
        "`speed`": lambda info: (
            f"{info.speeds[0]:g} to {info.speeds[1]:g}" if info.features.speed else "ignored"
        ),
        "`seed`": lambda info: _yes(info.features.seed),
        "repeats bit for bit": lambda info: _yes(info.deterministic),
        "tags": lambda info: " ".join(f"`{tag}`" for tag in info.features.tags) or "no",
        "`engine_options`": _options,
        "spares memory by": lambda info: (
            ", ".join(f"`{name}` {value}" for name, value in info.thrift.items()) or "nothing"
        ),
        "watermark": lambda info: info.watermark or "no",
        "licence of the weights": lambda info: info.licence,
    }
    for title, cell in rows.items():
        lines.append(f"| {title} | " + " | ".join(cell(info) for info in abouts.values()) + " |")
    lines.append("")
    for name, factory in factories.items():
        lines += [f"### Settings of {name}", "", "| variable | default | meaning |", "|---|---|---|"]
        prefix = f"VOXFLEET_ENGINE_{name.upper().replace('-', '_')}_"
        for field, about in factory.options.model_fields.items():
            default = "" if about.default is None or about.is_required() else f"`{about.default}`"
            default = default if default not in ("``", "`PydanticUndefined`") else ""
            lines.append(f"| `{prefix}{field.upper()}` | {default} | {about.description} |")
        lines.append("")
    return "\n".join(lines) + "\n"


def written() -> str:
    """Return the tables as the page has them."""
    (block,) = _BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    return str(block)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _languages(info: EngineInfo) -> str:
    if ANY_LANGUAGE in info.languages:
        return "any"
    return f"{len(info.languages)}" if len(info.languages) > 4 else ", ".join(info.languages)


def _longest(info: EngineInfo) -> str:
    others = "".join(f", {language} {count}" for language, count in info.max_chars_by_language.items())
    return f"{info.max_chars}{others}"


def _options(info: EngineInfo) -> str:
    return ", ".join(f"`{name}`" for name in info.options["properties"]) or "none"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_BLOCK.sub(lambda _: write(), text), encoding="utf-8")
