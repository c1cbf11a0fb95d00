"""The outbox: which event still has to reach which URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, select, text, update

from jobs import leases
from jobs.database import Database, storable
from jobs.events import SCHEDULE
from jobs.tables import deliveries, events

_DUE = """
    SELECT * FROM deliveries WHERE queue = :queue AND visible_at <= :now
    ORDER BY visible_at LIMIT 1 {locking}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One event on its way to one URL, held by this worker for one attempt."""

    id: str
    epoch: int
    event_id: str
    url: str
    payload: bytes
    #: Attempts before this one.
    attempts: int


#: Longer than any attempt, which looks a name up (5 s) and sends (15 s): so nobody has to renew it.
LEASE_SECONDS: Final = 60.0


class DeliveryStore:
    """Deliveries with the lease columns of jobs. Thread-safe; raises `DatabaseUnavailable`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def claim(self, queue: str, *, holder: str) -> Delivery | None:
        """Take the delivery that has been due the longest, or None.

        An attempt whose worker died counts: its receiver may have seen it. If it was the last one, the
        delivery is given up, and the next one is taken.
        """
        while True:
            with self._db.write() as connection:
                now = self._db.now(connection)
                row = (
                    connection.execute(
                        text(_DUE.format(locking=self._db.locking)), {"queue": queue, "now": now}
                    )
                    .mappings()
                    .one_or_none()
                )
                if row is None:
                    return None
                attempts = row["attempts"] + (row["holder"] is not None)
                if attempts >= len(SCHEDULE):
                    ended = {"status": "failed", "error": "the last worker to try died", "completed_at": now}
                    self._write(
                        connection, row["id"], row["epoch"], leases.ENDED | ended | {"attempts": attempts}
                    )
                    continue
                values = leases.claimed(holder=holder, now=now, lease_seconds=LEASE_SECONDS)
                connection.execute(
                    update(deliveries)
                    .where(deliveries.c.id == row["id"])
                    .values(values | {"epoch": row["epoch"] + 1, "attempts": attempts})
                )
                payload = connection.execute(
                    select(events.c.payload).where(events.c.id == row["event"])
                ).scalar_one()
                return Delivery(
                    id=row["id"],
                    epoch=row["epoch"] + 1,
                    event_id=row["event"],
                    url=row["url"],
                    payload=payload.encode(),
                    attempts=attempts,
                )

    def delivered(self, delivery: Delivery, *, status: int) -> None:
        """The receiver took it."""
        self._finish(delivery, "delivered", response_status=status)

    def refused(self, delivery: Delivery, *, error: str, status: int | None = None) -> None:
        """Nothing that is sent to this URL will be taken, whatever the number of attempts."""
        self._finish(delivery, "failed", response_status=status, error=error)

    def attempt_failed(self, delivery: Delivery, *, error: str, status: int | None = None) -> None:
        """Try again on schedule, or give up after the last attempt."""
        attempts = delivery.attempts + 1
        if attempts >= len(SCHEDULE):
            self._finish(delivery, "failed", response_status=status, error=error)
            return
        with self._db.write() as connection:
            values = leases.released(visible_at=self._db.now(connection) + SCHEDULE[attempts])
            values |= {"attempts": attempts, "response_status": status, "error": storable(error)}
            self._write(connection, delivery.id, delivery.epoch, values)

    def _finish(
        self, delivery: Delivery, state: str, *, response_status: int | None, error: str | None = None
    ) -> None:
        with self._db.write() as connection:
            values = leases.ENDED | {
                "status": state,
                "attempts": delivery.attempts + 1,
                "response_status": response_status,
                "error": None if error is None else storable(error),
                "completed_at": self._db.now(connection),
            }
            self._write(connection, delivery.id, delivery.epoch, values)

    def _write(self, connection: Connection, row_id: str, epoch: int, values: dict[str, Any]) -> None:
        leases.write(connection, deliveries, row_id, epoch, values)
