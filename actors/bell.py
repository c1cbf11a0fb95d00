"""Bells: the names of queues and actors, and how a queue is rung.

A message is only a doorbell, "there is work on this queue": the row in SQL is the truth. So a bell may be
lost, doubled or late without harm, and this module knows no actor code: the API imports it alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import ClassVar, Final, Protocol

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from redis.backoff import NoBackoff
from redis.retry import Retry

from config.settings import SettingsError

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


def connect(url: str) -> dramatiq.Broker:
    """Return a broker for `url` that fails within 2 s instead of hanging; nothing is connected yet.

    Raises:
        SettingsError: the URL cannot be read, or what it asks for is not installed. The URL stays out of
            the message: it may hold a password.
    """
    open_broker = _rabbitmq().connect if url.startswith(("amqp://", "amqps://")) else _connect_redis
    try:
        broker: dramatiq.Broker = open_broker(url)
    except ValueError:
        raise SettingsError(
            "VOXFLEET_BROKER_URL cannot be read; special characters in a password are written as %XX"
        ) from None
    return broker


def _connect_redis(url: str) -> RedisBroker:
    """Return a broker that sends nothing twice.

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


def _rabbitmq() -> ModuleType:
    try:
        from actors import rabbitmq  # noqa: PLC0415 - pika is an extra
    except ModuleNotFoundError as error:
        if error.name != "pika":
            raise
        raise SettingsError(
            "VOXFLEET_BROKER_URL asks for RabbitMQ, and pika is not installed: "
            "pip install 'voxfleet[rabbitmq]'"
        ) from error
    return rabbitmq


class Line(Protocol):
    """How one kind of broker is spoken to. Thread-safe.

    Attributes:
        errors: what its methods raise, within seconds, when the broker is away or silent.
    """

    errors: ClassVar[tuple[type[Exception], ...]]

    def send(self, message: dramatiq.Message[None]) -> None:
        """Send one message."""
        ...

    def waiting(self, queue: str) -> int:
        """Return how many messages of `queue` no worker has taken yet."""
        ...

    def check(self) -> None:
        """Return when the broker answers."""
        ...


class _RedisLine:
    errors: ClassVar[tuple[type[Exception], ...]] = (redis.RedisError, dramatiq.BrokerConnectionError)

    def __init__(self, broker: RedisBroker) -> None:
        self._broker = broker

    def send(self, message: dramatiq.Message[None]) -> None:
        self._broker.declare_queue(message.queue_name)
        self._broker.enqueue(message)

    def waiting(self, queue: str) -> int:
        return int(self._broker.client.llen(f"{NAMESPACE}:{queue}"))

    def check(self) -> None:
        self._broker.client.ping()


class BrokerBell:
    """Bells through a broker of `connect`. Thread-safe."""

    def __init__(self, broker: dramatiq.Broker) -> None:
        self._line: Line = (
            _RedisLine(broker) if isinstance(broker, RedisBroker) else _rabbitmq().RabbitmqLine(broker)
        )

    def ring(self, queue: str, *, times: int = 1) -> None:
        for _ in range(times):
            message: dramatiq.Message[None] = dramatiq.Message(
                queue_name=queue, actor_name=actor_of(queue), args=(), kwargs={}, options={}
            )
            with self._reached(f"cannot ring {queue}: "):
                self._line.send(message)

    def waiting(self, queue: str) -> int:
        with self._reached(f"cannot count the bells of {queue}: "):
            return self._line.waiting(queue)

    def check(self) -> None:
        with self._reached():
            self._line.check()

    @contextmanager
    def _reached(self, failure: str = "") -> Iterator[None]:
        try:
            yield
        except self._line.errors as error:
            # pika's errors often have no text.
            raise BrokerUnavailable(f"{failure}{str(error) or repr(error)}") from error
