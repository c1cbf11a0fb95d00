"""API keys in requests: where they stand, and who they belong to."""

from __future__ import annotations

import hashlib
import time
from typing import Final, Protocol

from werkzeug.datastructures import Headers

from api.problems import Unauthenticated
from jobs.job import TenantId
from jobs.keys import ApiKey

#: Far above the length of a key; what is longer is not even hashed.
LONGEST_KEY: Final = 128
#: How long a revoked key may still work here.
KEPT_SECONDS: Final = 5.0
KEPT_KEYS: Final = 1024


class Keys(Protocol):
    """Verifies keys."""

    def verify(self, presented: str) -> ApiKey | None:
        """Return the key that `presented` is, or None."""
        ...


def presented(headers: Headers) -> str:
    """Return the key of a request: `Authorization: Bearer`, else `xi-api-key`, else `X-API-Key`.

    Raises:
        Unauthenticated: there is none.
    """
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    key = token.strip() if scheme.lower() == "bearer" else ""
    key = key or headers.get("xi-api-key", "") or headers.get("X-API-Key", "")
    if not key:
        raise Unauthenticated("no API key: send `Authorization: Bearer KEY`")
    return key


class Doorkeeper:
    """Finds the tenant of a key; remembers good ones for a few seconds, by their hash. Thread-safe."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._known: dict[bytes, tuple[float, TenantId]] = {}

    def tenant(self, key: str) -> TenantId:
        """Return whose key it is.

        Raises:
            Unauthenticated: nobody's.
        """
        if len(key) > LONGEST_KEY or not key.isascii():
            raise Unauthenticated("the API key is not valid")
        digest = hashlib.sha256(key.encode()).digest()
        until, tenant = self._known.get(digest, (0.0, TenantId("")))
        if time.monotonic() < until:
            return tenant
        if (found := self._keys.verify(key)) is None:
            raise Unauthenticated("the API key is not valid")
        self._known.pop(digest, None)
        while len(self._known) >= KEPT_KEYS:
            self._known.pop(next(iter(self._known)), None)
        self._known[digest] = (time.monotonic() + KEPT_SECONDS, found.tenant_id)
        return found.tenant_id
