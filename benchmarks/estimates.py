"""How honest `eta` is: what a job was told when it was submitted, and while it waited, beside the truth.

Jobs of three tenants, classes and lengths mixed, come in at random times to a fleet whose engine takes exactly RTF
times the audio. The estimate cannot know of jobs that come later and go first; that is part of the error here.

    python benchmarks/estimates.py [--jobs 60] [--rtf 0.1] [--load 0.8] [--seed 1]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.journeys.fleet import Fleet, fleet

SECONDS_PER_CHAR = 0.06
SENTENCE = "The harbour was quiet before dawn, and the fishermen carried their nets along the pier. "
LENGTHS, LENGTH_WEIGHTS = (100, 400, 1_500, 6_000), (40, 30, 20, 10)
CLASSES, CLASS_WEIGHTS = ("high", "normal", "low"), (10, 75, 15)


def text(characters: int) -> str:
    return (SENTENCE * (characters // len(SENTENCE) + 1))[:characters]


def seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def call(
    running: Fleet, key: str, method: str, path: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    response = running.http.request(
        method,
        running.url + path,
        body=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    assert response.status < 300, response.data
    return dict(response.json())


def one(
    running: Fleet, key: str, body: dict[str, Any], *, at: float
) -> tuple[dict[str, Any], list[tuple[float, float]]]:
    """Submit a job at its time and follow it; return it and (moment, estimated end) at each look."""
    time.sleep(max(0.0, at - time.monotonic()))
    job = call(running, key, "POST", "/v1/speech/jobs", body)
    told = []
    while True:
        if job["eta"] is not None:
            told.append((time.time(), seconds(job["eta"])))
        if job["status"] in ("completed", "failed"):
            return job, told
        time.sleep(0.5)
        job = call(running, key, "GET", f"/v1/speech/jobs/{job['id']}")


def table(label: str, found: list[tuple[float, float]]) -> None:
    """Print how far estimates were off: (estimated, true) seconds from the moment of the estimate."""
    if not found:
        return
    off = [estimated - true for estimated, true in found]
    ordered = sorted(abs(error) for error in off)
    within = sum(abs(error) <= max(1.0, 0.25 * true) for error, (_, true) in zip(off, found, strict=True))
    print(
        f"{label:<26} {len(found):>6} {statistics.median(true for _, true in found):>8.1f} "
        f"{statistics.median(off):>+8.1f} {statistics.median(ordered):>8.1f} "
        f"{ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]:>8.1f} {within / len(found):>9.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=60)
    parser.add_argument("--rtf", type=float, default=0.1)
    parser.add_argument("--load", type=float, default=0.8, help="of two workers")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    rng = random.Random(chosen.seed)
    mean = sum(n * w for n, w in zip(LENGTHS, LENGTH_WEIGHTS, strict=True)) / sum(LENGTH_WEIGHTS)
    gap = mean * SECONDS_PER_CHAR * chosen.rtf / 2 / chosen.load
    with (
        tempfile.TemporaryDirectory() as name,
        fleet(
            Path(name) / "data", VOXFLEET_DEFAULT_MODEL="tone", VOXFLEET_ENGINE_TONE_RTF=str(chosen.rtf)
        ) as running,
        contextlib.ExitStack() as stack,
    ):
        keys = [running.key]
        for tenant in ("b", "c"):
            command = [sys.executable, "-m", "cli.main", "keys", "create", tenant]
            made = subprocess.run(
                command, env=running.environ, capture_output=True, text=True, check=True
            ).stdout
            keys.append(next(word for word in made.split() if word.startswith("vf_live_")))
        command = [sys.executable, "-m", "cli.main", "worker", "synth", "--model", "tone"]
        second = subprocess.Popen(
            command, env=running.environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        stack.callback(second.wait, 60)
        stack.callback(second.terminate)
        # Both have measured themselves, and told so.
        time.sleep(3)
        for job in [running.submit(text(900)) for _ in range(6)]:
            running.wait(job["id"])
        time.sleep(6)
        at, asked = time.monotonic() + 1, []
        for _ in range(chosen.jobs):
            body = {
                "input": text(rng.choices(LENGTHS, LENGTH_WEIGHTS)[0]),
                "class": rng.choices(CLASSES, CLASS_WEIGHTS)[0],
            }
            asked.append((rng.choice(keys), body, at))
            at += rng.expovariate(1 / gap)
        with ThreadPoolExecutor(chosen.jobs) as clients:
            followed = list(clients.map(lambda one_: one(running, one_[0], one_[1], at=one_[2]), asked))
    assert all(job["status"] == "completed" for job, _ in followed)
    first: dict[str, list[tuple[float, float]]] = {}
    later = []
    for job, told in followed:
        end = seconds(job["completed_at"])
        entry = (told[0][1] - told[0][0], end - told[0][0])
        for label in ("all, at submission", f"  class {job['class']}", f"  {job['characters']} characters"):
            first.setdefault(label, []).append(entry)
        later += [(eta - moment, end - moment) for moment, eta in told[1:]]
    print(f"{chosen.jobs} jobs, two workers at RTF {chosen.rtf:g}, load {chosen.load:.0%}; seconds")
    print(f"{'':<26} {'times':>6} {'truth':>8} {'bias':>8} {'off p50':>8} {'off p90':>8} {'in a 1/4':>9}")
    for label in sorted(first):
        table(label, first[label])
    table("every half second later", later)


if __name__ == "__main__":
    main()
