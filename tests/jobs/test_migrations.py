"""The schema's steps, on SQLite and on PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, inspect

from jobs import migrate
from jobs.database import connect
from jobs.tables import metadata

UPGRADE = """
import sys
from jobs import migrate
print("ready", flush=True)
sys.stdin.readline()
migrate.upgrade(sys.argv[1])
"""
USE = """
import sys
from sqlalchemy import text
from jobs.database import Database
print("ready", flush=True)
sys.stdin.readline()
database = Database(sys.argv[1])
with database.write() as connection:
    connection.execute(text("SELECT count(*) FROM jobs")).scalar_one()
database.close()
"""


def _tables(url: str) -> set[str]:
    engine = create_engine(url)
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def _differences(engine: Engine) -> list[object]:
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(
                connection, opts={"compare_type": True, "compare_server_default": True}
            )
            return list(compare_metadata(context, metadata))
    finally:
        engine.dispose()


def _at_once(script: str, url: str, *, processes: int) -> list[str]:
    """Run a script in several processes at the same moment; return what they complain about."""
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", script, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return ["".join(process.communicate(timeout=60)) for process in running]


def test_a_new_database_gets_every_table(empty_url: str) -> None:
    migrate.upgrade(empty_url)

    assert _tables(empty_url) == {*metadata.tables, "alembic_version"}
    assert migrate.current(empty_url) == migrate.head()


def test_the_steps_lead_to_the_tables_of_the_code(empty_url: str) -> None:
    migrate.upgrade(empty_url)

    assert _differences(create_engine(empty_url)) == []


def test_going_up_again_changes_nothing(empty_url: str) -> None:
    migrate.upgrade(empty_url)
    migrate.upgrade(empty_url)

    assert migrate.current(empty_url) == migrate.head()


def test_going_down_leaves_nothing_and_up_again_works(empty_url: str) -> None:
    migrate.upgrade(empty_url)

    migrate.downgrade(empty_url, "base")

    assert _tables(empty_url) <= {"alembic_version"}
    assert migrate.current(empty_url) is None
    migrate.upgrade(empty_url)
    with closing(connect(empty_url)) as database:
        database.check()


def test_an_empty_database_is_at_no_revision(empty_url: str) -> None:
    migrate.upgrade(empty_url, "base")

    assert migrate.current(empty_url) is None


@pytest.mark.slow
def test_several_processes_may_go_up_at_once(empty_url: str) -> None:
    if empty_url.startswith("sqlite"):
        migrate.upgrade(empty_url, "base")

    complaints = _at_once(UPGRADE, empty_url, processes=4)

    assert complaints == [""] * 4
    assert migrate.current(empty_url) == migrate.head()
    assert _differences(create_engine(empty_url)) == []


@pytest.mark.slow
def test_several_processes_may_begin_to_use_a_new_database_at_once(empty_url: str) -> None:
    migrate.upgrade(empty_url)

    assert _at_once(USE, empty_url, processes=4) == [""] * 4


def test_a_step_that_breaks_off_leaves_nothing(empty_url: str) -> None:
    engine = create_engine(empty_url)
    migrate.upgrade(empty_url, "base")
    with engine.begin() as connection:
        # In the way of the last table.
        connection.exec_driver_sql("CREATE TABLE deliveries (id integer)")
    engine.dispose()

    with pytest.raises(Exception, match="deliveries"):
        migrate.upgrade(empty_url)

    assert _tables(empty_url) <= {"deliveries", "alembic_version"}
    assert migrate.current(empty_url) is None


def test_a_password_with_percent_signs_is_no_riddle() -> None:
    with pytest.raises(Exception, match=r"(?i)connect"):
        migrate.upgrade("postgresql+psycopg://u:p%25%40x@127.0.0.1:1/none")
