"""The pages on engines: what the code says of itself, and an example that works."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from speech.engine import BadOption, SynthesisRequest, UnsupportedText
from speech.host import EngineHost
from speech.ladder import Rung

from .engines import ENGINES, write, written

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs/how-to/add-an-engine.md"
MEMORY = ROOT / "docs/explanation/memory.md"


def test_the_table_of_engines_is_what_the_code_says() -> None:
    assert written() == write(), "run `python -m tests.docs.engines`"


def test_every_engine_that_comes_along_is_in_the_table() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.split('[project.entry-points."voxfleet.engines"]')[1].split("\n\n")[0]

    assert set(re.findall(r"^([\w-]+) = ", section, re.MULTILINE)) == set(ENGINES)
    assert all(f"| `{name}`" in written() for name in ENGINES)


def test_every_rung_of_the_ladder_is_explained() -> None:
    page = MEMORY.read_text(encoding="utf-8")

    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [rung.value for rung in Rung]


@pytest.mark.slow
def test_the_example_engine_of_the_how_to_rings(tmp_path: Path) -> None:
    (source,) = re.findall(r"^```python\n(.*?)^```$", HOW_TO.read_text(encoding="utf-8"), re.M | re.S)
    (tmp_path / "bell_engine.py").write_text(source, encoding="utf-8")
    package = tmp_path / "bell_engine-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: bell-engine\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[voxfleet.engines]\nbell = bell_engine:ENGINE\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def ask(text: str, **options: int) -> SynthesisRequest:
        return SynthesisRequest(text=text, voice="brass", language="en", seed=0, options=options)

    with EngineHost("bell", {"hertz": "880"}, nice=0, chunk_seconds=30, environ=environ) as host:
        assert host.start().options["properties"]["overtones"]["maximum"] == 8
        parts = list(host.synthesize(ask("Three short words", overtones=1)))
        assert len(parts) == 3
        spectrum = np.abs(np.fft.rfft(parts[0]))
        assert np.argmax(spectrum) * 24_000 / len(parts[0]) == pytest.approx(880, abs=8)
        with pytest.raises(BadOption, match="overtones"):
            list(host.synthesize(ask("Word", overtones=9)))
        with pytest.raises(UnsupportedText):
            list(host.synthesize(ask(" ")))
