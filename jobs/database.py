"""One SQL database, SQLite or PostgreSQL: connections, transactions, the clock, and its errors translated."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import Pool, QueuePool

#: SQLite sleeps 1 ms, then 2 ms, before it gives up for this time.
_LOOK_MS: Final = 3
#: SQLite before 3.42 answers `unixepoch('subsec')` with NULL and no error.
_SQLITE_NOW: Final = "(julianday('now') - 2440587.5) * 86400.0"
#: The wall clock; `now()` would be the start of the transaction.
_POSTGRESQL_NOW: Final = "extract(epoch from clock_timestamp())::float8"


#: PostgreSQL's classes of errors that pass: connections, resources, an operator at work, a server that is
#: read-only while another takes over, two transactions in each other's way.
#: https://www.postgresql.org/docs/current/errcodes-appendix.html
_PASSING: Final = ("08", "53", "57P", "25006", "40")


class DatabaseUnavailable(Exception):
    """The database cannot be reached, or is locked for longer than the caller may wait."""


class Database:
    """Connections to one database. Thread-safe.

    SQLite has one writer at a time: `write` takes the lock at once (a transaction that reads first and
    then writes fails under another writer, whatever the timeout), `read` is a connection that cannot write
    and waits for nobody.
    """

    def __init__(
        self,
        url: str,
        *,
        busy_seconds: float = 10.0,
        now: str | None = None,
        poolclass: type[Pool] | None = None,
    ) -> None:
        """Prepare connections; nothing is opened yet.

        Args:
            busy_seconds: how long to wait for SQLite's write lock or a row lock before `DatabaseUnavailable`.
            now: SQL expression of the present time in seconds since the epoch; for tests that move time.
            poolclass: SQLAlchemy pool, where the default one does not fit the caller's threads.
        """
        parsed = make_url(url)
        self.dialect: Final = parsed.get_backend_name()
        pool: dict[str, Any] = {"poolclass": poolclass or QueuePool}
        if issubclass(pool["poolclass"], QueuePool):
            pool["pool_timeout"] = busy_seconds
        if self.dialect == "sqlite":
            if parsed.database and parsed.database != ":memory:":
                Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
            self._now = now or _SQLITE_NOW
            self._writer = _sqlite(url, busy_seconds, pool, query_only=False)
            self._reader = _sqlite(url, busy_seconds, pool, query_only=True)
        elif self.dialect == "postgresql":
            self._now = now or _POSTGRESQL_NOW
            milliseconds = int(busy_seconds * 1000)
            self._writer = create_engine(
                url,
                pool_pre_ping=True,
                connect_args={
                    "connect_timeout": max(2, int(busy_seconds)),
                    # A peer that is gone without a word is noticed, where only the network would know.
                    "tcp_user_timeout": 2 * milliseconds,
                    "keepalives_idle": 10,
                    "keepalives_interval": 5,
                    "keepalives_count": 3,
                    "options": f"-c lock_timeout={milliseconds} -c statement_timeout={6 * milliseconds}",
                },
                **pool,
            )
            # The same pool; each statement of a READ COMMITTED transaction would see another state.
            self._reader = self._writer.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        else:
            raise ValueError(f"database {self.dialect!r} is not supported; use sqlite:/// or postgresql://")

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Give a connection for reading; it sees one state of the database throughout.

        Raises:
            DatabaseUnavailable.
        """
        with _translated(), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Give a connection in a transaction that commits at the end, or not at all on an error.

        Raises:
            DatabaseUnavailable: then it is not known whether a commit took place.
        """
        with _translated(), self._writer.begin() as connection:
            yield connection

    def now(self, connection: Connection) -> float:
        """Return the database's clock, in seconds since the epoch."""
        return float(connection.execute(text(f"SELECT {self._now}")).scalar_one())

    @property
    def locking(self) -> str:
        """What a SELECT of a row to be claimed ends with; SQLite's write lock needs nothing."""
        return "FOR UPDATE SKIP LOCKED" if self.dialect == "postgresql" else ""

    def check(self) -> None:
        """Return when the database answers and has its tables.

        Raises:
            DatabaseUnavailable.
        """
        try:
            with self.read() as connection:
                connection.execute(text("SELECT 1 FROM jobs LIMIT 1"))
        except ProgrammingError as error:
            raise DatabaseUnavailable(_first_line(error)) from error

    def close(self) -> None:
        """Close every idle connection."""
        self._reader.dispose()
        self._writer.dispose()


def connect(url: str, *, busy_seconds: float = 10.0) -> Database:
    """Return the database at a SQLAlchemy `url`."""
    return Database(url, busy_seconds=busy_seconds)


def _sqlite(url: str, busy_seconds: float, pool: dict[str, Any], *, query_only: bool) -> Engine:
    engine = create_engine(url, connect_args={"timeout": busy_seconds}, **pool)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: object) -> None:
        # The driver would begin transactions by itself, and too late.
        connection.isolation_level = None
        cursor = connection.cursor()
        if query_only:
            cursor.execute("PRAGMA query_only=ON")
        else:
            cursor.execute("PRAGMA journal_mode=WAL")
            # A 202 survives a power cut.
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if query_only:
            connection.exec_driver_sql("BEGIN")
        else:
            _begin_writing(connection, busy_seconds)

    return engine


def _begin_writing(connection: Connection, busy_seconds: float) -> None:
    """Take SQLite's write lock.

    While the lock is taken, SQLite's own busy handler sleeps longer each time, soon 100 ms, however short
    the others' transactions are; asked anew every few milliseconds, a waiter gets it when it comes free.

    Raises:
        DatabaseUnavailable: not within `busy_seconds`.
    """
    cursor = connection.connection.cursor()
    end = time.monotonic() + busy_seconds
    cursor.execute(f"PRAGMA busy_timeout={_LOOK_MS}")
    try:
        while True:
            try:
                cursor.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                # The low byte: the others say why it is busy.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= end:
                    raise DatabaseUnavailable(storable(str(error))) from error
            else:
                return
    finally:
        cursor.execute(f"PRAGMA busy_timeout={int(busy_seconds * 1000)}")
        cursor.close()


def storable(message: str) -> str:
    """Return a foreign message as every database takes it: no NUL, no lone surrogates."""
    return message.encode("utf-8", "replace").decode().replace("\x00", "?")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        raise DatabaseUnavailable(_first_line(error)) from error
    except DBAPIError as error:
        state = str(getattr(error.orig, "sqlstate", None) or "")
        if not (error.connection_invalidated or state.startswith(_PASSING)):
            raise
        raise DatabaseUnavailable(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
