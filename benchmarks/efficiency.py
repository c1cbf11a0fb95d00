"""How much of a worker's time its engine works, and how engines best share two cores.

The first table: a queue of batch jobs on one worker with the `tone` engine, which takes exactly RTF x audio
seconds. Fleet efficiency is engine seconds over wall seconds, from the first call to the end of the last.

The second: seconds of audio made for each second of wall time by the bundled voice, by one worker whose engine
has two threads, and by two workers whose engines have one each.

    python benchmarks/efficiency.py [--rtf 0.1] [--jobs 10] [--characters 1500]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.journeys.fleet import Fleet, fleet

#: The tone engine's sound: seconds for each code point.
SECONDS_PER_CHAR = 0.06
SENTENCE = "The harbour was quiet before dawn, and the fishermen carried their nets along the pier. "


def text(characters: int) -> str:
    return (SENTENCE * (characters // len(SENTENCE) + 1))[:characters]


def efficiency(*, rtf: float, jobs: int, characters: int) -> tuple[float, float]:
    """Return engine seconds and wall seconds."""
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "calls.jsonl"
        with fleet(
            Path(name) / "data",
            VOXFLEET_DEFAULT_MODEL="tone",
            VOXFLEET_ENGINE_TONE_RTF=str(rtf),
            VOXFLEET_ENGINE_TONE_LOG=str(log),
        ) as running:
            ids = [running.submit(text(characters))["id"] for _ in range(jobs)]
            for job_id in ids:
                assert running.wait(job_id, seconds=600)["status"] == "completed"
        calls = [json.loads(entry) for entry in log.read_text(encoding="utf-8").splitlines()]
    took = [len(call["text"]) * SECONDS_PER_CHAR * rtf for call in calls]
    return sum(took), calls[-1]["t"] + took[-1] - calls[0]["t"]


@contextlib.contextmanager
def another_worker(running: Fleet) -> Iterator[None]:
    """Run a second synthesis worker beside the fleet's own."""
    command = [sys.executable, "-m", "cli.main", "worker", "synth", "--model", "hibari"]
    with (running.data_dir / "logs" / "second.log").open("wb") as log:
        worker = subprocess.Popen(command, env=running.environ, stdout=log, stderr=log)
    try:
        yield
    finally:
        worker.terminate()
        worker.wait(60)


def speed(*, threads: int, workers: int, jobs: int, characters: int) -> float:
    """Return seconds of audio for each second of wall time."""
    with (
        tempfile.TemporaryDirectory() as name,
        fleet(Path(name) / "data", VOXFLEET_ENGINE_HIBARI_THREADS=str(threads)) as running,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(workers - 1):
            stack.enter_context(another_worker(running))
        # Both engines have loaded, and have spoken once.
        warm = [running.submit(text(300))["id"] for _ in range(4 * workers)]
        for job_id in warm:
            running.wait(job_id)
        time.sleep(3)
        begun = time.monotonic()
        ids = [running.submit(text(characters))["id"] for _ in range(jobs)]
        done = [running.wait(job_id, seconds=600) for job_id in ids]
        wall = time.monotonic() - begun
        return sum(job["result"]["audio"]["duration_ms"] for job in done) / 1000 / wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rtf", type=float, default=0.1)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--characters", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=2, help="of the second table; the best counts")
    chosen = parser.parse_args()
    engine, wall = efficiency(rtf=chosen.rtf, jobs=chosen.jobs, characters=chosen.characters)
    print(f"{chosen.jobs} jobs of {chosen.characters} characters, tone at RTF {chosen.rtf:g}, one worker")
    print(f"{'engine s':>9} {'wall s':>9} {'efficiency':>11}")
    print(f"{engine:>9.2f} {wall:>9.2f} {engine / wall:>11.3f}")
    if not chosen.rounds:
        return
    found = {"one worker, two threads": 0.0, "two workers, one thread each": 0.0}
    for _ in range(chosen.rounds):
        for label, threads, workers in zip(found, (2, 1), (1, 2), strict=True):
            made = speed(threads=threads, workers=workers, jobs=24, characters=3000)
            found[label] = max(found[label], made)
    print(f"\n24 jobs of 3000 characters, hibari\n{'':<30} {'audio s / wall s':>17}")
    for label, made in found.items():
        print(f"{label:<30} {made:>17.0f}")
    one, two = found.values()
    print(f"{'ratio':<30} {two / one:>17.2f}")


if __name__ == "__main__":
    main()
