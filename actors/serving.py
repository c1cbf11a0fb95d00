"""Dramatiq's workers in a process: in one of our own, or in one of Dramatiq's command line."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

import dramatiq
from dramatiq import Worker

from actors.departure import LEAVE_SECONDS, Departure
from actors.liveness import liveness

log = logging.getLogger("voxfleet.worker")

#: How long an idle worker takes to hear a bell, in milliseconds: half of it on average.
POLL_MS: Final = 20
#: A bare number for a supervisor: one of Dramatiq's threads has died, and it would not notice.
EXIT_THREAD_DIED: Final = 70
#: How long a guest may take to say good-bye, beside what its work takes.
GOOD_BYE_SECONDS: Final = 5.0

#: Runs workers until the departure is asked for.
Serve = Callable[[Sequence[Worker], Departure], None]


def make_worker(broker: dramatiq.Broker, queues: set[str], *, threads: int) -> Worker:
    """Return a worker of `queues` that is not started yet."""
    worker = Worker(broker, queues=queues, worker_timeout=POLL_MS, worker_threads=threads)
    # Bells that this worker could not answer at once would be missing elsewhere. The variable
    # `dramatiq_queue_prefetch` would set it for both workers of this process alike.
    worker.queue_prefetch = threads
    return worker


def serve(workers: Sequence[Worker], departure: Departure, *, liveness_file: Path | None) -> None:
    """Run workers until `departure` is asked for and what they have in hand is done or let go."""
    with liveness(liveness_file) as beat:
        for worker in workers:
            worker.start()
        _watch(workers, departure, beat)
        log.info("leaving")
        _stop(workers, beat)


def _watch(workers: Sequence[Worker], departure: Departure, beat: Callable[[], None]) -> None:
    while True:
        for worker in workers:
            dead = [thread.name for thread in _threads(worker) if not thread.is_alive()]
            if dead:
                log.critical("thread %s has died; leaving", ", ".join(dead))
                os._exit(EXIT_THREAD_DIED)
        beat()
        if departure.wait(1.0):
            return


def _stop(workers: Sequence[Worker], beat: Callable[[], None]) -> None:
    # At the same time: each may take all of it. No longer: RabbitMQ is given no limit to say good-bye.
    stops = [
        threading.Thread(target=worker.stop, kwargs={"timeout": LEAVE_SECONDS * 1000}, daemon=True)
        for worker in workers
    ]
    end = time.monotonic() + LEAVE_SECONDS
    for stop in stops:
        stop.start()
    for stop in stops:
        while stop.is_alive() and time.monotonic() < end:
            beat()
            stop.join(1.0)


def _threads(worker: Worker) -> list[threading.Thread]:
    return [*worker.workers, *worker.consumers.values()]


class Guest(dramatiq.Middleware):
    """A worker in a process of Dramatiq's command line.

    `run` goes on in a thread of its own, with the engine and all else that a worker needs. Of the workers of
    Dramatiq that it would serve with, the command line runs the first, by our settings and not by its own;
    the others are run beside it.

    Args:
        run: given a departure and how to serve; returns an exit code.
    """

    def __init__(self, run: Callable[[Departure, Serve], int], *, liveness_file: Path | None) -> None:
        self._run = run
        self._liveness_file = liveness_file
        self._departure = Departure()
        self._ours: Future[Sequence[Worker]] = Future()
        self._theirs: Future[Worker] = Future()
        self._told_to_leave = threading.Event()
        self._has_left = threading.Event()
        self._thread = threading.Thread(target=self._main, name="guest", daemon=True)

    def start(self) -> dramatiq.Broker:
        """Return the broker to consume from, when the work can be done.

        Raises:
            SystemExit: it cannot be; the log tells the reason.
        """
        self._thread.start()
        broker = self._ours.result()[0].broker
        broker.add_middleware(self)
        return broker

    def _main(self) -> None:
        try:
            code = self._run(self._departure, self._serve)
        except Exception as error:
            if not self._ours.done():
                self._ours.set_exception(error)
                return
            log.exception("a worker has failed")
            code = 1
        if not self._ours.done():
            self._ours.set_exception(SystemExit(code))
        elif not self._told_to_leave.is_set():
            os._exit(code or 1)

    def _serve(self, workers: Sequence[Worker], departure: Departure) -> None:
        self._ours.set_result(workers)
        theirs = self._theirs.result()
        others = workers[1:]
        with liveness(self._liveness_file) as beat:
            for worker in others:
                worker.start()
            _watch([theirs, *others], departure, beat)
            _stop(others, beat)
            if self._told_to_leave.is_set():
                # The engine is still at work for the other one.
                self._has_left.wait(LEAVE_SECONDS)

    def before_worker_boot(self, _broker: dramatiq.Broker, worker: Worker) -> None:
        ours = self._ours.result()[0]
        worker.consumer_whitelist = ours.consumer_whitelist
        worker.queue_prefetch = ours.queue_prefetch
        worker.worker_threads = ours.worker_threads
        worker.worker_timeout = ours.worker_timeout

    def after_worker_boot(self, _broker: dramatiq.Broker, worker: Worker) -> None:
        self._theirs.set_result(worker)

    def before_worker_shutdown(self, _broker: dramatiq.Broker, _worker: Worker) -> None:
        self._told_to_leave.set()
        self._departure.ask()

    def after_worker_shutdown(self, _broker: dramatiq.Broker, _worker: Worker) -> None:
        self._has_left.set()
        self._thread.join(GOOD_BYE_SECONDS)
