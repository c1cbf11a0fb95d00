"""A hundred workers at a million jobs a day: what the job table has to bear, and how long jobs wait.

A discrete simulation in virtual time over the real `JobStore` and a real database: arrivals, workers and encoders
are arithmetic (the `tone` engine: 60 ms of audio for each code point, at an RTF that is set), while every claim,
checkpoint and commit is carried out and timed. What runs by the clock alone (renewals, presence, looks for live
jobs, the sweeper, clients that ask) is counted by its period, and a sample of each is timed.

    python benchmarks/scale.py [--database postgresql|sqlite] [--minutes 5] [--workers 100] [--rtf 0.12]
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from sqlalchemy import Connection

from jobs import migrate
from jobs.database import Database
from jobs.job import Claim, Clip, JobClass, NewJob, PublishedAudio, TenantId
from jobs.store import JobStore
from jobs.workers import WorkerRegistry
from tests import servers

QUEUE, MEDIA = "gpu.tone", "cpu.media"
SECONDS_PER_CHAR = 0.06
CHUNK = 300
TURN = 300.0
#: Encoding is so many times faster than real time.
ENCODER_SPEED = 100.0
#: How long a bell takes, and the upload of an object.
BELL, UPLOAD = 0.01, 0.05
#: Code points of a text, and how many of a thousand are so long.
MIX = ((200, 900), (3_000, 95), (100_000, 5))
CLASSES = ((JobClass.LIVE, 5), (JobClass.HIGH, 10), (JobClass.NORMAL, 70), (JobClass.LOW, 15))
TENANTS = 50
DAY = 86_400.0
#: Times an hour of the day is busier than the mean.
PEAK = 2.0

#: A process in virtual time: it yields the seconds that it takes, or None to wait for a bell.
Process = Generator[float | None, None, None]


class VirtualClock(Database):
    """A real database that is told what time it is; it is asked all the same, as it would be."""

    at = 1_796_083_200.0

    def now(self, connection: Connection) -> float:
        super().now(connection)
        return self.at


@dataclass
class World:
    """Everything that happens, in order."""

    database: VirtualClock
    store: JobStore
    rtf: float
    events: list[tuple[float, int, Process]] = field(default_factory=list)
    idle: dict[str, list[Process]] = field(default_factory=lambda: {QUEUE: [], MEDIA: []})
    spent: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    waits: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    submitted: dict[str, float] = field(default_factory=dict)
    busy: float = 0.0
    done: int = 0
    spoken: float = 0.0
    number: int = 0

    def call(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the store, and note what it cost."""
        begun = time.perf_counter()
        answer = getattr(self.store, name)(*arguments, **named)
        self.spent[name].append(time.perf_counter() - begun)
        return answer

    def after(self, seconds: float, process: Process) -> None:
        self.number += 1
        heapq.heappush(self.events, (self.database.at + seconds, self.number, process))

    def ring(self, queue: str) -> None:
        if self.idle[queue]:
            self.after(BELL, self.idle[queue].pop())

    def step(self, process: Process, queue: str | None) -> None:
        """Let a process go on until it takes time, or waits for a bell."""
        for seconds in process:
            if seconds is None:
                assert queue is not None
                self.idle[queue].append(process)
            else:
                self.after(seconds, process)
            return

    def run(self, until: float) -> None:
        while self.events and self.events[0][0] <= until:
            at, _, process = heapq.heappop(self.events)
            self.database.at = at
            self.step(process, self.queue_of.get(id(process)))

    queue_of: dict[int, str] = field(default_factory=dict)

    def start(self, process: Process, queue: str | None = None) -> None:
        if queue is not None:
            self.queue_of[id(process)] = queue
        self.after(0.0, process)


def arrivals(world: World, rng: random.Random, *, rate: float, seconds: float) -> Process:
    """Submit jobs, Poisson, for so long."""
    end = world.database.at + seconds
    while True:
        yield rng.expovariate(rate)
        if world.database.at >= end:
            return
        characters = rng.choices([size for size, _ in MIX], [weight for _, weight in MIX])[0]
        job_class = rng.choices([kind for kind, _ in CLASSES], [weight for _, weight in CLASSES])[0]
        new = NewJob(
            tenant_id=TenantId(f"ten_{int(rng.paretovariate(1.2)) % TENANTS:02d}"),
            input="x" * characters,
            model="tone",
            queue=QUEUE,
            voice="sine",
            language="en",
            response_format="mp3",
            seed=1,
            expires_in=86_400,
            job_class=job_class if characters < MIX[-1][0] else JobClass.LOW,
        )
        job = world.call("create", new, max_queued=100_000)
        world.submitted[job.id] = world.database.at
        world.ring(QUEUE)


def worker(world: World, name: str) -> Process:
    """Speak jobs, as `actors.synthesize` does."""
    while True:
        claim = world.call("claim", QUEUE, holder=name)
        if claim is None:
            yield None
            continue
        while claim is not None:
            claim = yield from speak(world, claim, name)


def speak(world: World, claim: Claim, name: str) -> Generator[float | None, None, Claim | None]:
    length = claim.job.characters
    at = max((end for _, end in claim.recorded), default=0)
    chunks = -(-(length - at) // CHUNK)
    world.call(
        "begin",
        claim,
        spoken_text=claim.input,
        chunks_total=len(claim.recorded) + chunks,
        characters_left=length - at,
    )
    asked = world.submitted.pop(claim.job.id, None)
    if asked is not None:
        kind = "books" if length == MIX[-1][0] else "articles" if length == MIX[1][0] else "lines"
        world.waits[kind].append(world.database.at - asked)
        world.waits[claim.job.job_class.name.lower()].append(world.database.at - asked)
    begun = world.database.at
    for number in range(chunks):
        if number:
            over = world.database.at - begun >= TURN
            if world.call("better", claim, left=length - at, turn_is_over=over):
                better = world.call("swap", claim, holder=name, left=length - at, turn_is_over=over)
                if better is not None:
                    world.ring(QUEUE)
                    return better  # type: ignore[no-any-return]
        size = min(CHUNK, length - at)
        seconds = size * SECONDS_PER_CHAR
        world.busy += seconds * world.rtf
        world.spoken += seconds
        yield seconds * world.rtf
        clip = Clip(
            seq=claim.next_seq + number,
            text_start=at,
            text_end=at + size,
            pause_ms=0,
            epoch=claim.job.epoch,
            key=f"staged/{claim.job.id}/{claim.job.epoch}-{claim.next_seq + number}-x",
            sha256="ab" * 32,
            samples=int(seconds * 24_000),
            sample_rate=24_000,
            seed=1,
            engine_revision="tone-1",
        )
        world.call("record", claim, clip)
        at += size
    world.call("synthesized", claim, queue=MEDIA)
    world.ring(MEDIA)
    return None


def encoder(world: World, name: str) -> Process:
    """Publish jobs, as `actors.encode` does."""
    while True:
        claim = world.call("claim", MEDIA, holder=name)
        if claim is None:
            yield None
            continue
        yield claim.job.audio_ms / 1000 / ENCODER_SPEED
        key = f"audio/1d/{claim.job.id}/{claim.job.epoch}.mp3"
        world.call("uploading", claim, key=key)
        yield UPLOAD
        audio = PublishedAudio(
            key=key,
            content_type="audio/mpeg",
            bytes=1,
            duration_ms=claim.job.audio_ms,
            sample_rate=44_100,
            bitrate=128_000,
            channels=1,
            sha256="cd" * 32,
        )
        world.call("complete", claim, audio)
        world.call("staged_gone", claim.job.id)
        world.done += 1


def sample(world: World, registry: WorkerRegistry, *, times: int) -> dict[str, float]:
    """Return the mean seconds of what runs by the clock."""
    new = NewJob(
        tenant_id=TenantId("ten_sample"),
        input="x",
        model="tone",
        queue="gpu.sample",
        voice="sine",
        language="en",
        response_format="mp3",
        seed=1,
        expires_in=86_400,
    )
    job = world.store.create(new)
    claim = world.store.claim("gpu.sample", holder="w")
    assert claim is not None
    asked: dict[str, Callable[[], Any]] = {
        "renew": lambda: world.store.renew(claim.job.id, claim.job.epoch),
        "presence": lambda: registry.publish(
            "w", queue=QUEUE, model="tone", info={}, rtf=0.1, seconds_per_char=1
        ),
        "urgent": lambda: world.store.urgent(QUEUE),
        "get": lambda: world.store.get(job.id, job.tenant_id),
        "ready": lambda: world.store.ready(cap=64),
        "expire": lambda: world.store.expire(limit=500),
        "promote": world.store.promote,
        "backlog": world.store.backlog,
    }
    cost = {}
    for name, ask in asked.items():
        begun = time.perf_counter()
        for _ in range(times):
            ask()
        cost[name] = (time.perf_counter() - begun) / times
    return cost


@contextmanager
def opened(kind: str) -> Iterator[VirtualClock]:
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{folder}/jobs.db"
            migrate.upgrade(url)
            yield VirtualClock(url)
        return
    with servers.postgres() as server, server.database() as url:
        migrate.upgrade(url)
        yield VirtualClock(url)


def at(found: list[float], share: float) -> float:
    ordered = sorted(found)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="postgresql")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--encoders", type=int, default=20)
    parser.add_argument("--rtf", type=float, default=0.12)
    parser.add_argument("--jobs-a-day", type=float, default=1e6)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    seconds = 60 * chosen.minutes
    rate = chosen.jobs_a_day / DAY
    with opened(chosen.database) as database:
        store = JobStore(database, public_url="http://x", lease_seconds=1e6)
        world = World(database=database, store=store, rtf=chosen.rtf)
        begun, real = database.at, time.perf_counter()
        world.start(arrivals(world, random.Random(chosen.seed), rate=rate, seconds=seconds))
        for number in range(chosen.workers):
            world.start(worker(world, f"w{number}"), QUEUE)
        for number in range(chosen.encoders):
            world.start(encoder(world, f"m{number}"), MEDIA)
        world.run(begun + seconds)
        took = time.perf_counter() - real
        cost = sample(world, WorkerRegistry(database), times=100)
        waiting = sum(lane.jobs for lane in store.backlog())
        print(
            f"{chosen.database}: {chosen.workers} workers at RTF {chosen.rtf:g}, {chosen.encoders} encoders, "
            f"{rate:.1f} jobs/s for {seconds:.0f} s of virtual time (seed {chosen.seed}); "
            f"took {took:.0f} s, load average {os.getloadavg()[0]:.1f}"
        )
        report(world, chosen, seconds, cost, waiting)
        database.close()


def report(
    world: World, chosen: argparse.Namespace, seconds: float, cost: dict[str, float], waiting: int
) -> None:
    submitted = len(world.spent["create"])
    busy = world.busy / (seconds * chosen.workers)
    print(
        f"submitted {submitted}, completed {world.done}, unfinished {waiting}; workers busy {busy:.0%}; "
        f"{world.spoken / seconds:.0f} s of audio a second"
    )
    print(f"\n{'wait until the first chunk':<28} {'jobs':>7} {'p50 s':>8} {'p99 s':>8} {'max s':>8}")
    for name in ("lines", "articles", "books", "live", "high", "normal", "low"):
        found = world.waits[name]
        print(
            f"{name:<28} {len(found):>7} {at(found, 0.5):>8.2f} {at(found, 0.99):>8.2f} {at(found, 1):>8.2f}"
        )
    # A second of each of these, at the fleet's size.
    inside = busy * chosen.workers
    clock = {
        "renew": inside / 5,
        "presence": (chosen.workers + chosen.encoders / 2 + 1) / 5,
        "urgent": inside * 4,
        "get": 5 * submitted / seconds,
        "ready": 1.0,
        "expire": 1.0,
        "promote": 0.1,
        "backlog": 1.0,
    }
    reads = {"better", "urgent", "get", "ready", "backlog"}
    print(f"\n{'asked of the database':<28} {'a second':>9} {'mean ms':>9} {'p99 ms':>9} {'share':>8}")
    total = writes = 0.0
    for name, took in sorted(world.spent.items()):
        share = sum(took) / seconds
        total += share
        writes += 0 if name in reads else len(took) / seconds
        print(
            f"{name:<28} {len(took) / seconds:>9.1f} {1000 * sum(took) / len(took):>9.2f} "
            f"{1000 * at(took, 0.99):>9.2f} {share:>8.1%}"
        )
    for name, times in clock.items():
        share = times * cost[name]
        total += share
        writes += 0 if name in reads else times
        print(f"{name + ' (by the clock)':<28} {times:>9.1f} {1000 * cost[name]:>9.2f} {'':>9} {share:>8.1%}")
    print(f"{'in all':<28} {'':>9} {'':>9} {'':>9} {total:>8.1%}")
    print(
        f"writing transactions a second: {writes:.0f}; with a peak of {PEAK:g} times the mean: "
        f"{PEAK * writes:.0f}, and {PEAK * total:.0%} of one connection's time"
    )


if __name__ == "__main__":
    main()
