"""The clips of a job, once it has ended."""

from __future__ import annotations

from jobs.job import JobId
from jobs.store import JobStore
from storage.keys import staged_prefix
from storage.store import ObjectStore


def drop_staged(job_id: JobId, *, jobs: JobStore, objects: ObjectStore, settled: bool) -> None:
    """Delete every staged object of a job that has ended, whoever staged it.

    Args:
        settled: whether nobody can still be staging: an earlier holder that has not heard of the end.
    """
    for stored in objects.list(staged_prefix(job_id)):
        objects.delete(stored.key)
    if settled:
        jobs.staged_gone(job_id)
