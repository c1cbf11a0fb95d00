"""A job table in a file, with a clock that tests move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs import migrate
from jobs.database import Database
from jobs.job import Claim, Clip, Job, JobClass, NewJob, TenantId
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


def ask(
    jobs: JobStore,
    text: str,
    *,
    queue: str = "cpu.fake",
    webhook_url: str | None = None,
    tenant: str = "ten_a",
    job_class: JobClass = JobClass.NORMAL,
    fallback: str | None = None,
    voice: str = "v",
) -> Job:
    """Store a job."""
    return jobs.create(
        NewJob(
            tenant_id=TenantId(tenant),
            input=text,
            model="fake",
            queue=queue,
            voice=voice,
            language="en",
            response_format="mp3",
            seed=7,
            expires_in=86_400,
            webhook_url=webhook_url,
            job_class=job_class,
            fallback=fallback,
        )
    )


def encoding(jobs: JobStore, text: str = "some text") -> Claim:
    """Leave a job that an encoder has in hand, with one clip recorded; return the encoder's claim."""
    ask(jobs, text)
    claim = jobs.claim("cpu.fake", holder="w")
    assert claim is not None
    jobs.begin(claim, spoken_text=text, chunks_total=1, characters_left=len(text))
    clip = Clip(
        seq=0,
        text_start=0,
        text_end=len(text),
        pause_ms=0,
        epoch=claim.job.epoch,
        key=f"staged/{claim.job.id}/1-0-x",
        sha256="00",
        samples=1000,
        sample_rate=1000,
        seed=1,
        engine_revision="fake-1",
    )
    jobs.record(claim, clip)
    jobs.synthesized(claim, queue="cpu.media")
    taken = jobs.claim("cpu.media", holder="m")
    assert taken is not None
    return taken
