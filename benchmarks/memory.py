"""How the memory of an engine grows over thousands of chunks, and how the recycler holds it.

    python benchmarks/memory.py [--chunks 2000] [--engine tone --engine supertonic-3 ...]

Each engine speaks the same lines in one child, as a worker drives it; the real packages load tiny folders of random
weights. Prints resident memory at the start, its peak and its slope by least squares over the second half, and how
often the child was replaced. `tone leaking` loses half a megabyte with every call, and is replaced at 64 MB of
growth.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from speech.engine import SynthesisRequest
from speech.host import EngineHost, Lifetime
from tests.speech import tiny_kokoro, tiny_supertonic, tiny_voxcpm2

LINES = ("Line {} of a long book.", "And {} more words follow it, one after another, until it ends.")
GROWTH = 64_000_000
#: Name of the row: engine, builder of a folder of weights, other options.
ENGINES: dict[str, tuple[str, Callable[[Path], Path] | None, dict[str, str]]] = {
    "tone": ("tone", None, {}),
    "tone leaking": ("tone", None, {"leak_mb_per_chunk": "0.5"}),
    "hibari": ("hibari", None, {}),
    "supertonic-3": ("supertonic-3", tiny_supertonic.build, {"threads": "1"}),
    "kokoro": ("kokoro", tiny_kokoro.build, {}),
    "voxcpm2": ("voxcpm2", tiny_voxcpm2.build, {"device": "cpu"}),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=2000)
    parser.add_argument("--engine", action="append", choices=ENGINES, help="default: all")
    given = parser.parse_args()
    print(
        f"{'engine':14} {'chunks':>7} {'seconds':>8} {'start MB':>9} {'peak MB':>8} {'MB/1000':>8} {'replaced':>9}"
    )
    for row in given.engine or ENGINES:
        engine, build, options = ENGINES[row]
        with tempfile.TemporaryDirectory() as folder:
            if build is not None:
                options = {**options, "model": str(build(Path(folder) / "model"))}
            print(f"{row:14} {measure(engine, options, chunks=given.chunks)}", flush=True)


def measure(engine: str, options: dict[str, str], *, chunks: int) -> str:
    """Return one row of the table."""
    held: list[float] = []
    lifetime = Lifetime(growth_bytes=GROWTH)
    with EngineHost(engine, options, nice=0, chunk_seconds=60, lifetime=lifetime) as host:
        info = host.start()
        start = resident(host)
        language = "en" if info.speaks("en") else info.languages[0]
        begun = time.monotonic()
        for number in range(chunks):
            text = LINES[number % len(LINES)].format(number)
            request = SynthesisRequest(text=text, voice=info.default_voice, language=language, seed=number)
            if not sum(len(piece) for piece in host.synthesize(request)):
                raise SystemExit(f"{engine} gave no sound for {text!r}")
            held.append(resident(host))
        seconds = time.monotonic() - begun
        replaced = host.ends.get("recycled", 0)
    half = np.array(held[len(held) // 2 :])
    slope = float(np.polyfit(np.arange(len(half)), half, 1)[0]) * 1000 if not replaced else float("nan")
    return f"{chunks:>7} {seconds:>8.1f} {start:>9.0f} {max(held):>8.0f} {slope:>8.1f} {replaced:>9}"


def resident(host: EngineHost) -> float:
    """Return the child's resident memory in MB."""
    pages = int(Path(f"/proc/{host.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
