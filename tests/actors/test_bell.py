"""The bell, over both kinds of broker, and the settings of each: the ones asked for, on the real object."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pika
import pytest
from dramatiq.brokers.redis import RedisBroker
from pydantic import ValidationError
from redis.retry import Retry

from actors import rabbitmq as line
from actors.bell import (
    DELIVER,
    ENCODE,
    MEDIA_QUEUE,
    SYNTHESIZE,
    WEBHOOK_QUEUE,
    BrokerBell,
    BrokerUnavailable,
    actor_of,
    connect,
    synthesis_queue,
)
from config.settings import SettingsError, load
from tests import servers

BOTH = pytest.mark.parametrize("kind", ["redis", pytest.param("amqp", marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[servers.RabbitMQ]:
    with servers.rabbitmq() as server:
        yield server


@pytest.fixture
def bell(kind: str, request: pytest.FixtureRequest) -> BrokerBell:
    server = request.getfixturevalue({"redis": "valkey", "amqp": "rabbitmq"}[kind])
    return BrokerBell(connect(server.url))


def test_the_redis_broker_fails_fast_sends_nothing_twice_and_keeps_to_its_database() -> None:
    broker = connect("redis://127.0.0.1:1/3")

    assert isinstance(broker, RedisBroker)
    options = broker.client.connection_pool.connection_kwargs
    assert options["db"] == 3
    assert options["socket_timeout"] == 2
    assert options["socket_connect_timeout"] == 1
    assert isinstance(options["retry"], Retry)
    assert options["retry"]._retries == 0
    assert broker.namespace == "voxfleet"
    assert broker.heartbeat_timeout == 15_000
    assert broker.maintenance_chance == 1_000_000
    # Neither Retries nor TimeLimit nor Results: nothing at all.
    assert broker.middleware == []


def test_the_rabbitmq_broker_fails_fast_whatever_its_url_says() -> None:
    broker = connect("amqp://u:p@127.0.0.1:1/own?heartbeat=600&socket_timeout=60&connection_attempts=9")

    assert isinstance(broker, line.Rabbitmq)
    server = broker.parameters
    assert (server.host, server.port, server.virtual_host) == ("127.0.0.1", 1, "own")
    assert server.connection_attempts == 1
    assert server.socket_timeout == 1
    assert server.stack_timeout == 2
    assert server.blocked_connection_timeout == 2
    assert server.heartbeat == 15
    # The bell hangs up before the server would miss a heartbeat.
    assert server.heartbeat > line.IDLE_SECONDS
    assert broker.confirm_delivery
    assert broker.middleware == []


def test_queues_and_actors_have_the_names_of_the_contract() -> None:
    assert synthesis_queue("hibari", device="cpu") == "cpu.hibari"
    assert synthesis_queue("voxcpm2", device="cuda") == "gpu.voxcpm2"
    assert [actor_of(queue) for queue in ("cpu.hibari", "gpu.x", MEDIA_QUEUE, WEBHOOK_QUEUE)] == [
        SYNTHESIZE,
        SYNTHESIZE,
        ENCODE,
        DELIVER,
    ]


@BOTH
def test_bells_are_counted_until_a_worker_takes_them(bell: BrokerBell) -> None:
    assert bell.waiting("cpu.counted") == 0

    bell.ring("cpu.counted", times=3)

    assert bell.waiting("cpu.counted") == 3
    assert bell.waiting("cpu.other") == 0
    bell.check()


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "amqp://u:p@127.0.0.1:1/"])
def test_a_broker_that_is_not_there_is_said_at_once(url: str) -> None:
    bell = BrokerBell(connect(url))

    begun = time.monotonic()
    for call in (lambda: bell.ring("cpu.x"), lambda: bell.waiting("cpu.x"), bell.check):
        with pytest.raises(BrokerUnavailable, match="refused"):
            call()
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize("url", ["redis://127.0.0.1:{}/0", "amqp://u:p@127.0.0.1:{}/"])
def test_a_broker_that_never_answers_is_given_up_after_two_seconds(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        bell = BrokerBell(connect(url.format(mute.getsockname()[1])))

        begun = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            bell.check()
        assert 1 < time.monotonic() - begun < 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "amqp"])
def test_a_broker_that_freezes_or_is_killed_holds_nobody_and_rings_again(kind: str) -> None:
    with servers.valkey() if kind == "redis" else servers.rabbitmq() as server:
        bell = BrokerBell(connect(server.url))
        calls = (lambda: bell.ring("cpu.x"), lambda: bell.waiting("cpu.x"), bell.check)
        bell.ring("cpu.x")

        server.pause()
        for call in calls:
            begun = time.monotonic()
            with pytest.raises(BrokerUnavailable):
                call()
            assert time.monotonic() - begun < 3
        server.resume()
        _until(lambda: _works(bell.check))

        server.kill()
        for call in calls:
            begun = time.monotonic()
            with pytest.raises(BrokerUnavailable):
                call()
            assert time.monotonic() - begun < 3
        server.start()
        for call in calls:
            call()


@BOTH
def test_a_bell_is_rung_from_any_number_of_threads(bell: BrokerBell) -> None:
    queue = "cpu.crowd"
    threads = [threading.Thread(target=bell.ring, args=(queue,), kwargs={"times": 5}) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert bell.waiting(queue) == 100


@pytest.mark.slow
def test_threads_share_one_connection_which_ends_when_nobody_asks(
    rabbitmq: servers.RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = connect(rabbitmq.url)
    assert isinstance(broker, line.Rabbitmq)
    bell = BrokerBell(broker)
    for _ in range(20):
        thread = threading.Thread(target=bell.check)
        thread.start()
        thread.join()
        assert len(broker.connections) == 1
    (connection,) = broker.connections

    monkeypatch.setattr(line, "IDLE_SECONDS", 0.1)
    bell.check()
    _until(lambda: not broker.connections)
    assert connection.is_closed
    bell.ring("cpu.idle")
    assert bell.waiting("cpu.idle") == 1


@pytest.mark.slow
def test_bells_that_nobody_hears_do_not_pile_up(
    rabbitmq: servers.RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "MOST_BELLS", 5)
    bell = BrokerBell(connect(rabbitmq.url))

    bell.ring("cpu.nobody", times=8)

    assert bell.waiting("cpu.nobody") == 5
    # None of them has become a dead letter.
    assert bell.waiting("cpu.nobody.XQ") == 0


@pytest.mark.slow
def test_a_queue_that_was_deleted_is_made_again(rabbitmq: servers.RabbitMQ) -> None:
    bell = BrokerBell(connect(rabbitmq.url))
    bell.ring("cpu.deleted")
    with pika.BlockingConnection(pika.URLParameters(rabbitmq.url)) as connection:
        connection.channel().queue_delete("cpu.deleted")

    bell.ring("cpu.deleted")

    assert bell.waiting("cpu.deleted") == 1


def test_a_silent_rabbitmq_keeps_no_greenlet_waiting() -> None:
    program = """if True:
        from gevent import monkey; monkey.patch_all()
        import gevent, socket
        from actors.bell import BrokerBell, BrokerUnavailable, connect
        mute = socket.create_server(("127.0.0.1", 0))
        bell = BrokerBell(connect(f"amqp://u:p@127.0.0.1:{mute.getsockname()[1]}/"))
        def check():
            try: bell.check()
            except BrokerUnavailable: return "away"
        waiting = [gevent.spawn(check) for _ in range(5)]
        ticks = 0
        while not all(greenlet.ready() for greenlet in waiting):
            gevent.sleep(0.01)
            ticks += 1
        print(ticks > 50, {greenlet.get() for greenlet in waiting})
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=20, check=True
    )

    assert done.stdout == "True {'away'}\n"


def test_a_missing_pika_is_said_with_the_name_of_the_extra() -> None:
    program = """if True:
        import sys; sys.modules["pika"] = None
        from actors.bell import connect
        connect("redis://127.0.0.1/0")
        connect("amqp://u:hunter2@127.0.0.1/")
    """
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)

    assert "SettingsError" in done.stderr
    assert "pip install 'voxfleet[rabbitmq]'" in done.stderr
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize(
    "url",
    [
        "amqp://u:hun#ter2@h/",
        "amqp://hunter2@h/",
        "amqp://u:hunter2@h/?hunter2=1",
        "amqp://h/;amqp://u:hunter2@i/",
        "redis://:hun#ter2@h/0",
    ],
)
def test_a_url_that_cannot_be_read_is_not_repeated(url: str) -> None:
    with pytest.raises(SettingsError, match="VOXFLEET_BROKER_URL") as refused:
        connect(url)

    assert "hun" not in str(refused.value)
    assert "ter2" not in str(refused.value)
    # Nor in the traceback.
    assert refused.value.__suppress_context__


@pytest.mark.slow
def test_a_password_is_told_to_nobody(rabbitmq: servers.RabbitMQ, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    right = BrokerBell(connect(rabbitmq.url))
    wrong = BrokerBell(connect(rabbitmq.url.replace(rabbitmq.password, "hunter2")))

    right.ring("cpu.told")
    with pytest.raises(BrokerUnavailable, match="ACCESS_REFUSED") as refused:
        wrong.check()

    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in caplog.text
    assert rabbitmq.password not in caplog.text


@pytest.mark.parametrize("scheme", ["redis", "rediss", "unix", "amqp", "amqps"])
def test_the_settings_take_every_kind_of_broker(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOXFLEET_BROKER_URL", f"{scheme}://u:hunter2@h/1")

    settings = load(embedded=False)

    assert settings.broker_url.get_secret_value().startswith(f"{scheme}://")
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    "url",
    [
        "amqq://u:hunter2@h/",
        "amqp://u:hun#ter2@h/",
        "amqp://u:12/hunter2@h/",
        "amqps://u:12?hunter2@h/",
        "amqp://h/;amqp://u:hunter2@i/",
        "redis://:hun#ter2@h/0",
    ],
)
def test_the_settings_refuse_another_url_without_its_password(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOXFLEET_BROKER_URL", url)

    with pytest.raises(ValidationError, match="broker_url") as refused:
        load(embedded=False)

    assert "hun" not in str(refused.value)
    assert "ter2" not in str(refused.value)


def _works(call: Callable[[], object]) -> bool:
    try:
        call()
    except BrokerUnavailable:
        return False
    return True


def _until(condition: Callable[[], object], *, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
