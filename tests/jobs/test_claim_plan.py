"""How the databases look for the job to claim: by walking `jobs_ready`, however many jobs wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from sqlalchemy import Connection, Engine, event, insert, text

from jobs.database import Database
from jobs.job import NewJob
from jobs.store import JobStore
from jobs.tables import jobs

from .databases import START

TENANTS: Final = 200
JOBS: Final = 20_000
CLAIMS: Final = 20


def _fill(database: Database) -> None:
    with database.write() as connection:
        for first in range(0, JOBS, 1000):
            rows = [
                {
                    "id": f"job_{number:08}",
                    "tenant_id": f"ten_{number % TENANTS:04}",
                    "kind": "speech",
                    "class": 1 + number % 2,
                    "status": "queued",
                    "model": "tone",
                    "queue": "cpu.tone",
                    "visible_at": START - 1,
                    "queued_at": START - JOBS + number,
                    "voice": "sine",
                    "language": "en",
                    "response_format": "mp3",
                    "characters": 5,
                    "request": '{"input": "Hello", "seed": 1, "webhook_url": null}',
                    "expires_in": 86_400,
                    "created_at": START - JOBS + number,
                }
                for number in range(first, first + 1000)
            ]
            connection.execute(insert(jobs), rows)
        connection.execute(text("ANALYZE"))


def _asked(do: Callable[[], object]) -> list[tuple[str, Any]]:
    """Return the questions that a method asks of the jobs table."""
    statements: list[tuple[str, Any]] = []

    def listen(_c: Connection, _cursor: object, statement: str, parameters: Any, *_rest: object) -> None:
        if "SELECT" in statement and "jobs" in statement and not statement.startswith("UPDATE"):
            statements.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", listen)
    try:
        do()
    finally:
        event.remove(Engine, "before_cursor_execute", listen)
    return statements


def _plan(database: Database, statement: str, parameters: Any) -> str:
    explain = "EXPLAIN QUERY PLAN " if database.dialect == "sqlite" else "EXPLAIN "
    with database.write() as connection:
        answer = connection.exec_driver_sql(explain + statement, parameters)
        return "\n".join(str(row[-1]) for row in answer)


@pytest.mark.slow
def test_a_claim_walks_the_index_of_ready_jobs(database: Database) -> None:
    store = JobStore(database, public_url="https://speech.example")
    _fill(database)

    statements = _asked(lambda: store.claim("cpu.tone", holder="worker"))

    # Class, lanes, head; and the clips of the one that was taken.
    assert len(statements) == 3
    for statement, parameters in statements:
        _check_walk(_plan(database, statement, parameters))
    assert "jobs_ready" in _plan(database, *statements[1])
    head = _plan(database, *statements[-1])
    assert "Sort" not in head, head
    assert "TEMP B-TREE" not in head, head

    begun = time.perf_counter()
    for number in range(CLAIMS):
        assert store.claim("cpu.tone", holder=f"worker-{number}") is not None
    mean = (time.perf_counter() - begun) / CLAIMS
    print(f"{database.dialect}: {mean * 1000:.1f} ms a claim, {JOBS} ready jobs of {TENANTS} tenants")  # noqa: T201


def _check_walk(plan: str) -> None:
    assert "jobs_" in plan, plan
    for whole in ("Seq Scan on jobs", "SCAN jobs", "SCAN j\n", "SCAN h\n", "SCAN other\n", "SCAN job\n"):
        assert whole not in f"{plan}\n".replace("SCAN jobs USING", ""), plan


@pytest.mark.slow
def test_every_other_question_walks_an_index_too(database: Database) -> None:
    store = JobStore(database, public_url="https://speech.example")
    _fill(database)
    claim = store.claim("cpu.tone", holder="worker")
    assert claim is not None
    last = store.get(f"job_{JOBS - 1:08}", f"ten_{(JOBS - 1) % TENANTS:04}")
    request = NewJob(
        tenant_id=last.tenant_id,
        input="Hello",
        model="tone",
        queue="cpu.tone",
        voice="sine",
        language="en",
        response_format="mp3",
        seed=1,
        expires_in=60,
    )
    asked = {
        "better": lambda: store.better(claim, left=100, turn_is_over=False),
        "swap": lambda: store.swap(claim, holder="worker", left=100, turn_is_over=True),
        "urgent": lambda: store.urgent("cpu.tone"),
        "short": lambda: store.claim("cpu.tone", holder="worker", longest_ms=0),
        "ahead": lambda: store.ahead(last),
        "running": store.running,
        "expire": lambda: store.expire(limit=10),
        "promote": store.promote,
        "create": lambda: store.create(request, max_queued=200),
        "staged": lambda: store.staged_leftovers(limit=10),
    }

    for name, do in asked.items():
        statements = _asked(do)
        assert statements, name
        for statement, parameters in statements:
            _check_walk(_plan(database, statement, parameters))


@pytest.mark.slow
def test_neighbours_in_the_queue_belong_to_different_tenants(database: Database) -> None:
    store = JobStore(database, public_url="https://speech.example")
    _fill(database)

    claims = [store.claim("cpu.tone", holder="worker") for _ in range(CLAIMS)]

    assert len({claim.job.tenant_id for claim in claims if claim is not None}) == CLAIMS
