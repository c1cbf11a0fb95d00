"""A whole fleet whose bells go through RabbitMQ, which freezes and dies in the middle."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.bell import MEDIA_QUEUE, BrokerBell, connect
from tests import servers

from .fleet import fleet

pytestmark = pytest.mark.slow

#: Spoken in six seconds, in several chunks.
LONG = " ".join(f"Sentence number {number} of a text that takes its time." for number in range(20))


def test_a_fleet_completes_its_jobs_though_rabbitmq_freezes_and_is_killed(tmp_path: Path) -> None:
    spoken = tmp_path / "spoken"
    with (
        servers.rabbitmq() as broker,
        fleet(
            tmp_path / "data",
            VOXFLEET_BROKER_URL=broker.url,
            VOXFLEET_DEFAULT_MODEL="tone",
            VOXFLEET_ENGINE_TONE_RTF="0.1",
            VOXFLEET_ENGINE_TONE_LOG=str(spoken),
        ) as running,
    ):
        assert running.wait(running.submit("A short one.")["id"])["status"] == "completed"
        before = running.processes()
        assert [command for command in before.values() if "valkey" in command] == []

        in_hand = running.submit(LONG)
        _until(lambda: running.job(in_hand["id"])["chunks"]["done"] > 0)
        broker.pause()
        asked = time.monotonic()
        waiting = [running.submit(f"Number {number} came while nobody rang.") for number in range(5)]
        assert time.monotonic() - asked < 5
        _until(lambda: running.http.request("GET", f"{running.url}/readyz").status == 503)
        broker.kill()
        waiting.append(running.submit("One more came."))
        broker.start()

        for job in (in_hand, *waiting):
            assert running.wait(job["id"])["status"] == "completed"
        running.wait_ready()
        assert running.wait(running.submit("A late one.")["id"])["status"] == "completed"
        # Nobody died of it, and nothing was spoken twice.
        assert before.keys() <= running.processes().keys()
        calls = [json.loads(line) for line in spoken.read_text(encoding="utf-8").splitlines()]
        assert max(Counter((call["text"], call["seed"]) for call in calls).values()) == 1
        assert broker.password not in running.logs()
        # Every bell has been answered.
        bell = BrokerBell(connect(broker.url))
        _until(lambda: bell.waiting("cpu.tone") == bell.waiting(MEDIA_QUEUE) == 0)


def _until(condition: Callable[[], object], *, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)
