"""Schema migrations, by Alembic, from Python: no ini file to find."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url


def upgrade(url: str, revision: str = "head") -> None:
    """Bring the schema up to `revision`; creates the database file of SQLite."""
    database = make_url(url).database
    if make_url(url).get_backend_name() == "sqlite" and database:
        Path(database).parent.mkdir(parents=True, exist_ok=True)
    command.upgrade(_config(url), revision)


def downgrade(url: str, revision: str) -> None:
    """Take the schema back to `revision` (`base` is the empty database)."""
    command.downgrade(_config(url), revision)


def current(url: str) -> str | None:
    """Return the revision the database is at, None for an empty one."""
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()


def head() -> str:
    """Return the newest revision that this release knows."""
    revision = ScriptDirectory.from_config(_config("")).get_current_head()
    if revision is None:
        raise LookupError("no migrations are installed")
    return revision


def _config(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    # The URL may hold a password with percent signs; it must not go through the ini syntax.
    config.attributes["url"] = url
    return config
