"""Kill, stop, cut and fill a real fleet: what it accepted, it completes or fails by name, once."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3.session
import pytest
import urllib3
from botocore.config import Config

from config.settings import EMBEDDED_ENV
from tests.journeys.fleet import Fleet, fleet, start
from tests.journeys.listener import examine

pytestmark = pytest.mark.slow

#: Short enough for a test to wait for, long enough for a busy machine to renew.
LEASE = "4"


def sentences(count: int, *, size: int = 60) -> str:
    """Return sentences that each make one chunk of `size` characters."""
    return " ".join(f"{number:03d} ".ljust(size - 1, "x") + "." for number in range(count))


def until(condition: Callable[[], Any], *, seconds: float, what: str) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return found


def settings(running: Fleet) -> dict[str, str]:
    lines = (running.data_dir / EMBEDDED_ENV).read_text(encoding="utf-8").splitlines()
    return {name: value.strip("'\"") for name, value in (line.split("=", 1) for line in lines if "=" in line)}


def keys(running: Fleet, prefix: str) -> list[str]:
    """List the fleet's bucket, by a client of the test's own."""
    known = settings(running)
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=known["VOXFLEET_S3_ENDPOINT"],
        aws_access_key_id=known["VOXFLEET_S3_ACCESS_KEY_ID"],
        aws_secret_access_key=known["VOXFLEET_S3_SECRET_ACCESS_KEY"],
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )
    with contextlib.closing(client):
        pages = client.get_paginator("list_objects_v2").paginate(Bucket="voxfleet", Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


def assert_consistent(running: Fleet) -> None:
    """Every job has ended once, and the bucket holds what the table says and nothing else."""
    twice = running.rows("SELECT job, count(*) FROM events WHERE terminal GROUP BY job HAVING count(*) <> 1")
    assert twice == []
    ended = running.rows(
        "SELECT count(*) FROM jobs WHERE status IN ('completed', 'failed')"
        " AND id IN (SELECT job FROM events WHERE terminal)"
    )
    assert ended == running.rows("SELECT count(*) FROM jobs")
    published = {key for (key,) in running.rows("SELECT key FROM objects WHERE state = 'live'")}
    until(lambda: keys(running, "staged/") == [], seconds=30, what="staged clips are gone")
    assert set(keys(running, "audio/")) == published


@pytest.fixture(scope="module")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Give a fleet whose engine needs no model and logs every call."""
    folder = tmp_path_factory.mktemp("tones")
    with fleet(
        folder / "data",
        VOXFLEET_DEFAULT_MODEL="tone",
        VOXFLEET_LEASE_SECONDS=LEASE,
        VOXFLEET_ENGINE_TONE_FAULTS="1",
        VOXFLEET_ENGINE_TONE_MAX_CHARS="60",
        # 60 characters are 3.6 s of sound: half a second of work.
        VOXFLEET_ENGINE_TONE_RTF="0.139",
        VOXFLEET_ENGINE_TONE_LOG=str(folder / "calls.jsonl"),
    ) as running:
        yield running


def calls(running: Fleet) -> list[dict[str, Any]]:
    log = running.data_dir.parent / "calls.jsonl"
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Give a fleet whose engine takes no time."""
    with fleet(
        tmp_path_factory.mktemp("quick") / "data",
        VOXFLEET_DEFAULT_MODEL="tone",
        VOXFLEET_LEASE_SECONDS=LEASE,
        VOXFLEET_ENGINE_TONE_FAULTS="1",
    ) as running:
        yield running


def test_a_killed_worker_loses_nothing_and_makes_no_finished_chunk_twice(tones: Fleet) -> None:
    text = sentences(40)
    job = tones.submit(text)
    before = len(calls(tones)) if (tones.data_dir.parent / "calls.jsonl").exists() else 0
    until(
        lambda: tones.job(job["id"])["chunks"]["done"] >= 10,
        seconds=60,
        what="ten chunks are done",
    )
    (worker,) = [pid for pid in tones.pids("worker synth") if "tether" not in tones.processes()[pid]]
    os.kill(worker, signal.SIGKILL)
    done = tones.wait(job["id"], seconds=90)

    assert done["status"] == "completed", done
    assert done["chunks"] == {"total": 40, "done": 40}
    made = collections.Counter(call["text"] for call in calls(tones)[before:])
    assert len(made) == 40
    assert sorted(made.values())[-2:] in ([1, 1], [1, 2])
    path = tones.data_dir.parent / "killed.mp3"
    path.write_bytes(tones.http.request("GET", done["result"]["audio"]["url"]).data)
    heard = examine(path)
    # 40 clips of 60 characters at 60 ms, less 39 overlaps of 50 ms.
    assert done["result"]["audio"]["duration_ms"] == 40 * 60 * 60 - 39 * 50
    assert abs(heard.seconds * 1000 - done["result"]["audio"]["duration_ms"]) <= 5


def test_a_dead_engine_costs_a_retry_and_no_worker(tones: Fleet) -> None:
    job = tones.submit(sentences(8))
    until(lambda: tones.job(job["id"])["chunks"]["done"] >= 2, seconds=30, what="two chunks are done")
    workers = tones.pids("worker synth")
    (child,) = tones.pids("speech.child")
    os.kill(child, signal.SIGKILL)

    assert tones.wait(job["id"], seconds=60)["status"] == "completed"
    assert tones.pids("worker synth") == workers


def test_a_frozen_worker_is_fenced_and_its_late_writes_change_nothing(tones: Fleet) -> None:
    job = tones.submit(sentences(8))
    until(lambda: tones.job(job["id"])["chunks"]["done"] >= 2, seconds=30, what="two chunks are done")
    frozen = [*tones.pids("worker synth"), *tones.pids("speech.child")]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(float(LEASE) + 1)
        assert tones.rows("SELECT visible_at < unixepoch('now') FROM jobs WHERE id = ?", job["id"]) == [(1,)]
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)

    assert tones.wait(job["id"], seconds=60)["status"] == "completed"


@pytest.mark.parametrize(
    ("marker", "code"), [("segv", "engine_died"), ("oom", "engine_out_of_memory"), ("nan", "bad_output")]
)
def test_a_poison_text_fails_by_name_and_the_next_job_is_served(quick: Fleet, marker: str, code: str) -> None:
    poison = quick.submit(f"[[tone:{marker}]] poison")
    honest = quick.submit("an honest text")

    failed = quick.wait(poison["id"], seconds=90)
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == code
    assert failed["result"] is None
    assert quick.wait(honest["id"])["status"] == "completed"


def test_two_hundred_jobs_at_once_are_completed_once_each(quick: Fleet) -> None:
    with ThreadPoolExecutor(32) as clients:
        ids = list(clients.map(lambda number: quick.submit(f"Job number {number}.")["id"], range(200)))

    done = [quick.wait(job_id, seconds=180) for job_id in ids]

    assert {job["status"] for job in done} == {"completed"}
    published = [key for key in keys(quick, "audio/") if key.split("/")[2] in set(ids)]
    assert len(published) == 200
    assert_consistent(quick)


def brokers(running: Fleet) -> list[int]:
    port = running.environ["VOXFLEET_VALKEY_PORT"]
    return [pid for pid in running.pids(port) if _is(pid, "valkey", "redis")]


def test_a_stopped_broker_costs_the_caller_nothing_and_the_job_completes_after_it(quick: Fleet) -> None:
    (broker,) = brokers(quick)
    os.kill(broker, signal.SIGSTOP)
    try:
        slowest = 0.0
        begun = time.monotonic()
        job = quick.submit("Spoken later.")
        assert time.monotonic() - begun < 1.0
        end = time.monotonic() + 5
        while time.monotonic() < end:
            begun = time.monotonic()
            assert urllib3.request("GET", f"{quick.url}/healthz").status == 200
            slowest = max(slowest, time.monotonic() - begun)
        # Fifty milliseconds on a quiet machine (tests/api); this one runs a whole fleet.
        assert slowest < 0.5
        # A connection of its own: one that was kept may be closed by the server at this very moment.
        response = urllib3.request("GET", f"{quick.url}/readyz")
        assert response.status == 503
        assert response.json()["checks"]["broker"]["ok"] is False
    finally:
        os.kill(broker, signal.SIGCONT)

    assert quick.wait(job["id"], seconds=60)["status"] == "completed"


def test_a_killed_broker_loses_bells_and_no_job(quick: Fleet) -> None:
    (broker,) = brokers(quick)
    os.kill(broker, signal.SIGKILL)
    ids = [quick.submit(f"Text {number}.")["id"] for number in range(5)]

    assert {quick.wait(job_id, seconds=60)["status"] for job_id in ids} == {"completed"}


def test_a_store_that_is_away_for_twenty_seconds_fails_no_job(quick: Fleet) -> None:
    (store,) = [pid for pid in quick.pids("mini") if _is(pid, "weed")]
    os.kill(store, signal.SIGSTOP)
    try:
        job = quick.submit("Spoken when the store is back.")
        time.sleep(20)
    finally:
        os.kill(store, signal.SIGCONT)

    done = quick.wait(job["id"], seconds=90)
    assert done["status"] == "completed", done
    assert_consistent(quick)


def test_a_killed_media_worker_leaves_no_half_object_and_no_temp_file(quick: Fleet) -> None:
    ids = [quick.submit(sentences(60, size=280))["id"] for _ in range(3)]
    until(
        lambda: quick.rows(
            "SELECT 1 FROM jobs WHERE stage IN ('encoding', 'uploading') AND holder IS NOT NULL"
        ),
        seconds=60,
        what="an encode is under way",
    )
    (worker,) = [pid for pid in quick.pids("worker media") if "tether" not in quick.processes()[pid]]
    os.kill(worker, signal.SIGKILL)

    assert {quick.wait(job_id, seconds=120)["status"] for job_id in ids} == {"completed"}
    assert_consistent(quick)


def _is(pid: int, *names: str) -> bool:
    executable = Path(f"/proc/{pid}/exe").readlink().name
    return any(name in executable for name in names)


def test_a_job_waits_for_room_on_the_disk_and_leaves_nothing_there(tmp_path: Path) -> None:
    wrapper, full = tmp_path / "ffmpeg", tmp_path / "full"
    real = _ffmpeg()
    # Answers the questions that are asked at start-up, then finds the disk full for a while.
    wrapper.write_text(
        f'#!/bin/sh\nif [ -e {full} ]; then case "$*" in *speech.mp3*)'
        ' echo "x: No space left on device" >&2; cat >/dev/null; exit 228;; esac; fi\n'
        f'exec {real} "$@"\n'
    )
    wrapper.chmod(0o755)
    full.touch()
    with fleet(tmp_path / "data", VOXFLEET_DEFAULT_MODEL="tone", VOXFLEET_FFMPEG=str(wrapper)) as running:
        job = running.submit("There is no room for this.")
        until(
            lambda: running.rows("SELECT errors FROM jobs WHERE errors LIKE '%disk_full%'"),
            seconds=30,
            what="the disk is found full",
        )
        assert running.job(job["id"])["status"] == "in_progress"
        assert keys(running, "audio/") == []
        full.unlink()

        assert running.wait(job["id"], seconds=60)["status"] == "completed"
        assert [*(running.data_dir / "tmp").rglob("*.mp3")] == []
        assert running.rows("SELECT failures FROM jobs") == [(0,)]


def _ffmpeg() -> str:
    from speech import ffmpeg

    return ffmpeg.find(None)


def test_no_process_outlives_a_killed_fleet(tmp_path: Path) -> None:
    running = start(tmp_path / "data", VOXFLEET_DEFAULT_MODEL="tone")
    try:
        running.wait_ready()
        assert len(running.processes()) >= 8
        running.process.kill()
        running.process.wait()

        assert running.wait_gone(5) == {}
    finally:
        running.http.clear()
        for pid in running.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_ctrl_c_ends_everything_in_order_and_a_new_start_goes_on(tmp_path: Path) -> None:
    slow = {
        "VOXFLEET_DEFAULT_MODEL": "tone",
        "VOXFLEET_ENGINE_TONE_RTF": "0.1",
        "VOXFLEET_ENGINE_TONE_MAX_CHARS": "60",
    }
    with fleet(tmp_path / "data", **slow) as running:
        job = running.submit(sentences(30))
        until(lambda: running.job(job["id"])["chunks"]["done"] >= 3, seconds=30, what="three chunks are done")
        assert running.stop() == 0
        assert running.wait_gone(1) == {}
        # Let go, not lost: no failure is counted, and nobody has to wait for a lease.
        assert running.rows("SELECT failures, holder FROM jobs") == [(0, None)]
    with fleet(tmp_path / "data", **slow) as again:
        done = again.wait(job["id"], seconds=60)

        assert done["status"] == "completed"
        assert again.rows("SELECT count(DISTINCT epoch) FROM clips")[0][0] == 2


def test_a_worker_that_is_to_leave_in_a_long_chunk_lets_go_of_it_in_time(tmp_path: Path) -> None:
    with fleet(tmp_path / "data", VOXFLEET_DEFAULT_MODEL="tone", VOXFLEET_ENGINE_TONE_FAULTS="1") as running:
        job = running.submit("[[tone:sleep=300]] long")
        until(lambda: running.job(job["id"])["status"] == "in_progress", seconds=20, what="it is in hand")

        begun = time.monotonic()
        assert running.stop() == 0

        assert time.monotonic() - begun < 45
        # The next start takes it up at once, and nobody is blamed.
        assert running.rows("SELECT status, failures, holder FROM jobs") == [("in_progress", 0, None)]
