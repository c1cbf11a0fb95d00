"""One attempt at a webhook, against receivers that behave and receivers that do not."""

from __future__ import annotations

import ipaddress
import json
import time

import pytest
import standardwebhooks
from sqlalchemy import select, update

from actors import deliver as module
from actors.deliver import AttemptFailed, Outbox, deliver, send
from jobs.database import Database
from jobs.deliveries import DeliveryStore
from jobs.events import new_secret
from jobs.job import JobError
from jobs.store import JobStore
from jobs.tables import deliveries as table

from .conftest import ask
from .doubles import receiver

LOOPBACK = [ipaddress.ip_network("127.0.0.0/8")]
SECRET = new_secret()
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def _outbox(database: Database, *, allowed: bool = True) -> Outbox:
    return Outbox(
        holder="w",
        deliveries=DeliveryStore(database),
        secret=SECRET,
        allowed=LOOPBACK if allowed else [],
    )


def _failed_job(jobs: JobStore, url: str) -> str:
    """Leave one delivery to make; return its job."""
    job = ask(jobs, "some text", webhook_url=url)
    claim = jobs.claim("cpu.fake", holder="w")
    assert claim is not None
    jobs.fail(claim, JobError(code="x", message="한글, / and 🙂"))
    return job.id


def _row(database: Database) -> tuple[str, int, int | None, str | None]:
    with database.read() as connection:
        row = connection.execute(
            select(table.c.status, table.c.attempts, table.c.response_status, table.c.error)
        ).one()
    return row.status, row.attempts, row.response_status, row.error


def _due(database: Database) -> None:
    with database.write() as connection:
        connection.execute(update(table).values(visible_at=0.0))


def test_what_is_sent_is_what_was_signed(jobs: JobStore, database: Database) -> None:
    with receiver(OK) as hook:
        job_id = _failed_job(jobs, hook.url)
        deliver(_outbox(database))

        (request,) = hook.requests
    event = standardwebhooks.Webhook(SECRET).verify(request.body, request.headers)
    assert event["data"]["id"] == job_id
    assert event["id"] == request.headers["webhook-id"]
    assert request.path == "/hook?x=1"
    assert request.headers["host"] == hook.url.split("/")[2]
    assert request.headers["content-type"] == "application/json"
    assert json.loads(request.body)["data"]["error"]["message"] == "한글, / and 🙂"
    assert SECRET not in str(request.headers)
    assert _row(database) == ("delivered", 1, 200, None)


@pytest.mark.parametrize(
    ("answer", "state", "status"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", "delivered", 204),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "pending", 302),
        (b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno", "pending", 500),
        (b"HTTP/1.1 429 Later\r\nContent-Length: 0\r\n\r\n", "pending", 429),
        (b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n", "failed", 410),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort", "pending", None),
        (b"no HTTP at all\r\n\r\n", "pending", None),
        (b"", "pending", None),
    ],
)
def test_only_a_whole_answer_of_2xx_is_success(
    answer: bytes, state: str, status: int | None, jobs: JobStore, database: Database
) -> None:
    with receiver(answer) as hook:
        _failed_job(jobs, hook.url)
        deliver(_outbox(database))

        assert len(hook.requests) == 1
    assert _row(database)[:3] == (state, 1, status)


def test_a_delivery_is_given_up_after_five_attempts_with_the_same_id_and_body(
    jobs: JobStore, database: Database
) -> None:
    refusal = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"
    with receiver(*[refusal] * 6) as hook:
        _failed_job(jobs, hook.url)
        for _ in range(7):
            deliver(_outbox(database))
            _due(database)

        assert len(hook.requests) == 5
        assert len({request.headers["webhook-id"] for request in hook.requests}) == 1
        assert len({request.body for request in hook.requests}) == 1
    assert _row(database) == ("failed", 5, 503, "status 503")


def test_a_huge_answer_is_not_read_to_its_end(jobs: JobStore, database: Database) -> None:
    with receiver(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n" + b"x" * 200_000) as hook:
        _failed_job(jobs, hook.url)
        begun = time.monotonic()
        deliver(_outbox(database))

    assert time.monotonic() - begun < 3
    assert _row(database)[0] == "delivered"


@pytest.mark.parametrize("silence", [30.0, 90.0], ids=["silent", "dripping"])
def test_a_receiver_that_never_finishes_is_cut_at_the_total_limit(
    silence: float, jobs: JobStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOTAL_SECONDS", 0.6)
    with receiver(silence) as hook:
        _failed_job(jobs, hook.url)
        begun = time.monotonic()
        deliver(_outbox(database))

        assert time.monotonic() - begun < 2.5
    assert _row(database)[:2] == ("pending", 1)


def test_an_address_that_is_not_allowed_is_never_connected_to(jobs: JobStore, database: Database) -> None:
    with receiver(OK) as hook:
        _failed_job(jobs, hook.url)
        deliver(_outbox(database, allowed=False))

        assert hook.requests == []
    state, _, _, error = _row(database)
    assert state == "failed"
    assert error is not None
    assert "not public" in error


def test_a_name_that_turns_private_after_the_check_is_refused(
    jobs: JobStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "lookup", lambda name, port: ["10.0.0.5"])
    _failed_job(jobs, "https://hooks.example.org/x")

    deliver(_outbox(database, allowed=False))

    assert _row(database)[0] == "failed"


def test_a_name_that_does_not_resolve_is_tried_again(
    jobs: JobStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(name: str, port: int) -> list[str]:
        raise OSError("no such name")

    monkeypatch.setattr(module, "lookup", nobody)
    _failed_job(jobs, "https://hooks.example.org/x")

    deliver(_outbox(database))

    assert _row(database)[:2] == ("pending", 1)


def test_a_receiver_without_tls_is_not_spoken_to_over_https() -> None:
    with receiver(OK) as hook, pytest.raises(AttemptFailed):
        send(
            hook.url.replace("http://", "https://"),
            [ipaddress.ip_address("127.0.0.1")],
            headers={},
            body=b"{}",
        )


def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    with receiver(OK) as hook:
        status = send(
            hook.url,
            [ipaddress.ip_address("127.0.0.99"), ipaddress.ip_address("127.0.0.1")],
            headers={},
            body=b"{}",
        )

    assert status == 200
