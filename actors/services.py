"""What the workers and the sweeper are made of: ports built from settings, once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from actors.bell import BrokerBell, BrokerUnavailable, connect
from actors.presence import worker_id
from config.settings import Settings
from jobs import database
from jobs.database import Database
from jobs.deliveries import DeliveryStore
from jobs.events import decode_secret, new_secret
from jobs.store import JobStore
from jobs.workers import WorkerRegistry
from storage import s3
from storage.s3 import S3Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The ports of one worker process."""

    holder: str
    database: Database
    jobs: JobStore
    deliveries: DeliveryStore
    workers: WorkerRegistry
    objects: S3Store
    bell: BrokerBell

    def ring(self, queue: str) -> None:
        """Ring `queue`; if the broker is away, the sweeper rings later."""
        try:
            self.bell.ring(queue)
        except BrokerUnavailable:
            return


def build(settings: Settings) -> Services:
    """Build the ports. Nothing is connected yet, so parts of the fleet may start in any order."""
    tables = database.connect(settings.database)
    access_key_id, secret_access_key = settings.s3_credentials
    return Services(
        holder=worker_id(),
        database=tables,
        jobs=JobStore(
            tables,
            public_url=settings.external_url,
            lease_seconds=settings.lease_seconds,
            max_failures=settings.max_failures,
            max_running=settings.tenant_max_running,
        ),
        deliveries=DeliveryStore(tables),
        workers=WorkerRegistry(tables),
        objects=s3.connect(
            endpoint=settings.s3_endpoint,
            region=settings.s3_region,
            bucket=settings.s3_bucket,
            access_key_id=access_key_id,
            secret_access_key=secret_access_key,
            addressing_style=settings.s3_addressing_style,
        ),
        bell=BrokerBell(connect(settings.broker_url.get_secret_value())),
    )


def webhook_secret(settings: Settings) -> str:
    """Return the secret that webhooks are signed with: the setting, else one made once in the data folder.

    Raises:
        ValueError: it is not `whsec_` and 24 to 64 bytes in base64.
    """
    if settings.webhook_secret is not None:
        secret = settings.webhook_secret.get_secret_value()
    else:
        secret = _secret_file(settings.data_dir / "webhook-secret")
    decode_secret(secret)
    return secret


def _secret_file(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # Two workers may start at once: the file appears with its content, and the first one wins.
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.touch(mode=0o600)
        draft.write_text(new_secret() + "\n", encoding="utf-8")
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink(missing_ok=True)
    return path.read_text(encoding="utf-8").strip()
