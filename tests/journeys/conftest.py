"""One fleet with the real voice for every journey that breaks nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .fleet import Fleet, fleet


@pytest.fixture(scope="package")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Give a fleet that serves the bundled English voice."""
    with fleet(tmp_path_factory.mktemp("voices") / "data") as running:
        yield running
