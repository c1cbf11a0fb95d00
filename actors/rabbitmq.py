"""RabbitMQ under the bells: Dramatiq's broker for it, and the one connection through which bells are rung.

Imported where the broker's URL asks for it and nowhere else: pika is an extra.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, Queue
from typing import Any, ClassVar, Final, TypeVar

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.errors import ConnectionClosed
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import AMQPError, ChannelClosedByBroker

#: A bell beyond these would wake nobody; RabbitMQ drops the oldest when nobody serves a queue.
MOST_BELLS: Final = 1000
HEARTBEAT_SECONDS: Final = 15
CONNECT_SECONDS: Final = 1.0
#: How long a caller waits, and how long TCP, TLS and the handshake may take together.
PATIENCE_SECONDS: Final = 2.0
#: Shorter than the heartbeat, which nobody answers while there is nothing to ask.
IDLE_SECONDS: Final = 10.0
NOT_FOUND: Final = 404

#: pika has errors outside of its own family, and lets those of the resolver through.
ERRORS: Final = (AMQPError, AMQPConnectorException, dramatiq.BrokerConnectionError, OSError)

_T = TypeVar("_T")


class Rabbitmq(RabbitmqBroker):
    """Dramatiq's broker, with queues of limited length and no connection that nobody looks after."""

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> dramatiq.Consumer:
        try:
            return super().consume(queue_name, prefetch, timeout)
        except (AMQPConnectorException, OSError) as error:
            raise ConnectionClosed(error) from error  # type: ignore[no-untyped-call]
        finally:
            # The queue was declared through a connection of this thread, beside the consumer's own: its
            # heartbeats would go unanswered.
            self.hang_up()

    def hang_up(self) -> None:
        """Close the connection of this thread, if it has one; the next command opens another."""
        connection = getattr(self.state, "connection", None)
        if connection is not None:
            # Dramatiq would log with a traceback that the server has closed it already.
            with contextlib.suppress(*ERRORS):
                connection.close()
        del self.connection

    def _build_queue_arguments(self, queue_name: str) -> dict[str, Any]:  # noqa: ARG002 - all are alike
        # No dead letters either: a bell that could not be answered is rung again by the sweeper.
        return {"x-max-length": MOST_BELLS}


def connect(url: str) -> Rabbitmq:
    """Return a broker for `url` that gives up within 2 s; nothing is connected yet.

    Raises:
        ValueError: it is not one AMQP URL.
    """
    # pika logs every failed attempt several times, with a traceback; the reason is in what it raises.
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    if ";" in url:
        raise ValueError("Dramatiq would take it for several")
    try:
        broker = Rabbitmq(url=url, middleware=[], confirm_delivery=True)
    except TypeError as error:  # a user without a password
        raise ValueError("a user and no password") from error
    server: Any = broker.parameters
    server.connection_attempts = 1
    server.socket_timeout = CONNECT_SECONDS
    server.stack_timeout = PATIENCE_SECONDS
    # When the server is short of memory or disk, it reads nothing more from us.
    server.blocked_connection_timeout = PATIENCE_SECONDS
    server.heartbeat = HEARTBEAT_SECONDS
    return broker


class RabbitmqLine:
    """One connection in a thread of its own, for every caller. Thread-safe.

    pika's waits have no limit, and Dramatiq would open a connection for each thread that asks and never close
    it. So a caller leaves an errand and waits for `PATIENCE_SECONDS`. When nothing was asked for a while, the
    connection is closed and the thread ends; the next errand starts another.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = ERRORS

    def __init__(self, broker: Rabbitmq) -> None:
        self._broker = broker
        self._errands: Queue[tuple[Callable[[], Any], Future[Any]]] = Queue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def send(self, message: dramatiq.Message[None]) -> None:
        """Send one message, and return when the server has it."""
        self._ask(lambda: self._broker.enqueue(message))

    def waiting(self, queue: str) -> int:
        """Return how many messages of `queue` no consumer has got yet."""
        return self._ask(lambda: self._count(queue))

    def check(self) -> None:
        """Ask the server for something that changes nothing."""
        self._ask(self._ping)

    def _ping(self) -> None:
        self._broker.channel.basic_qos()

    def _count(self, queue: str) -> int:
        try:
            declared = self._broker.channel.queue_declare(queue, passive=True)
        except ChannelClosedByBroker as error:
            if error.reply_code != NOT_FOUND:
                raise
            # The server has closed it.
            del self._broker.channel
            return 0
        return int(declared.method.message_count)

    def _ask(self, errand: Callable[[], _T]) -> _T:
        answer: Future[_T] = Future()
        with self._lock:
            self._errands.put((errand, answer))
            # Not before: gunicorn forks between import and the first request.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="bell", daemon=True)
                self._thread.start()
        try:
            return answer.result(PATIENCE_SECONDS)
        except TimeoutError:
            # What has not been begun is not done later.
            answer.cancel()
            raise TimeoutError(f"no answer within {PATIENCE_SECONDS:g} s") from None

    def _run(self) -> None:
        while True:
            try:
                errand, answer = self._errands.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if self._errands.empty():
                        self._thread = None
                        break
                continue
            if answer.set_running_or_notify_cancel():
                self._go(errand, answer)
        self._broker.hang_up()

    def _go(self, errand: Callable[[], _T], answer: Future[_T]) -> None:
        try:
            try:
                answer.set_result(errand())
            except AMQPError:
                # Most often the server closed the connection, or restarted, since the last errand.
                self._broker.hang_up()
                answer.set_result(errand())
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is waited for
            answer.set_exception(error)
