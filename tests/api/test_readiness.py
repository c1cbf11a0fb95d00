"""`/readyz` asks every part at once and tells nothing that is private."""

from __future__ import annotations

import time

from actors.bell import BrokerUnavailable
from api.readiness import KEPT_SECONDS, Readiness
from jobs.database import DatabaseUnavailable
from storage.store import AccessDenied

from .conftest import TONE, World


def _whole(world: World) -> None:
    world.workers.publish("m", queue="cpu.media")
    world.workers.publish("s", queue="sweeper", info={"last_run": {"top_up_bells": 2.0}})


def test_a_whole_fleet_is_ready(world: World) -> None:
    _whole(world)

    reply = world.client.get("/readyz")

    assert (reply.status_code, reply.get_json()["status"]) == (200, "ready")
    assert set(reply.get_json()["checks"]) == {
        "database", "broker", "object_store", "model.tone", "cpu.media", "sweeper"
    }  # fmt: skip


def test_every_part_that_is_missing_is_named_without_its_secrets(world: World) -> None:
    world.workers.leave("w1")
    world.broken["broker"] = BrokerUnavailable("redis://:hush@host refused")
    world.broken["object_store"] = AccessDenied("key hush")

    reply = world.client.get("/readyz")

    checks = reply.get_json()["checks"]
    assert (reply.status_code, reply.get_json()["status"]) == (503, "not_ready")
    assert {name: check["detail"] for name, check in checks.items() if not check["ok"]} == {
        "broker": "unavailable",
        "object_store": "access_denied",
        "model.tone": "no_worker",
        "cpu.media": "no_worker",
        "sweeper": "no_worker",
    }
    assert "hush" not in reply.text


def test_a_sweeper_that_hangs_is_none_and_the_last_run_is_told(world: World) -> None:
    _whole(world)
    told = world.client.get("/readyz").get_json()["checks"]["sweeper"]
    assert told == {"ok": True, "detail": "last run 2 s ago", "required": True}

    # It is there and tells of itself, but tops up no bells any more.
    world.workers.publish("s", queue="sweeper", info={"last_run": {"top_up_bells": 15.5}})
    time.sleep(KEPT_SECONDS)
    reply = world.client.get("/readyz")

    assert reply.status_code == 503
    sweeper = reply.get_json()["checks"]["sweeper"]
    assert (sweeper["ok"], sweeper["required"]) == (False, True)
    assert sweeper["detail"].startswith("late: last run 1")


def test_a_retired_model_does_not_spoil_readiness(world: World) -> None:
    _whole(world)
    world.workers.publish("old", queue="gpu.old", model="old", info=TONE)
    world.workers.leave("old")

    reply = world.client.get("/readyz")

    assert reply.status_code == 200
    assert reply.get_json()["checks"]["model.old"] == {"ok": False, "detail": "no_worker", "required": False}


def test_a_part_that_hangs_or_breaks_holds_up_nobody_for_long() -> None:
    def hang() -> None:
        time.sleep(1)

    def break_() -> None:
        raise DatabaseUnavailable("locked")

    readiness = Readiness(
        checks={"a": hang, "b": hang, "c": break_},
        models=list,
        alive=dict,
        sweeper=dict,
        default_model="tone",
        limit_seconds=0.1,
    )
    began = time.monotonic()

    parts = readiness.parts()

    assert time.monotonic() - began < 0.6
    assert (parts["a"].detail, parts["b"].detail, parts["c"].detail) == (
        "timed_out",
        "timed_out",
        "unavailable",
    )
    assert readiness.parts() is parts


def test_health_asks_nobody(world: World) -> None:
    world.broken["broker"] = BrokerUnavailable("down")

    assert world.client.get("/healthz").get_json() == {"status": "ok"}
