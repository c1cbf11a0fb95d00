"""How long a claim takes in a table of a million jobs, of which some are ready.

    python benchmarks/claims.py [--rows 1000000] [--database sqlite|postgresql|both]

Fills a table of its own (SQLite in a temp folder, PostgreSQL on a free port), with 200 tenants and a hundred
jobs in hand, and claims 300 times for each number of ready rows. Prints the figures and the query plans.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from sqlalchemy import text

from jobs import migrate
from jobs.database import Database, connect
from jobs.store import _HEAD, _LANES, JobStore
from tests import servers

TENANTS = 200
HELD = 100
CLAIMS = 300
QUEUE = "cpu.bench"

_FILL = """
INSERT INTO jobs (id, tenant_id, kind, class, status, stage, model, queue, epoch, visible_at, failures, holder,
                  queued_at, voice, language, response_format, characters, request, created_at, expires_in)
{numbers}
SELECT 'job_' || n, 'ten_' || (n - n / {tenants} * {tenants}), 'speech', 2,
       CASE WHEN n < {ready} THEN 'queued' ELSE 'completed' END, NULL, 'bench',
       CASE WHEN n < {ready} THEN '{queue}' ELSE NULL END, 0, {now} - {rows} + n, 0, NULL,
       {now} - {rows} + n, 'v', 'en', 'mp3', 40, '{{"input": "text", "seed": 1, "webhook_url": null}}',
       {now} - {rows} + n, 3600
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
        connection.execute(text("DELETE FROM jobs"))
        now = database.now(connection)
        statement = _FILL.format(
            numbers=numbers.format(rows=rows), tenants=TENANTS, ready=ready, rows=rows, queue=QUEUE, now=now
        )
        if database.dialect == "postgresql":
            connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.exec_driver_sql(statement)
    with database._writer.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if database.dialect == "postgresql":
            connection.exec_driver_sql("SET statement_timeout = 0")
            connection.exec_driver_sql("VACUUM ANALYZE jobs")
    if database.dialect == "sqlite":
        with database.write() as connection:
            connection.exec_driver_sql("ANALYZE")


def measure(database: Database, ready: int) -> list[float]:
    """Return how long each of `CLAIMS` claims took, in milliseconds, slowest last."""
    store = JobStore(database, public_url="http://x", lease_seconds=3600)
    for _ in range(min(HELD, ready // 2)):
        store.claim(QUEUE, holder="w")
    took = []
    for _ in range(min(CLAIMS, ready // 2)):
        begun = time.perf_counter()
        assert store.claim(QUEUE, holder="w") is not None
        took.append(1000 * (time.perf_counter() - begun))
    return sorted(took)


def plans(database: Database) -> Iterator[str]:
    """Yield the plans of the two queries of a claim."""
    explain = "EXPLAIN QUERY PLAN " if database.dialect == "sqlite" else "EXPLAIN "
    asked = {
        "queue": QUEUE,
        "class": 2,
        "now": time.time(),
        "lanes": 8,
        "tenant": "ten_1",
        "skip": "",
        "passed": 0,
    }
    with database.read() as connection:
        for name, query in (("lanes", str(_LANES)), ("head", _HEAD.format(locking=""))):
            yield f"  {name}:"
            used = {key: value for key, value in asked.items() if f":{key}" in query}
            for row in connection.execute(text(explain + query), used):
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
    print(
        f"{'database':<12} {'rows':>9} {'ready':>9} {'claims':>7} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8}"
    )
    with ExitStack() as stack:
        for url in databases(chosen.database, stack):
            migrate.upgrade(url)
            database = connect(url)
            for ready in (chosen.rows // 100, chosen.rows // 5, chosen.rows):
                fill(database, rows=chosen.rows, ready=ready)
                took = measure(database, ready)
                at = [took[min(len(took) - 1, int(len(took) * q))] for q in (0.5, 0.99, 1.0)]
                print(
                    f"{database.dialect:<12} {chosen.rows:>9} {ready:>9} {len(took):>7} "
                    f"{at[0]:>8.2f} {at[1]:>8.2f} {at[2]:>8.2f}",
                    flush=True,
                )
            print("\n".join(plans(database)))
            database.close()


if __name__ == "__main__":
    main()
