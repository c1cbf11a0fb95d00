"""The servers of the tests: what a fault test relies on."""

from __future__ import annotations

import psycopg
import pytest
import redis

from storage.s3 import S3Store, connect

from . import servers

pytestmark = pytest.mark.slow


def test_a_valkey_comes_back_empty_on_its_port_and_a_durable_one_with_what_it_held() -> None:
    for durable in (False, True):
        with servers.valkey(durable=durable) as server, redis.Redis.from_url(server.url) as client:
            client.set("a", "b")
            server.kill()
            server.start()
            assert client.get("a") == (b"b" if durable else None)


def test_a_frozen_server_answers_nothing_until_it_is_resumed() -> None:
    with servers.valkey() as server:
        server.pause()
        assert not server.answers()
        server.resume()
        assert server.answers()


def test_a_seaweedfs_that_is_killed_comes_back_with_its_objects() -> None:
    with servers.seaweed() as server:
        store = _store(server)
        store.ensure_bucket()
        store.put("a", b"sound", content_type="audio/mpeg")
        server.kill()
        server.start()
        assert b"".join(store.get("a")) == b"sound"
        store.close()


def test_a_postgres_that_is_killed_comes_back_with_its_rows(postgres: servers.Postgres) -> None:
    with servers.postgres() as server, server.database() as url:
        _run(url, "CREATE TABLE t (n int)")
        server.kill()
        server.start()
        _run(url, "INSERT INTO t VALUES (1)")
        with postgres.database() as other, pytest.raises(psycopg.errors.UndefinedTable):
            _run(other, "SELECT * FROM t")


def test_a_server_that_ends_at_once_is_an_error_with_its_log() -> None:
    with servers.valkey() as server:
        port = server.port
        rival = servers.Valkey(folder=server.folder, port=port)
        rival.command = lambda: ["sh", "-c", "echo no luck; exit 3"]  # type: ignore[method-assign]
        server.pause()
        with pytest.raises(servers.ServerFailed, match="no luck"):
            rival.start()


def _store(server: servers.SeaweedFS) -> S3Store:
    return connect(
        endpoint=server.endpoint,
        region="us-east-1",
        bucket="t-restart",
        access_key_id=server.access_key_id,
        secret_access_key=server.secret_access_key,
    )


def _run(url: str, statement: str) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(statement.encode())
