"""SQLite under gevent: every call on a native thread.

A wait for SQLite's lock is a C call. In a greenlet it would stop every other request of the process for as
long as it lasts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar, cast

from gevent.monkey import get_original
from gevent.threadpool import ThreadPool
from gevent.util import wrap_errors
from sqlalchemy.pool import StaticPool

from jobs.database import Database, DatabaseUnavailable
from jobs.job import Job, NewJob, TenantId
from jobs.keys import ApiKey, KeyStore
from jobs.store import Backlog, JobStore, Running
from jobs.workers import ServedModel, WorkerRegistry

#: Readers wait for nobody; a few suffice.
READERS: Final = 4

Own = TypeVar("Own")
Answer = TypeVar("Answer")


class NativeThreads(Generic[Own]):
    """A few native threads, each with a value of its own: nothing is shared, so nothing is locked.

    Belongs to the native thread that made it, whose greenlets may all use it.
    """

    def __init__(self, make: Callable[[], Own], *, threads: int) -> None:
        self._make = make
        self._pool = ThreadPool(threads)
        # gevent's own `local` is one of greenlets.
        self._local = get_original("threading", "local")()

    def call(self, function: Callable[[Own], Answer]) -> Answer:
        """Return what `function` returns, or raise what it raises; other greenlets go on meanwhile."""
        # As a value: gevent would write the traceback of what a pool's thread raises to stderr as well.
        answer = self._pool.apply(wrap_errors(Exception, self._run), (function,))
        if isinstance(answer, Exception):
            raise answer
        return cast(Answer, answer)

    def _run(self, function: Callable[[Own], Answer]) -> Answer:
        if not hasattr(self._local, "own"):
            self._local.own = self._make()
        return function(self._local.own)


class WriterThread(Generic[Own]):
    """One native thread that writes: SQLite has one writer, and a queue is fairer than its busy handler."""

    def __init__(self, make: Callable[[], Own]) -> None:
        self._thread = NativeThreads(make, threads=1)
        self._locked_out_at = 0.0

    def call(self, function: Callable[[Own], Answer]) -> Answer:
        """Return what `function` returns.

        Raises:
            DatabaseUnavailable: also for a call that queued behind one that waited for the lock in vain:
                it has waited as well, and would double its caller's wait.
        """
        asked_at = time.monotonic()

        def write(own: Own) -> Answer:
            if asked_at < self._locked_out_at:
                raise DatabaseUnavailable("the database is locked")
            try:
                return function(own)
            except DatabaseUnavailable:
                self._locked_out_at = time.monotonic()
                raise

        return self._thread.call(write)


class SqliteStores:
    """What the API asks of the database, on native threads: its job, key and worker stores in one."""

    def __init__(self, url: str, *, public_url: str, busy_seconds: float) -> None:
        def connect() -> _Stores:
            return _Stores(
                Database(url, busy_seconds=busy_seconds, poolclass=StaticPool), public_url=public_url
            )

        self._writer = WriterThread(connect)
        self._readers = NativeThreads(connect, threads=READERS)

    def create(self, new: NewJob, *, max_queued: int | None = None) -> Job:
        """See `JobStore.create`."""
        return self._writer.call(lambda stores: stores.jobs.create(new, max_queued=max_queued))

    def retry(self, job_id: str, tenant_id: TenantId, *, queue: str, max_queued: int | None = None) -> Job:
        """See `JobStore.retry`."""
        return self._writer.call(
            lambda stores: stores.jobs.retry(job_id, tenant_id, queue=queue, max_queued=max_queued)
        )

    def cancel(self, job_id: str, tenant_id: str) -> Job:
        """See `JobStore.cancel`."""
        return self._writer.call(lambda stores: stores.jobs.cancel(job_id, tenant_id))

    def ahead(self, job: Job) -> int:
        """See `JobStore.ahead`."""
        return self._readers.call(lambda stores: stores.jobs.ahead(job))

    def backlog(self) -> list[Backlog]:
        """See `JobStore.backlog`."""
        return self._readers.call(lambda stores: stores.jobs.backlog())

    def running(self) -> list[Running]:
        """See `JobStore.running`."""
        return self._readers.call(lambda stores: stores.jobs.running())

    def rtf(self, queue: str) -> float | None:
        """See `WorkerRegistry.rtf`."""
        return self._readers.call(lambda stores: stores.workers.rtf(queue))

    def sweeper(self) -> dict[str, float]:
        """See `WorkerRegistry.sweeper`."""
        return self._readers.call(lambda stores: stores.workers.sweeper())

    def get(self, job_id: str, tenant_id: str) -> Job:
        """See `JobStore.get`."""
        return self._readers.call(lambda stores: stores.jobs.get(job_id, tenant_id))

    def verify(self, presented: str) -> ApiKey | None:
        """See `KeyStore.verify`."""
        return self._readers.call(lambda stores: stores.keys.verify(presented))

    def models(self) -> list[ServedModel]:
        """See `WorkerRegistry.models`."""
        return self._readers.call(lambda stores: stores.workers.models())

    def alive(self) -> dict[str, int]:
        """See `WorkerRegistry.alive`."""
        return self._readers.call(lambda stores: stores.workers.alive())

    def check(self) -> None:
        """See `Database.check`."""
        self._readers.call(lambda stores: stores.database.check())


class _Stores:
    def __init__(self, database: Database, *, public_url: str) -> None:
        self.database = database
        self.jobs = JobStore(database, public_url=public_url)
        self.keys = KeyStore(database)
        self.workers = WorkerRegistry(database)
