"""Webhooks as data: payload, signature, schedule."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from jobs.events import ENDINGS, SCHEDULE, decode_secret, event_payload, new_secret, signed_headers
from jobs.job import Job, Status

from .test_job import CREATED, a_job, completed_job, failed_job

AT = datetime(2026, 12, 1, 3, 20, 25, 123_000, UTC)
BODIES = {
    "nothing": "{}",
    "Korean": '{"text":"안녕하세요"}',
    "emoji": '{"text":"👩🏽‍🚀🎧"}',
    "slashes": '{"url":"https://a.example/b/c?d=1&e=2"}',
    "a nested null": '{"data":{"error":null,"list":[null,{"a":null}]}}',
    "spaces and newlines": '{ "a" :\n 1 }',
    "escapes": '{"a":"\\u0000\\ud83d\\ude00\\\\\\""}',
    "dots": '{"a":"evt.1.2"}',
}


def _now() -> int:
    return int(datetime.now(UTC).timestamp())


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_receiver_with_the_standards_own_library_accepts_it(body: str) -> None:
    secret = new_secret()
    sent = body.encode()

    headers = signed_headers("evt_1", sent, secret=secret, timestamp=_now())

    assert Webhook(secret).verify(sent, headers) == json.loads(body)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_receiver_refuses_what_was_changed(body: str) -> None:
    secret = new_secret()
    headers = signed_headers("evt_1", body.encode(), secret=secret, timestamp=_now())

    changed = [
        (body + " ", headers),
        (body, headers | {"webhook-id": "evt_2"}),
        (body, headers | {"webhook-timestamp": str(_now() + 1)}),
        (body, signed_headers("evt_1", body.encode(), secret=new_secret(), timestamp=_now())),
    ]
    for text, with_headers in changed:
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(text.encode(), with_headers)


def test_a_receiver_refuses_an_old_attempt() -> None:
    secret = new_secret()
    headers = signed_headers("evt_1", b"{}", secret=secret, timestamp=_now() - 3600)

    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(b"{}", headers)


def test_the_signature_is_that_of_the_standards_example() -> None:
    # standard-webhooks, libraries/python/tests: the signature of the reference implementation.
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    moment = datetime.fromtimestamp(1_614_265_330, UTC)
    expected = Webhook(secret).sign("msg_p5jXN8AQM9LWM0D4loKWxJek", moment, body.decode())

    headers = signed_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", body, secret=secret, timestamp=1_614_265_330)

    assert headers["webhook-signature"] == expected == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_secrets_are_new_each_time_and_hold_32_bytes() -> None:
    made = {new_secret() for _ in range(50)}

    assert len(made) == 50
    assert all(secret.startswith("whsec_") and len(decode_secret(secret)) == 32 for secret in made)


@pytest.mark.parametrize("size", [24, 32, 64])
def test_a_secret_of_the_standards_size_is_taken(size: int) -> None:
    key = bytes(range(size))

    assert decode_secret("whsec_" + base64.b64encode(key).decode()) == key


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_!!!", "whsec_" + "A" * 20, "whsec_" + "A" * 100, "안녕", "whsec_AAA"]
)
def test_another_secret_is_refused(secret: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever the decoder says
        decode_secret(secret)


def _payload(job: Job) -> str:
    return event_payload("evt_1", ENDINGS[job.status], job, at=AT, public_url="https://speech.example")


def test_a_completed_jobs_event_holds_the_job_and_no_signed_link() -> None:
    job = completed_job(metadata={"title": "안녕 🎧 / é"})

    payload = _payload(job)

    body = json.loads(payload)
    assert list(body) == ["id", "object", "type", "timestamp", "data"]
    assert (body["id"], body["object"], body["type"]) == ("evt_1", "event", "speech.job.completed")
    assert body["timestamp"] == "2026-12-01T03:20:25.123Z"
    assert body["data"]["metadata"] == {"title": "안녕 🎧 / é"}
    audio = body["data"]["result"]["audio"]
    assert audio["url"] == f"https://speech.example/v1/speech/jobs/{job.id}/audio"
    assert audio["url_expires_at"] is None
    assert "안녕 🎧 / é" in payload
    assert ": " not in payload
    assert payload.encode().decode() == payload


def test_a_failed_jobs_event_says_why() -> None:
    body = json.loads(_payload(failed_job()))

    assert body["type"] == "speech.job.failed"
    assert body["data"]["error"]["code"] == "engine_failed"
    assert body["data"]["result"] is None


@pytest.mark.parametrize("status", [Status.CANCELLED, Status.EXPIRED])
def test_a_job_that_nobody_wants_any_more_says_so(status: Status) -> None:
    body = json.loads(_payload(a_job(status=status, queue=None, completed_at=CREATED)))

    assert body["type"] == f"speech.job.{status.value}"
    assert (body["data"]["status"], body["data"]["error"], body["data"]["result"]) == (
        status.value,
        None,
        None,
    )


def test_there_are_five_attempts_within_three_hours_and_the_first_is_made_at_once() -> None:
    assert len(SCHEDULE) == 5
    assert SCHEDULE[0] == 0
    assert list(SCHEDULE) == sorted(SCHEDULE)
    assert timedelta(seconds=sum(SCHEDULE)) < timedelta(hours=3)
