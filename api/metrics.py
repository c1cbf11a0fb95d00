"""Prometheus metrics: what the fleet has to do, who does it, and how requests were answered."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from flask import Request
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from api.admission import Admission
from api.asking import ask_all
from api.backlog import RecentBacklog
from api.services import Workers
from jobs.database import DatabaseUnavailable
from jobs.job import JobClass
from jobs.targets import IpNetwork

logger: Final = logging.getLogger("voxfleet.api")

MEDIA_TYPE: Final = CONTENT_TYPE_LATEST
#: A database that hangs holds up no scrape for longer.
LIMIT_SECONDS: Final = 2.0
#: Seconds; a 202 takes a few milliseconds, and a database that is away is waited for for two seconds.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
#: Said by whatever stands between a client and us.
_PROXIED: Final = ("Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via")


class Metrics:
    """The metrics of one API process. Thread-safe."""

    def __init__(self, backlog: RecentBacklog, workers: Workers, admission: Admission) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._requests = Counter(
            "voxfleet_http_requests",
            "Requests by route template, method and status.",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "voxfleet_http_request_seconds",
            "From the arrival of a request to its answer.",
            ("route", "method"),
            buckets=BUCKETS,
            registry=self._registry,
        )
        self._refused = Counter(
            "voxfleet_refused_jobs",
            "Jobs that were not taken, by the code of the answer.",
            ("code",),
            registry=self._registry,
        )
        self._registry.register(FleetCollector(backlog, workers, admission))

    def answered(self, *, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request; `route` is a template, never what stood in its place."""
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route, method).observe(seconds)

    def refused(self, code: str) -> None:
        """Count a job that was not taken."""
        self._refused.labels(code).inc()

    def text(self) -> bytes:
        """Return everything in Prometheus's text format."""
        return generate_latest(self._registry)


class FleetCollector(Collector):
    """What the tables say at the moment of the scrape; a part that cannot be asked in time is left out."""

    def __init__(self, backlog: RecentBacklog, workers: Workers, admission: Admission) -> None:
        self._backlog = backlog
        self._workers = workers
        self._admission = admission

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        up = GaugeMetricFamily("voxfleet_up", "Whether a part could be asked.", labels=("part",))
        questions: dict[str, Callable[[], Sequence[Metric]]] = {
            "backlog": self._queues,
            "workers": self._fleet,
            "sweeper": self._sweeper,
        }
        answers = ask_all(questions, limit_seconds=LIMIT_SECONDS)
        for part in questions:
            answer = answers.get(part, [])
            if isinstance(answer, Exception):
                expected = isinstance(answer, DatabaseUnavailable)
                logger.info("no metrics of %s: %s", part, answer, exc_info=None if expected else answer)
                answer = []
            yield from answer
            up.add_metric((part,), float(bool(answer)))
        yield up

    def _queues(self) -> Sequence[Metric]:
        snapshot = self._backlog.snapshot()
        if snapshot.is_old:
            return ()
        labels = ("queue", "class")
        jobs = GaugeMetricFamily("voxfleet_jobs_waiting", "Jobs that wait for a worker.", labels=labels)
        held = GaugeMetricFamily("voxfleet_jobs_in_hand", "Jobs that a worker holds.", labels=labels)
        left = GaugeMetricFamily(
            "voxfleet_characters_left", "Code points that are still to be spoken.", labels=labels
        )
        oldest = GaugeMetricFamily(
            "voxfleet_oldest_job_seconds", "Age of the oldest job that has not ended.", labels=labels
        )
        ages: dict[tuple[str, JobClass], float] = {}
        for (queue, job_class, _), age in snapshot.ages.items():
            ages[queue, job_class] = max(age, ages.get((queue, job_class), 0.0))
        for queue, whole in snapshot.queues.items():
            for job_class in JobClass:
                work = whole.of(job_class)
                if not work.jobs:
                    continue
                place = (queue, job_class.name.lower())
                jobs.add_metric(place, work.jobs - len(work.in_hand))
                held.add_metric(place, len(work.in_hand))
                left.add_metric(place, work.characters)
                oldest.add_metric(place, ages.get((queue, job_class), 0.0))
        return jobs, held, left, oldest

    def _fleet(self) -> Sequence[Metric]:
        alive = GaugeMetricFamily("voxfleet_workers", "Live workers of each queue.", labels=("queue",))
        for queue, count in self._workers.alive().items():
            alive.add_metric((queue,), count)
        rtf = GaugeMetricFamily(
            "voxfleet_rtf", "Processing seconds per second of audio, as measured.", labels=("model",)
        )
        pace = GaugeMetricFamily(
            "voxfleet_seconds_per_character", "Processing seconds per code point.", labels=("model",)
        )
        wait = GaugeMetricFamily(
            "voxfleet_wait_seconds",
            "Estimated seconds until a short normal job of a new tenant would be begun.",
            labels=("model",),
        )
        opened = GaugeMetricFamily(
            "voxfleet_breakers_open", "Workers that leave their engine alone for a while.", labels=("model",)
        )
        learned = GaugeMetricFamily(
            "voxfleet_max_chars_learned",
            "Longest chunk that there is memory for, where that is less than the engine takes.",
            labels=("model",),
        )
        events = {
            "rung": CounterMetricFamily(
                "voxfleet_memory_rungs",
                "What was done against too little memory, since each worker started.",
                labels=("model", "worker", "rung"),
            ),
            "engine": CounterMetricFamily(
                "voxfleet_engine_events",
                "Engine processes that ended, by cause, and clips made again, since each worker started.",
                labels=("model", "worker", "event"),
            ),
        }
        for served in self._workers.models():
            for family, value in (
                (rtf, served.rtf),
                (pace, served.seconds_per_char),
                (wait, self._admission.wait(served)),
            ):
                if value is not None:
                    family.add_metric((served.model,), value)
            opened.add_metric((served.model,), served.breakers_open)
            if served.max_chars_learned is not None:
                learned.add_metric((served.model,), served.max_chars_learned)
            for worker, counts in served.counts.items():
                place = (served.model, worker)
                for name, count in counts.items():
                    kind, _, event = name.partition(".")
                    if kind in events:
                        events[kind].add_metric((*place, event), count)
        return alive, rtf, pace, wait, opened, learned, *events.values()

    def _sweeper(self) -> Sequence[Metric]:
        family = GaugeMetricFamily(
            "voxfleet_sweeper_last_run_seconds",
            "Seconds since a sweeper last did a task.",
            labels=("task",),
        )
        for task, age in self._workers.sweeper().items():
            family.add_metric((task,), age)
        return (family,)


def may_read(request: Request, allowed: Sequence[IpNetwork]) -> bool:
    """Whether the metrics are for whoever sent `request`: a peer of an allowed network, without a proxy."""
    if any(name in request.headers for name in _PROXIED):
        return False
    try:
        peer = ipaddress.ip_address(request.remote_addr or "")
    except ValueError:
        return False
    if isinstance(peer, ipaddress.IPv6Address) and peer.ipv4_mapped is not None:
        peer = peer.ipv4_mapped
    return any(peer in network for network in allowed)
