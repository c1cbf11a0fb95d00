"""What the outbox promises, on SQLite and on PostgreSQL."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest

from jobs.database import Database
from jobs.deliveries import LEASE_SECONDS, Delivery, DeliveryStore
from jobs.events import SCHEDULE
from jobs.job import Fenced, JobError, JobId, NewJob, TenantId
from jobs.store import JobStore

from ..jobs.databases import START, Clock, everything, rows

QUEUE: Final = "cpu.webhooks"
URL: Final = "https://hooks.example/é?x=1"
LEASE: Final = LEASE_SECONDS


@pytest.fixture
def outbox(database: Database) -> DeliveryStore:
    return DeliveryStore(database)


@pytest.fixture
def announce(database: Database) -> Callable[[], JobId]:
    """Give what puts one delivery into the outbox: a job that fails."""
    store = JobStore(database, public_url="https://speech.example")

    def fail_one() -> JobId:
        store.create(
            NewJob(
                tenant_id=TenantId("ten_a"),
                input="안녕 🎧",
                model="tone",
                queue="cpu.tone",
                voice="sine",
                language="ko",
                response_format="mp3",
                seed=1,
                expires_in=86_400,
                metadata={"title": "안녕 🎧 / "},
                webhook_url=URL,
            )
        )
        claim = store.claim("cpu.tone", holder="worker")
        assert claim is not None
        return store.fail(claim, JobError(code="engine_failed", message="no sound")).id

    return fail_one


def _claim(outbox: DeliveryStore, holder: str = "sender") -> Delivery:
    delivery = outbox.claim(QUEUE, holder=holder)
    assert delivery is not None
    return delivery


def test_an_event_is_due_at_once_with_the_bytes_that_were_stored(
    outbox: DeliveryStore, database: Database, announce: Callable[[], JobId]
) -> None:
    job_id = announce()

    delivery = _claim(outbox)

    (event,) = rows(database, "events")
    assert (delivery.event_id, delivery.url, delivery.attempts) == (event["id"], URL, 0)
    assert delivery.payload == event["payload"].encode()
    body = json.loads(delivery.payload)
    assert body["data"]["id"] == job_id
    assert body["data"]["metadata"] == {"title": "안녕 🎧 / "}
    assert outbox.claim(QUEUE, holder="another") is None
    assert outbox.claim("cpu.other", holder="another") is None


def test_the_delivery_that_is_due_the_longest_comes_first(
    outbox: DeliveryStore, announce: Callable[[], JobId], clock: Clock
) -> None:
    made = []
    for _ in range(3):
        made.append(announce())
        clock.advance(1)

    assert [json.loads(_claim(outbox).payload)["data"]["id"] for _ in made] == made


def test_a_delivered_event_is_not_sent_again(
    outbox: DeliveryStore, database: Database, announce: Callable[[], JobId], clock: Clock
) -> None:
    announce()

    outbox.delivered(_claim(outbox), status=204)

    (row,) = rows(database, "deliveries")
    assert (row["status"], row["attempts"], row["response_status"]) == ("delivered", 1, 204)
    assert (row["queue"], row["completed_at"]) == (None, START)
    clock.advance(100_000)
    assert outbox.claim(QUEUE, holder="sender") is None


def test_a_refused_event_is_not_sent_again(
    outbox: DeliveryStore, database: Database, announce: Callable[[], JobId], clock: Clock
) -> None:
    announce()

    outbox.refused(_claim(outbox), error="the address is private")

    (row,) = rows(database, "deliveries")
    assert (row["status"], row["attempts"], row["error"]) == ("failed", 1, "the address is private")
    clock.advance(100_000)
    assert outbox.claim(QUEUE, holder="sender") is None


def test_there_are_five_attempts_on_schedule(
    outbox: DeliveryStore, database: Database, announce: Callable[[], JobId], clock: Clock
) -> None:
    announce()
    ids = set()
    for number, wait in enumerate(SCHEDULE):
        if wait:
            clock.advance(wait - 0.5)
            assert outbox.claim(QUEUE, holder="sender") is None
            clock.advance(0.5)
        delivery = _claim(outbox)
        ids.add(delivery.event_id)
        assert delivery.attempts == number
        outbox.attempt_failed(delivery, error=f"status 50{number}", status=500 + number)

    (row,) = rows(database, "deliveries")
    assert (row["status"], row["attempts"], row["response_status"]) == ("failed", 5, 504)
    assert row["error"] == "status 504"
    assert len(ids) == 1
    clock.advance(100_000)
    assert outbox.claim(QUEUE, holder="sender") is None


WRITES: Final[dict[str, Callable[[DeliveryStore, Delivery], None]]] = {
    "delivered": lambda outbox, delivery: outbox.delivered(delivery, status=200),
    "refused": lambda outbox, delivery: outbox.refused(delivery, error="gone"),
    "attempt_failed": lambda outbox, delivery: outbox.attempt_failed(delivery, error="late"),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("lost_to", ["another holder", "its own earlier answer"])
def test_whoever_lost_a_delivery_changes_nothing_of_it(
    outbox: DeliveryStore, clock: Clock, announce: Callable[[], JobId], name: str, lost_to: str
) -> None:
    announce()
    first = _claim(outbox)
    if lost_to == "another holder":
        clock.advance(LEASE)
        assert _claim(outbox, "another").epoch == first.epoch + 1
    else:
        outbox.attempt_failed(first, error="late")
    before = everything(clock.database)

    with pytest.raises(Fenced):
        WRITES[name](outbox, first)

    assert everything(clock.database) == before


def test_an_attempt_whose_sender_died_counts(
    outbox: DeliveryStore, announce: Callable[[], JobId], clock: Clock
) -> None:
    announce()
    assert _claim(outbox).attempts == 0
    clock.advance(LEASE)

    assert _claim(outbox).attempts == 1


def test_an_event_whose_senders_all_died_is_given_up(
    outbox: DeliveryStore, database: Database, announce: Callable[[], JobId], clock: Clock
) -> None:
    announce()
    for number in range(len(SCHEDULE)):
        assert _claim(outbox).attempts == number
        clock.advance(LEASE)
    other = announce()

    delivery = _claim(outbox)

    assert json.loads(delivery.payload)["data"]["id"] == other
    given_up = next(row for row in rows(database, "deliveries") if row["id"] != delivery.id)
    assert (given_up["status"], given_up["attempts"], given_up["queue"]) == ("failed", 5, None)
    assert given_up["error"]
    assert given_up["completed_at"] is not None


def test_an_error_with_a_nul_in_it_can_be_written_down(
    outbox: DeliveryStore, database: Database, announce: Callable[[], JobId]
) -> None:
    announce()

    outbox.attempt_failed(_claim(outbox), error="bad answer \x00\ud800 é")

    (row,) = rows(database, "deliveries")
    assert row["error"].startswith("bad answer ")
    assert "é" in row["error"]


def test_many_senders_at_once_get_each_delivery_once(
    outbox: DeliveryStore, announce: Callable[[], JobId], database: Database
) -> None:
    for _ in range(24):
        announce()
    taken: list[str] = []
    failed: list[BaseException] = []

    def send(holder: str) -> None:
        try:
            while (delivery := outbox.claim(QUEUE, holder=holder)) is not None:
                taken.append(delivery.id)
                outbox.delivered(delivery, status=200)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=send, args=(f"sender-{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failed
    assert Counter(taken) == Counter(row["id"] for row in rows(database, "deliveries"))
