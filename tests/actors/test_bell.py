"""The broker that bells go through, and its settings: the ones that were asked for, on the real object."""

from __future__ import annotations

import socket
import time

import pytest
from redis.retry import Retry

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
from tests import servers


def test_the_broker_fails_fast_and_never_sends_twice() -> None:
    broker = connect("redis://127.0.0.1:1/0")

    options = broker.client.connection_pool.connection_kwargs
    assert options["socket_timeout"] == 2
    assert options["socket_connect_timeout"] == 1
    assert isinstance(options["retry"], Retry)
    assert options["retry"]._retries == 0
    assert broker.namespace == "voxfleet"
    assert broker.heartbeat_timeout == 15_000
    assert broker.maintenance_chance == 1_000_000
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


def test_bells_are_counted_until_a_worker_takes_them(valkey: servers.Valkey) -> None:
    bell = BrokerBell(connect(valkey.url))
    bell.ring("cpu.counted", times=3)

    assert bell.waiting("cpu.counted") == 3
    assert bell.waiting("cpu.other") == 0
    bell.check()


def test_a_broker_that_is_not_there_is_said_at_once() -> None:
    bell = BrokerBell(connect("redis://127.0.0.1:1/0"))

    begun = time.monotonic()
    for call in (lambda: bell.ring("cpu.x"), lambda: bell.waiting("cpu.x"), bell.check):
        with pytest.raises(BrokerUnavailable):
            call()
    assert time.monotonic() - begun < 2


def test_a_broker_that_never_answers_is_given_up_after_two_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        bell = BrokerBell(connect(f"redis://127.0.0.1:{mute.getsockname()[1]}/0"))

        begun = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            bell.check()
        assert 1 < time.monotonic() - begun < 4
