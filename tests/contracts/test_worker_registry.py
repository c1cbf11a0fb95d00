"""What the registry of workers promises, on SQLite and on PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jobs.database import Database
from jobs.workers import ALIVE_SECONDS, FORGOTTEN_SECONDS, WorkerRegistry

from ..jobs.databases import START, Clock, rows

INFO = {"voices": ["heart", "안녕"], "sample_rate": 24_000}


@pytest.fixture
def workers(database: Database) -> WorkerRegistry:
    return WorkerRegistry(database)


def test_a_worker_tells_what_it_serves(workers: WorkerRegistry) -> None:
    workers.publish("w1", queue="cpu.hibari", model="hibari", info=INFO, rtf=0.2)

    (served,) = workers.models()

    assert (served.model, served.queue, served.info) == ("hibari", "cpu.hibari", INFO)
    assert served.alive
    assert served.seen_at == datetime.fromtimestamp(START, UTC)
    assert workers.alive() == {"cpu.hibari": 1}


def test_publishing_again_leaves_one_row_with_the_latest_account(
    workers: WorkerRegistry, database: Database, clock: Clock
) -> None:
    workers.publish("w1", queue="cpu.hibari", model="hibari", info=INFO)
    clock.advance(5)
    workers.publish("w1", queue="cpu.hibari", model="hibari", info={"voices": []}, rtf=0.1)

    assert len(rows(database, "workers")) == 1
    (served,) = workers.models()
    assert served.info == {"voices": []}
    assert served.seen_at == datetime.fromtimestamp(START + 5, UTC)


def test_a_silent_worker_is_not_alive_but_its_model_stays_known(
    workers: WorkerRegistry, clock: Clock
) -> None:
    workers.publish("w1", queue="cpu.hibari", model="hibari", info=INFO)
    workers.publish("w2", queue="cpu.hibari", model="hibari", info=INFO)
    workers.publish("m1", queue="cpu.media")
    assert workers.alive() == {"cpu.hibari": 2, "cpu.media": 1}

    clock.advance(ALIVE_SECONDS)

    assert workers.alive() == {}
    (served,) = workers.models()
    assert (served.model, served.alive) == ("hibari", False)


def test_a_model_is_as_its_latest_worker_described_it(workers: WorkerRegistry, clock: Clock) -> None:
    workers.publish("old", queue="cpu.tone", model="tone", info={"revision": 1})
    clock.advance(1)
    workers.publish("new", queue="gpu.tone", model="tone", info={"revision": 2})
    workers.publish("another", queue="cpu.hibari", model="hibari")

    assert [(model.model, model.queue, model.info) for model in workers.models()] == [
        ("hibari", "cpu.hibari", {}),
        ("tone", "gpu.tone", {"revision": 2}),
    ]


def test_a_worker_that_leaves_is_gone_at_once(workers: WorkerRegistry) -> None:
    workers.publish("w1", queue="cpu.tone", model="tone", info=INFO)

    workers.leave("w1")
    workers.leave("unknown")

    assert workers.alive() == {}
    (served,) = workers.models()
    assert (served.info, served.alive) == (INFO, False)


def test_long_gone_workers_are_forgotten_but_no_model_is(
    workers: WorkerRegistry, database: Database, clock: Clock
) -> None:
    workers.publish("m1", queue="cpu.media")
    workers.publish("t1", queue="cpu.tone", model="tone")
    clock.advance(1)
    workers.publish("t2", queue="cpu.tone", model="tone")
    workers.publish("h1", queue="cpu.hibari", model="hibari")
    workers.forget()
    assert len(rows(database, "workers")) == 4

    clock.advance(FORGOTTEN_SECONDS + 1)
    workers.publish("t3", queue="cpu.tone", model="tone")
    workers.forget()

    assert {row["id"] for row in rows(database, "workers")} == {"t3", "h1"}
    assert [model.model for model in workers.models()] == ["hibari", "tone"]
