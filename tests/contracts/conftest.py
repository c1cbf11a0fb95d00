"""Databases for the contracts of the stores of `jobs`, each suite run over SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from jobs.database import Database
from jobs.store import JobStore

from ..jobs.databases import (
    NOW,
    clock,
    database,
    dialect,
    postgresql_url,
    sqlite_template,
    url,
)
from .job_steps import job_store

__all__ = ["clock", "database", "dialect", "postgresql_url", "sqlite_template", "url"]


@pytest.fixture
def jobs(database: Database) -> JobStore:
    """Give a job store whose time stands still."""
    return job_store(database)


@pytest.fixture
def crowd(database: Database, url: str) -> Iterator[list[JobStore]]:
    """Give ten stores over one database, each with connections of its own, as so many workers have."""
    with ExitStack() as stack:
        # After the emptying of the database, and on its clock.
        yield [job_store(stack.enter_context(closing(Database(url, now=NOW)))) for _ in range(10)]
