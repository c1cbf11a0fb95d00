"""Webhooks as data: the event's payload, the signature, the schedule of attempts.

Standard Webhooks 1.0.0 (github.com/standard-webhooks/standard-webhooks, spec/standard-webhooks.md): the
signature covers `{id}.{timestamp}.{body}`, so the body is stored as it is sent and never made again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from jobs.job import Job, Status, rfc3339
from jobs.views import job_body

#: What the end of a job is called.
ENDINGS: Final[Mapping[Status, str]] = {
    Status.COMPLETED: "speech.job.completed",
    Status.FAILED: "speech.job.failed",
    Status.CANCELLED: "speech.job.cancelled",
    Status.EXPIRED: "speech.job.expired",
}

#: Seconds before each attempt, counted from the one before: five attempts within about 2 h 35 min.
SCHEDULE: Final = (0.0, 5.0, 300.0, 1800.0, 7200.0)

_SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - the standard's prefix


def event_payload(event_id: str, event_type: str, job: Job, *, at: datetime, public_url: str) -> str:
    """Return the body of an event, as it is signed and sent: UTF-8, compact, never changed again.

    It carries the stable `/audio` URL, not a signed link, which would be dead at a late attempt.
    """
    body = {
        "id": event_id,
        "object": "event",
        "type": event_type,
        "timestamp": rfc3339(at),
        "data": job_body(job, public_url=public_url),
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def new_secret() -> str:
    """Return a signing secret: `whsec_` and 32 random bytes in base64."""
    return _SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def decode_secret(secret: str) -> bytes:
    """Return the key bytes of a `whsec_` secret.

    Raises:
        ValueError: not base64, or fewer than 24 bytes.
    """
    key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    if not 24 <= len(key) <= 64:
        raise ValueError("a webhook secret holds 24 to 64 bytes")
    return key


def signed_headers(message_id: str, body: bytes, *, secret: str, timestamp: int) -> dict[str, str]:
    """Return the Standard Webhooks headers of one attempt.

    Args:
        message_id: the same at every attempt, so that the receiver can drop repeats.
        timestamp: seconds since the epoch of this attempt.
    """
    content = f"{message_id}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.new(decode_secret(secret), content, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }
