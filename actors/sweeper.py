"""The sweeper: heals what was lost on the way, and deletes what nobody needs. Two of them do no harm."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from actors import scratch
from actors.bell import SWEEPER_QUEUE, Bell, BrokerUnavailable
from actors.departure import LEAVE_SECONDS, on_signals
from actors.liveness import liveness
from actors.presence import Account, Presence
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
            drop_staged(job_id, jobs=sweep.jobs, objects=sweep.objects, settled=True)
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


def delete_orphans(sweep: Sweep) -> int:
    """Delete what was begun under an epoch that is over, and cannot be published; return how many went."""
    gone = 0
    for stored in sweep.jobs.orphaned_objects(limit=ROUND):
        with _noted(f"{stored.key} cannot be deleted"):
            sweep.objects.delete(stored.key)
            sweep.jobs.abandon(stored.key)
            gone += 1
    return gone


def expire_jobs(sweep: Sweep) -> int:
    """End the jobs whose deadline passed before they were started; return how many."""
    return sweep.jobs.expire(limit=ROUND)


def promote_jobs(sweep: Sweep) -> int:
    """Promote the jobs that have waited too long; return how many."""
    return sweep.jobs.promote()


def heavy(sweep: Sweep) -> None:
    """What need not be quick: temp files, workers that are long gone."""
    scratch.clear(sweep.temp_dir)
    sweep.workers.forget()


#: What keeps work moving, with seconds between two rounds: it needs the database and the broker alone.
MOVING: Final[Mapping[Callable[[Sweep], object], float]] = {
    top_up_bells: BELL_SECONDS,
    expire_jobs: BELL_SECONDS,
    promote_jobs: TIDY_SECONDS,
}
#: What clears away. A store that hangs must not keep the others.
CLEARING: Final[Mapping[Callable[[Sweep], object], float]] = {
    delete_expired: TIDY_SECONDS,
    delete_staged: TIDY_SECONDS,
    delete_orphans: TIDY_SECONDS,
    heavy: HEAVY_SECONDS,
}


class LastRuns:
    """When each task was done last. Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at: dict[str, float] = {}

    def ran(self, task: str) -> bool:
        """Say that a task was done just now; return whether that was the first time."""
        first = task not in self._at
        self._at[task] = self._clock()
        return first

    def account(self) -> Account:
        """Return it as the sweeper tells it, in seconds that have passed."""
        now = self._clock()
        return Account(info={"last_run": {task: now - at for task, at in dict(self._at).items()}})


def sweep_until(
    sweep: Sweep,
    every: Mapping[Callable[[Sweep], object], float],
    *,
    stopped: Callable[[float], bool],
    ran: Callable[[str], object] = str,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Sweep until `stopped`.

    Args:
        every: the tasks, and the seconds between two rounds of each.
        stopped: waits for so many seconds, and says whether to end.
        ran: told the name of each task that was done.
    """
    due = dict.fromkeys(every, 0.0)
    out_of_order: set[str] = set()
    while True:
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
                ran(task.__name__)
                if task.__name__ in out_of_order:
                    log.info("%s: in order again", task.__name__)
                out_of_order.discard(task.__name__)
        if stopped(BELL_SECONDS):
            return


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
    runs = LastRuns()
    presence = Presence(
        services.workers, worker_id=services.holder, queue=SWEEPER_QUEUE, account=runs.account
    )

    def ran(task: str) -> None:
        if runs.ran(task):
            # The fleet is ready when bells are topped up, not when that is told of five seconds later.
            presence.publish()

    clearing = threading.Thread(
        target=sweep_until,
        args=(sweep, CLEARING),
        kwargs={"stopped": departure.wait, "ran": ran},
        name="clearing",
        daemon=True,
    )
    with presence, liveness(settings.liveness_file) as beat:

        def stopped(seconds: float) -> bool:
            beat()
            return departure.wait(seconds) or not clearing.is_alive()

        clearing.start()
        try:
            sweep_until(
                sweep,
                MOVING,
                stopped=stopped,
                ran=ran,
            )
            died = not departure.asked()
        finally:
            departure.ask()
            clearing.join(timeout=LEAVE_SECONDS / 2)
    if died:
        log.critical("the thread that clears away has died; leaving")
    return 1 if died else 0
