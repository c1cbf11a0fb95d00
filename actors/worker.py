"""`voxfleet worker`: one process that runs Dramatiq's worker itself.

Dramatiq's own master is left out: it orphans its children on `kill -9`, and hangs when something writes to
their framed standard output. Whoever starts this process starts it again when it ends.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import dramatiq
from pydantic import ValidationError

from actors import fleet, scratch
from actors.bell import MEDIA_QUEUE, WEBHOOK_QUEUE, connect, synthesis_queue
from actors.counts import Counts
from actors.deliver import Outbox
from actors.departure import Departure, on_signals
from actors.encode import Media
from actors.making import Synthesis
from actors.pace import Pace
from actors.presence import Account, Presence
from actors.rescue import Rescue
from actors.services import Services, build, webhook_secret
from actors.serving import Guest, Serve, make_worker, serve
from actors.standing import Fleet
from actors.trials import Trials
from config.settings import MissingSetting, Settings, SettingsError, complaints, engine_options, load
from jobs.workers import OPEN
from speech import ffmpeg, registry
from speech.breaker import Breaker
from speech.encode import Mp3Encoder
from speech.engine import EngineInfo, EngineUnavailable
from speech.host import EngineHost, Interrupted, Lifetime
from speech.ladder import Learned
from speech.notice import notice
from speech.registry import UnknownEngine, find

log = logging.getLogger("voxfleet.worker")

#: Two encodes at once keep two cores busy; webhooks wait on the network, so more of them fit.
ENCODERS: Final = 2
POSTMEN: Final = 4


def run_synth(
    settings: Settings, *, model: str, departure: Departure | None = None, serve_with: Serve | None = None
) -> int:
    """Serve one model until SIGTERM or SIGINT; return the exit code.

    A model that cannot be loaded ends the process with 1 and the reason in the log.

    Args:
        departure: what to leave at, instead of the signals.
        serve_with: what runs Dramatiq's worker, instead of this process by itself.
    """
    departure = departure or on_signals()
    serve_with = serve_with or functools.partial(serve, liveness_file=settings.liveness_file)
    services = build(settings)
    try:
        factory = find(model)
    except UnknownEngine as error:
        log.error("%s", error)
        return 1
    options = engine_options(os.environ, model)
    if settings.voices_dir is not None and "voices_dir" in factory.options.model_fields:
        options.setdefault("voices_dir", str(settings.voices_dir.absolute()))
    growth = None if settings.recycle_mb is None else settings.recycle_mb * 1_000_000
    host = EngineHost(
        model,
        options,
        nice=settings.cpu_nice,
        chunk_seconds=settings.chunk_seconds,
        load_seconds=settings.load_seconds,
        lifetime=Lifetime(calls=settings.recycle_chunks, growth_bytes=growth),
    )
    with host:
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

        pace, learned, breaker, counts = Pace(), Learned(), Breaker(), Counts()
        standing = Fleet(
            services.workers,
            worker_id=services.holder,
            model=model,
            queue=queue,
            fallback=settings.fallback_model,
        )
        rescue = Rescue(
            jobs=services.jobs, ring=services.ring, standing=standing, counts=counts, notice=notice
        )
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
                rescue=rescue,
                breaker=breaker,
                learned=learned,
                pace=pace,
                first_audio_seconds=settings.first_audio_seconds,
            ),
        )

        def account() -> Account:
            ends = {f"engine.{cause}": count for cause, count in host.ends.items()}
            return Account(
                info=described | {"counts": counts.all() | ends},
                rtf=pace.rtf,
                seconds_per_char=pace.seconds_per_char,
                max_chars_learned=learned.limit,
                breaker=None if breaker.is_closed else OPEN,
            )

        log.info("model %s is loaded; serving %s", model, queue)
        presence = Presence(
            services.workers, worker_id=services.holder, queue=queue, model=model, account=account
        )
        with presence, Trials(breaker, host, changed=presence.publish, ring=lambda: services.ring(queue)):
            serve_with([make_worker(broker, {queue}, threads=1)], departure)
    if broken:
        log.error("model %s cannot be loaded any more: %s", model, broken[0])
        return 1
    return 0


def run_media(
    settings: Settings, *, departure: Departure | None = None, serve_with: Serve | None = None
) -> int:
    """Encode, publish and deliver until SIGTERM or SIGINT; return the exit code.

    Args:
        departure: what to leave at, instead of the signals.
        serve_with: what runs Dramatiq's workers, instead of this process by itself.
    """
    departure = departure or on_signals()
    serve_with = serve_with or functools.partial(serve, liveness_file=settings.liveness_file)
    try:
        encoder = Mp3Encoder(ffmpeg.find(settings.ffmpeg), nice=settings.cpu_nice)
    except ffmpeg.FfmpegMissing as error:
        log.error("%s", error)
        return 1
    services = build(settings)
    # What a killed worker left would fill the disk if this one were killed as well, again and again.
    scratch.clear(settings.temp_dir)
    with scratch.scratch(settings.temp_dir) as folder:
        return _serve_media(settings, services, encoder, folder, departure, serve_with=serve_with)


def _serve_media(
    settings: Settings,
    services: Services,
    encoder: Mp3Encoder,
    folder: Path,
    departure: Departure,
    *,
    serve_with: Serve,
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
            make_worker(media, {MEDIA_QUEUE}, threads=ENCODERS),
            make_worker(outbox, {WEBHOOK_QUEUE}, threads=POSTMEN),
        ]
        serve_with(workers, departure)
    return 0


def boot() -> None:
    """Be the broker of `dramatiq actors.worker:boot`: what `VOXFLEET_WORKER` names is ready on return.

    Raises:
        SystemExit: it cannot be; the reason is in the log.
    """
    try:
        settings = load(engine_settings=registry.settings())
        guest = Guest(_named(settings), liveness_file=settings.liveness_file)
        dramatiq.set_broker(guest.start())
    except ValidationError as error:
        log.error("%s", complaints(error))
        sys.exit(1)
    except SettingsError as error:
        log.error("%s", error)
        sys.exit(1)


def _named(settings: Settings) -> Callable[[Departure, Serve], int]:
    """Return the worker that `VOXFLEET_WORKER` names."""
    if settings.worker is None:
        raise MissingSetting("VOXFLEET_WORKER must be set: `synth:` and a model, or `media`")
    kind, _, model = settings.worker.partition(":")
    if kind == "media":
        return lambda departure, serve_with: run_media(settings, departure=departure, serve_with=serve_with)
    return lambda departure, serve_with: run_synth(
        settings, model=model, departure=departure, serve_with=serve_with
    )


def _described(info: EngineInfo) -> dict[str, Any]:
    """Return the engine's description as plain JSON values."""
    described: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(info)))
    return described
