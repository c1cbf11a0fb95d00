"""What is known of the request in hand: its id, its caller, its beginning."""

from __future__ import annotations

import re
import time
import uuid
from typing import Final

from flask import g, request

from jobs.job import TenantId

_SANE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


def begin() -> None:
    """Note when the request began."""
    g.began = time.perf_counter()


def milliseconds() -> float:
    """Return how long the request has taken so far."""
    return 1000 * (time.perf_counter() - g.began) if "began" in g else 0.0


def request_id() -> str:
    """Return the caller's `X-Request-Id` if it is a sane one, else one of ours."""
    if "request_id" not in g:
        given = request.headers.get("X-Request-Id", "")
        g.request_id = given if _SANE_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
    return str(g.request_id)


def set_tenant(tenant_id: TenantId) -> None:
    """Note who asks."""
    g.tenant = tenant_id


def tenant() -> TenantId:
    """Return who asks; only where a key is needed."""
    return TenantId(g.tenant)


def tenant_or_dash() -> str:
    """Return who asks, or `-` where that is not known."""
    return str(g.get("tenant", "-"))
