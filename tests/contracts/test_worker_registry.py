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


# --- how fast --------------------------------------------------------------------------------------------


def test_a_model_is_as_fast_as_its_live_workers_on_average(workers: WorkerRegistry, clock: Clock) -> None:
    workers.publish("gone", queue="cpu.tone", model="tone", rtf=9.0, seconds_per_char=9.0)
    clock.advance(ALIVE_SECONDS)
    workers.publish("w1", queue="cpu.tone", model="tone", rtf=0.2, seconds_per_char=0.02)
    workers.publish("w2", queue="cpu.tone", model="tone", rtf=0.4, seconds_per_char=0.04)
    workers.publish("new", queue="cpu.tone", model="tone")

    (served,) = workers.models()

    assert served.workers == 3
    assert served.rtf == pytest.approx(0.3)
    assert served.seconds_per_char == pytest.approx(0.03)


def test_a_model_without_a_live_worker_is_as_fast_as_it_was(workers: WorkerRegistry, clock: Clock) -> None:
    workers.publish("w1", queue="cpu.tone", model="tone", rtf=0.2, seconds_per_char=0.02)
    clock.advance(ALIVE_SECONDS)

    (served,) = workers.models()

    assert (served.alive, served.workers, served.rtf, served.seconds_per_char) == (False, 0, 0.2, 0.02)


def test_nobody_knows_how_fast_a_model_is_that_has_spoken_nothing(workers: WorkerRegistry) -> None:
    workers.publish("w1", queue="cpu.tone", model="tone")

    (served,) = workers.models()

    assert (served.rtf, served.seconds_per_char) == (None, None)


def test_a_known_speed_stays_until_another_is_measured(workers: WorkerRegistry) -> None:
    workers.publish("w1", queue="cpu.tone", model="tone", rtf=0.2, seconds_per_char=0.02)
    workers.publish("w1", queue="cpu.tone", model="tone")
    (served,) = workers.models()
    assert (served.rtf, served.seconds_per_char) == (0.2, 0.02)

    workers.publish("w1", queue="cpu.tone", model="tone", rtf=0.1, seconds_per_char=0.01)

    (served,) = workers.models()
    assert (served.rtf, served.seconds_per_char) == (0.1, 0.01)


def test_workers_on_a_queue_that_the_model_has_left_do_not_count(
    workers: WorkerRegistry, clock: Clock
) -> None:
    workers.publish("old", queue="cpu.tone", model="tone", rtf=2.0)
    clock.advance(1)
    workers.publish("new", queue="gpu.tone", model="tone", rtf=0.1)

    (served,) = workers.models()

    assert (served.queue, served.workers, served.rtf) == ("gpu.tone", 1, 0.1)


def test_a_queue_is_as_fast_as_whoever_works_on_it(workers: WorkerRegistry, clock: Clock) -> None:
    assert workers.rtf("cpu.media") is None
    workers.publish("m1", queue="cpu.media", rtf=0.1)
    workers.publish("t1", queue="cpu.tone", model="tone", rtf=9.0)
    clock.advance(ALIVE_SECONDS)
    assert workers.rtf("cpu.media") == pytest.approx(0.1)

    workers.publish("m2", queue="cpu.media", rtf=0.3)
    workers.publish("m3", queue="cpu.media")

    assert workers.rtf("cpu.media") == pytest.approx(0.3)


# --- sweepers --------------------------------------------------------------------------------------------


def test_what_the_sweepers_did_last_is_as_old_as_they_said_and_as_that_is(
    workers: WorkerRegistry, clock: Clock
) -> None:
    assert workers.sweeper() == {}
    workers.publish("s1", queue="sweeper", info={"last_run": {"bells": 0.5, "heavy": 100.0}})
    clock.advance(3)
    workers.publish("s2", queue="sweeper", info={"last_run": {"bells": 2.0, "expiry": 0.0}})
    workers.publish("s3", queue="sweeper")
    workers.publish("w1", queue="cpu.tone", model="tone", info={"last_run": {"bells": 0.0}})
    clock.advance(1)

    # Of several sweepers, the one that did it last.
    assert workers.sweeper() == pytest.approx({"bells": 3.0, "heavy": 104.0, "expiry": 1.0})
