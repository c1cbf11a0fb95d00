"""A real fleet whose engine hangs, dies, leaks, lies and runs out of memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.fleet import Fleet, fleet
from tests.journeys.listener import examine

from .test_deaths_and_outages import calls, until

pytestmark = pytest.mark.slow

GOOD = "This one is well, and it ends as it should."


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Give a fleet whose engine fails on request, and a second model that can stand in for it."""
    folder = tmp_path_factory.mktemp("faulty")
    with fleet(
        folder / "data",
        VOXFLEET_DEFAULT_MODEL="tone",
        VOXFLEET_CHUNK_SECONDS="3",
        VOXFLEET_MAX_FAILURES="2",
        VOXFLEET_RECYCLE_MB="60",
        VOXFLEET_ENGINE_TONE_FAULTS="1",
        VOXFLEET_ENGINE_TONE_LEAK_MB_PER_CHUNK="5",
        VOXFLEET_ENGINE_TONE_MEMORY_FILE=str(folder / "memory"),
        VOXFLEET_ENGINE_TONE_LOG=str(folder / "calls.jsonl"),
    ) as running:
        yield running


@pytest.fixture
def memory(faulty: Fleet) -> Iterator[Path]:
    path = faulty.data_dir.parent / "memory"
    yield path
    path.unlink(missing_ok=True)


@contextlib.contextmanager
def second_model(running: Fleet) -> Iterator[None]:
    """Serve hibari beside it."""
    log = running.data_dir / "logs" / "second.log"
    with log.open("ab") as output:
        worker = subprocess.Popen(
            [sys.executable, "-m", "cli.main", "worker", "synth", "--model", "hibari"],
            env=running.environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        until(lambda: _model(running, "hibari")["available"], seconds=30, what="hibari is served")
        yield
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(timeout=40)


@pytest.mark.parametrize(
    ("marker", "status", "code"),
    [
        ("hang", "failed", "engine_timed_out"),
        ("gil", "failed", "engine_timed_out"),
        ("segv", "failed", "engine_died"),
        ("exit", "failed", "engine_died"),
        ("nan", "failed", "bad_output"),
        ("empty", "failed", "bad_output"),
        ("fail", "failed", "engine_failed"),
        ("oom", "failed", "engine_out_of_memory"),
    ],
)
def test_a_fault_fails_its_own_job_by_name_and_the_worker_serves_on(
    faulty: Fleet, marker: str, status: str, code: str
) -> None:
    workers = faulty.pids("worker synth")
    bad = faulty.submit(f"Some words before it. [[tone:{marker}]] And some after it.")
    good = [faulty.submit(GOOD) for _ in range(3)]

    ended = faulty.wait(bad["id"], seconds=90)

    assert (ended["status"], ended["error"]["code"]) == (status, code), ended
    for job in good:
        assert faulty.wait(job["id"], seconds=60)["status"] == "completed"
    assert faulty.pids("worker synth") == workers
    until(lambda: len(faulty.pids("speech.child")) <= 1, seconds=10, what="no engine process is left over")


def test_an_engine_that_is_killed_costs_a_retry(faulty: Fleet) -> None:
    job = faulty.submit("[[tone:sleep=1]] " + GOOD)
    until(lambda: faulty.pids("speech.child"), seconds=10, what="an engine runs")
    until(lambda: faulty.job(job["id"])["status"] == "in_progress", seconds=20, what="it is begun")
    for child in faulty.pids("speech.child"):
        os.kill(child, signal.SIGKILL)

    done = faulty.wait(job["id"])

    assert done["status"] == "completed"
    assert {warning["code"] for warning in done["warnings"]} <= {"memory_retried"}


def test_a_leak_ends_with_a_fresh_engine_and_costs_no_job(faulty: Fleet) -> None:
    before = len(calls(faulty))
    job = faulty.submit(
        " ".join(f"This is sentence number {n} of many, and it is not short." for n in range(160))
    )

    done = faulty.wait(job["id"], seconds=120)

    assert (done["status"], done["warnings"]) == ("completed", [])
    made = calls(faulty)[before:]
    # 32 chunks at 5 MB each, 60 MB at most, and the first few calls are not counted.
    assert len({call["pid"] for call in made}) >= 2
    assert len({call["text"] for call in made}) == len(made), "no chunk was made twice"
    assert 'event="recycled"' in _metrics(faulty)


def test_too_little_memory_cuts_the_text_and_loses_no_word(faulty: Fleet, memory: Path) -> None:
    memory.write_text("70")
    text = " ".join(f"Here comes line {n:02d} with a few more words in it." for n in range(20))
    job = faulty.submit(text)

    done = faulty.wait(job["id"], seconds=90)

    assert (done["status"], done["degraded"]) == ("completed", False), done
    codes = [warning["code"] for warning in done["warnings"]]
    assert "memory_split" in codes
    spans = faulty.rows("SELECT count(*), sum(text_end - text_start) FROM clips WHERE job = ?", job["id"])
    assert spans == [(done["chunks"]["total"], len(text))]
    assert done["chunks"]["total"] == done["chunks"]["done"]
    path = memory.parent / "split.mp3"
    path.write_bytes(faulty.http.request("GET", done["result"]["audio"]["url"]).data)
    heard = examine(path)
    # 60 ms a character, but for spaces at the borders, less 50 ms a join.
    assert heard.complaints == ""
    clips = done["chunks"]["total"]
    longest = len(text) * 60 - (clips - 1) * 50
    assert longest - clips * 60 <= heard.seconds * 1000 <= longest + 5
    assert 'rung="split"' in _metrics(faulty)
    learned = faulty.http.request("GET", f"{faulty.url}/readyz").json()["checks"]["model.tone"]["detail"]
    assert "memory for" in learned


def test_a_fleet_without_memory_opens_its_breaker_says_so_and_recovers(faulty: Fleet, memory: Path) -> None:
    memory.write_text("0")
    jobs = [faulty.submit(f"Job number {n}.") for n in range(5)]
    part = until(
        lambda: next((p for p in [_part(faulty)] if not p["ok"]), None), seconds=60, what="it is not ready"
    )
    ended = [job for job in map(faulty.job, (job["id"] for job in jobs)) if job["status"] == "failed"]
    # The tests before may have counted one or two.
    assert 1 <= len(ended) <= 3
    assert {job["error"]["code"] for job in ended} == {"engine_out_of_memory"}
    waiting = [job for job in jobs if job["id"] not in {job["id"] for job in ended}]
    assert part["detail"].startswith("breaker_open")
    assert faulty.http.request("GET", f"{faulty.url}/healthz").status == 200

    live = faulty.submit("Somebody listens.", **{"class": "live"})
    heard = faulty.wait(live["id"], seconds=30)
    assert (heard["status"], heard["degraded"]) == ("completed", True)
    assert [warning["code"] for warning in heard["warnings"]] == ["notice_played"]
    assert heard["result"]["audio"]["duration_ms"] > 3000

    with second_model(faulty):
        spoken = faulty.submit("Another model says this.", fallback="hibari")
        done = faulty.wait(spoken["id"], seconds=60)
        assert (done["status"], done["degraded"], done["model"]) == ("completed", True, "tone")
        assert [warning["code"] for warning in done["warnings"]] == ["fallback_model"]

    memory.unlink()
    for job in waiting:
        assert faulty.wait(job["id"], seconds=120)["status"] == "completed"
    until(lambda: _part(faulty)["ok"], seconds=30, what="it is ready again")


def _metrics(running: Fleet) -> str:
    """Return the metrics, once the worker has told of itself again."""
    import time

    time.sleep(6)
    return running.http.request("GET", f"{running.url}/metrics").data.decode()


def _part(running: Fleet) -> dict[str, Any]:
    return dict(running.http.request("GET", f"{running.url}/readyz").json()["checks"]["model.tone"])


def _model(running: Fleet, name: str) -> dict[str, Any]:
    models = running.call("GET", "/v1/models").json()["data"]
    return next((model for model in models if model["id"] == name), {"available": False})
