"""The one lease mechanism, for every table with the lease columns.

A claim raises `epoch` (the fence) and pushes `visible_at` into the future; whoever holds the row pushes it
on; a row whose `visible_at` has passed may be claimed by anybody, so nothing has to reap. Every later write
carries the epoch: no row changed means that the row is no longer ours.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection, Table, and_, update
from sqlalchemy.sql.elements import ColumnElement

from jobs.job import Fenced

#: Seconds before the n-th new attempt after a failure; the last one repeats.
BACKOFF: Final = (1.0, 5.0, 30.0, 120.0)


def backoff(failures: int) -> float:
    """Return how long to wait after the `failures`-th failure in a row (1 or more), in seconds."""
    return BACKOFF[min(failures, len(BACKOFF)) - 1]


def fence(table: Table, row_id: str, epoch: int) -> ColumnElement[bool]:
    """Return the condition that `row_id` is still held under `epoch`: not claimed again, let go, or ended.

    Letting go must end it too: a renewal that comes late would hide the row from the next worker.
    """
    return and_(
        table.c.id == row_id,
        table.c.epoch == epoch,
        table.c.queue.is_not(None),
        table.c.holder.is_not(None),
    )


def write(
    connection: Connection,
    table: Table,
    row_id: str,
    epoch: int,
    values: dict[str, Any],
    *,
    only_if: ColumnElement[bool] | None = None,
) -> None:
    """Change a held row.

    Args:
        only_if: what else must be true of it.

    Raises:
        Fenced: it is not held under this epoch, or `only_if` is not true.
    """
    change = update(table).where(fence(table, row_id, epoch))
    if only_if is not None:
        change = change.where(only_if)
    result = connection.execute(change.values(values))
    if result.rowcount != 1:
        raise Fenced(f"{table.name} {row_id}: epoch {epoch} is over")


def claimed(*, holder: str, now: float, lease_seconds: float) -> dict[str, Any]:
    """Return what a claim writes, but for the fence."""
    return {"holder": holder, "visible_at": now + lease_seconds}


def released(*, visible_at: float) -> dict[str, Any]:
    """Return what letting go writes."""
    return {"holder": None, "visible_at": visible_at}


#: What the end of a row's work writes: nobody asks for it any more.
ENDED: Final[dict[str, Any]] = {"queue": None, "holder": None}
