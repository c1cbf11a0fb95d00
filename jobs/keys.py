"""API keys: who may ask. A key is a tenant."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import RowMapping, exists, insert, select, update

from jobs.database import Database
from jobs.job import TenantId
from jobs.tables import api_keys

#: `vf_live_` lets secret scanners recognise a leaked key; the middle part finds the row.
_FORMAT: Final = re.compile(r"vf_live_([0-9a-z]{8})_([0-9a-z]{32})")
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key as it is stored: without the secret."""

    id: str
    tenant_id: TenantId
    name: str
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was just made; `secret` is shown once and kept nowhere."""

    id: str
    tenant_id: TenantId
    name: str
    secret: str = field(repr=False)


class KeyStore:
    """API keys, hashed. Thread-safe; raises `DatabaseUnavailable`."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def create(self, name: str) -> NewKey:
        """Make a key, and with it a tenant."""
        key_id, secret = _random(8), _random(32)
        new = NewKey(
            id=key_id, tenant_id=TenantId(f"ten_{key_id}"), name=name, secret=f"vf_live_{key_id}_{secret}"
        )
        with self._db.write() as connection:
            connection.execute(
                insert(api_keys).values(
                    id=new.id,
                    tenant_id=new.tenant_id,
                    name=name,
                    hash=_hash(new.secret),
                    created_at=self._db.now(connection),
                )
            )
        return new

    def verify(self, presented: str) -> ApiKey | None:
        """Return the key that `presented` is, or None for a malformed, unknown, wrong or revoked one."""
        match = _FORMAT.fullmatch(presented)
        if match is None:
            return None
        with self._db.read() as connection:
            row = (
                connection.execute(select(api_keys).where(api_keys.c.id == match[1])).mappings().one_or_none()
            )
        if row is None or row["revoked_at"] is not None:
            return None
        return _key(row) if hmac.compare_digest(row["hash"], _hash(presented)) else None

    def list(self) -> list[ApiKey]:
        """Return every key, oldest first."""
        with self._db.read() as connection:
            rows = connection.execute(select(api_keys).order_by(api_keys.c.created_at)).mappings()
            return [_key(row) for row in rows]

    def revoke(self, key_id: str) -> bool:
        """End a key; return whether there was a live one."""
        with self._db.write() as connection:
            result = connection.execute(
                update(api_keys)
                .where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
                .values(revoked_at=self._db.now(connection))
            )
            return result.rowcount == 1

    def any(self) -> bool:
        """Whether a live key exists."""
        with self._db.read() as connection:
            return bool(
                connection.execute(select(exists().where(api_keys.c.revoked_at.is_(None)))).scalar_one()
            )


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _key(row: RowMapping) -> ApiKey:
    revoked = row["revoked_at"]
    return ApiKey(
        id=row["id"],
        tenant_id=TenantId(row["tenant_id"]),
        name=row["name"],
        created_at=datetime.fromtimestamp(row["created_at"], UTC),
        revoked_at=None if revoked is None else datetime.fromtimestamp(revoked, UTC),
    )
