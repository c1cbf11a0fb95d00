"""How long the questions of a worker take in a table of a million jobs, of which some are ready.

    python benchmarks/claims.py [--rows 1000000] [--database sqlite|postgresql|both]

Fills a table of its own (SQLite in a temp folder, PostgreSQL on a free port) with jobs of 200 tenants, a hundred
of them in hand, and times what workers and the sweeper ask for each number of ready rows: a claim; `better`, the
look at the border of each chunk; `swap`, which gives way; and the two walks over all that waits, `backlog` and
`promote`. Prints the figures and the query plans of a claim.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from sqlalchemy import Connection, Engine, event, text

from jobs import migrate
from jobs.database import Database, connect
from jobs.store import JobStore
from tests import servers

TENANTS = 200
HELD = 100
CLAIMS = 300
QUEUE = "cpu.bench"
#: Code points of a job; one in a hundred is a book.
LINE, BOOK = 200, 100_000

_FILL = """
INSERT INTO jobs (id, tenant_id, kind, class, status, stage, model, queue, synthesis_queue, epoch, visible_at,
                  failures, holder, queued_at, voice, language, response_format, characters, characters_left,
                  request, created_at, expires_in)
{numbers}
SELECT 'job_' || n, 'ten_' || (n - n / {tenants} * {tenants}), 'speech', 2,
       CASE WHEN n < {ready} THEN 'queued' ELSE 'completed' END, NULL, 'bench',
       CASE WHEN n < {ready} THEN '{queue}' ELSE NULL END, '{queue}', 0, {now} - {rows} + n,
       0, NULL, {now} - {rows} + n, 'v', 'en', 'mp3',
       CASE WHEN n - n / 100 * 100 = 0 THEN {book} ELSE {line} END,
       CASE WHEN n >= {ready} THEN 0 WHEN n - n / 100 * 100 = 0 THEN {book} ELSE {line} END,
       '{{"input": "text", "seed": 1, "webhook_url": null}}', {now} - {rows} + n, 3600
FROM numbers
"""
_SQLITE_NUMBERS = (
    "WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {rows} - 1)"
)
_POSTGRESQL_NUMBERS = "WITH numbers AS (SELECT generate_series(0, {rows} - 1) AS n)"


def fill(database: Database, *, rows: int, ready: int) -> None:
    """Leave `rows` jobs, the oldest `ready` of them ready."""
    numbers = _SQLITE_NUMBERS if database.dialect == "sqlite" else _POSTGRESQL_NUMBERS
    with database.write() as connection:
        if database.dialect == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text("TRUNCATE jobs CASCADE"))
        else:
            connection.execute(text("DELETE FROM jobs"))
        statement = _FILL.format(
            numbers=numbers.format(rows=rows),
            tenants=TENANTS,
            ready=ready,
            rows=rows,
            queue=QUEUE,
            now=database.now(connection),
            book=BOOK,
            line=LINE,
        )
        connection.exec_driver_sql(statement)
    with database._writer.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if database.dialect == "postgresql":
            connection.exec_driver_sql("SET statement_timeout = 0")
            connection.exec_driver_sql("VACUUM ANALYZE jobs")
    if database.dialect == "sqlite":
        with database.write() as connection:
            connection.exec_driver_sql("ANALYZE")


def timed(function: Callable[[], Any], took: list[float]) -> Any:
    """Return what `function` returns, and note the milliseconds it took."""
    begun = time.perf_counter()
    answer = function()
    took.append(1000 * (time.perf_counter() - begun))
    return answer


def measure(database: Database, ready: int) -> dict[str, list[float]]:
    """Return how long each question took, in milliseconds, slowest last."""
    store = JobStore(database, public_url="http://x", lease_seconds=3600)
    count = min(CLAIMS, ready // 4)
    for _ in range(min(HELD, ready // 4)):
        store.claim(QUEUE, holder="w")
    found: dict[str, list[float]] = {name: [] for name in ("claim", "better", "swap", "backlog", "promote")}
    for _ in range(count):
        claim = timed(lambda: store.claim(QUEUE, holder="w"), found["claim"])
        assert claim is not None
        # As a book does at a border.
        timed(partial(store.better, claim, left=BOOK, turn_is_over=False), found["better"])
        give_way = partial(store.swap, claim, holder="w", left=BOOK, turn_is_over=False)
        other = timed(give_way, found["swap"])
        assert other is not None
    for _ in range(3):
        timed(store.backlog, found["backlog"])
        timed(store.promote, found["promote"])
    return {name: sorted(took) for name, took in found.items()}


def plans(database: Database) -> Iterator[str]:
    """Yield the plans of what a claim asks of the table."""
    asked: list[tuple[str, Any]] = []

    def listen(_c: Connection, _cursor: object, statement: str, parameters: Any, *_rest: object) -> None:
        if "visible_at <=" in statement:
            asked.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", listen)
    try:
        JobStore(database, public_url="http://x").claim(QUEUE, holder="w")
    finally:
        event.remove(Engine, "before_cursor_execute", listen)
    explain = "EXPLAIN QUERY PLAN " if database.dialect == "sqlite" else "EXPLAIN "
    for statement, parameters in asked:
        yield "  " + " ".join(statement.split())[:90] + " ..."
        with database.write() as connection:
            for row in connection.exec_driver_sql(explain + statement, parameters):
                yield f"    {row[-1]}"


def databases(kind: str, stack: ExitStack) -> Iterator[str]:
    if kind in ("sqlite", "both"):
        yield f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/jobs.db"
    if kind in ("postgresql", "both"):
        server = stack.enter_context(servers.postgres())
        yield stack.enter_context(server.database())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--database", choices=["sqlite", "postgresql", "both"], default="both")
    chosen = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}; milliseconds")
    print(
        f"{'database':<12} {'rows':>9} {'ready':>9} {'question':<9} {'times':>6} {'p50':>9} {'p99':>9} {'max':>9}"
    )
    with ExitStack() as stack:
        for url in databases(chosen.database, stack):
            migrate.upgrade(url)
            database = connect(url)
            for ready in (chosen.rows // 100, chosen.rows // 5, chosen.rows):
                fill(database, rows=chosen.rows, ready=ready)
                for name, took in measure(database, ready).items():
                    at = [took[min(len(took) - 1, int(len(took) * q))] for q in (0.5, 0.99, 1.0)]
                    print(
                        f"{database.dialect:<12} {chosen.rows:>9} {ready:>9} {name:<9} {len(took):>6} "
                        f"{at[0]:>9.2f} {at[1]:>9.2f} {at[2]:>9.2f}",
                        flush=True,
                    )
            print("\n".join(plans(database)))
            database.close()


if __name__ == "__main__":
    main()
