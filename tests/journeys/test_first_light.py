"""A job goes in by REST and a real MP3 comes out: through real HTTP, broker, store, ffmpeg and voice."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks
import urllib3

from jobs.events import ENDINGS
from jobs.job import Status
from tests.actors.doubles import receiver

from .fleet import Fleet, fleet
from .listener import examine, transcribe, word_error_rate

pytestmark = pytest.mark.slow

# ruff: noqa: E501 (prose)
PROSE = """\
The harbour was quiet before dawn. Two fishermen carried their nets along the wooden pier, speaking in low \
voices so that nobody in the town would wake. A small lamp swung from the mast of the nearest boat.

By noon the market had filled with people. Farmers sold apples, honey, and fresh bread, while children ran \
between the stalls and laughed. An old man played the violin near the fountain, and strangers stopped to listen.

When evening came, the wind turned cold and the clouds grew dark over the hills. The fishermen returned with \
full baskets, tied their boats, and walked home together under the first drops of rain.
"""


@pytest.fixture(scope="module")
def spoken(voices: Fleet, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """Three paragraphs, from the request to the file behind the link."""
    job = voices.wait(voices.submit(PROSE)["id"])
    assert job["status"] == "completed", job
    response = voices.http.request("GET", job["result"]["audio"]["url"])
    assert response.status == 200
    path = tmp_path_factory.mktemp("spoken") / "speech.mp3"
    path.write_bytes(response.data)
    return job, path


def test_the_audio_is_whole_exact_and_clean(spoken: tuple[dict[str, Any], Path]) -> None:
    job, path = spoken
    audio = job["result"]["audio"]
    heard = examine(path)

    assert heard.complaints == ""
    assert abs(heard.seconds * 1000 - audio["duration_ms"]) <= 5
    assert 0 <= heard.container_seconds * 1000 - audio["duration_ms"] <= 60
    assert abs(heard.tagged_samples - heard.samples) <= 1
    assert (audio["sample_rate"], audio["channels"], audio["bitrate"]) == (44_100, 1, 128_000)
    assert audio["bytes"] == path.stat().st_size
    assert audio["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert audio["content_type"] == "audio/mpeg"


def test_a_listener_hears_every_word(spoken: tuple[dict[str, Any], Path]) -> None:
    _, path = spoken

    assert word_error_rate(PROSE, transcribe(path)) < 0.10


def test_the_job_tells_how_far_it_came(spoken: tuple[dict[str, Any], Path]) -> None:
    job, _ = spoken

    assert job["progress"] == 100
    assert job["stage"] is None
    assert job["chunks"]["done"] == job["chunks"]["total"] >= 3
    assert job["characters"] == len(PROSE)
    assert job["created_at"] <= job["started_at"] <= job["completed_at"] < job["expires_at"]
    assert job["error"] is None


def test_the_link_serves_the_ranges_that_players_ask_for(
    voices: Fleet, spoken: tuple[dict[str, Any], Path]
) -> None:
    job, path = spoken
    whole = path.read_bytes()
    url, size = job["result"]["audio"]["url"], len(whole)

    for asked, start, end in (
        ("bytes=0-1", 0, 1),
        ("bytes=1000-1999", 1000, 1999),
        ("bytes=-500", size - 500, size - 1),
        ("bytes=0-", 0, size - 1),
    ):
        response = voices.http.request("GET", url, headers={"Range": asked})
        assert response.status == 206, asked
        assert response.headers["Content-Range"] == f"bytes {start}-{end}/{size}"
        assert response.data == whole[start : end + 1]
        assert response.headers["Content-Type"] == "audio/mpeg"
    assert voices.http.request("GET", url, headers={"Range": f"bytes={size}-"}).status == 416


def test_the_stable_link_redirects_to_a_fresh_one_that_is_cached_by_nobody(
    voices: Fleet, spoken: tuple[dict[str, Any], Path]
) -> None:
    job, path = spoken

    response = voices.call("GET", f"/v1/speech/jobs/{job['id']}/audio")

    assert response.status == 302
    assert response.headers["Cache-Control"] == "no-store"
    assert voices.http.request("GET", response.headers["Location"]).data == path.read_bytes()


def test_nothing_is_left_of_the_clips(voices: Fleet, spoken: tuple[dict[str, Any], Path]) -> None:
    job, _ = spoken

    assert voices.rows("SELECT staged FROM jobs WHERE id = ?", job["id"]) == [(0,)]


def test_the_command_line_speaks_into_a_pipe(voices: Fleet) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "cli.main", "speak", "Hello from the other side."],
        env=voices.environ,
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert made.returncode == 0, made.stderr
    assert made.stdout[:3] == b"ID3"


@contextlib.contextmanager
def _hooked(tmp_path: Path, *script: bytes | float) -> Iterator[tuple[Fleet, Any]]:
    with (
        receiver(*script) as hook,
        fleet(
            tmp_path / "data",
            VOXFLEET_DEFAULT_MODEL="tone",
            VOXFLEET_ENGINE_TONE_FAULTS="1",
            VOXFLEET_WEBHOOK_ALLOWED_CIDRS="127.0.0.0/8",
        ) as running,
    ):
        yield running, hook


def test_a_signed_webhook_tells_of_success_and_of_failure(tmp_path: Path) -> None:
    with _hooked(tmp_path, b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n") as (running, hook):
        good = running.submit("한글 and an emoji 🙂 make no difference.", webhook_url=hook.url)
        running.wait(good["id"])
        bad = running.submit("[[tone:fail]]", webhook_url=hook.url)
        assert running.wait(bad["id"])["status"] == "failed"
        # The first attempt was answered 503: the second comes after five seconds.
        _until(lambda: len(hook.requests) >= 3, seconds=20)
        secret = (running.data_dir / "webhook-secret").read_text().strip()

    verifier = standardwebhooks.Webhook(secret)
    told = [verifier.verify(request.body, request.headers) for request in hook.requests]
    assert [event["type"] for event in told].count(ENDINGS[Status.COMPLETED]) == 2
    repeats = [request for request in hook.requests if json.loads(request.body)["data"]["id"] == good["id"]]
    assert len({request.headers["webhook-id"] for request in repeats}) == 1
    assert len({request.body for request in repeats}) == 1
    failed = next(event for event in told if event["data"]["id"] == bad["id"])
    assert failed["data"]["status"] == "failed"
    assert failed["data"]["error"]["code"] == "engine_failed"
    assert "X-Amz-Signature" not in hook.requests[0].body.decode()


def _until(condition: Any, *, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)


def test_without_a_key_nothing_is_told(voices: Fleet) -> None:
    for path in ("/v1/models", "/v1/voices", "/v1/speech/jobs/job_x"):
        response = urllib3.request("GET", voices.url + path, retries=False)
        assert response.status == 401
        assert response.headers["Content-Type"] == "application/problem+json"
