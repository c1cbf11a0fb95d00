"""The faults, as a table, and the storm that lets them loose.

A fault is a generator: it does harm, yields how many seconds to wait, and puts in order what it broke, even
where it is closed early. All of them run on one thread, each decided by dice of its own.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import psycopg

from tests.faults.arena import Arena, Process
from tests.faults.proxy import Proxy
from tests.servers import ServerFailed

#: How long a fault looks for something to hit.
LOOK_SECONDS: Final = 15.0
#: What the driver's own questions may meet.
AWAY: Final = (psycopg.Error, sqlite3.Error)
#: How long a worker is out of reach, for another to take its job over.
TAKEN_SECONDS: Final = 20.0
#: Code points; more than the other worker speaks before the first one is back.
MUCH: Final = 1_000
#: A broker or a database that is started again at once is hardly missed.
AWAY_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How bad it gets."""

    #: How long the object store is away, slow, or silent.
    outage_seconds: float


Steps: TypeAlias = Generator[float, None, None]
Fault: TypeAlias = Callable[[str, Arena, random.Random, Weather], Steps]


def _found(
    arena: Arena, dice: random.Random, look: Callable[[], Sequence[Process]]
) -> Generator[float, None, Process | None]:
    """Return one of the processes that `look` gives, as soon as there is one."""
    end = time.monotonic() + LOOK_SECONDS
    while not (found := look()):
        if time.monotonic() > end:
            return None
        yield 0.03
    return dice.choice(found)


def _signalled(role: str, number: signal.Signals) -> Fault:
    """Return a fault that sends a signal to one process of a role."""

    def fault(kind: str, arena: Arena, dice: random.Random, _: Weather) -> Steps:
        victim = yield from _found(arena, dice, lambda: arena.of_role(role))
        _send(kind, arena, victim, number)

    return fault


def _send(kind: str, arena: Arena, victim: Process | None, number: signal.Signals) -> None:
    if victim is None:
        arena.hit(kind, "nothing there")
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim.pid, number)
        arena.hit(kind, victim.name, pids=[victim.pid])


def _encoding(arena: Arena) -> list[Process]:
    """Return the media workers whose ffmpeg runs."""
    everybody = arena.processes()
    busy = {process.parent for process in everybody if process.role == "ffmpeg"}
    return [process for process in everybody if process.role == "media" and process.pid in busy]


def _speaking(arena: Arena) -> list[Process]:
    """Return the synthesis workers that have much to speak yet, of what another would soon take over."""
    with contextlib.suppress(*AWAY):
        rows = arena.rows(
            "SELECT id FROM jobs"  # noqa: S608 - a number of our own
            f" WHERE stage = 'synthesizing' AND class <= 2 AND characters_left >= {MUCH}"
        )
        holders, much = _holders(arena), {row["id"] for row in rows}
        pids = {pid for job, pid in holders.items() if job in much}
        return [process for process in arena.of_role("synth") if process.pid in pids]
    return []


#: Who is worth hitting, by role.
BUSY: Final[Mapping[str, Callable[[Arena], list[Process]]]] = {"synth": _speaking, "media": _encoding}


def _killed(worker: str) -> Fault:
    """Return a fault that kills a worker, most often in the middle of its work."""

    def fault(kind: str, arena: Arena, dice: random.Random, _: Weather) -> Steps:
        is_busy = dice.random() < 0.8
        look = (lambda: BUSY[worker](arena)) if is_busy else (lambda: arena.of_role(worker))
        victim = yield from _found(arena, dice, look)
        _send(kind, arena, victim, signal.SIGKILL)

    return fault


def _frozen(worker: str) -> Fault:
    """Return a fault that stops a worker, and what works for it, until somebody else has its job."""

    def fault(kind: str, arena: Arena, dice: random.Random, _: Weather) -> Steps:
        victim = yield from _found(arena, dice, lambda: BUSY[worker](arena))
        if victim is None:
            arena.hit(kind, "nothing there")
            return
        pids = [victim.pid, *(one.pid for one in arena.processes() if one.parent == victim.pid)]
        with _stopped(arena, pids):
            is_taken = yield from _taken_over(arena, dice, victim)
            arena.hit(kind, _outcome(victim, is_taken), pids=pids)

    return fault


def _isolated(worker: str) -> Fault:
    """Return a fault that keeps back all that passes between a worker and the database until somebody else
    has its job, and then delivers it: the writes of a zombie, which the fence must refuse.
    """

    def fault(kind: str, arena: Arena, dice: random.Random, _: Weather) -> Steps:
        line = arena.database_line
        victim = yield from _found(arena, dice, lambda: BUSY[worker](arena))
        if victim is None or line is None:
            arena.hit(kind, "nothing there")
            return
        try:
            held = line.hold(victim.pid)
            is_taken = yield from _taken_over(arena, dice, victim)
            arena.hit(kind, _outcome(victim, is_taken), pids=[victim.pid], held=held)
        finally:
            arena.thawed.append((victim.pid, time.time()))
            line.hold(None)

    return fault


def _outcome(victim: Process, is_taken: bool) -> str:
    if not _lives(victim):
        # Another fault was faster: it will never write anything late.
        return f"{victim.name}, which died meanwhile"
    return f"{victim.name}, {'until its job was taken over' if is_taken else 'and nobody took its job over'}"


def _lives(victim: Process) -> bool:
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{victim.pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
        return state != "Z"
    return False


def _taken_over(arena: Arena, dice: random.Random, victim: Process) -> Generator[float, None, bool]:
    """Wait until another worker has been busy with the victim's job for a moment; return whether it came to
    that. Longer than a lease in any case.
    """
    end = time.monotonic() + TAKEN_SECONDS
    job: str | None = None
    while time.monotonic() < end and _lives(victim):
        yield 0.05
        holders = _holders(arena)
        job = job or next((job for job, pid in holders.items() if pid == victim.pid), None)
        if job is not None and holders.get(job, victim.pid) != victim.pid:
            yield dice.uniform(0.05, 0.4)
            return True
    return False


def _holders(arena: Arena) -> dict[str, int]:
    """Return who holds which job: a process id, for the driver is on the same host."""
    with contextlib.suppress(*AWAY):
        rows = arena.rows("SELECT id, holder FROM jobs WHERE holder IS NOT NULL")
        # `host:pid:random`
        return {row["id"]: int(row["holder"].split(":")[1]) for row in rows}
    return {}


def _freeze_api(kind: str, arena: Arena, dice: random.Random, _: Weather) -> Steps:
    victim = yield from _found(arena, dice, lambda: arena.of_role("api worker"))
    if victim is None:
        arena.hit(kind, "nothing there")
        return
    with _stopped(arena, [victim.pid]):
        arena.hit(kind, victim.role, pids=[victim.pid])
        yield AWAY_SECONDS


@contextlib.contextmanager
def _stopped(arena: Arena, pids: Sequence[int]) -> Iterator[None]:
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        arena.thawed += [(pid, time.time()) for pid in pids]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        arena.journal.note("thawed", pids=pids)


def _kill_broker(kind: str, arena: Arena, dice: random.Random, _: Weather) -> Steps:
    """What it held is gone."""
    if arena.valkey.process is None:
        return
    arena.valkey.kill()
    arena.hit(kind, "valkey")
    try:
        yield dice.choice([0.0, AWAY_SECONDS])
    finally:
        arena.valkey.start()


def _wipe_broker(kind: str, arena: Arena, dice: random.Random, _: Weather) -> Steps:
    import redis

    with contextlib.closing(redis.Redis.from_url(arena.valkey.url)) as client:
        try:
            client.flushall()
        except redis.RedisError:
            arena.hit(kind, "nothing there")
        else:
            arena.hit(kind, "valkey")
    yield from ()


def _restart_database(kind: str, arena: Arena, dice: random.Random, _: Weather) -> Steps:
    """In order, or as a crash that its recovery follows."""
    server = arena.postgres
    if server is None or server.process is None:
        return
    if dice.random() < 0.5:
        server.stop()
        arena.hit(kind, "postgresql, in order")
    else:
        # A kill -9 would leave its backends for a moment, and with them the lock on its memory.
        server.process.send_signal(signal.SIGQUIT)
        server.process.wait(timeout=15)
        server.process = None
        arena.hit(kind, "postgresql, crashed")
    try:
        yield dice.choice([0.0, AWAY_SECONDS])
    finally:
        for _attempt in range(5):
            try:
                server.start()
                break
            except ServerFailed:
                time.sleep(0.5)


def _mute(whose: Callable[[Arena], Proxy | None], *, longest: float = 0.8) -> Fault:
    """Return a fault where what is asked is done, commits among it, and the answer never comes."""

    def fault(kind: str, arena: Arena, dice: random.Random, _: Weather) -> Steps:
        line = whose(arena)
        if line is None:
            return
        line.mute(on=True)
        try:
            yield dice.uniform(0.05, longest)
        finally:
            cut = line.cut()
            line.mute(on=False)
            arena.hit(kind, "connections", cut=cut)

    return fault


def _cut_store(kind: str, arena: Arena, _: random.Random, weather: Weather) -> Steps:
    line = arena.store_line
    line.refuse(on=True)
    arena.hit(kind, "object store", cut=line.cut())
    try:
        yield weather.outage_seconds
    finally:
        line.refuse(on=False)


def _slow_store(kind: str, arena: Arena, dice: random.Random, weather: Weather) -> Steps:
    arena.store_line.slow(dice.choice([200_000, 1_000_000]), delay=0.05)
    arena.hit(kind, "object store")
    try:
        yield weather.outage_seconds
    finally:
        arena.store_line.slow(None)


def _hang_store(kind: str, arena: Arena, _: random.Random, weather: Weather) -> Steps:
    arena.store_line.hang(on=True)
    arena.hit(kind, "object store")
    try:
        yield weather.outage_seconds
    finally:
        arena.store_line.hang(on=False)


def _fill_disk(kind: str, arena: Arena, dice: random.Random, weather: Weather) -> Steps:
    """Really, where the temp folder is a small file system; else encoders only say so."""
    if arena.has_tmpfs and dice.random() < 0.7:
        filler = arena.temp_dir / "filler"
        try:
            _fill(filler)
            arena.hit(kind, "temp folder, really")
            yield weather.outage_seconds
        finally:
            filler.unlink(missing_ok=True)
        return
    arena.full_flag.touch()
    arena.hit(kind, "encoders")
    try:
        yield weather.outage_seconds
    finally:
        arena.full_flag.unlink(missing_ok=True)


def _fill(path: os.PathLike[str]) -> None:
    block = bytes(1 << 20)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        # The last bytes too: whole blocks first, then what is left.
        while block:
            try:
                os.write(descriptor, block)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                block = block[: len(block) // 2] if len(block) > 4096 else b""
    finally:
        os.close(descriptor)


#: Everything that happens, by name.
FAULTS: Final[Mapping[str, Fault]] = {
    "kill api master": _signalled("api master", signal.SIGKILL),
    "kill api worker": _signalled("api worker", signal.SIGKILL),
    "kill synthesis worker": _killed("synth"),
    "kill engine": _signalled("engine", signal.SIGKILL),
    "kill media worker": _killed("media"),
    "kill sweeper": _signalled("sweeper", signal.SIGKILL),
    "kill ffmpeg": _signalled("ffmpeg", signal.SIGKILL),
    "freeze synthesis worker": _frozen("synth"),
    "freeze media worker": _frozen("media"),
    "freeze api worker": _freeze_api,
    "isolate synthesis worker": _isolated("synth"),
    "isolate media worker": _isolated("media"),
    "end api master": _signalled("api master", signal.SIGTERM),
    "end synthesis worker": _signalled("synth", signal.SIGTERM),
    "end media worker": _signalled("media", signal.SIGTERM),
    "end sweeper": _signalled("sweeper", signal.SIGTERM),
    "kill broker": _kill_broker,
    "wipe broker": _wipe_broker,
    "restart database": _restart_database,
    "lose answers of database": _mute(lambda arena: arena.database_line),
    "cut object store": _cut_store,
    "slow object store": _slow_store,
    "hang object store": _hang_store,
    "lose answers of object store": _mute(lambda arena: arena.store_line),
    "lose answers of api": _mute(lambda arena: arena.api_line, longest=2.5),
    "fill disk": _fill_disk,
}
#: They need a database server.
SERVER_ONLY: Final = frozenset(
    {
        "restart database",
        "lose answers of database",
        "isolate synthesis worker",
        "isolate media worker",
    }
)


def plan(
    dice: random.Random, *, rounds: int, spacing: float, kinds: Sequence[str]
) -> list[tuple[float, str]]:
    """Return when which fault begins, in seconds: each kind once a round, in an order of its own."""
    times: list[tuple[float, str]] = []
    for _ in range(rounds):
        order = dice.sample(kinds, len(kinds))
        times += [
            ((len(times) + place) * spacing + dice.uniform(0, spacing), kind)
            for place, kind in enumerate(order)
        ]
    return sorted(times)


def rage(arena: Arena, faults: Sequence[tuple[float, str]], *, seed: int, weather: Weather) -> None:
    """Let the faults loose, each at its time from now on; return when the last one is over."""
    begun = time.monotonic()
    due: list[tuple[float, int, str, Steps | None]] = [
        (begun + at, number, kind, None) for number, (at, kind) in enumerate(faults)
    ]
    heapq.heapify(due)
    try:
        while due:
            arena.tend()
            if time.monotonic() < due[0][0]:
                time.sleep(min(0.05, max(0.0, due[0][0] - time.monotonic())))
                continue
            _, number, kind, steps = heapq.heappop(due)
            if steps is None:
                steps = FAULTS[kind](kind, arena, random.Random(f"{seed}/{number}"), weather)
            try:
                delay = next(steps)
            except StopIteration:
                continue
            heapq.heappush(due, (time.monotonic() + delay, number, kind, steps))
    finally:
        for *_, left in due:
            if left is not None:
                left.close()
