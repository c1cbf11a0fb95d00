"""Urgency, deadlines, cancelling and trying again."""

from __future__ import annotations

import time
from typing import Any

import pytest
from werkzeug.test import TestResponse

from api.app import create_app
from jobs.job import JobClass

from .conftest import PUBLIC_URL, TONE, World


def _call(world: World, job_id: str, verb: str, **arguments: Any) -> TestResponse:
    headers = {"X-API-Key": arguments.pop("key", world.secret)}
    return world.client.post(f"/v1/speech/jobs/{job_id}/{verb}", headers=headers, **arguments)


def _submit(world: World, **members: Any) -> dict[str, Any]:
    reply = world.post({"input": "Hello.", **members})
    assert reply.status_code == 202, reply.text
    return dict(reply.get_json())


# --- class and deadline ----------------------------------------------------------------------------------


@pytest.mark.parametrize("job_class", ["live", "high", "normal", "low"])
def test_the_class_is_carried_to_the_workers_and_told(world: World, job_class: str) -> None:
    job = _submit(world, **{"class": job_class})

    assert job["class"] == job_class
    claim = world.store.claim("cpu.tone", holder="w")
    assert claim is not None
    assert claim.job.job_class is JobClass[job_class.upper()]


@pytest.mark.parametrize("job_class", ["urgent", "LIVE", "", 1, ["low"], {}])
def test_another_class_is_refused_and_the_known_ones_are_named(world: World, job_class: object) -> None:
    reply = world.post({"input": "Hello.", "class": job_class})

    assert reply.status_code == 422
    (fault,) = reply.get_json()["errors"]
    assert fault["pointer"] == "/class"
    assert fault["allowed"] == ["live", "high", "normal", "low"]


def test_a_member_has_the_name_that_is_documented_alone(world: World) -> None:
    reply = world.post({"input": "Hello.", "job_class": "low"})

    assert reply.status_code == 422
    (fault,) = reply.get_json()["errors"]
    assert (fault["pointer"], fault["code"]) == ("/job_class", "unknown_member")
    assert "class" in fault["allowed"]
    assert "job_class" not in fault["allowed"]


def test_a_deadline_is_told_as_a_time(world: World) -> None:
    job = _submit(world, deadline=90)

    assert job["deadline"] is not None
    assert job["deadline"][:17] >= job["created_at"][:17]
    assert _submit(world)["deadline"] is None


@pytest.mark.parametrize(
    ("deadline", "limit"), [(0, 1), (-5, 1), (31 * 86_400 + 1, 31 * 86_400), (1.5, None), ("60", None)]
)
def test_a_deadline_out_of_range_is_refused_with_the_limit(
    world: World, deadline: object, limit: int | None
) -> None:
    reply = world.post({"input": "Hello.", "deadline": deadline})

    assert reply.status_code == 422
    (fault,) = reply.get_json()["errors"]
    assert fault["pointer"] == "/deadline"
    assert fault.get("limit") == limit


# --- cancelling ------------------------------------------------------------------------------------------


def test_a_job_is_cancelled_and_saying_it_again_changes_nothing(world: World) -> None:
    job = _submit(world)
    assert job["urls"]["cancel"] == f"{PUBLIC_URL}/v1/speech/jobs/{job['id']}/cancel"

    first, second = _call(world, job["id"], "cancel"), _call(world, job["id"], "cancel", json={})

    assert (first.status_code, second.status_code) == (200, 200)
    assert world.marks.queues[-1] == "cpu.webhooks"
    assert first.get_json()["status"] == "cancelled"
    assert second.get_json() == first.get_json()
    assert world.get(f"/v1/speech/jobs/{job['id']}").get_json()["status"] == "cancelled"
    assert world.store.claim("cpu.tone", holder="w") is None
    audio = world.get(f"/v1/speech/jobs/{job['id']}/audio")
    assert (audio.status_code, audio.get_json()["code"]) == (409, "job_cancelled")


def test_a_job_in_hand_is_cancelled_under_its_worker(world: World) -> None:
    job = _submit(world)
    claim = world.store.claim("cpu.tone", holder="w")
    assert claim is not None

    assert _call(world, job["id"], "cancel").get_json()["status"] == "cancelled"
    with pytest.raises(Exception, match="epoch 1 is over"):
        world.store.release(claim)


def test_what_has_ended_cannot_be_cancelled_and_says_how_it_ended(world: World) -> None:
    done = _submit(world)
    world.complete(done["id"])
    failed = _submit(world)
    world.fail(failed["id"])

    for job, code in ((done, "job_completed"), (failed, "job_failed")):
        reply = _call(world, job["id"], "cancel")
        assert (reply.status_code, reply.get_json()["code"]) == (409, code)
    assert world.get(f"/v1/speech/jobs/{done['id']}/audio").status_code == 302


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_only_the_owner_may(world: World, verb: str) -> None:
    job = _submit(world)
    world.fail(job["id"])
    other = world.keys.create("another").secret

    for job_id in (job["id"], "job_unknown", "%00", "job_" + "0" * 26):
        reply = _call(world, job_id, verb, key=other)
        assert (reply.status_code, reply.get_json()["code"]) == (404, "job_not_found")
    assert world.client.post(f"/v1/speech/jobs/{job['id']}/{verb}").status_code == 401
    assert world.client.get(f"/v1/speech/jobs/{job['id']}/{verb}").status_code == 405


@pytest.mark.parametrize("verb", ["cancel", "retry"])
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"json": {"reason": "x"}}, 422, "unknown_member"),
        ({"json": []}, 422, "wrong_type"),
        ({"data": b"{", "content_type": "application/json"}, 400, "invalid_json"),
        (
            {"data": b"a=b", "content_type": "application/x-www-form-urlencoded"},
            415,
            "unsupported_media_type",
        ),
    ],
)
def test_a_body_that_says_something_is_refused_and_nothing_is_done(
    world: World, verb: str, body: dict[str, Any], status: int, code: str
) -> None:
    job = _submit(world)

    reply = _call(world, job["id"], verb, **body)

    assert (reply.status_code, reply.get_json()["code"]) == (status, code)
    assert world.get(f"/v1/speech/jobs/{job['id']}").get_json()["status"] == "queued"


# --- trying again ----------------------------------------------------------------------------------------


def test_a_failed_job_is_tried_again_as_a_new_job_that_asks_for_the_same(world: World) -> None:
    asked = {"voice": "zwei", "class": "low", "metadata": {"a": "b"}, "seed": 5, "expires_in": 3600}
    job = _submit(world, deadline=60, **asked)
    world.fail(job["id"])
    world.marks.queues.clear()

    reply = _call(world, job["id"], "retry")

    again = reply.get_json()
    assert reply.status_code == 202
    assert reply.headers["Location"] == again["urls"]["self"]
    assert reply.headers["Retry-After"] == "1"
    assert again["id"] != job["id"]
    assert (again["retry_of"], again["status"], again["deadline"]) == (job["id"], "queued", None)
    for member in ("voice", "language", "class", "metadata", "model", "characters"):
        assert again[member] == job[member]
    assert world.marks.queues == ["cpu.tone"]
    claim = world.store.claim("cpu.tone", holder="w")
    assert claim is not None
    assert (claim.job.id, claim.input, claim.seed) == (again["id"], "Hello.", 5)
    assert world.get(f"/v1/speech/jobs/{job['id']}").get_json()["status"] == "failed"


def test_a_cancelled_job_may_be_tried_again(world: World) -> None:
    job = _submit(world)
    _call(world, job["id"], "cancel")

    assert _call(world, job["id"], "retry").get_json()["retry_of"] == job["id"]


def test_a_job_under_way_or_completed_is_not_tried_again(world: World) -> None:
    job = _submit(world)
    reply = _call(world, job["id"], "retry")
    assert (reply.status_code, reply.get_json()["code"]) == (409, "job_not_finished")
    assert reply.headers["Retry-After"] == "1"

    world.complete(job["id"])
    reply = _call(world, job["id"], "retry")
    assert (reply.status_code, reply.get_json()["code"]) == (409, "job_completed")
    assert "Retry-After" not in reply.headers


def test_a_job_of_a_model_that_nobody_knows_any_more_is_refused_as_a_new_one_is(world: World) -> None:
    world.workers.publish("w2", queue="gpu.other", model="other", info=TONE)
    default, other = _submit(world), _submit(world, model="other")
    for job in (default, other):
        _call(world, job["id"], "cancel")
    world.workers.models = list  # type: ignore[method-assign,assignment]
    world.client = create_app(world.services).test_client()

    reply = _call(world, default["id"], "retry")
    assert (reply.status_code, reply.get_json()["code"]) == (503, "no_worker")
    assert reply.headers["Retry-After"] == "5"
    reply = _call(world, other["id"], "retry")
    assert (reply.status_code, reply.get_json()["code"]) == (422, "model_not_found")
    assert reply.get_json()["errors"][0]["allowed"] == ["tone"]


def test_a_job_is_tried_again_on_the_queue_of_its_model_at_present(world: World) -> None:
    job = _submit(world)
    _call(world, job["id"], "cancel")
    world.workers.publish("w2", queue="gpu.tone", model="tone", info=TONE)
    world.client = create_app(world.services).test_client()
    world.marks.queues.clear()

    again = _call(world, job["id"], "retry").get_json()

    assert world.marks.queues == ["gpu.tone"]
    claim = world.store.claim("gpu.tone", holder="w")
    assert claim is not None
    assert claim.job.id == again["id"]


# --- expiring --------------------------------------------------------------------------------------------


def test_a_job_whose_deadline_passed_has_no_audio_is_not_cancelled_and_may_be_tried_again(
    world: World,
) -> None:
    job = _submit(world, deadline=1)
    time.sleep(1.1)
    assert world.store.expire(limit=10) == 1

    assert world.get(f"/v1/speech/jobs/{job['id']}").get_json()["status"] == "expired"
    for reply in (world.get(f"/v1/speech/jobs/{job['id']}/audio"), _call(world, job["id"], "cancel")):
        assert (reply.status_code, reply.get_json()["code"]) == (409, "job_expired")
    again = _call(world, job["id"], "retry").get_json()
    assert (again["retry_of"], again["deadline"]) == (job["id"], None)
