"""`voxfleet worker`: one process that runs Dramatiq's worker itself.

Dramatiq's own master is left out: it orphans its children on `kill -9`, and hangs when something writes to
their framed standard output. Whoever starts this process starts it again when it ends.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dramatiq import Worker
from dramatiq.brokers.redis import RedisBroker

from actors import fleet, scratch
from actors.bell import MEDIA_QUEUE, WEBHOOK_QUEUE, connect, synthesis_queue
from actors.deliver import Outbox
from actors.departure import LEAVE_SECONDS, Departure, on_signals
from actors.encode import Media
from actors.pace import Pace
from actors.presence import Account, Presence
from actors.services import Services, build, webhook_secret
from actors.synthesize import Synthesis
from config.settings import Settings, engine_options
from speech import ffmpeg
from speech.encode import Mp3Encoder
from speech.engine import EngineInfo, EngineUnavailable
from speech.host import EngineHost, Interrupted
from speech.registry import UnknownEngine, find

log = logging.getLogger("voxfleet.worker")

#: How long an idle worker takes to hear a bell, in milliseconds: half of it on average.
POLL_MS: Final = 20
#: Two encodes at once keep two cores busy; webhooks wait on the network, so more of them fit.
ENCODERS: Final = 2
POSTMEN: Final = 4
#: A bare number for a supervisor: one of Dramatiq's threads has died, and it would not notice.
EXIT_THREAD_DIED: Final = 70


def run_synth(settings: Settings, *, model: str) -> int:
    """Serve one model until SIGTERM or SIGINT; return the exit code.

    A model that cannot be loaded ends the process with 1 and the reason in the log.
    """
    departure = on_signals()
    services = build(settings)
    try:
        find(model)
    except UnknownEngine as error:
        log.error("%s", error)
        return 1
    options = engine_options(os.environ, model)
    with EngineHost(model, options, nice=settings.cpu_nice, chunk_seconds=settings.chunk_seconds) as host:
        try:
            info = host.start(stop=departure.asked)
        except EngineUnavailable as error:
            log.error("model %s cannot be loaded: %s", model, error)
            return 1
        except Interrupted:
            return 0
        queue = synthesis_queue(model, device=info.device)
        broker = connect(settings.broker_url.get_secret_value())
        broken: list[str] = []

        def leave_broken(reason: str) -> None:
            broken.append(reason)
            departure.ask()

        pace = Pace()
        described = _described(info)
        fleet.declare_synthesis(
            broker,
            Synthesis(
                queue=queue,
                holder=services.holder,
                jobs=services.jobs,
                objects=services.objects,
                engine=host,
                ring=services.ring,
                departure=departure,
                broken=leave_broken,
                pace=pace,
            ),
        )
        log.info("model %s is loaded; serving %s", model, queue)
        with Presence(
            services.workers,
            worker_id=services.holder,
            queue=queue,
            model=model,
            account=lambda: Account(info=described, rtf=pace.rtf, seconds_per_char=pace.seconds_per_char),
        ):
            _serve([_worker(broker, {queue}, threads=1)], departure)
    if broken:
        log.error("model %s cannot be loaded any more: %s", model, broken[0])
        return 1
    return 0


def run_media(settings: Settings) -> int:
    """Encode, publish and deliver until SIGTERM or SIGINT; return the exit code."""
    departure = on_signals()
    try:
        encoder = Mp3Encoder(ffmpeg.find(settings.ffmpeg), nice=settings.cpu_nice)
    except ffmpeg.FfmpegMissing as error:
        log.error("%s", error)
        return 1
    services = build(settings)
    # What a killed worker left would fill the disk if this one were killed as well, again and again.
    scratch.clear(settings.temp_dir)
    with scratch.scratch(settings.temp_dir) as folder:
        return _serve_media(settings, services, encoder, folder, departure)


def _serve_media(
    settings: Settings, services: Services, encoder: Mp3Encoder, folder: Path, departure: Departure
) -> int:
    url = settings.broker_url.get_secret_value()
    # Two brokers: a slow receiver takes no thread from the encoders. Two workers on one broker would each
    # consume the queues of the other.
    media, outbox = connect(url), connect(url)
    pace = Pace()
    fleet.declare_media(
        media,
        Media(
            holder=services.holder,
            jobs=services.jobs,
            objects=services.objects,
            encoder=encoder,
            temp_dir=folder,
            ring=services.ring,
            departure=departure,
            long_slots=threading.BoundedSemaphore(ENCODERS - 1),
            pace=pace,
        ),
    )
    fleet.declare_outbox(
        outbox,
        Outbox(
            holder=services.holder,
            deliveries=services.deliveries,
            secret=webhook_secret(settings),
            allowed=settings.webhook_allowed_cidrs,
        ),
    )
    log.info("serving %s and %s", MEDIA_QUEUE, WEBHOOK_QUEUE)
    with Presence(
        services.workers,
        worker_id=services.holder,
        queue=MEDIA_QUEUE,
        account=lambda: Account(rtf=pace.rtf),
    ):
        workers = [
            _worker(media, {MEDIA_QUEUE}, threads=ENCODERS),
            _worker(outbox, {WEBHOOK_QUEUE}, threads=POSTMEN),
        ]
        _serve(workers, departure)
    return 0


def _worker(broker: RedisBroker, queues: set[str], *, threads: int) -> Worker:
    worker = Worker(broker, queues=queues, worker_timeout=POLL_MS, worker_threads=threads)
    # Bells that this worker could not answer at once would be missing elsewhere. The variable
    # `dramatiq_queue_prefetch` would set it for both workers of this process alike.
    worker.queue_prefetch = threads
    return worker


def _serve(workers: Sequence[Worker], departure: Departure) -> None:
    for worker in workers:
        worker.start()
    while not departure.wait(1.0):
        for worker in workers:
            dead = [thread.name for thread in _threads(worker) if not thread.is_alive()]
            if dead:
                log.critical("thread %s has died; leaving", ", ".join(dead))
                os._exit(EXIT_THREAD_DIED)
    log.info("leaving")
    # At the same time: each may take all of it.
    stops = [
        threading.Thread(target=worker.stop, kwargs={"timeout": LEAVE_SECONDS * 1000}) for worker in workers
    ]
    for stop in stops:
        stop.start()
    for stop in stops:
        stop.join()


def _threads(worker: Worker) -> list[threading.Thread]:
    return [*worker.workers, *worker.consumers.values()]


def _described(info: EngineInfo) -> dict[str, Any]:
    """Return the engine's description as plain JSON values."""
    described: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(info)))
    return described
