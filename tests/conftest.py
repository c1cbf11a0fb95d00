"""Servers, one of each per run, and a clean environment for every test."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from storage.s3 import S3Store, connect

from . import servers


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the settings of whoever runs the tests out of them."""
    for name in [name for name in os.environ if name.startswith("VOXFLEET_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def valkey() -> Iterator[servers.Valkey]:
    """Give a Valkey. Whoever stops or freezes a server starts one of their own instead."""
    with servers.valkey() as server:
        yield server


@pytest.fixture(scope="session")
def seaweed() -> Iterator[servers.SeaweedFS]:
    """Give a SeaweedFS."""
    with servers.seaweed() as server:
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[servers.Postgres]:
    """Give a PostgreSQL; `postgres.database()` makes a database for one test."""
    with servers.postgres() as server:
        yield server


@pytest.fixture
def bucket(seaweed: servers.SeaweedFS) -> Iterator[S3Store]:
    """Give the store over a new bucket of the SeaweedFS."""
    store = connect(
        endpoint=seaweed.endpoint,
        region="us-east-1",
        bucket=f"t-{secrets.token_hex(8)}",
        access_key_id=seaweed.access_key_id,
        secret_access_key=seaweed.secret_access_key,
    )
    store.ensure_bucket()
    yield store
    store.close()
