"""Those who use the fleet during the storm: clients that do not give up, and receivers of webhooks."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self

import urllib3

from tests.faults.arena import Arena
from tests.faults.orders import Order

#: As many orders are under way at once.
CLIENTS: Final = 24
WATCHERS: Final = 2
#: Between two tries of a request.
PAUSE_SECONDS: Final = 0.3
#: So long a client goes on trying.
PATIENCE_SECONDS: Final = 240.0
#: Longer than the fleet waits for a receiver.
HANG_SECONDS: Final = 20.0
#: What a request may be answered in a storm; no answer at all is allowed as well.
BUSY: Final = frozenset({429, 503})
TERMINAL: Final = frozenset({"completed", "failed", "cancelled", "expired"})


@dataclass(slots=True)
class Receipt:
    """What a client knows of its order."""

    order: Order
    #: The job, once a 202 has arrived.
    job_id: str | None = None
    #: Requests that may have made a job.
    attempts: int = 0
    #: What the last request to cancel was answered; None without one.
    cancel_status: int | None = None
    #: Whether an answer to a request to cancel was lost.
    cancel_lost: bool = False
    accepted_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a receiver got."""

    path: str
    headers: dict[str, str]
    body: bytes
    #: 0 where it never answered.
    answered: int
    at: float


class Receivers:
    """Webhook receivers: `/honest/N` says 200, `/flaky/N` first 500, `/hanging/N` first nothing."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._over = threading.Event()
        receivers = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receivers.answer(self, body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        # A client that was killed is no news.
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="receivers")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        path = request.path
        with self._lock:
            self._seen[path] += 1
            is_first = self._seen[path] == 1
        status = 500 if is_first and path.startswith("/flaky/") else 200
        if is_first and path.startswith("/hanging/"):
            status = 0
        headers = {name.lower(): value for name, value in request.headers.items()}
        got = Request(path=path, headers=headers, body=body, answered=status, at=time.time())
        with self._lock:
            self.requests.append(got)
        if status == 0:
            self._over.wait(HANG_SECONDS)
            return
        request.send_response(status)
        request.send_header("Content-Length", "0")
        request.end_headers()


@dataclass
class Clients:
    """Place orders, cancel some, and watch all that was accepted; each from a thread of its own."""

    arena: Arena
    hooks: str
    receipts: list[Receipt] = field(default_factory=list)
    #: (what was asked, status) and how often; status 0 is no answer.
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    #: What should never have been seen.
    complaints: list[str] = field(default_factory=list)
    _http: urllib3.PoolManager = field(
        default_factory=lambda: urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(15), maxsize=64)
    )
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._pool = ThreadPoolExecutor(CLIENTS, thread_name_prefix="client")
        self._watchers = [
            threading.Thread(target=self._watch, args=(number,), name="watcher") for number in range(WATCHERS)
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._pool.shutdown(cancel_futures=True)
        for watcher in self._watchers:
            if watcher.is_alive():
                watcher.join()
        self._http.clear()

    def begin(self, orders: Sequence[Order]) -> list[Future[None]]:
        """Place the orders, each at its time from now on."""
        begun = time.monotonic()
        self.receipts = [Receipt(order) for order in orders]
        for watcher in self._watchers:
            watcher.start()
        return [self._pool.submit(self._serve, receipt, begun) for receipt in self.receipts]

    def _serve(self, receipt: Receipt, begun: float) -> None:
        order = receipt.order
        if self._over.wait(max(0.0, begun + order.at - time.monotonic())):
            return
        self._place(receipt)
        if order.cancel_after is not None and not self._over.wait(order.cancel_after):
            self._cancel(receipt)

    def _place(self, receipt: Receipt) -> None:
        order = receipt.order
        body: dict[str, Any] = {"input": order.text, "metadata": {"order": str(order.number)}}
        if order.job_class is not None:
            body["class"] = order.job_class
        if order.deadline is not None:
            body["deadline"] = order.deadline
        if order.hook is not None:
            body["webhook_url"] = f"{self.hooks}/{order.hook}/{order.number}"
        end = time.monotonic() + PATIENCE_SECONDS
        while not self._over.is_set():
            receipt.attempts += 1
            status, answer = self._ask(order.tenant, "POST", "/v1/speech/jobs", "place", body)
            if status == 202:
                receipt.accepted_at = time.time()
                receipt.job_id = str(answer["id"])
                self.arena.journal.note("accepted", order=order.number, job=receipt.job_id)
                return
            if status not in BUSY and status != 0:
                self._complain(f"order {order.number}: POST answered {status}: {answer}")
                return
            if time.monotonic() > end:
                self._complain(f"order {order.number} was not accepted within {PATIENCE_SECONDS:g} s")
                return
            self._over.wait(PAUSE_SECONDS)

    def _cancel(self, receipt: Receipt) -> None:
        if receipt.job_id is None:
            return
        path = f"/v1/speech/jobs/{receipt.job_id}/cancel"
        end = time.monotonic() + PATIENCE_SECONDS
        while not self._over.is_set() and time.monotonic() < end:
            status, answer = self._ask(receipt.order.tenant, "POST", path, "cancel")
            if status in (200, 409):
                receipt.cancel_status = status
                self.arena.journal.note("cancel", job=receipt.job_id, status=status)
                return
            receipt.cancel_lost = True
            if status not in BUSY and status != 0:
                self._complain(f"{receipt.job_id}: cancel answered {status}: {answer}")
                return
            self._over.wait(PAUSE_SECONDS)

    def _watch(self, number: int) -> None:
        """Look at accepted jobs: their version never falls, and an end is final."""
        dice = random.Random(number)
        last: dict[str, tuple[int, str]] = {}
        while not self._over.wait(0.1):
            accepted = [receipt for receipt in self.receipts if receipt.job_id is not None]
            if not accepted:
                continue
            receipt = dice.choice(accepted)
            status, job = self._ask(receipt.order.tenant, "GET", f"/v1/speech/jobs/{receipt.job_id}", "look")
            if status not in (0, 200, *BUSY):
                self._complain(f"{receipt.job_id}: GET answered {status}: {job}")
            if status != 200:
                continue
            version, state = int(job["version"]), str(job["status"])
            before = last.get(job["id"])
            if before is not None and version < before[0]:
                self._complain(f"{job['id']}: version {version} after {before[0]}")
            if before is not None and before[1] in TERMINAL and state != before[1]:
                self._complain(f"{job['id']} is {state} after it was {before[1]}")
            last[job["id"]] = (version, state)

    def _ask(
        self, tenant: int, method: str, path: str, what: str, body: object = None
    ) -> tuple[int, dict[str, Any]]:
        """Return status and body; status 0 where no whole answer came."""
        headers = {"Authorization": f"Bearer {self.arena.secrets[tenant]}"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            answer = self._http.request(
                method,
                f"http://127.0.0.1:{self.arena.api_line.port}{path}",
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                redirect=False,
            )
            status, found = answer.status, dict(answer.json())
        except (urllib3.exceptions.HTTPError, ValueError, OSError):
            status, found = 0, {}
        with self._lock:
            self.answers[what, status] += 1
        if status >= 500 and status != 503:
            self._complain(f"{method} {path} answered {status}: {found}")
        return status, found

    def _complain(self, what: str) -> None:
        with self._lock:
            self.complaints.append(what)
        self.arena.journal.note("complaint", text=what)
