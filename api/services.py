"""The API's composition root: everything a request may need, built once per process."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

from actors.bell import BrokerBell, connect
from api.admission import Limits
from api.keys import Keys
from api.names import Names
from api.native import SqliteStores
from api.ringer import Ringer
from config.settings import Settings
from jobs.database import Database
from jobs.job import Job, NewJob, TenantId
from jobs.keys import KeyStore
from jobs.store import Backlog, JobStore, Running
from jobs.targets import IpNetwork, check_url
from jobs.workers import ServedModel, WorkerRegistry
from storage import s3
from storage.store import LinkSigner

#: How long a caller waits for a lock before the answer is 503.
BUSY_SECONDS: Final = 2.0


class Jobs(Protocol):
    """What the API asks of the job table; see `jobs.store.JobStore`."""

    def create(self, new: NewJob, *, max_queued: int | None = None) -> Job:
        """Store a job, or raise `TooManyQueued`."""
        ...

    def retry(self, job_id: str, tenant_id: TenantId, *, queue: str, max_queued: int | None = None) -> Job:
        """Store a new job that asks for the same."""
        ...

    def cancel(self, job_id: str, tenant_id: str) -> Job:
        """End a job."""
        ...

    def ahead(self, job: Job) -> int:
        """Return how much of its lane comes before a job."""
        ...

    def backlog(self) -> list[Backlog]:
        """Return what is to be done."""
        ...

    def running(self) -> list[Running]:
        """Return what is being done."""
        ...

    def get(self, job_id: str, tenant_id: str) -> Job:
        """Return a tenant's job, or raise `JobNotFound`."""
        ...


class Workers(Protocol):
    """What the API asks of the workers' table; see `jobs.workers.WorkerRegistry`."""

    def models(self) -> list[ServedModel]:
        """Return every model that was ever served."""
        ...

    def alive(self) -> dict[str, int]:
        """Return how many live workers serve each queue."""
        ...

    def rtf(self, queue: str) -> float | None:
        """Return the measured speed of a queue's workers."""
        ...

    def sweeper(self) -> dict[str, float]:
        """Return how long ago each task of the sweeper was done."""
        ...


class Marker(Protocol):
    """Sees to it that a queue is rung; see `api.ringer.Ringer`."""

    def mark(self, queue: str) -> None:
        """Remember that `queue` has one more job, and return at once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The ports and values of the API.

    Attributes:
        checks: asked by `/readyz` beside the workers, by the name of the part; each raises when it is down.
        check_target: whether a webhook may go to a URL; raises `TargetRefused`.
        link_seconds: longest life of a link in a reply.
        limits: how much may wait.
        metrics_from: networks that may read the metrics.
    """

    jobs: Jobs
    keys: Keys
    workers: Workers
    links: LinkSigner
    ringer: Marker
    checks: Mapping[str, Callable[[], None]]
    check_target: Callable[[str], object]
    now: Callable[[], datetime]
    new_seed: Callable[[], int]
    public_url: str
    default_model: str
    fallback_model: str | None = None
    max_input_chars: int
    link_seconds: int
    limits: Limits
    metrics_from: tuple[IpNetwork, ...]


def build(settings: Settings) -> Services:
    """Return the services that `settings` describe; connects to nothing yet.

    Raises:
        MissingSetting: a setting without a default is not set.
    """
    access_key_id, secret_access_key = settings.s3_credentials
    store = s3.connect(
        endpoint=settings.s3_endpoint,
        public_endpoint=settings.s3_public_endpoint,
        region=settings.s3_region,
        bucket=settings.s3_bucket,
        access_key_id=access_key_id,
        secret_access_key=secret_access_key,
        addressing_style=settings.s3_addressing_style,
    )
    bell = BrokerBell(connect(settings.broker_url.get_secret_value()))
    jobs, keys, workers, check_database = _stores(settings)
    return Services(
        jobs=jobs,
        keys=keys,
        workers=workers,
        links=store.links,
        ringer=Ringer(bell),
        checks={"database": check_database, "broker": bell.check, "object_store": store.check},
        check_target=target_check(settings.webhook_allowed_cidrs, Names()),
        now=lambda: datetime.now(UTC),
        new_seed=lambda: secrets.randbits(32),
        public_url=settings.external_url,
        default_model=settings.default_model,
        fallback_model=settings.fallback_model,
        max_input_chars=settings.max_input_chars,
        link_seconds=settings.link_seconds,
        limits=Limits(
            max_queued=settings.max_queued,
            max_wait_seconds=settings.max_wait_seconds,
            tenant_max_queued=settings.tenant_max_queued,
            tenant_max_running=settings.tenant_max_running,
        ),
        metrics_from=tuple(settings.metrics_allowed_cidrs),
    )


def target_check(allowed: Iterable[IpNetwork], names: Names) -> Callable[[str], object]:
    """Return the check of webhook URLs."""
    networks = tuple(allowed)
    return lambda url: check_url(url, allowed=networks, resolve=names.resolve)


def _stores(settings: Settings) -> tuple[Jobs, Keys, Workers, Callable[[], None]]:
    if settings.database.startswith("sqlite"):
        stores = SqliteStores(settings.database, public_url=settings.external_url, busy_seconds=BUSY_SECONDS)
        return stores, stores, stores, stores.check
    # psycopg waits with gevent, when it was imported after the patching.
    database = Database(settings.database, busy_seconds=BUSY_SECONDS)
    jobs = JobStore(database, public_url=settings.external_url)
    return jobs, KeyStore(database), WorkerRegistry(database), database.check
