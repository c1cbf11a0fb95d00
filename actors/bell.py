"""Bells: the names of queues and actors, and how a queue is rung.

A message is only a doorbell, "there is work on this queue": the row in SQL is the truth. So a bell may be
lost, doubled or late without harm, and this module knows no actor code: the API imports it alone.
"""

from __future__ import annotations

from typing import Final, Protocol

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from redis.backoff import NoBackoff
from redis.retry import Retry

NAMESPACE: Final = "voxfleet"
MEDIA_QUEUE: Final = "cpu.media"
WEBHOOK_QUEUE: Final = "cpu.webhooks"
#: No bell is rung there: the name under which the sweeper shows itself among the workers.
SWEEPER_QUEUE: Final = "sweeper"
SYNTHESIZE: Final = "synthesize"
ENCODE: Final = "encode"
DELIVER: Final = "deliver"


def synthesis_queue(model: str, *, device: str) -> str:
    """Return the queue of a model: `cpu.<model>`, or `gpu.<model>` on any accelerator."""
    return f"{'cpu' if device == 'cpu' else 'gpu'}.{model}"


def actor_of(queue: str) -> str:
    """Return the name of the actor that serves `queue`."""
    return {MEDIA_QUEUE: ENCODE, WEBHOOK_QUEUE: DELIVER}.get(queue, SYNTHESIZE)


class BrokerUnavailable(Exception):
    """The broker could not be reached in time."""


class Bell(Protocol):
    """Rings queues."""

    def ring(self, queue: str, *, times: int = 1) -> None:
        """Tell one idle worker of `queue` that there is work.

        Raises:
            BrokerUnavailable: within seconds; nothing is lost, the sweeper rings again.
        """
        ...

    def waiting(self, queue: str) -> int:
        """Return how many bells of `queue` no worker has taken yet."""
        ...

    def check(self) -> None:
        """Return when the broker answers.

        Raises:
            BrokerUnavailable.
        """
        ...


def connect(url: str) -> RedisBroker:
    """Return a broker for `url` that fails within 2 s instead of sending twice.

    redis-py 8 retries ten times by default, which pushed the same message twice when an answer was lost;
    `RedisBroker(url=..., socket_timeout=...)` silently drops the options: so the pool is built here.
    """
    pool = redis.ConnectionPool.from_url(
        url, retry=Retry(NoBackoff(), 0), socket_timeout=2, socket_connect_timeout=1
    )
    return RedisBroker(  # type: ignore[no-untyped-call]
        client=redis.Redis(connection_pool=pool),
        namespace=NAMESPACE,
        middleware=[],
        heartbeat_timeout=15_000,
        # Maintenance on every command: with the default a dead worker's bell waits for minutes.
        maintenance_chance=1_000_000,
    )


class BrokerBell:
    """Bells through Dramatiq's Redis broker. Thread-safe."""

    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker

    def ring(self, queue: str, *, times: int = 1) -> None:
        self._broker.declare_queue(queue)
        message: dramatiq.Message[None]
        for _ in range(times):
            message = dramatiq.Message(
                queue_name=queue, actor_name=actor_of(queue), args=(), kwargs={}, options={}
            )
            try:
                self._broker.enqueue(message)
            except (redis.RedisError, dramatiq.BrokerConnectionError) as error:
                raise BrokerUnavailable(f"cannot ring {queue}: {error}") from error

    def waiting(self, queue: str) -> int:
        try:
            return int(self._broker.client.llen(f"{NAMESPACE}:{queue}"))
        except redis.RedisError as error:
            raise BrokerUnavailable(f"cannot count the bells of {queue}: {error}") from error

    def check(self) -> None:
        try:
            self._broker.client.ping()
        except redis.RedisError as error:
            raise BrokerUnavailable(str(error)) from error
