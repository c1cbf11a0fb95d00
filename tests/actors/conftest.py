"""A job table in a file, with a clock that tests move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs import migrate
from jobs.database import Database
from jobs.job import Job, NewJob, TenantId
from jobs.store import JobStore

PUBLIC_URL = "http://api.test"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    migrate.upgrade(url)
    database = Database(url)
    yield database
    database.close()


@pytest.fixture
def jobs(database: Database) -> JobStore:
    return JobStore(database, public_url=PUBLIC_URL)


def ask(jobs: JobStore, text: str, *, queue: str = "cpu.fake", webhook_url: str | None = None) -> Job:
    """Store a job of the tenant `ten_a`."""
    return jobs.create(
        NewJob(
            tenant_id=TenantId("ten_a"),
            input=text,
            model="fake",
            queue=queue,
            voice="v",
            language="en",
            response_format="mp3",
            seed=7,
            expires_in=86_400,
            webhook_url=webhook_url,
        )
    )
