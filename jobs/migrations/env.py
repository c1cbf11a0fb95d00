"""Run by Alembic for each command; `jobs.migrate` is the door."""

from __future__ import annotations

from alembic import context
from sqlalchemy import create_engine, text

from jobs.tables import metadata

#: Any number that nobody else uses as an advisory lock: two services that start at once migrate in turn.
LOCK = 4_851_163_209


def run() -> None:
    engine = create_engine(context.config.attributes["url"])
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
            )
            with context.begin_transaction():
                context.run_migrations()
            connection.commit()
    finally:
        engine.dispose()


run()
