"""How much may wait, what a full fleet answers, and when a job will be done."""

from __future__ import annotations

import threading
import time
from datetime import datetime
from typing import Any

import pytest
from werkzeug.test import TestResponse

from api.admission import LONGEST_RETRY, UNKNOWN_RETRY, Limits
from api.app import create_app
from api.backlog import RecentBacklog
from api.models import KEPT_SECONDS
from jobs.database import DatabaseUnavailable
from jobs.job import Job, JobClass, NewJob, TenantId
from jobs.store import Backlog

from .conftest import TONE, World

#: A tenth of a second for each code point.
PACE = {"rtf": 0.1, "seconds_per_char": 0.1}
TEN = "0123456789"


def _limit(world: World, *, measured: bool = True, **limits: int) -> None:
    """Give the world an API with other limits."""
    if measured:
        world.workers.publish("w1", queue="cpu.tone", model="tone", info=TONE, **PACE)
    whole = {"max_queued": 100, "max_wait_seconds": 10_000, "tenant_max_queued": 100} | limits
    object.__setattr__(world.services, "limits", Limits(**whole))
    world.client = create_app(world.services).test_client()


def _refused(reply: TestResponse, status: int, code: str) -> dict[str, Any]:
    body = dict(reply.get_json())
    assert (reply.status_code, body["code"]) == (status, code), body
    return body


def test_a_tenant_with_too_many_jobs_waiting_is_told_how_many_and_for_how_long(world: World) -> None:
    _limit(world, tenant_max_queued=3)
    for _ in range(3):
        assert world.post({"input": TEN * 10}).status_code == 202

    reply = world.post({"input": TEN})

    body = _refused(reply, 429, "too_many_jobs")
    assert body["errors"] == [{"pointer": "", "code": "too_many_jobs", "detail": body["detail"], "limit": 3}]
    assert body["error"]["type"] == "rate_limit_error"
    # A hundred code points at a tenth of a second each, and nobody to share with.
    assert reply.headers["Retry-After"] == "10"
    assert len(world.store.backlog()) == 1
    assert world.store.backlog()[0].jobs == 3
    other = world.keys.create("another").secret
    assert world.post({"input": TEN}, headers={"Authorization": f"Bearer {other}"}).status_code == 202


def test_a_job_that_was_begun_makes_room(world: World) -> None:
    _limit(world, tenant_max_queued=1)
    assert world.post({"input": TEN}).status_code == 202
    assert world.post({"input": TEN}).status_code == 429

    assert world.store.claim("cpu.tone", holder="w") is not None

    assert world.post({"input": TEN}).status_code == 202


def test_a_full_queue_is_503_for_everybody_until_it_has_drained(world: World) -> None:
    _limit(world, max_queued=2)
    for _ in range(2):
        assert world.post({"input": TEN * 10}).status_code == 202

    for secret in (world.secret, world.keys.create("another").secret):
        reply = world.post({"input": TEN}, headers={"Authorization": f"Bearer {secret}"})
        body = _refused(reply, 503, "queue_full")
        assert body["errors"][0]["limit"] == 2
        # One job of a hundred code points.
        assert reply.headers["Retry-After"] == "10"
    assert sum(lane.jobs for lane in world.store.backlog()) == 2


def test_a_live_job_is_judged_by_live_jobs_alone(world: World) -> None:
    _limit(world, max_queued=2)
    for _ in range(2):
        assert world.post({"input": TEN}).status_code == 202

    assert world.post({"input": TEN}).status_code == 503
    assert world.post({"input": TEN, "class": "live"}).status_code == 202


def test_a_wait_that_is_too_long_is_refused_by_its_measured_length(world: World) -> None:
    _limit(world, max_wait_seconds=30)
    assert world.post({"input": TEN * 50}).status_code == 202

    reply = world.post({"input": TEN * 50})

    # 500 code points come before it: fifty seconds, twenty too many.
    _refused(reply, 503, "wait_too_long")
    assert int(reply.headers["Retry-After"]) == 20


def test_without_a_measured_pace_only_counts_are_judged(world: World) -> None:
    _limit(world, measured=False, max_wait_seconds=1, max_queued=2)
    for _ in range(2):
        reply = world.post({"input": TEN * 100})
        assert reply.status_code == 202
        assert reply.get_json()["eta"] is None

    reply = world.post({"input": TEN})
    _refused(reply, 503, "queue_full")
    assert reply.headers["Retry-After"] == str(UNKNOWN_RETRY)


def test_retry_after_is_never_longer_than_an_hour(world: World) -> None:
    _limit(world, max_queued=1)
    assert world.post({"input": TEN * 200, "class": "low"}).status_code == 202
    world.workers.publish("w1", queue="cpu.tone", model="tone", info=TONE, rtf=50, seconds_per_char=50)
    world.client = create_app(world.services).test_client()

    assert world.post({"input": TEN}).headers["Retry-After"] == str(LONGEST_RETRY)


@pytest.mark.parametrize(("limits", "status"), [({"tenant_max_queued": 1}, 429), ({"max_queued": 1}, 503)])
def test_trying_again_is_limited_like_asking(world: World, limits: dict[str, int], status: int) -> None:
    job = world.post({"input": TEN}).get_json()
    world.fail(job["id"])
    _limit(world, **limits)
    assert world.post({"input": TEN}).status_code == 202

    reply = world.client.post(f"/v1/speech/jobs/{job['id']}/retry", headers={"X-API-Key": world.secret})

    assert reply.status_code == status
    assert int(reply.headers["Retry-After"]) >= 1


def test_what_cannot_be_tried_again_is_told_before_what_is_full(world: World) -> None:
    done = world.post({"input": TEN}).get_json()
    world.complete(done["id"])
    _limit(world, max_queued=1)
    waiting = world.post({"input": TEN}).get_json()

    for job, code in ((done, "job_completed"), (waiting, "job_not_finished")):
        reply = world.client.post(f"/v1/speech/jobs/{job['id']}/retry", headers={"X-API-Key": world.secret})
        _refused(reply, 409, code)


def test_a_tenant_whose_jobs_wait_for_another_model_is_told_of_that_one(world: World) -> None:
    world.workers.publish("w2", queue="gpu.other", model="other", info=TONE, rtf=1, seconds_per_char=0.5)
    _limit(world, tenant_max_queued=1)
    assert world.post({"input": TEN, "model": "other"}).status_code == 202

    reply = world.post({"input": TEN})

    _refused(reply, 429, "too_many_jobs")
    assert reply.headers["Retry-After"] == "5"


def _seconds(job: dict[str, Any]) -> float:
    """Return how long after its creation a job is expected to be completed."""
    eta, created = (datetime.fromisoformat(job[name]) for name in ("eta", "created_at"))
    return (eta - created).total_seconds()


def test_the_estimate_counts_what_waits_before_and_follows_the_work(world: World) -> None:
    _limit(world)
    first = world.post({"input": TEN * 10}).get_json()
    second = world.post({"input": TEN * 10}).get_json()
    urgent = world.post({"input": TEN * 10, "class": "high"}).get_json()

    # Ten seconds of work, half a second and a hundredth of 100 s of audio for the encoder.
    assert _seconds(first) == pytest.approx(11.5, abs=0.5)
    assert _seconds(second) == pytest.approx(21.5, abs=0.5)
    assert _seconds(urgent) == pytest.approx(11.5, abs=0.5)
    waiting = world.get(f"/v1/speech/jobs/{second['id']}").get_json()
    assert _seconds(waiting) == pytest.approx(31.5, abs=1), "the urgent one comes before it now"

    claim = world.store.claim("cpu.tone", holder="w")
    assert claim is not None
    assert claim.job.id == urgent["id"]
    in_hand = world.get(f"/v1/speech/jobs/{urgent['id']}").get_json()
    assert _seconds(in_hand) == pytest.approx(11.5, abs=1)


def test_a_job_that_has_ended_or_that_nobody_serves_has_no_estimate(world: World) -> None:
    _limit(world)
    job = world.post({"input": TEN}).get_json()
    assert job["eta"] is not None
    world.client.post(f"/v1/speech/jobs/{job['id']}/cancel", headers={"X-API-Key": world.secret})
    assert world.get(f"/v1/speech/jobs/{job['id']}").get_json()["eta"] is None

    world.workers.leave("w1")
    world.client = create_app(world.services).test_client()
    assert world.post({"input": TEN}).get_json()["eta"] is None


def test_a_stored_job_is_answered_for_although_the_database_goes_away(world: World) -> None:
    _limit(world)
    assert world.post({"input": TEN}).status_code == 202
    create = world.store.create

    def last(new: NewJob, *, max_queued: int | None = None) -> Job:
        job = create(new, max_queued=max_queued)
        _take_away(world)
        time.sleep(KEPT_SECONDS)
        return job

    world.store.create = last  # type: ignore[method-assign]

    reply = world.post({"input": TEN})

    assert reply.status_code == 202
    assert reply.get_json()["eta"] is not None


def test_a_job_is_told_of_without_an_estimate_when_that_cannot_be_made(world: World) -> None:
    _limit(world)
    job = world.post({"input": TEN}).get_json()
    _take_away(world)
    time.sleep(KEPT_SECONDS)

    reply = world.get(f"/v1/speech/jobs/{job['id']}")

    assert (reply.status_code, reply.get_json()["eta"]) == (200, None)


def _take_away(world: World) -> None:
    """Let no question about the fleet be answered any more."""

    def away(*_: object) -> Any:
        raise DatabaseUnavailable("away")

    for port, names in ((world.workers, ("models", "alive", "rtf")), (world.store, ("backlog", "running"))):
        for name in names:
            setattr(port, name, away)


# --- the backlog that the API knows ----------------------------------------------------------------------


def _lane(jobs: int) -> Backlog:
    return Backlog(
        queue="q", job_class=JobClass.NORMAL, tenant_id=TenantId("t"), jobs=jobs, characters=jobs, age=0.0
    )


def _jobs(recent: RecentBacklog, queue: str = "q") -> int:
    return recent.snapshot().of(queue).jobs


def _settle(recent: RecentBacklog) -> None:
    """Wait for a question that is under way."""
    with recent._asking:
        return


def test_the_backlog_is_asked_for_once_a_second_and_more_seldom_when_that_is_slow() -> None:
    now, asked = [0.0], []
    cost = 0.01

    def backlog() -> list[Backlog]:
        asked.append(now[0])
        now[0] += cost
        return [_lane(len(asked))]

    recent = RecentBacklog(backlog, list, clock=lambda: now[0])
    for _ in range(300):
        recent.snapshot()
        _settle(recent)
        now[0] += 0.1
    assert 28 <= len(asked) <= 31

    cost = 0.5
    before, begun = len(asked), now[0]
    for _ in range(1000):
        recent.snapshot()
        _settle(recent)
        now[0] += 0.1
    assert (len(asked) - before) * cost <= (now[0] - begun) / 18


def test_nobody_waits_while_a_recent_backlog_is_asked_for_again() -> None:
    now, asked, answer = [0.0], [], threading.Event()

    def backlog() -> list[Backlog]:
        asked.append(now[0])
        if len(asked) > 1:
            answer.wait(5)
        return [_lane(len(asked))]

    recent = RecentBacklog(backlog, list, clock=lambda: now[0], patience=5)
    assert _jobs(recent) == 1
    now[0] += 1.1
    begun = time.monotonic()
    assert [_jobs(recent) for _ in range(10)] == [1] * 10
    assert time.monotonic() - begun < 1

    answer.set()
    _settle(recent)
    assert (_jobs(recent), len(asked)) == (2, 2)


def test_what_was_so_long_ago_is_asked_for_anew_and_waited_for_a_little() -> None:
    now, jobs, hangs = [0.0], [7], threading.Event()

    def backlog() -> list[Backlog]:
        if jobs[0] < 0:
            hangs.wait(5)
        return [_lane(jobs[0])]

    recent = RecentBacklog(backlog, list, clock=lambda: now[0], patience=0.2)
    assert _jobs(recent) == 7
    jobs[0], now[0] = 1, 3600.0
    assert _jobs(recent) == 1

    jobs[0], now[0] = -1, 7200.0
    begun = time.monotonic()
    snapshot = recent.snapshot()
    assert time.monotonic() - begun < 1
    assert (snapshot.of("q").jobs, snapshot.is_old) == (1, True)
    hangs.set()
    _settle(recent)


def test_what_was_accepted_since_counts_and_is_not_counted_twice(world: World) -> None:
    job = world.store.create(_new(world))
    now = [0.0]
    recent = RecentBacklog(world.store.backlog, world.store.running, clock=lambda: now[0])
    assert _jobs(recent, "cpu.tone") == 1
    other = world.store.create(_new(world))
    recent.accepted(other)
    assert _jobs(recent, "cpu.tone") == 2

    now[0] += 1.5
    recent.snapshot()
    _settle(recent)
    assert _jobs(recent, "cpu.tone") == 2
    world.store.cancel(job.id, job.tenant_id)


def test_an_outage_leaves_the_backlog_of_a_while_ago() -> None:
    now, down = [0.0], [False]

    def backlog() -> list[Backlog]:
        if down[0]:
            raise DatabaseUnavailable("away")
        return [_lane(7)]

    recent = RecentBacklog(backlog, list, clock=lambda: now[0])
    assert _jobs(recent) == 7
    down[0] = True
    now[0] += 10

    snapshot = recent.snapshot()

    assert (snapshot.of("q").jobs, snapshot.is_old) == (7, True)


def _new(world: World) -> Any:
    from api.validation import new_job

    return new_job(
        {"input": "Hello."},
        tenant_id=TenantId("ten_a"),
        models=world.workers.models(),
        default_model="tone",
        max_input_chars=100,
        check_target=lambda url: None,
        new_seed=lambda: 1,
    )


def test_admission_costs_a_request_next_to_nothing(world: World) -> None:
    _limit(world)
    assert world.post({"input": TEN}).status_code == 202
    asked = 0
    backlog = world.store.backlog

    def counted() -> list[Backlog]:
        nonlocal asked
        asked += 1
        return backlog()

    world.store.backlog = counted  # type: ignore[method-assign]
    world.client = create_app(world.services).test_client()
    begun = time.monotonic()
    for _ in range(20):
        assert world.post({"input": TEN}).status_code == 202
    assert asked <= 2 + time.monotonic() - begun
