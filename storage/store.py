"""The object store port: bytes under a key.

Implementations are safe for use by several threads at once. Errors of the library below are translated
once, into the ones here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import BinaryIO, Protocol


class StoreError(Exception):
    """The store refused, for a reason that trying again will not mend."""


class ObjectNotFound(StoreError):
    """No object has this key."""


class AccessDenied(StoreError):
    """The credentials are wrong, or may not do this."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or is overloaded; the same call may succeed later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """What the store knows of an object without reading it."""

    key: str
    size: int
    etag: str
    last_modified: datetime
    content_type: str = ""
    cache_control: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


class ObjectStore(Protocol):
    """Bytes under a key."""

    def put(
        self,
        key: str,
        body: bytes | BinaryIO,
        *,
        content_type: str,
        metadata: Mapping[str, str] | None = None,
        cache_control: str | None = None,
    ) -> None:
        """Store `body` under `key`; nobody sees it before it is whole. Large bodies go up in parts.

        Raises:
            StoreUnavailable, AccessDenied, StoreError.
        """
        ...

    def get(self, key: str, *, chunk_size: int = 1 << 16) -> Iterator[bytes]:
        """Yield the bytes of `key`, in pieces of at most `chunk_size`.

        Raises:
            ObjectNotFound: before the first piece.
            StoreUnavailable: at any piece; a cut connection never looks like the end.
        """
        ...

    def head(self, key: str) -> StoredObject:
        """Describe `key`.

        Raises:
            ObjectNotFound.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete `key`; a missing one is no error."""
        ...

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield every object whose key starts with `prefix`.

        Keys of one folder come in order of their UTF-8 bytes; how a folder sorts against the keys beside
        it is the store's affair: S3 compares `a/b` and `a-` whole, SeaweedFS walks into `a` first.
        Content type, cache control and metadata are empty: a listing does not know them.
        """
        ...

    def check(self) -> None:
        """Return when the bucket can be used; cheap enough for a readiness probe.

        Raises:
            StoreUnavailable, AccessDenied, ObjectNotFound (no such bucket).
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A URL that gives an object to whoever holds it, until `expires_at`."""

    url: str
    expires_at: datetime


class LinkSigner(Protocol):
    """Makes links, without a network call."""

    def sign(self, key: str, *, seconds: int) -> Link:
        """Return a link to `key` that works for `seconds` (1 to 604,800).

        Raises:
            ValueError: `seconds` out of range.
        """
        ...
