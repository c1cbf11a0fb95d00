"""The workers' own account of themselves: all that the API knows of models and voices."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import RowMapping, delete, func, insert, select, update

from jobs.database import Database
from jobs.tables import workers

#: Workers write every 5 s; three missed writes and a worker counts as gone.
ALIVE_SECONDS: Final = 20.0
#: In the column `breaker`: the worker leaves its engine alone for a while.
OPEN: Final = "open"
#: Rows of gone workers are dropped after this, but for the last one of each model.
FORGOTTEN_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that some worker has loaded once."""

    model: str
    #: Where its work is asked for, e.g. `cpu.hibari`.
    queue: str
    #: The engine's description: `speech.engine.EngineInfo` as JSON.
    info: Mapping[str, Any]
    #: Whether a worker serves it now.
    alive: bool
    #: How many do, and ask their engine: those whose breaker is open do not count.
    workers: int
    #: How many have an open breaker.
    breakers_open: int = 0
    #: The longest chunk that all of them have memory for, in code points, where that is less than the engine
    #: takes by itself.
    max_chars_learned: int | None = None
    #: What each of them has counted since it started, by worker: `rung.split`, `engine.recycled`, ...
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    #: Processing seconds per code point, the mean of the workers that serve it, or of the last that did; None
    #: while nobody has measured it.
    seconds_per_char: float | None
    #: Processing seconds per second of audio, likewise.
    rtf: float | None
    seen_at: datetime


class WorkerRegistry:
    """The `workers` table. Thread-safe; raises `DatabaseUnavailable`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def publish(
        self,
        worker_id: str,
        *,
        queue: str,
        model: str | None = None,
        info: Mapping[str, Any] | None = None,
        rtf: float | None = None,
        seconds_per_char: float | None = None,
        max_chars_learned: int | None = None,
        breaker: str | None = None,
    ) -> None:
        """Say that a worker is alive, what it serves, and how fast; unknown speeds leave known ones.

        Args:
            info: the engine's description; a member `counts` maps names of events to how often they happened.
            max_chars_learned: see `ServedModel`.
            breaker: `OPEN`, or anything else while it is not.
        """
        with self._db.write() as connection:
            values = {
                "queue": queue,
                "model": model,
                "engine_info": None if info is None else json.dumps(info, ensure_ascii=False),
                "max_chars_learned": max_chars_learned,
                "breaker": breaker,
                "seen_at": self._db.now(connection),
            }
            if rtf is not None:
                values |= {"rtf": rtf, "seconds_per_char": seconds_per_char}
            if not connection.execute(
                update(workers).where(workers.c.id == worker_id).values(values)
            ).rowcount:
                connection.execute(insert(workers).values(values | {"id": worker_id}))

    def leave(self, worker_id: str) -> None:
        """Say that a worker ends; its model stays known."""
        with self._db.write() as connection:
            gone = self._db.now(connection) - ALIVE_SECONDS
            connection.execute(update(workers).where(workers.c.id == worker_id).values(seen_at=gone))

    def models(self) -> list[ServedModel]:
        """Return every model that was ever served, by name, each as its latest worker described it."""
        with self._db.read() as connection:
            now = self._db.now(connection)
            rows = connection.execute(
                select(workers)
                .where(workers.c.model.is_not(None))
                .order_by(workers.c.model, workers.c.seen_at)
            ).mappings()
            by_model: dict[str, list[RowMapping]] = {}
            for row in rows:
                by_model.setdefault(row["model"], []).append(row)
        return [_served(model, found, now) for model, found in by_model.items()]

    def alive(self) -> dict[str, int]:
        """Return how many live workers serve each queue."""
        with self._db.read() as connection:
            now = self._db.now(connection)
            rows = connection.execute(
                select(workers.c.queue, func.count())
                .where(workers.c.seen_at > now - ALIVE_SECONDS)
                .group_by(workers.c.queue)
            )
            return {row[0]: row[1] for row in rows}

    def healthy(self, queue: str, *, but: str) -> int:
        """Return how many live workers of a queue, other than `but`, ask their engine."""
        with self._db.read() as connection:
            now = self._db.now(connection)
            found = connection.execute(
                select(func.count())
                .select_from(workers)
                .where(
                    workers.c.queue == queue,
                    workers.c.id != but,
                    workers.c.seen_at > now - ALIVE_SECONDS,
                    func.coalesce(workers.c.breaker, "") != OPEN,
                )
            )
            return int(found.scalar_one())

    def rtf(self, queue: str) -> float | None:
        """Return the processing seconds per second of audio on a queue: the mean of its live workers, or of
        all that are known where none is alive; None while nobody has measured it.
        """
        with self._db.read() as connection:
            now = self._db.now(connection)
            found = (
                connection.execute(
                    select(workers.c.rtf, workers.c.seen_at).where(
                        workers.c.queue == queue, workers.c.rtf.is_not(None)
                    )
                )
                .mappings()
                .all()
            )
        return _mean([row for row in found if row["seen_at"] > now - ALIVE_SECONDS] or found, "rtf")

    def sweeper(self, *, queue: str = "sweeper") -> dict[str, float]:
        """Return for each task of the sweepers how many seconds ago one of them did it last."""
        ages: dict[str, float] = {}
        with self._db.read() as connection:
            now = self._db.now(connection)
            rows = connection.execute(
                select(workers.c.engine_info, workers.c.seen_at).where(workers.c.queue == queue)
            )
            for row in rows:
                for task, age in json.loads(row.engine_info or "{}").get("last_run", {}).items():
                    # As old as it was when it was told, and as old as that is.
                    seconds = float(age) + max(0.0, now - row.seen_at)
                    ages[task] = min(seconds, ages.get(task, seconds))
        return ages

    def forget(self) -> None:
        """Drop workers that are long gone, but for the last one of each model."""
        with self._db.write() as connection:
            now = self._db.now(connection)
            rows = connection.execute(
                select(workers.c.id, workers.c.model).order_by(workers.c.seen_at.desc(), workers.c.id)
            ).all()
            kept: set[str] = set()
            for row in rows:
                if row.model is not None and row.model not in kept:
                    kept.add(row.model)
                    continue
                connection.execute(
                    delete(workers).where(workers.c.id == row.id, workers.c.seen_at < now - FORGOTTEN_SECONDS)
                )


def _served(model: str, found: Sequence[RowMapping], now: float) -> ServedModel:
    """Return a model as its workers describe it, the latest of them last."""
    latest = found[-1]
    # A model may have moved to another queue, with another kind of device.
    alive = [row for row in found if row["seen_at"] > now - ALIVE_SECONDS and row["queue"] == latest["queue"]]
    return ServedModel(
        model=model,
        queue=latest["queue"],
        info=json.loads(latest["engine_info"] or "{}"),
        alive=bool(alive),
        workers=sum(row["breaker"] != OPEN for row in alive),
        breakers_open=sum(row["breaker"] == OPEN for row in alive),
        max_chars_learned=min(
            (row["max_chars_learned"] for row in alive if row["max_chars_learned"] is not None), default=None
        ),
        counts={
            row["id"]: counts
            for row in alive
            if (counts := json.loads(row["engine_info"] or "{}").get("counts"))
        },
        seconds_per_char=_mean(alive or found, "seconds_per_char"),
        rtf=_mean(alive or found, "rtf"),
        seen_at=datetime.fromtimestamp(latest["seen_at"], UTC),
    )


def _mean(found: Sequence[RowMapping], column: str) -> float | None:
    known = [row[column] for row in found if row[column] is not None]
    return sum(known) / len(known) if known else None
