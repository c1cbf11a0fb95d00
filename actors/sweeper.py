"""The sweeper: heals what was lost on the way, and deletes what nobody needs. Two of them do no harm."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from actors.bell import SWEEPER_QUEUE, Bell, BrokerUnavailable
from actors.departure import on_signals
from actors.presence import Presence
from actors.services import build
from actors.staged import drop_staged
from config.settings import Settings
from jobs.database import DatabaseUnavailable
from jobs.store import JobStore
from jobs.workers import WorkerRegistry
from storage.store import ObjectStore, StoreError, StoreUnavailable

log = logging.getLogger("voxfleet.sweeper")

#: Bells for one queue never exceed this, however many rows wait: each worker takes one at a time.
BELL_CAP: Final = 64
BELL_SECONDS: Final = 1.0
TIDY_SECONDS: Final = 10.0
HEAVY_SECONDS: Final = 900.0
#: Rows and objects handled by one round, so that no round takes long.
ROUND: Final = 500
#: An upload that began this long ago and was never published is not going to be.
ORPHAN_SECONDS: Final = 3600.0
#: A temp file that was not written to for this long belongs to nobody.
TEMP_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What the sweeper works with."""

    jobs: JobStore
    workers: WorkerRegistry
    objects: ObjectStore
    bell: Bell
    temp_dir: Path


def top_up_bells(sweep: Sweep) -> None:
    """Ring each queue until it has a bell for every ready row: lost bells, wiped brokers and failed sends
    heal here.
    """
    for queue, ready in sweep.jobs.ready(cap=BELL_CAP).items():
        missing = ready - sweep.bell.waiting(queue)
        if missing > 0:
            sweep.bell.ring(queue, times=missing)


def delete_expired(sweep: Sweep) -> int:
    """Delete the audio whose time is over; return how many objects went."""
    gone = 0
    for stored in sweep.jobs.expired_objects(limit=ROUND):
        with _noted(f"{stored.key} cannot be deleted"):
            sweep.objects.delete(stored.key)
            sweep.jobs.forget_object(stored.key)
            gone += 1
    return gone


def delete_staged(sweep: Sweep) -> int:
    """Delete the clips of jobs that have ended; return how many jobs were cleared."""
    cleared = 0
    for job_id in sweep.jobs.staged_leftovers(limit=ROUND):
        with _noted(f"the clips of job {job_id} cannot be deleted"):
            drop_staged(job_id, jobs=sweep.jobs, objects=sweep.objects)
            cleared += 1
    return cleared


@contextmanager
def _noted(what: str) -> Iterator[None]:
    """Log what the store refuses for one object, and go on with the others; an outage ends the round."""
    try:
        yield
    except StoreUnavailable:
        raise
    except StoreError as error:
        log.warning("%s: %s", what, error)


def delete_temp(temp_dir: Path, *, older_than: float) -> int:
    """Delete what work that died has left in `temp_dir`; return how many entries went."""
    limit = time.time() - older_than
    gone = 0
    for entry in temp_dir.iterdir() if temp_dir.is_dir() else ():
        if _last_write(entry) < limit:
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
            gone += 1
    return gone


def _last_write(entry: Path) -> float:
    """Return when anything in `entry` was last written, in seconds since the epoch."""
    try:
        return max(path.stat().st_mtime for path in [entry, *entry.rglob("*")])
    except FileNotFoundError:
        # Its owner is at work in it.
        return time.time()


def heavy(sweep: Sweep) -> None:
    """What need not be quick: broken-off uploads, temp files, workers that are long gone."""
    sweep.jobs.orphaned_objects(older_than=ORPHAN_SECONDS)
    delete_temp(sweep.temp_dir, older_than=TEMP_SECONDS)
    sweep.workers.forget()


def sweep_until(
    sweep: Sweep, *, stopped: Callable[[float], bool], clock: Callable[[], float] = time.monotonic
) -> None:
    """Sweep until `stopped`.

    Args:
        stopped: waits for so many seconds, and says whether to end.
    """
    every: dict[Callable[[Sweep], object], float] = {
        top_up_bells: BELL_SECONDS,
        delete_expired: TIDY_SECONDS,
        delete_staged: TIDY_SECONDS,
        heavy: HEAVY_SECONDS,
    }
    due = dict.fromkeys(every, 0.0)
    out_of_order: set[str] = set()
    while not stopped(BELL_SECONDS):
        for task, at in due.items():
            if clock() < at:
                continue
            due[task] = clock() + every[task]
            try:
                task(sweep)
            except (DatabaseUnavailable, BrokerUnavailable, StoreError) as error:
                # Said once for each outage, not once a second.
                if task.__name__ not in out_of_order:
                    log.warning("%s: %s: %s", task.__name__, type(error).__name__, error)
                out_of_order.add(task.__name__)
            else:
                if task.__name__ in out_of_order:
                    log.info("%s: in order again", task.__name__)
                out_of_order.discard(task.__name__)


def run(settings: Settings) -> int:
    """Be the sweeper until SIGTERM or SIGINT; return the exit code."""
    services = build(settings)
    sweep = Sweep(
        jobs=services.jobs,
        workers=services.workers,
        objects=services.objects,
        bell=services.bell,
        temp_dir=settings.temp_dir,
    )
    departure = on_signals()
    with Presence(services.workers, worker_id=services.holder, queue=SWEEPER_QUEUE):
        sweep_until(sweep, stopped=departure.wait)
    return 0
