"""How long a line waits behind a book: this fleet, and first come, first served, side by side.

One worker speaks a book of 100,000 characters. A while after it began, a line of 200 characters comes in: a
live one, a normal one of another tenant, and a normal one of the book's own tenant. The wait is counted from
its arrival to the moment when the engine is given its first chunk. The peers' way is measured too, with the
same engine, text and chunks: jobs are spoken in the order in which they came.

    python benchmarks/waits.py [--rtf 0.01] [--characters 100000]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from speech.chunks import split
from speech.engine import SynthesisRequest
from speech.host import EngineHost
from tests.journeys.fleet import Fleet, fleet

#: The tone engine's sound: seconds for each code point.
SECONDS_PER_CHAR = 0.06
CHUNK = 300
#: How far the book is when the lines come in.
HEAD_START = 3.0


def book(characters: int) -> str:
    sentence = "The harbour was quiet before dawn, and the fishermen carried their nets along the pier. "
    return (sentence * (characters // len(sentence) + 1))[:characters]


def line(name: str) -> str:
    return f"{name}: ".ljust(199, "x") + "."


def calls(log: Path) -> list[dict[str, object]]:
    return [json.loads(entry) for entry in log.read_text(encoding="utf-8").splitlines()]


def first_call(log: Path, name: str, *, seconds: float = 120.0) -> float:
    """Return when the engine was first given the text of a line, by the clock of its log."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for call in calls(log):
            if str(call["text"]).startswith(name):
                return float(str(call["t"]))
        time.sleep(0.02)
    raise AssertionError(f"{name} was not spoken within {seconds} s")


def other_key(running: Fleet) -> str:
    made = subprocess.run(
        [sys.executable, "-m", "cli.main", "keys", "create", "other"],
        env=running.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return next(word for word in made.stdout.split() if word.startswith("vf_live_"))


def ours(folder: Path, *, rtf: float, characters: int) -> list[tuple[str, float]]:
    log = folder / "calls.jsonl"
    waits = []
    with fleet(
        folder / "data",
        VOXFLEET_DEFAULT_MODEL="tone",
        VOXFLEET_ENGINE_TONE_RTF=str(rtf),
        VOXFLEET_ENGINE_TONE_MAX_CHARS=str(CHUNK),
        VOXFLEET_ENGINE_TONE_LOG=str(log),
    ) as running:
        other = other_key(running)
        whole = running.submit(book(characters))
        while running.job(whole["id"])["status"] == "queued":
            time.sleep(0.02)
        for name, job_class, key in (
            ("live", "live", other),
            ("normal, another tenant", "normal", other),
            ("normal, the book's tenant", "normal", running.key),
        ):
            time.sleep(HEAD_START)
            arrived = time.time()
            response = running.http.request(
                "POST",
                f"{running.url}/v1/speech/jobs",
                body=json.dumps({"input": line(name), "class": job_class}).encode(),
                headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
            )
            assert response.status == 202, response.data
            waits.append((name, first_call(log, name) - arrived))
        assert running.job(whole["id"])["status"] == "in_progress", "the book was over too soon"
    return waits


def in_order(folder: Path, *, rtf: float, characters: int) -> float:
    """Speak the book, then a line that came in while it was spoken; return how long the line waited."""
    options = {"rtf": str(rtf), "max_chars": str(CHUNK), "log": str(folder / "peer.jsonl")}
    with EngineHost("tone", options, nice=0, chunk_seconds=60, environ=os.environ) as host:
        host.start()
        arrived = time.time() + HEAD_START
        for text in (book(characters), line("line")):
            for chunk in split(text, max_chars=CHUNK, language="en"):
                for _ in host.synthesize(
                    SynthesisRequest(text=chunk.text, voice="sine", language="en", seed=1)
                ):
                    pass
    return first_call(folder / "peer.jsonl", "line") - arrived


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rtf", type=float, default=0.01)
    parser.add_argument("--characters", type=int, default=100_000)
    chosen = parser.parse_args()
    chunk = CHUNK * SECONDS_PER_CHAR * chosen.rtf
    print(
        f"one worker, RTF {chosen.rtf:g}: one chunk of {CHUNK} characters takes {chunk:.2f} s, "
        f"a book of {chosen.characters} takes {chosen.characters * SECONDS_PER_CHAR * chosen.rtf:.0f} s"
    )
    with tempfile.TemporaryDirectory() as name:
        waits = ours(Path(name), rtf=chosen.rtf, characters=chosen.characters)
        peer = in_order(Path(name), rtf=chosen.rtf, characters=chosen.characters)
    print(f"{'a line of 200 characters':<28} {'wait s':>8} {'chunks':>8} {'in order s':>11} {'ratio':>8}")
    for label, wait in waits:
        print(f"{label:<28} {wait:>8.2f} {wait / chunk:>8.1f} {peer:>11.1f} {peer / wait:>7.0f}x")


if __name__ == "__main__":
    main()
