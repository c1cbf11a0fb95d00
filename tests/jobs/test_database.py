"""Transactions, and what a caller sees when the database is locked, gone or back."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import NullPool, text
from sqlalchemy.exc import DBAPIError

from jobs import migrate
from jobs.database import Database, DatabaseUnavailable, connect

from .. import servers
from .databases import execute

LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
connection.close()
"""


def _count(database: Database) -> int:
    with database.read() as connection:
        return int(connection.execute(text("SELECT count(*) FROM workers")).scalar_one())


def _add(database: Database, worker: str) -> None:
    execute(database, "INSERT INTO workers (id, queue, seen_at) VALUES (:id, 'q', 0)", id=worker)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold SQLite's write lock from another process."""
    with subprocess.Popen(
        [sys.executable, "-c", LOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        yield
        holder.stdin.write("enough\n")
        holder.stdin.close()


def test_a_transaction_that_fails_leaves_nothing(database: Database) -> None:
    def fail() -> None:
        with database.write() as connection:
            connection.execute(text("INSERT INTO workers (id, queue, seen_at) VALUES ('w', 'q', 0)"))
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail()

    assert _count(database) == 0


def test_a_reader_cannot_write(database: Database) -> None:
    def write() -> None:
        with database.read() as connection:
            connection.execute(text("INSERT INTO workers (id, queue, seen_at) VALUES ('w', 'q', 0)"))

    with pytest.raises((DBAPIError, DatabaseUnavailable)):
        write()

    assert _count(database) == 0


def test_a_reader_sees_one_state_throughout(database: Database) -> None:
    count = text("SELECT count(*) FROM workers")
    with database.read() as connection:
        before = connection.execute(count).scalar_one()
        _add(database, "meanwhile")
        after = connection.execute(count).scalar_one()

    assert (before, after) == (0, 0)
    assert _count(database) == 1


def test_a_reader_waits_for_no_writer(database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("INSERT INTO workers (id, queue, seen_at) VALUES ('w', 'q', 0)"))
        assert _count(database) == 0
    assert _count(database) == 1


def test_the_clock_is_the_wall_clock_with_its_fractions(url: str) -> None:
    with closing(connect(url)) as database, database.write() as connection:
        readings = []
        for _ in range(20):
            readings.append(database.now(connection))
            time.sleep(0.002)

    assert abs(readings[0] - time.time()) < 5
    assert readings == sorted(readings)
    # It moves on within a transaction, and in steps well below a second.
    assert len({math.floor(reading * 1000) for reading in readings}) > 5


def test_a_pool_of_ones_own_choice_is_used(url: str) -> None:
    with closing(Database(url, poolclass=NullPool)) as database:
        _add(database, "w")
        assert _count(database) == 1


def test_another_kind_of_database_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="mysql"):
        Database("mysql://localhost/x")


def test_a_database_with_its_tables_is_in_order(database: Database) -> None:
    database.check()


def test_a_database_without_tables_is_not_in_order(empty_url: str) -> None:
    with closing(connect(empty_url)) as database, pytest.raises(DatabaseUnavailable):
        database.check()


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_a_locked_file_is_unavailable_for_writers_alone(url: str, tmp_path: Path) -> None:
    with closing(Database(url, busy_seconds=0.2)) as database:
        with _locked(tmp_path / "jobs.db"):
            begun = time.monotonic()
            with pytest.raises(DatabaseUnavailable, match="locked"):
                _add(database, "w")
            assert time.monotonic() - begun >= 0.2
            assert _count(database) == 0
        _add(database, "w")
        assert _count(database) == 1


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_a_writer_waits_for_a_short_lock(url: str, tmp_path: Path) -> None:
    with closing(Database(url, busy_seconds=30)) as database:
        with _locked(tmp_path / "jobs.db"):
            writer = threading.Thread(target=_add, args=(database, "w"))
            writer.start()
            time.sleep(0.1)
            assert writer.is_alive()
        writer.join(30)
        assert _count(database) == 1


def test_more_callers_than_connections_wait_no_longer_than_they_may(url: str) -> None:
    with closing(Database(url, busy_seconds=0.2)) as database:
        held = [database.read() for _ in range(15)]
        for read in held:
            read.__enter__()
        begun = time.monotonic()
        with pytest.raises(DatabaseUnavailable):
            _count(database)
        assert time.monotonic() - begun < 10
        for read in held:
            read.__exit__(None, None, None)
        assert _count(database) == 0


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_a_commit_survives_a_power_cut(database: Database) -> None:
    with database.write() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar_one() == 2  # FULL
        assert connection.execute(text("PRAGMA foreign_keys")).scalar_one() == 1


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_row_that_is_locked_too_long_is_unavailable(url: str) -> None:
    with closing(Database(url, busy_seconds=0.2)) as database:
        _add(database, "w")
        with database.write() as connection:
            connection.execute(text("UPDATE workers SET seen_at = 1"))
            with pytest.raises(DatabaseUnavailable):
                execute(database, "UPDATE workers SET seen_at = 2")
        execute(database, "UPDATE workers SET seen_at = 2")


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_connection_that_is_cut_is_unavailable_and_the_next_call_works(
    database: Database, postgres: servers.Postgres
) -> None:
    def be_cut() -> None:
        with database.write() as connection:
            connection.execute(text("INSERT INTO workers (id, queue, seen_at) VALUES ('w', 'q', 0)"))
            pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            postgres.execute(f"SELECT pg_terminate_backend({pid}, 5000)")
            connection.execute(text("SELECT 1"))

    with pytest.raises(DatabaseUnavailable):
        be_cut()

    assert _count(database) == 0


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_idle_connections_that_are_cut_go_unnoticed(database: Database, postgres: servers.Postgres) -> None:
    with database.read() as connection:
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
    postgres.execute(f"SELECT pg_terminate_backend({pid}, 5000)")

    assert _count(database) == 0
    _add(database, "w")


@pytest.mark.slow
def test_a_stopped_server_is_unavailable_until_it_is_back() -> None:
    with servers.postgres() as server:
        migrate.upgrade(server.url)
        with closing(connect(server.url, busy_seconds=2)) as database:
            _add(database, "before")
            server.stop()
            for _ in range(2):
                with pytest.raises(DatabaseUnavailable):
                    _count(database)
                with pytest.raises(DatabaseUnavailable):
                    _add(database, "meanwhile")
            server.start()
            _add(database, "after")
            assert _count(database) == 2


def _write_as_while_a_stand_by_takes_over(database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("SET TRANSACTION READ ONLY"))
        connection.execute(text("INSERT INTO workers (id, queue, seen_at) VALUES ('w', 'q', 0)"))


def test_a_server_that_is_read_only_for_a_while_is_unavailable(postgres: servers.Postgres) -> None:
    with postgres.database() as url:
        migrate.upgrade(url)
        with closing(connect(url)) as database:
            with pytest.raises(DatabaseUnavailable, match="read-only"):
                _write_as_while_a_stand_by_takes_over(database)
            _add(database, "w")
            assert _count(database) == 1


def test_nobody_listening_is_unavailable_and_the_password_is_not_told() -> None:
    (port,) = servers.free_ports(1)
    url = f"postgresql+psycopg://voxfleet:hunter2@127.0.0.1:{port}/voxfleet"
    with closing(connect(url, busy_seconds=2)) as database:
        with pytest.raises(DatabaseUnavailable) as raised:
            database.check()
        assert "hunter2" not in str(raised.value)


def test_a_folder_for_the_file_is_made(tmp_path: Path) -> None:
    with closing(connect(f"sqlite:///{tmp_path / 'a' / 'b' / 'jobs.db'}")) as database:
        with database.write() as connection:
            connection.execute(text("SELECT 1"))
        assert (tmp_path / "a" / "b" / "jobs.db").exists()
