"""The worker's own settings of Dramatiq, on the real objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors import fleet
from actors.bell import MEDIA_QUEUE, connect
from actors.departure import LEAVE_SECONDS, Departure
from actors.encode import Media
from actors.worker import ENCODERS, POLL_MS, _worker
from jobs.store import JobStore
from speech.encode import Mp3Encoder
from tests import servers

from .doubles import Bells, MemoryStore


@pytest.mark.parametrize("threads", [1, ENCODERS])
def test_a_worker_holds_no_more_bells_than_it_can_answer(valkey: servers.Valkey, threads: int) -> None:
    worker = _worker(connect(valkey.url), {"cpu.x"}, threads=threads)

    assert worker.queue_prefetch == threads
    assert worker.worker_threads == threads
    assert worker.worker_timeout == POLL_MS == 20
    # With a prefetch of one on the delay queue as well, a live worker would be declared dead.
    assert worker.delay_prefetch > 1
    assert worker.consumer_whitelist == {"cpu.x"}
    assert LEAVE_SECONDS <= 30


def test_a_bell_runs_its_actor_once_and_a_failing_one_is_not_tried_again(
    valkey: servers.Valkey, jobs: JobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = connect(valkey.url)
    work = Media(
        holder="w",
        jobs=jobs,
        objects=MemoryStore(),
        encoder=Mp3Encoder("ffmpeg"),
        temp_dir=tmp_path,
        ring=Bells(),
        departure=Departure(),
    )
    rung: list[Media] = []

    def explode(given: Media) -> None:
        rung.append(given)
        raise ZeroDivisionError

    monkeypatch.setattr(fleet, "encode", explode)
    declared = fleet.declare_media(broker, work)
    assert declared.encode is not None
    assert (declared.encode.queue_name, declared.encode.actor_name) == (MEDIA_QUEUE, "encode")
    worker = _worker(broker, {MEDIA_QUEUE}, threads=1)
    worker.start()
    try:
        declared.encode.send()
        broker.join(MEDIA_QUEUE, timeout=5000)
        worker.join()
    finally:
        worker.stop()
        broker.close()

    assert rung == [work]
