"""How a text is to be said: what an engine heeds, ignores or refuses; and who speaks it when it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.job import Manner
from jobs.workers import OPEN
from speech.engine import EngineInfo
from speech.engines.tone import ABOUT

from .conftest import TONE, World

INFO = {
    **TONE,
    "features": {"design": True, "speed": True},
    "speeds": [0.5, 2.0],
    "options": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "steps": {"type": "integer", "minimum": 1, "maximum": 100},
            "cfg": {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]},
            "mode": {"enum": ["soft", "loud"]},
        },
    },
}


@pytest.fixture
def able(world: World) -> World:
    world.workers.publish("w1", queue="cpu.tone", model="tone", info=INFO)
    return world


def test_what_the_engine_knows_reaches_its_worker(able: World) -> None:
    asked = {"instructions": "slowly", "speed": 1.5, "engine_options": {"steps": 4, "cfg": 1.5}}
    reply = able.post({"input": "Hello.", "fallback": "none", **asked})

    assert (reply.status_code, reply.get_json()["warnings"]) == (202, [])
    claim = able.store.claim("cpu.tone", holder="w")
    assert claim is not None
    assert claim.manner == Manner(style="slowly", speed=1.5, options={"steps": 4, "cfg": 1.5})
    assert claim.fallback == "none"


def test_what_it_ignores_is_said_and_not_passed_on(world: World) -> None:
    asked = {"instructions": "slowly", "speed": 2, "engine_options": {"temperature": 0.5, "top_p": 1}}
    reply = world.post({"input": "Hello.", **asked})

    warnings = reply.get_json()["warnings"]
    assert reply.status_code == 202
    assert [warning["code"] for warning in warnings] == [
        "instructions_ignored",
        "speed_ignored",
        "engine_option_ignored",
        "engine_option_ignored",
    ]
    assert "temperature" in warnings[2]["message"]
    claim = world.store.claim("cpu.tone", holder="w")
    assert claim is not None
    assert claim.manner == Manner()


def test_an_option_of_another_model_is_known_and_ignored(able: World) -> None:
    able.workers.publish("w2", queue="cpu.plain", model="plain", info=TONE)

    reply = able.post({"input": "Hello.", "model": "plain", "engine_options": {"mode": "soft"}})

    assert [warning["code"] for warning in reply.get_json()["warnings"]] == ["engine_option_ignored"]


@pytest.mark.parametrize(
    ("members", "pointer", "code"),
    [
        ({"engine_options": {"steps": 0}}, "/engine_options/steps", "out_of_range"),
        ({"engine_options": {"steps": 101}}, "/engine_options/steps", "out_of_range"),
        ({"engine_options": {"steps": "4"}}, "/engine_options/steps", "wrong_type"),
        ({"engine_options": {"steps": True}}, "/engine_options/steps", "wrong_type"),
        ({"engine_options": {"steps": 4.5}}, "/engine_options/steps", "wrong_type"),
        ({"engine_options": {"cfg": 0}}, "/engine_options/cfg", "out_of_range"),
        ({"engine_options": {"cfg": [1]}}, "/engine_options/cfg", "wrong_type"),
        ({"engine_options": {"mode": "quiet"}}, "/engine_options/mode", "out_of_range"),
        ({"engine_options": {"stepz": 4}}, "/engine_options/stepz", "unknown_member"),
        ({"engine_options": {"a/b~c": 4}}, "/engine_options/a~1b~0c", "unknown_member"),
        ({"engine_options": {str(n): n for n in range(17)}}, "/engine_options", "too_many"),
        ({"engine_options": []}, "/engine_options", "wrong_type"),
        ({"speed": 0.4}, "/speed", "out_of_range"),
        ({"speed": 2.5}, "/speed", "out_of_range"),
        ({"speed": 5}, "/speed", "out_of_range"),
        ({"speed": "fast"}, "/speed", "wrong_type"),
        ({"instructions": ""}, "/instructions", "too_short"),
        ({"instructions": "x" * 4097}, "/instructions", "too_long"),
        ({"instructions": "a\0b"}, "/instructions", "invalid_text"),
        ({"fallback": "nobody"}, "/fallback", "model_not_found"),
        ({"fallback": 5}, "/fallback", "wrong_type"),
    ],
)
def test_what_is_wrong_is_named(able: World, members: dict[str, Any], pointer: str, code: str) -> None:
    reply = able.post({"input": "Hello.", **members})

    assert reply.status_code == 422
    assert [(item["pointer"], item["code"]) for item in reply.get_json()["errors"]] == [(pointer, code)]
    assert able.marks.queues == []


def test_limits_and_alternatives_are_told_and_the_value_is_not(able: World) -> None:
    reply = able.post({"input": "Hello.", "engine_options": {"steps": 123456, "mode": "private words"}})

    steps, mode = sorted(reply.get_json()["errors"], key=lambda item: item["pointer"], reverse=True)
    assert (steps["limit"], mode["allowed"]) == (100, ["soft", "loud"])
    assert b"123456" not in reply.data
    assert b"private" not in reply.data


def test_the_schema_of_a_real_engine_is_one_that_can_be_judged_by(world: World) -> None:
    info = EngineInfo.from_json(ABOUT.to_json())
    assert info == ABOUT
    world.workers.publish("w1", queue="cpu.tone", model="tone", info={**TONE, "options": ABOUT.options})

    assert world.post({"input": "Hello.", "engine_options": {"steps": 3}}).status_code == 202
    assert world.post({"input": "Hello.", "engine_options": {"steps": 0}}).status_code == 422


def test_models_tell_what_they_can_do(able: World) -> None:
    (model,) = able.get("/v1/models").get_json()["data"]

    assert model["options"] == INFO["options"]
    assert model["features"]["design"] is True
    assert model["max_chars_learned"] is None
    assert {voice["kind"] for voice in able.get("/v1/voices").get_json()["data"]} == {"builtin"}


OTHER = {**TONE, "voices": [{"id": "heart", "name": "Heart", "language": "en"}], "default_voice": "heart"}


@pytest.fixture
def short(world: World) -> World:
    """Give a fleet whose only worker of `tone` leaves its engine alone."""
    world.workers.publish("w1", queue="cpu.tone", model="tone", info=TONE, breaker=OPEN)
    world.workers.publish("w2", queue="cpu.other", model="other", info=OTHER)
    return world


def test_new_jobs_go_to_the_fallback_while_no_worker_of_their_model_is_well(short: World) -> None:
    body = short.post({"input": "Hello.", "fallback": "other"}).get_json()

    assert (body["model"], body["degraded"]) == ("tone", True)
    assert [warning["code"] for warning in body["warnings"]] == ["fallback_model"]
    assert short.marks.queues == ["cpu.other"]
    claim = short.store.claim("cpu.other", holder="w")
    assert claim is not None
    assert claim.voice == "heart"


@pytest.mark.parametrize("fallback", [None, "none", "tone"])
def test_without_a_fallback_they_wait_for_their_own(short: World, fallback: str | None) -> None:
    body = short.post({"input": "Hello.", "fallback": fallback}).get_json()

    assert (body["degraded"], short.marks.queues) == (False, ["cpu.tone"])


def test_one_worker_that_is_well_is_enough(short: World) -> None:
    short.workers.publish("w3", queue="cpu.tone", model="tone", info=TONE)

    body = short.post({"input": "Hello.", "fallback": "other"}).get_json()

    assert (body["degraded"], short.marks.queues) == (False, ["cpu.tone"])


def test_readiness_says_that_memory_is_short(short: World) -> None:
    reply = short.client.get("/readyz")

    assert reply.status_code == 503
    part = reply.get_json()["checks"]["model.tone"]
    assert (part["ok"], part["detail"]) == (False, "breaker_open: out of memory")
    assert short.client.get("/healthz").status_code == 200


def test_readiness_says_what_was_learned(world: World) -> None:
    world.workers.publish("w1", queue="cpu.tone", model="tone", info=TONE, max_chars_learned=60)
    world.workers.publish("w3", queue="cpu.tone", model="tone", info=TONE, breaker=OPEN)

    part = world.client.get("/readyz").get_json()["checks"]["model.tone"]

    assert part["ok"]
    assert part["detail"] == "ok; breaker open on 1 of 2; memory for 60 characters at once"


def test_readiness_says_what_was_done_for_want_of_memory(world: World) -> None:
    for worker, counts in (
        ("w1", {"rung.split": 2, "engine.died": 9}),
        ("w2", {"rung.split": 1, "rung.notice": 4}),
    ):
        world.workers.publish(worker, queue="cpu.tone", model="tone", info={**TONE, "counts": counts})

    part = world.client.get("/readyz").get_json()["checks"]["model.tone"]

    assert part["detail"] == "ok; for want of memory since they started: notice 4, split 3"


def test_the_rungs_and_the_breaker_are_metrics(short: World) -> None:
    counts = {"rung.split": 3, "engine.recycled": 2, "unknown.thing": 1}
    short.workers.publish(
        "w3", queue="cpu.tone", model="tone", info={**TONE, "counts": counts}, max_chars_learned=40
    )

    text = short.client.get("/metrics").text

    assert 'voxfleet_memory_rungs_total{model="tone",rung="split",worker="w3"} 3.0' in text
    assert 'voxfleet_engine_events_total{event="recycled",model="tone",worker="w3"} 2.0' in text
    assert 'voxfleet_breakers_open{model="tone"} 1.0' in text
    assert 'voxfleet_max_chars_learned{model="tone"} 40.0' in text
    assert "unknown" not in text.replace("voxfleet_", "")
