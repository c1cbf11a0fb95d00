"""Which job is next: lanes of one class and one tenant, and the rule that picks among them.

A worker takes the most urgent class, in it the tenant with the least running work, and of that tenant the
oldest job. Every question walks an index, however many jobs wait.
"""

# ruff: noqa: S608 (what is put together here are our own pieces; values are bound)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, text

from jobs.database import Database
from jobs.job import Job, JobClass

#: How many lanes a claim tries at first, when other workers are about to take their heads.
TRIED_LANES: Final = 8
#: A job gives way, at the border of a chunk, to one of its class that needs a quarter of what it still needs
#: itself, or less. So a line is not held up by a book, and books do not take turns at every chunk.
SHORTER: Final = 4
#: A job whose turn is over comes back after so many others of its lane. Behind all of them, a thousand books
#: of one tenant would all be begun, and none be finished, before the last one is reached.
ROTATION: Final = 4
#: Seconds of waiting after which the oldest job of a lane is promoted by one class. One of each tenant at a
#: time: a long backlog moves on, and does not make everything urgent.
AGEING_SECONDS: Final = 600.0
_ALL_LANES: Final = 2**31 - 1

_CLASS = text(
    """
    SELECT class FROM jobs
    WHERE queue = :queue AND class > :above AND class <= :most AND visible_at <= :now
    ORDER BY class LIMIT 1
    """
)
# Skip-scan: one step of the index per tenant, however many jobs each has. {fits} narrows the heads.
_WALK = """
    WITH RECURSIVE lane(tenant_id) AS (
        SELECT * FROM (
            SELECT tenant_id FROM jobs
            WHERE queue = :queue AND class = :class AND visible_at <= :now
            ORDER BY tenant_id LIMIT 1
        ) AS first
        UNION ALL
        SELECT (
            SELECT j.tenant_id FROM jobs AS j
            WHERE j.queue = :queue AND j.class = :class AND j.tenant_id > lane.tenant_id
              AND j.visible_at <= :now
            ORDER BY j.tenant_id LIMIT 1
        )
        FROM lane WHERE lane.tenant_id IS NOT NULL
    )
"""
_RUNNING = """
    (SELECT count(*) FROM jobs AS h
     WHERE h.queue = :queue AND h.tenant_id = lane.tenant_id AND h.holder IS NOT NULL AND h.visible_at > :now
       AND h.id <> :mine)
"""
_ROOM = text(
    """
    SELECT count(*) FROM jobs AS h
    WHERE h.queue = :queue AND h.tenant_id = :tenant AND h.holder IS NOT NULL AND h.visible_at > :now
      AND h.id <> :mine
    """
)
# Two workers must not both take a tenant's last place. Nobody waits for it while others may wait for him.
_CLAIMS = text("SELECT pg_try_advisory_xact_lock(hashtextextended(:lane, 1))")
# Materialized: PostgreSQL would count what is running once to compare and once more to sort.
_LANES = (
    _WALK
    + f"""
    , lanes AS MATERIALIZED (
        SELECT
            lane.tenant_id,
            {_RUNNING} AS running,
            (SELECT j.queued_at FROM jobs AS j
             WHERE j.queue = :queue AND j.class = :class AND j.tenant_id = lane.tenant_id
               AND j.visible_at <= :now {{fits}}
             ORDER BY j.queued_at LIMIT 1) AS head
        FROM lane WHERE lane.tenant_id IS NOT NULL
    )
    SELECT tenant_id FROM lanes
    WHERE head IS NOT NULL AND running < :most_running
    ORDER BY running, head LIMIT :lanes
    """
)
_HEAD = """
    SELECT * FROM jobs AS j
    WHERE j.queue = :queue AND j.class = :class AND j.tenant_id = :tenant AND j.visible_at <= :now {fits}
    ORDER BY j.queued_at LIMIT 1 {locking}
"""
_PLACE = text(
    """
    SELECT queued_at FROM jobs
    WHERE queue = :queue AND class = :class AND tenant_id = :tenant AND visible_at <= :now
    ORDER BY queued_at LIMIT 1 OFFSET :others
    """
)
_FITS_LENGTH = "AND j.audio_ms <= :longest"
# The shortest job of each lane, where it is short enough.
_SHORT = (
    _WALK
    + f"""
    , short AS MATERIALIZED (
        SELECT
            {_RUNNING} AS running,
            (SELECT j.id FROM jobs AS j
             WHERE j.queue = :queue AND j.class = :class AND j.tenant_id = lane.tenant_id
               AND j.characters_left <= :left AND j.visible_at <= :now
             ORDER BY j.characters_left LIMIT 1) AS id
        FROM lane WHERE lane.tenant_id IS NOT NULL
    )
    SELECT job.id, job.tenant_id FROM short JOIN jobs AS job ON job.id = short.id
    WHERE short.running < :most_running
    ORDER BY short.running, job.queued_at LIMIT :lanes
    """
)
_THIS = "SELECT * FROM jobs WHERE id = :id AND queue = :queue AND visible_at <= :now {locking}"
# The oldest job of each lane, where it has waited long, and no other of its tenant is promoted already.
_AGED = (
    _WALK
    + """
    SELECT job.id FROM lane JOIN jobs AS job ON job.id = (
        SELECT j.id FROM jobs AS j
        WHERE j.queue = :queue AND j.class = :class AND j.tenant_id = lane.tenant_id AND j.visible_at <= :now
        ORDER BY j.queued_at LIMIT 1
    )
    WHERE job.holder IS NULL
      AND job.queued_at <= :now - :seconds * (1 + COALESCE(job.aged_from, job.class) - job.class)
      AND NOT EXISTS (
        SELECT 1 FROM jobs AS other
        WHERE other.queue = :queue AND other.tenant_id = job.tenant_id AND other.aged_from IS NOT NULL
          AND other.id <> job.id
      )
    """
)
_QUEUES = """
    WITH RECURSIVE asked(queue) AS (
        SELECT * FROM (SELECT queue FROM {table} WHERE queue IS NOT NULL ORDER BY queue LIMIT 1) AS first
        UNION ALL
        SELECT (SELECT t.queue FROM {table} AS t WHERE t.queue > asked.queue ORDER BY t.queue LIMIT 1)
        FROM asked WHERE asked.queue IS NOT NULL
    )
    SELECT queue FROM asked WHERE queue IS NOT NULL
"""


class Lanes:
    """Looks for work in the jobs table, in the transactions of its caller. Thread-safe."""

    def __init__(self, database: Database, *, max_running: int | None) -> None:
        """Nothing is asked yet.

        Args:
            max_running: how many jobs of one tenant are worked on at once in one queue; None is no limit.
        """
        self._db = database
        self._max_running = _ALL_LANES if max_running is None else max_running

    def best(
        self,
        connection: Connection,
        queue: str,
        now: float,
        *,
        most: int = JobClass.LOW,
        longest_ms: int | None = None,
        mine: str = "",
        locking: bool = True,
    ) -> RowMapping | None:
        """Return the row to claim, locked where `locking`; the caller is in a transaction.

        Args:
            most: the least urgent class that will do.
            mine: a held job that would be let go of for it.
        """
        fits = "" if longest_ms is None else _FITS_LENGTH
        lanes = text(_LANES.format(fits=fits))
        head = text(_HEAD.format(fits=fits, locking=self._db.locking if locking else ""))
        asked: dict[str, Any] = {
            "queue": queue,
            "now": now,
            "above": -1,
            "most": int(most),
            "mine": mine,
            "most_running": self._max_running,
        }
        if longest_ms is not None:
            asked["longest"] = longest_ms
        while (urgent := connection.execute(_CLASS, asked).scalar_one_or_none()) is not None:
            asked |= {"class": urgent, "above": urgent}
            # Others may be about to take the heads of the first few.
            for count in (TRIED_LANES, _ALL_LANES):
                tenants = connection.execute(lanes, asked | {"lanes": count}).scalars().all()
                for tenant in tenants:
                    if locking and not self._has_room(connection, asked | {"tenant": tenant}):
                        continue
                    row = connection.execute(head, asked | {"tenant": tenant}).mappings().one_or_none()
                    if row is not None:
                        return row
                if len(tenants) < count:
                    break
        return None

    def better(
        self,
        connection: Connection,
        job: Job,
        now: float,
        *,
        left: int,
        turn_is_over: bool,
        locking: bool,
    ) -> RowMapping | None:
        """Return the row that a held job should give way to; see `jobs.store.JobStore.swap`."""
        if job.queue is None:
            raise ValueError(f"{job.id} asks for no work")
        most = job.job_class if turn_is_over else job.job_class - 1
        row = self.best(connection, job.queue, now, most=most, mine=job.id, locking=locking)
        if row is not None or turn_is_over or left < SHORTER:
            return row
        asked: dict[str, Any] = {
            "queue": job.queue,
            "class": int(job.job_class),
            "now": now,
            "left": left // SHORTER,
            "mine": job.id,
            "most_running": self._max_running,
            "lanes": TRIED_LANES,
        }
        this = text(_THIS.format(locking=self._db.locking if locking else ""))
        for short in connection.execute(text(_SHORT), asked).all():
            if locking and not self._has_room(connection, asked | {"tenant": short.tenant_id}):
                continue
            row = connection.execute(this, asked | {"id": short.id}).mappings().one_or_none()
            if row is not None:
                return row
        return None

    def behind(self, connection: Connection, job: Job, now: float) -> float:
        """Return the place of a job whose turn is over: behind a few others of its lane, as a time."""
        asked = {
            "queue": job.queue,
            "class": int(job.job_class),
            "tenant": job.tenant_id,
            "now": now,
            # As an offset, and one has just been taken.
            "others": ROTATION - 2,
        }
        last = connection.execute(_PLACE, asked).scalar_one_or_none()
        # As a double, seconds since the epoch are exact to a quarter of a microsecond.
        return now if last is None else min(now, float(last) + 1e-6)

    def urgent(self, connection: Connection, queue: str, now: float) -> bool:
        """Whether a live job is ready that could be taken."""
        return self.best(connection, queue, now, most=JobClass.LIVE, locking=False) is not None

    def queues(self, connection: Connection, table: str) -> Sequence[str]:
        """Return the queues whose work any row of `table` asks for."""
        return connection.execute(text(_QUEUES.format(table=table))).scalars().all()

    def aged(self, connection: Connection, queue: str, job_class: JobClass, now: float) -> Sequence[str]:
        """Return the jobs of a class that have waited so long in it that they are to be promoted."""
        asked = {"queue": queue, "class": int(job_class), "now": now, "seconds": AGEING_SECONDS}
        return connection.execute(text(_AGED), asked).scalars().all()

    def _has_room(self, connection: Connection, asked: Mapping[str, Any]) -> bool:
        """Whether the tenant may have one more job worked on, with its lane locked to tell; False where
        another worker takes one of its jobs now.
        """
        if self._max_running == _ALL_LANES:
            return True
        if self._db.dialect == "postgresql":
            lane = f"{asked['queue']} {asked['tenant']}"
            if not connection.execute(_CLAIMS, {"lane": lane}).scalar_one():
                return False
        return int(connection.execute(_ROOM, asked).scalar_one()) < self._max_running
