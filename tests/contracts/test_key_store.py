"""What the key store promises, on SQLite and on PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobs.database import Database
from jobs.keys import KeyStore

from ..jobs.databases import START, Clock, rows


@pytest.fixture
def keys(database: Database) -> KeyStore:
    return KeyStore(database)


def test_a_new_key_is_a_tenant_and_is_known_again(keys: KeyStore) -> None:
    made = keys.create("laptop 🎧")

    known = keys.verify(made.secret)

    assert known is not None
    assert (known.id, known.tenant_id, known.name) == (made.id, made.tenant_id, "laptop 🎧")
    assert known.created_at == datetime.fromtimestamp(START, UTC)
    assert known.revoked_at is None
    assert made.secret.startswith("vf_live_")


def test_two_keys_are_two_tenants(keys: KeyStore) -> None:
    first, second = keys.create("same"), keys.create("same")

    assert first.tenant_id != second.tenant_id
    assert first.secret != second.secret


def test_a_secret_is_not_shown_by_accident(keys: KeyStore) -> None:
    made = keys.create("laptop")

    assert made.secret not in repr(made)


def test_only_a_hash_of_the_secret_is_kept(keys: KeyStore, database: Database, tmp_path: Path) -> None:
    made = keys.create("laptop")
    secret = made.secret.rpartition("_")[2]

    assert secret not in repr(rows(database, "api_keys"))
    for file in tmp_path.glob("jobs.db*"):
        assert secret.encode() not in file.read_bytes()


@pytest.mark.parametrize(
    "presented",
    [
        "",
        "vf_live_",
        "Bearer vf_live_00000000_00000000000000000000000000000000",
        "vf_live_00000000_00000000000000000000000000000000",
        "vf_live_00000000_" + "0" * 33,
        "vf_live_0000000\x00_" + "0" * 32,
        "vf_live_' OR '1'='1_" + "0" * 32,
        "vf_live_00000000_" + "0" * 31 + "é",
        "\ud800",
        "x" * 100_000,
    ],
)
def test_what_is_not_a_key_is_not_known(keys: KeyStore, presented: str) -> None:
    keys.create("laptop")

    assert keys.verify(presented) is None


def test_nearly_the_secret_is_not_enough(keys: KeyStore) -> None:
    made = keys.create("laptop")
    last = made.secret[-1]
    wrong = made.secret[:-1] + ("0" if last != "0" else "1")

    for presented in (wrong, made.secret + "\n", made.secret.upper(), f" {made.secret}"):
        assert keys.verify(presented) is None


def test_one_keys_secret_does_not_open_another(keys: KeyStore) -> None:
    first, second = keys.create("a"), keys.create("b")
    mixed = f"vf_live_{first.id}_{second.secret.rpartition('_')[2]}"

    assert keys.verify(mixed) is None


def test_a_revoked_key_is_not_known_any_more(keys: KeyStore, clock: Clock) -> None:
    made, other = keys.create("laptop"), keys.create("phone")
    clock.advance(60)

    assert keys.revoke(made.id)

    assert keys.verify(made.secret) is None
    assert keys.verify(other.secret) is not None
    assert not keys.revoke(made.id)
    assert not keys.revoke("unknown")
    revoked = {key.id: key.revoked_at for key in keys.list()}
    assert revoked == {made.id: datetime.fromtimestamp(START + 60, UTC), other.id: None}


def test_keys_are_listed_oldest_first(keys: KeyStore, clock: Clock) -> None:
    assert keys.list() == []
    made = []
    for number in range(3):
        made.append(keys.create(f"key {number}").id)
        clock.advance(1)

    assert [key.id for key in keys.list()] == made


def test_there_is_a_key_until_the_last_is_revoked(keys: KeyStore) -> None:
    assert not keys.any()
    made = [keys.create("a"), keys.create("b")]
    assert keys.any()

    keys.revoke(made[0].id)
    assert keys.any()
    keys.revoke(made[1].id)
    assert not keys.any()
