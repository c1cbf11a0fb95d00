"""A storm over a real fleet: everything is killed, frozen, cut, wiped and filled while jobs come in.

    python -m tests.faults.chaos --seed 7 --jobs 300 --rounds 4

Afterwards everything is healed, and every promise is checked (`tests.faults.verdict`). The seed decides what
is asked for, which fault begins when, and what it aims at; what the machine is doing at that moment it cannot
decide.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from jobs.store import ZOMBIE_SECONDS
from tests.faults import orders, storm
from tests.faults.arena import Arena, Database, arena
from tests.faults.clients import Clients, Receivers
from tests.faults.verdict import Evidence, gather, judge

#: After the storm: the longest lease (60 s, of a delivery) and a round of the sweeper (10 s).
SETTLE_SECONDS: Final = 80.0
#: An orphan of a killed worker notices within this that nobody feeds it.
ORPHAN_PROCESS_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large a storm is."""

    seed: int
    jobs: int
    rounds: int
    database: Database = "postgresql"
    #: Seconds from one fault to the next.
    spacing: float = 1.6
    #: How long the store is away.
    outage_seconds: float = 6.0
    #: Of the engine: processing seconds per second of audio.
    rtf: float = 0.015
    #: Characters of the longest texts.
    longest: int = 8_000
    #: How long all that is left may take, once the storm is over: a bound, for machines that are busy.
    drain_seconds: float = 180.0
    #: Whether to wait until the sweeper has cleared up after jobs that failed or were cancelled.
    patient: bool = False
    listened: int = 6
    tmpfs: bool = False


@dataclass(slots=True)
class Outcome:
    """What came of a storm."""

    scale: Scale
    folder: Path
    findings: list[str] = field(default_factory=list)
    report: str = ""
    #: None before it is gathered; the bucket cannot be read any more.
    seen: Evidence | None = None


def run(scale: Scale, folder: Path) -> Outcome:
    """Let one storm pass over a fleet of its own.

    Args:
        folder: an empty one, where the journal and the fleet's logs stay.
    """
    outcome = Outcome(scale, folder)
    begun = time.monotonic()
    times: dict[str, float] = {}

    def lap(name: str) -> None:
        times[name] = time.monotonic() - begun - sum(times.values())

    with arena(folder, database=scale.database, rtf=scale.rtf, tmpfs=scale.tmpfs) as ground:
        lap("start")
        ground.journal.note("begin", scale=str(scale))
        kinds = [kind for kind in storm.FAULTS if scale.database != "sqlite" or kind not in storm.SERVER_ONLY]
        dice = random.Random(scale.seed)
        faults = storm.plan(dice, rounds=scale.rounds, spacing=scale.spacing, kinds=kinds)
        wanted = orders.plan(dice, scale.jobs, seconds=faults[-1][0], longest=scale.longest)
        with Receivers() as receivers, Clients(ground, receivers.url) as clients:
            placed = clients.begin(wanted)
            storm.rage(
                ground, faults, seed=scale.seed, weather=storm.Weather(outage_seconds=scale.outage_seconds)
            )
            ground.heal()
            lap("storm")
            _drain(ground, placed, outcome, seconds=scale.drain_seconds)
            lap("drain")
            _settle(ground, outcome, patient=scale.patient)
            lap("settle")
            with ground.bucket() as bucket:
                seen = gather(
                    ground, clients, receivers.requests, bucket=bucket, dice=dice, listened=scale.listened
                )
                (folder / "jobs.json").write_text(json.dumps(seen.jobs, indent=1, default=str))
                outcome.findings += judge(seen)
            lap("verdict")
        _leave(ground, outcome)
        lap("stop")
    outcome.seen = seen
    outcome.report = _report(outcome, ground, clients, seen, times)
    return outcome


def _drain(ground: Arena, placed: Iterable[Future[None]], outcome: Outcome, *, seconds: float) -> None:
    """Wait until everything that was asked for has ended."""
    unended = "SELECT id, status, stage, failures, holder, visible_at FROM jobs WHERE queue IS NOT NULL"
    left = _until(
        ground,
        lambda: [f for f in placed if not f.done()] or ground.rows(unended),
        seconds=seconds,
    )
    for future in placed:
        if future.done() and (error := future.exception()) is not None:
            outcome.findings.append(f"a client broke: {error!r}")
    if left:
        outcome.findings.append(f"{len(left)} not ended {seconds:g} s after the storm: {left[:5]}")


def _settle(ground: Arena, outcome: Outcome, *, patient: bool) -> None:
    """Wait for what follows the end of jobs: webhooks, and the sweeper."""

    def unsettled() -> list[str]:
        ledger = {row["key"]: row["state"] for row in ground.rows("SELECT key, state FROM objects")}
        found = [f"{key} is pending" for key, state in ledger.items() if state == "pending"]
        found += [f"{key} is an orphan" for key in ground.keys("audio/") if ledger.get(key) != "live"]
        honest = "SELECT id FROM deliveries WHERE status = 'pending' AND url LIKE '%%/honest/%%'"
        found += [f"{row['id']} is not delivered" for row in ground.rows(honest.replace("%%", "%"))]
        return found + _staged(ground, patient=patient)

    seconds = SETTLE_SECONDS + (ZOMBIE_SECONDS if patient else 0.0)
    left = _until(ground, unsettled, seconds=seconds)
    if left:
        outcome.findings.append(f"{len(left)} unsettled after {seconds:g} s: {left[:5]}")


def _staged(ground: Arena, *, patient: bool) -> list[str]:
    """Return staged clips that should be gone by now."""
    waiting = {
        row["id"]
        for row in ground.rows("SELECT id, staged, completed_at FROM jobs WHERE queue IS NULL")
        # The sweeper comes to these when no zombie can be staging any more.
        if row["staged"] and time.time() - row["completed_at"] < ZOMBIE_SECONDS + SETTLE_SECONDS
    }
    return [
        f"{key} is staged" for key in ground.keys("staged/") if patient or key.split("/")[1] not in waiting
    ]


def _until(ground: Arena, left: Callable[[], Sequence[object]], *, seconds: float) -> Sequence[object]:
    """Wait until nothing is left, for so long at most; return what is."""
    end = time.monotonic() + seconds
    while (found := left()) and time.monotonic() < end and ground.fleet.process.poll() is None:
        ground.wait(0.3)
    return found


def _leave(ground: Arena, outcome: Outcome) -> None:
    """Stop everything in order, and see that nothing stays behind."""
    orphans = [
        process
        for process in ground.processes()
        if process.role in ("ffmpeg", "engine") and process.parent <= 1
    ]
    outcome.findings += [f"{orphan.name} {orphan.pid} has lost its parent and lives" for orphan in orphans]
    if (early := ground.fleet.process.poll()) is not None:
        # First, for all else follows from it.
        outcome.findings.insert(0, f"`voxfleet up` ended with {early} before it was told to")
    codes = ground.stop_extras()
    outcome.findings += [f"{name} ended with {code}" for name, code in codes.items() if code != 0]
    status = ground.fleet.stop()
    if status != 0:
        outcome.findings.append(f"`voxfleet up` ended with {status}")
    for pid, command in ground.fleet.wait_gone(ORPHAN_PROCESS_SECONDS).items():
        outcome.findings.append(f"process {pid} outlived the fleet: {command}")
    for entry in sorted(ground.temp_dir.rglob("*")):
        outcome.findings.append(f"left in the temp folder: {entry.relative_to(ground.temp_dir)}")
    ground.journal.note("left")


def _report(
    outcome: Outcome, ground: Arena, clients: Clients, seen: Evidence, times: dict[str, float]
) -> str:
    scale = outcome.scale
    lines = [f"seed {scale.seed}: {scale}", f"journal: {ground.journal.path}", "", "faults"]
    lines += _table({f"{kind}: {what}": count for (kind, what), count in sorted(ground.hits.items())})
    status = Counter(job["status"] for job in seen.jobs.values())
    lines += ["jobs", *_table(status), "failures", *_table(_failures(seen))]
    epochs = Counter(min(job["epoch"], 10) for job in seen.jobs.values())
    lines += ["jobs by claims", *_table({f"{epoch:2}": count for epoch, count in sorted(epochs.items())})]
    answers = {f"{what} {status or '-'}": count for (what, status), count in sorted(clients.answers.items())}
    lines += ["answers to clients", *_table(answers), "counted", *_table(dict(sorted(seen.counts.items())))]
    leftovers = {"staged clips": len(seen.staged), "audio objects": len(seen.audio)}
    lines += ["in the bucket", *_table(leftovers)]
    lines += ["seconds", *_table({name: round(spent, 1) for name, spent in times.items()})]
    lines += [f"found: {len(outcome.findings)}", *(f"  - {finding}" for finding in outcome.findings)]
    return "\n".join(lines)


def _failures(seen: Evidence) -> Counter[str]:
    return Counter(
        json.loads(job["error"])["code"] + (" (poison)" if seen.order(job).poison else "")
        for job in seen.jobs.values()
        if job["error"]
    )


def _table(counts: object) -> list[str]:
    assert isinstance(counts, dict)
    width = max((len(str(name)) for name in counts), default=0)
    return [f"  {name!s:{width}}  {count}" for name, count in counts.items()] or ["  -"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=4, help="how often each kind of fault comes")
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--spacing", type=float, default=3.0, help="seconds from one fault to the next")
    parser.add_argument("--outage", type=float, default=20.0, help="seconds that the store is away")
    parser.add_argument("--rtf", type=float, default=0.02, help="of the engine")
    parser.add_argument("--folder", type=Path, default=None, help="an empty folder for logs")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    # As Ctrl-C: everything that was started is ended.
    signal.signal(signal.SIGTERM, _interrupt)
    folder = given.folder or Path(tempfile.mkdtemp(prefix=f"voxfleet-chaos-{seed}-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}; logs and journal in {folder}", flush=True)  # noqa: T201
    scale = Scale(
        seed=seed,
        jobs=given.jobs,
        rounds=given.rounds,
        database=given.database,
        spacing=given.spacing,
        outage_seconds=given.outage,
        rtf=given.rtf,
        longest=20_000,
        drain_seconds=300.0,
        patient=True,
        listened=24,
        tmpfs=True,
    )
    outcome = run(scale, folder)
    print(outcome.report)  # noqa: T201
    return 1 if outcome.findings else 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
