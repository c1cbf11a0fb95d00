"""`/metrics`: what it tells, to whom, and what it tells when a part is away."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api import metrics
from api.app import create_app
from jobs.database import DatabaseUnavailable

from .conftest import TONE, World

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def _samples(world: World) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    reply = world.client.get("/metrics")
    assert reply.status_code == 200, reply.text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


def test_the_fleet_is_told_in_numbers(world: World) -> None:
    world.workers.publish("w1", queue="cpu.tone", model="tone", info=TONE, rtf=0.5, seconds_per_char=0.03)
    world.workers.publish("s", queue="sweeper", info={"last_run": {"top_up_bells": 3.0}})
    for job_class in ("normal", "normal", "low"):
        assert world.post({"input": "Hello.", "class": job_class}).status_code == 202
    assert world.store.claim("cpu.tone", holder="w") is not None
    world.client = create_app(world.services).test_client()

    found = _samples(world)

    normal = (("class", "normal"), ("queue", "cpu.tone"))
    assert found["voxfleet_jobs_waiting", normal] == 1
    assert found["voxfleet_jobs_in_hand", normal] == 1
    assert found["voxfleet_characters_left", normal] == 12
    assert found["voxfleet_oldest_job_seconds", normal] >= 0
    assert found["voxfleet_jobs_waiting", (("class", "low"), ("queue", "cpu.tone"))] == 1
    assert found["voxfleet_workers", (("queue", "cpu.tone"),)] == 1
    assert found["voxfleet_rtf", (("model", "tone"),)] == 0.5
    assert found["voxfleet_seconds_per_character", (("model", "tone"),)] == 0.03
    assert found["voxfleet_wait_seconds", (("model", "tone"),)] >= 0
    assert found["voxfleet_sweeper_last_run_seconds", (("task", "top_up_bells"),)] >= 3
    assert {value for (name, _), value in found.items() if name == "voxfleet_up"} == {1.0}


def test_requests_are_counted_by_template_and_never_by_what_stood_in_it(world: World) -> None:
    job = world.post({"input": "Hello."}).get_json()
    world.get(f"/v1/speech/jobs/{job['id']}")
    world.get("/v1/speech/jobs/nobody-s")
    world.client.get("/wp-login.php?secret=hush")

    text = world.client.get("/metrics").text

    assert job["id"] not in text
    assert "wp-login" not in text
    assert "hush" not in text
    found = _samples(world)
    route = "/v1/speech/jobs/<job_id>"
    assert found["voxfleet_http_requests_total", _labels(method="GET", route=route, status="200")] == 1
    assert found["voxfleet_http_requests_total", _labels(method="GET", route=route, status="404")] == 1
    assert found["voxfleet_http_requests_total", _labels(method="-", route="-", status="404")] == 1
    assert found["voxfleet_http_request_seconds_count", _labels(method="GET", route=route)] == 2


def _labels(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


@pytest.mark.parametrize(
    ("peer", "headers", "status"),
    [
        ("127.0.0.1", {}, 200),
        ("127.9.9.9", {}, 200),
        ("::ffff:127.0.0.1", {}, 200),
        ("10.0.0.7", {}, 404),
        ("::1", {}, 404),
        ("", {}, 404),
        ("127.0.0.1", {"X-Forwarded-For": "203.0.113.9"}, 404),
        ("127.0.0.1", {"Forwarded": "for=127.0.0.1"}, 404),
        ("127.0.0.1", {"Via": "1.1 edge"}, 404),
    ],
)
def test_metrics_are_for_peers_of_the_allowed_networks_without_a_proxy(
    world: World, peer: str, headers: dict[str, str], status: int
) -> None:
    reply = world.client.get("/metrics", headers=headers, environ_base={"REMOTE_ADDR": peer})

    assert reply.status_code == status
    if status == 404:
        assert reply.get_json()["code"] == "not_found"


def test_a_part_that_is_away_is_left_out_and_said_to_be(world: World) -> None:
    def away() -> Any:
        raise DatabaseUnavailable("locked")

    world.workers.sweeper = away  # type: ignore[method-assign]
    world.client = create_app(world.services).test_client()

    found = _samples(world)

    assert found["voxfleet_up", (("part", "sweeper"),)] == 0
    assert found["voxfleet_up", (("part", "workers"),)] == 1
    assert not [name for name, _ in found if "sweeper" in name]


def test_a_database_that_hangs_holds_up_no_scrape_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "LIMIT_SECONDS", 0.2)
    hung = threading.Event()

    def hang() -> Any:
        hung.wait(5)
        raise DatabaseUnavailable("locked")

    world.workers.sweeper = world.workers.alive = hang  # type: ignore[method-assign]
    world.client = create_app(world.services).test_client()
    begun = time.monotonic()

    found = _samples(world)

    assert time.monotonic() - begun < 2
    assert [found["voxfleet_up", (("part", part),)] for part in ("backlog", "workers", "sweeper")] == [
        1,
        0,
        0,
    ]
    hung.set()


def test_a_refused_job_is_counted_by_its_code(world: World) -> None:
    object.__setattr__(world.services, "limits", replace(world.services.limits, tenant_max_queued=1))
    world.client = create_app(world.services).test_client()
    assert [world.post({"input": "Hello."}).status_code for _ in range(3)] == [202, 429, 429]

    assert _samples(world)["voxfleet_refused_jobs_total", _labels(code="too_many_jobs")] == 2


def test_every_metric_is_documented_and_none_that_is_not_there(world: World) -> None:
    text = world.client.get("/metrics").text
    there = set(re.findall(r"^# TYPE (voxfleet_\w+)", text, re.MULTILINE))
    there = {name.removesuffix("_total") for name in there if not name.endswith("_created")}

    documented = set(re.findall(r"^\| `(voxfleet_\w+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE))

    assert {name.removesuffix("_total") for name in documented} == there
