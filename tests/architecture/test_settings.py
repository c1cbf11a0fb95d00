"""Every setting is documented, as it is."""

from __future__ import annotations

import re
from pathlib import Path

from config.settings import PREFIX, Settings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def test_every_setting_is_documented_and_nothing_else() -> None:
    documented = set(re.findall(rf"^\| `({PREFIX}[A-Z0-9_]+)`", PAGE.read_text(), flags=re.MULTILINE))
    page_only = {f"{PREFIX}API_KEY", f"{PREFIX}URL"}

    settings = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    engines = {name for name in documented if name.startswith(f"{PREFIX}ENGINE_")}

    assert documented - engines - page_only == settings


def test_every_setting_is_described_in_the_words_of_its_field() -> None:
    page = PAGE.read_text()
    for name, field in Settings.model_fields.items():
        assert field.description
        assert field.description in page, name
