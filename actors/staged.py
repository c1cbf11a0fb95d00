"""The clips of a job, once it has ended."""

from __future__ import annotations

from jobs.job import JobId
from jobs.store import JobStore
from storage.keys import staged_prefix
from storage.store import ObjectStore


def drop_staged(job_id: JobId, *, jobs: JobStore, objects: ObjectStore) -> None:
    """Delete every staged object of a job that has ended, whoever staged it."""
    for stored in objects.list(staged_prefix(job_id)):
        objects.delete(stored.key)
    jobs.staged_gone(job_id)
