"""Run by Alembic for each command; `jobs.migrate` is the door."""

from __future__ import annotations

import sqlite3
import time
from typing import Any

from alembic import context
from sqlalchemy import Connection, Engine, create_engine, event, text

from jobs.tables import metadata

#: Any number that nobody else uses as an advisory lock: two services that start at once migrate in turn.
LOCK = 4_851_163_209
#: How long one of them waits for the other on SQLite.
WAIT_SECONDS = 60.0


def run() -> None:
    engine = _engine(context.config.attributes["url"])
    try:
        with engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text(f"SELECT pg_advisory_lock({LOCK})"))
                connection.commit()
            context.configure(
                connection=connection,
                target_metadata=metadata,
                # SQLite alters a table by making it anew.
                render_as_batch=connection.dialect.name == "sqlite",
                # All steps or none; SQLite can do it too, once it is told when to begin.
                transactional_ddl=True,
            )
            with context.begin_transaction():
                context.run_migrations()
            connection.commit()
    finally:
        engine.dispose()


def _engine(url: str) -> Engine:
    if not url.startswith("sqlite"):
        return create_engine(url)
    engine = create_engine(url, connect_args={"timeout": WAIT_SECONDS})

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        _use_wal(connection)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # Two services that start at once migrate in turn.
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _use_wal(connection: sqlite3.Connection) -> None:
    """Turn the file to WAL for good, before anybody works with it: to turn it needs the file for oneself, and
    SQLite does not wait for that.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


run()
