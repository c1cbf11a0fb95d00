"""The documentation holds: its links lead somewhere, and it names every command and setting there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cli.main import main
from config.settings import PREFIX, Settings
from speech import registry

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page: Path) -> None:
    links = [link for link in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in _LINK.findall(index.read_text(encoding="utf-8"))}
    decisions = (ROOT / "docs" / "decisions").resolve()

    pages = {page.resolve() for page in PAGES if page.is_relative_to(ROOT / "docs")} - {index.resolve()}

    assert {page for page in pages - linked if page.parent != decisions} == set()


def test_every_setting_is_documented() -> None:
    pages = [ROOT / "docs/reference/settings.md", ROOT / "docs/reference/engines.md"]
    page = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    names = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | registry.settings()

    assert {name for name in names if f"`{name}`" not in page} == set()
    documented = set(re.findall(rf"^\| `({PREFIX}[A-Z0-9_]+)`", page, re.MULTILINE))
    assert documented - names - {"VOXFLEET_API_KEY", "VOXFLEET_URL"} == set()


def test_every_setting_is_described_in_the_words_of_its_field() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8")

    for name, field in Settings.model_fields.items():
        assert field.description
        assert field.description in page, name


def _commands(command: click.Command, path: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from _commands(child, f"{path} {name}")
    else:
        yield path


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")

    assert [path for path in _commands(main, "voxfleet") if f"`{path}" not in page] == []
