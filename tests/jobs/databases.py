"""Databases for tests: SQLite and PostgreSQL, migrated, with a clock that stands still until it is moved."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from sqlalchemy import Connection, create_engine, text

from jobs import migrate
from jobs.database import Database

from ..servers import Postgres

DIALECTS: Final = ("sqlite", "postgresql")
#: 2026-12-01T00:00:00Z
START: Final = 1_796_083_200.0
NOW: Final = "(SELECT at FROM clock)"
TABLES: Final = ("jobs", "clips", "objects", "events", "deliveries", "workers", "api_keys")


@dataclass(frozen=True, slots=True)
class Clock:
    """The time that the stores of a test live in."""

    database: Database

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self.database.write() as connection:
            connection.execute(text("UPDATE clock SET at = at + :seconds"), {"seconds": seconds})


def rows(database: Database, table: str) -> list[dict[str, Any]]:
    """Return what a table holds, in an order that is always the same."""
    with database.read() as connection:
        return _rows(connection, table)


def everything(database: Database) -> dict[str, list[dict[str, Any]]]:
    """Return what all tables hold."""
    with database.read() as connection:
        return {table: _rows(connection, table) for table in TABLES}


def _rows(connection: Connection, table: str) -> list[dict[str, Any]]:
    found = connection.execute(text(f"SELECT * FROM {table}")).mappings()  # noqa: S608 - our own names
    return sorted((dict(row) for row in found), key=repr)


def execute(database: Database, statement: str, **values: Any) -> None:
    """Change the database behind the stores' backs."""
    with database.write() as connection:
        connection.execute(text(statement), values)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a migrated SQLite file with a clock, to be copied."""
    path = tmp_path_factory.mktemp("template") / "template.db"
    _prepare(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def postgresql_url(postgres: Postgres) -> Iterator[str]:
    """Give the URL of a migrated PostgreSQL database with a clock, emptied before each test."""
    with postgres.database() as url:
        _prepare(url)
        yield url


@pytest.fixture
def url(request: pytest.FixtureRequest, dialect: str, tmp_path: Path) -> Iterator[str]:
    """Give the URL of a migrated database of `dialect` that nobody else uses."""
    if dialect == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "jobs.db")
        yield f"sqlite:///{tmp_path / 'jobs.db'}"
        return
    postgresql_url: str = request.getfixturevalue("postgresql_url")
    _empty(postgresql_url)
    yield postgresql_url


@pytest.fixture
def empty_url(request: pytest.FixtureRequest, dialect: str, tmp_path: Path) -> Iterator[str]:
    """Give the URL of a database of `dialect` without any table."""
    if dialect == "sqlite":
        yield f"sqlite:///{tmp_path / 'new' / 'empty.db'}"
        return
    with request.getfixturevalue("postgres").database() as url:
        yield url


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """Give a migrated database whose time stands still."""
    with closing(Database(url, now=NOW)) as opened:
        yield opened


@pytest.fixture
def clock(database: Database) -> Clock:
    """Give the clock of `database`."""
    return Clock(database)


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    """Give the name of each kind of database in turn."""
    return str(request.param)


def _empty(url: str) -> None:
    with closing(psycopg.connect(url.replace("+psycopg", ""), autocommit=True)) as connection:
        # To make a database anew for each test would take most of the suite's time.
        for table in ("deliveries", "events", "clips", "jobs", "objects", "workers", "api_keys"):
            connection.execute(f"DELETE FROM {table}".encode())  # noqa: S608 - our own names
        connection.execute(b"UPDATE clock SET at = %s", [START])


def _prepare(url: str) -> None:
    migrate.upgrade(url)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE clock (at double precision NOT NULL)"))
        connection.execute(text("INSERT INTO clock VALUES (:at)"), {"at": START})
    engine.dispose()
