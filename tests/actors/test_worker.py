"""The workers' own settings of Dramatiq, on the real objects, and how their processes live and end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import dramatiq
import pytest
from dramatiq import Worker

from actors import fleet
from actors.bell import MEDIA_QUEUE, WEBHOOK_QUEUE, BrokerBell, connect
from actors.departure import LEAVE_SECONDS, Departure
from actors.encode import Media
from actors.serving import POLL_MS, make_worker, serve
from actors.worker import ENCODERS, POSTMEN, run_media, run_synth
from config.settings import Settings, load
from jobs.job import COMPLETED, ENCODING, Job, NewJob, State, TenantId
from jobs.store import JobStore
from speech.encode import Mp3Encoder
from storage.s3 import S3Store
from tests import servers

from .doubles import Bells, MemoryStore


@pytest.fixture
def environ(
    tmp_path: Path, valkey: servers.Valkey, seaweed: servers.SeaweedFS, bucket: S3Store, jobs: JobStore
) -> dict[str, str]:
    """Give the environment of a worker: the job table of this test, and real servers."""
    return os.environ | {
        "VOXFLEET_DATA_DIR": str(tmp_path),
        "VOXFLEET_DATABASE_URL": f"sqlite:///{tmp_path / 'jobs.db'}",
        "VOXFLEET_BROKER_URL": valkey.url,
        "VOXFLEET_S3_ENDPOINT": seaweed.endpoint,
        "VOXFLEET_S3_BUCKET": bucket.bucket,
        "VOXFLEET_S3_ACCESS_KEY_ID": seaweed.access_key_id,
        "VOXFLEET_S3_SECRET_ACCESS_KEY": seaweed.secret_access_key,
    }


@pytest.fixture
def settings(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return load()


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/3", "amqp://u:p@127.0.0.1:1/"])
@pytest.mark.parametrize("threads", [1, ENCODERS])
def test_a_worker_holds_no_more_bells_than_it_can_answer(url: str, threads: int) -> None:
    worker = make_worker(connect(url), {"cpu.x"}, threads=threads)

    assert worker.queue_prefetch == threads
    assert worker.worker_threads == threads
    assert 10 <= worker.worker_timeout == POLL_MS <= 50
    # With a prefetch of one on the delay queue as well, a live worker would be declared dead.
    assert worker.delay_prefetch > 1
    assert worker.consumer_whitelist == {"cpu.x"}
    assert LEAVE_SECONDS <= 30


def test_an_engine_is_served_by_one_thread(settings: Settings) -> None:
    served: list[Worker] = []

    code = run_synth(
        settings,
        model="tone",
        departure=Departure(),
        serve_with=lambda workers, _: served.extend(workers),
    )

    (worker,) = served
    assert code == 0
    assert (worker.worker_threads, worker.queue_prefetch) == (1, 1)
    assert worker.consumer_whitelist == worker.broker.get_declared_queues() == {"cpu.tone"}
    assert worker.broker.middleware == []


def test_a_slow_receiver_takes_no_thread_from_the_encoders(settings: Settings) -> None:
    served: list[Worker] = []

    code = run_media(settings, departure=Departure(), serve_with=lambda workers, _: served.extend(workers))

    encoders, postmen = served
    assert code == 0
    assert (encoders.worker_threads, encoders.consumer_whitelist) == (ENCODERS, {MEDIA_QUEUE})
    assert (postmen.worker_threads, postmen.consumer_whitelist) == (POSTMEN, {WEBHOOK_QUEUE})
    assert encoders.broker is not postmen.broker


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
        long_slots=threading.BoundedSemaphore(1),
    )
    rung: list[Media] = []

    def explode(given: Media) -> None:
        rung.append(given)
        raise ZeroDivisionError

    monkeypatch.setattr(fleet, "encode", explode)
    declared = fleet.declare_media(broker, work)
    assert declared.encode is not None
    assert (declared.encode.queue_name, declared.encode.actor_name) == (MEDIA_QUEUE, "encode")
    worker = make_worker(broker, {MEDIA_QUEUE}, threads=1)
    worker.start()
    # Dramatiq adds one of its own, which starts the consumers; nothing retries, limits or keeps results.
    assert [type(middleware).__name__ for middleware in broker.middleware] == ["_WorkerMiddleware"]
    try:
        declared.encode.send()
        broker.join(MEDIA_QUEUE, timeout=5000)
        worker.join()
    finally:
        worker.stop()
        broker.close()

    assert rung == [work]


@pytest.mark.slow
def test_rabbitmq_that_is_silent_or_was_killed_holds_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.serving.LEAVE_SECONDS", 3.0)
    with servers.rabbitmq() as server:
        broker = connect(server.url)
        heard = threading.Semaphore(0)
        dramatiq.Actor(
            heard.release, broker=broker, actor_name="synthesize", queue_name="cpu.x", priority=0, options={}
        )
        departure = Departure()
        worker = make_worker(broker, {"cpu.x"}, threads=1)
        serving = threading.Thread(
            target=serve, args=([worker], departure), kwargs={"liveness_file": None}, daemon=True
        )
        serving.start()
        bell = BrokerBell(connect(server.url))
        bell.ring("cpu.x")
        assert heard.acquire(timeout=10)

        server.kill()
        server.start()
        bell.ring("cpu.x")
        assert heard.acquire(timeout=10)
        # One for each consumer; what declared the queue has hung up.
        assert broker.connections == set()

        server.pause()
        departure.ask()
        serving.join(timeout=5)
        assert not serving.is_alive()
        server.resume()


@pytest.mark.slow
def test_the_liveness_file_grows_old_with_its_worker_and_goes_with_it(
    environ: dict[str, str], tmp_path: Path
) -> None:
    sign = tmp_path / "alive"

    with _running(
        "-m", "cli.main", "worker", "media", environ=environ, VOXFLEET_LIVENESS_FILE=sign
    ) as worker:
        _until(sign.exists)
        touched = sign.stat().st_mtime
        _until(lambda: sign.stat().st_mtime > touched, seconds=3)

        worker.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        touched = sign.stat().st_mtime
        time.sleep(2.5)
        assert sign.stat().st_mtime == touched
        worker.send_signal(signal.SIGCONT)
        _until(lambda: sign.stat().st_mtime > touched, seconds=3)

        worker.terminate()
        assert worker.wait(timeout=30) == 0
    assert not sign.exists()


@pytest.mark.slow
def test_a_killed_worker_leaves_its_liveness_file_to_grow_old(
    environ: dict[str, str], tmp_path: Path
) -> None:
    sign = tmp_path / "alive"

    with _running(
        "-m", "cli.main", "worker", "media", environ=environ, VOXFLEET_LIVENESS_FILE=sign
    ) as worker:
        _until(sign.exists)
        worker.kill()
        worker.wait()

    probe = ["sh", "-c", f"find {sign} -newermt '1 seconds ago' | grep -q ."]
    _until(lambda: subprocess.run(probe, check=False).returncode == 1, seconds=5)
    assert sign.exists()


@pytest.mark.slow
def test_dramatiq_runs_workers_that_speak_and_encode(
    environ: dict[str, str], jobs: JobStore, valkey: servers.Valkey, tmp_path: Path
) -> None:
    bell = BrokerBell(connect(valkey.url))
    sign = tmp_path / "alive"
    job = jobs.create(
        NewJob(
            tenant_id=TenantId("ten_a"),
            input="A bell.",
            model="tone",
            queue="cpu.tone",
            voice="sine",
            language="en",
            response_format="mp3",
            seed=7,
            expires_in=86_400,
        )
    )

    for named, queue, end in (
        ("synth:tone", "cpu.tone", ENCODING),
        ("media", MEDIA_QUEUE, COMPLETED),
    ):
        bell.ring(queue)
        with _guest(named, environ, VOXFLEET_LIVENESS_FILE=sign) as master:
            _until(lambda end=end: _state(jobs, job) == end)
            _until(sign.exists)
            master.terminate()
            assert master.wait(timeout=30) == 0
        assert not sign.exists()
        assert bell.waiting(queue) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("synth:no-such-model", "no engine 'no-such-model'"),
        ("synth:hibari:x", "VOXFLEET_WORKER"),
        ("", "VOXFLEET_WORKER must be set"),
    ],
)
def test_what_cannot_be_served_ends_dramatiq_with_the_reason(
    named: str, reason: str, environ: dict[str, str]
) -> None:
    with _guest(named, environ, stderr=subprocess.PIPE) as master:
        _, said = master.communicate(timeout=30)

    assert master.returncode == 1
    assert reason in said.decode()
    assert "Traceback" not in said.decode()


def test_importing_the_workers_does_nothing() -> None:
    program = (
        "import threading, dramatiq, actors.worker; from dramatiq import broker;"
        "print(broker.global_broker, [thread.name for thread in threading.enumerate()])"
    )

    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "None ['MainThread']\n"


@contextlib.contextmanager
def _running(
    *arguments: str, environ: dict[str, str], stderr: int | None = None, **settings: object
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker process, and leave nothing of it behind."""
    process = subprocess.Popen(
        [sys.executable, "-P", *arguments],
        env=environ | {name: str(value) for name, value in settings.items()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _guest(
    named: str, environ: dict[str, str], *, stderr: int | None = None, **settings: object
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    if named:
        settings["VOXFLEET_WORKER"] = named
    return _running(
        *("-m", "dramatiq", "actors.worker:boot", "-p", "1", "-t", "1"),
        environ=environ,
        stderr=stderr,
        **settings,
    )


def _state(jobs: JobStore, job: Job) -> State:
    now = jobs.get(job.id, job.tenant_id)
    return State(now.status, now.stage)


def _until(condition: Callable[[], object], *, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
