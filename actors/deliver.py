"""A webhook bell rings: send one due event to its receiver, signed, and write down how it went."""

from __future__ import annotations

import http.client
import ipaddress
import logging
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from actors.bell import WEBHOOK_QUEUE
from jobs.database import DatabaseUnavailable
from jobs.deliveries import Delivery, DeliveryStore
from jobs.events import signed_headers
from jobs.job import Fenced
from jobs.targets import IpAddress, TargetRefused, TargetUnresolved, check_url, lookup

log = logging.getLogger("voxfleet.webhooks")

CONNECT_SECONDS: Final = 5.0
#: From the first SYN to the last byte that is read: a receiver that drips ends here too.
TOTAL_SECONDS: Final = 15.0
#: What a receiver says beyond this is not read.
MAX_RESPONSE_BYTES: Final = 64 * 1024
USER_AGENT: Final = "voxfleet/0.1"


class AttemptFailed(Exception):
    """The receiver could not be reached, or did not answer in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbox:
    """What the delivery actor works with."""

    holder: str
    deliveries: DeliveryStore
    #: `whsec_...`
    secret: str
    #: Networks that may be reached although they are not public.
    allowed: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]


def deliver(work: Outbox) -> None:
    """Make one attempt at the delivery that has been due the longest."""
    try:
        delivery = work.deliveries.claim(WEBHOOK_QUEUE, holder=work.holder)
    except DatabaseUnavailable as error:
        # The sweeper rings again.
        log.warning("no delivery could be claimed: %s", error)
        return
    if delivery is None:
        return
    try:
        _attempt(work, delivery)
    except Fenced:
        log.info("delivery %s is no longer ours", delivery.id)
    except DatabaseUnavailable as error:
        # The lease runs out, and the attempt is made again: the receiver knows it by its webhook-id.
        log.warning("delivery %s: %s", delivery.id, error)


def _attempt(work: Outbox, delivery: Delivery) -> None:
    host = urlsplit(delivery.url).hostname
    try:
        addresses = check_url(delivery.url, allowed=work.allowed, resolve=lookup)
        headers = signed_headers(
            delivery.event_id, delivery.payload, secret=work.secret, timestamp=int(time.time())
        )
        status = send(delivery.url, addresses, headers=headers, body=delivery.payload)
    except (TargetUnresolved, AttemptFailed) as error:
        log.info("delivery %s to %s: attempt failed: %s", delivery.id, host, error)
        work.deliveries.attempt_failed(delivery, error=str(error))
    except TargetRefused as error:
        log.warning("delivery %s to %s is refused: %s", delivery.id, host, error)
        work.deliveries.refused(delivery, error=str(error))
    else:
        log.info("delivery %s to %s: status %d", delivery.id, host, status)
        _judge(work, delivery, status)


def _judge(work: Outbox, delivery: Delivery, status: int) -> None:
    """2xx alone is success; a redirect is not followed; 410 says never again (Standard Webhooks 1.0.0)."""
    if 200 <= status < 300:
        work.deliveries.delivered(delivery, status=status)
    elif status == http.HTTPStatus.GONE:
        work.deliveries.refused(delivery, error="the receiver is gone", status=status)
    else:
        work.deliveries.attempt_failed(delivery, error=f"status {status}", status=status)


def send(url: str, addresses: Sequence[IpAddress], *, headers: dict[str, str], body: bytes) -> int:
    """POST `body` to one of `addresses` and return the status.

    The connection goes to an address that was checked, whatever the name resolves to by now; the
    certificate and the `Host` header are those of the name.

    Raises:
        AttemptFailed.
    """
    target = urlsplit(url)
    deadline = time.monotonic() + TOTAL_SECONDS
    with closing(_Line(_connect(target, addresses, deadline), deadline)) as line:
        try:
            if target.scheme == "https":
                line.secure(target.hostname or "")
            return _exchange(target, line.sock, headers=headers, body=body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = f"no whole answer within {TOTAL_SECONDS:g} s" if line.is_cut else _told(error)
            raise AttemptFailed(reason) from error


class _Line:
    """A connection that is cut at its deadline: reads that each stay below their timeout may have no end."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self.sock = sock
        self.is_cut = False
        self._timer = threading.Timer(max(0.0, deadline - time.monotonic()), self._cut)
        self._timer.daemon = True
        self._timer.start()

    def secure(self, name: str) -> None:
        """Speak TLS; the certificate must be that of `name`."""
        context = ssl.create_default_context()
        secured = context.wrap_socket(self.sock, server_hostname=name, do_handshake_on_connect=False)
        # The timer cuts the handshake as well.
        self.sock = secured
        secured.settimeout(TOTAL_SECONDS)
        secured.do_handshake()

    def close(self) -> None:
        self._timer.cancel()
        self.sock.close()

    def _cut(self) -> None:
        self.is_cut = True
        # An SSLSocket's own `shutdown` would drop its state under the reader's feet.
        with suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


def _connect(target: SplitResult, addresses: Sequence[IpAddress], deadline: float) -> socket.socket:
    port = target.port or (443 if target.scheme == "https" else 80)
    failure: OSError | None = None
    for address in addresses:
        left = min(CONNECT_SECONDS, deadline - time.monotonic())
        if left <= 0:
            break
        try:
            return socket.create_connection((str(address), port), timeout=left)
        except OSError as error:
            failure = error
    raise AttemptFailed(f"no connection: {failure or 'out of time'}")


def _exchange(target: SplitResult, sock: socket.socket, *, headers: dict[str, str], body: bytes) -> int:
    sock.settimeout(TOTAL_SECONDS)
    # Host and port serve the `Host` header alone: the socket is connected already.
    connection = http.client.HTTPConnection(target.hostname or "", target.port or _default_port(target))
    connection.default_port = _default_port(target)
    connection.sock = sock
    path = (target.path or "/") + (f"?{target.query}" if target.query else "")
    connection.request(
        "POST",
        path,
        body=body,
        headers={
            "Content-Type": "application/json",
            "User-Agent": USER_AGENT,
            "Connection": "close",
            **headers,
        },
    )
    response = connection.getresponse()
    wanted = min(response.length or MAX_RESPONSE_BYTES, MAX_RESPONSE_BYTES)
    if len(response.read(wanted)) < wanted and response.length:
        raise http.client.IncompleteRead(b"")
    return response.status


def _default_port(target: SplitResult) -> int:
    return 443 if target.scheme == "https" else 80


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
