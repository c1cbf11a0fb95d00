"""The schema's steps, on SQLite and on PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, MetaData, create_engine, inspect, select

from jobs import migrate
from jobs.database import connect
from jobs.tables import metadata

from .databases import START

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


# --- with data in every table ----------------------------------------------------------------------------

#: What revision 0002 adds.
ADDED: Final = {
    "jobs": {"synthesis_queue", "aged_from", "characters_left", "audio_ms", "remade"},
    "workers": {"seconds_per_char"},
}
TEXT: Final = "안녕 🎧 'quoted' \\ %s"


def _job(name: str, **changes: Any) -> dict[str, Any]:
    row = {
        "id": f"job_{name}",
        "tenant_id": "ten_a",
        "kind": "speech",
        "class": 2,
        "status": "in_progress",
        "stage": None,
        "model": "tone",
        "queue": None,
        "epoch": 3,
        "visible_at": START + 0.25,
        "failures": 1,
        "holder": None,
        "queued_at": START,
        "voice": "sine",
        "language": "en",
        "response_format": "mp3",
        "characters": 100,
        "request": TEXT,
        "spoken_text": TEXT,
        "pipeline_version": 1,
        "chunks_total": 4,
        "chunks_done": 2,
        "staged": True,
        "deadline": START + 9,
        "cancel_requested": True,
        "retry_of": "job_before",
        "version": 7,
        "created_at": START,
        "started_at": START + 1,
        "completed_at": START + 2,
        "expires_at": START + 3,
        "expires_in": 60,
        "degraded": True,
        "warnings": "[1]",
        "metadata": TEXT,
        "error": TEXT,
        "errors": "[2]",
        "result": TEXT,
    }
    return row | changes


def _clip(job: str, seq: int, start: int, end: int, samples: int) -> dict[str, Any]:
    return {
        "job": f"job_{job}",
        "seq": seq,
        "text_start": start,
        "text_end": end,
        "pause_ms": 250,
        "epoch": 3,
        "key": f"staged/{job}/{seq}",
        "sha256": "ab" * 32,
        "samples": samples,
        "sample_rate": 24_000,
        "seed": str(2**63),
        "engine_revision": "tone-1",
        "voice_state_key": TEXT,
    }


#: As a fleet at revision 0001 leaves it.
DATA: Final[Mapping[str, list[dict[str, Any]]]] = {
    "jobs": [
        _job("queued", status="queued", queue="cpu.tone"),
        _job("speaking", stage="synthesizing", queue="cpu.tone", holder="worker"),
        _job("unbegun", stage="synthesizing", queue="gpu.tone"),
        _job("encoding", stage="encoding", queue="cpu.media"),
        _job("uploading", stage="uploading", queue="cpu.media", holder="encoder"),
        _job("completed", status="completed"),
        _job("failed", status="failed"),
    ],
    "clips": [
        _clip("speaking", 0, 0, 40, 24_000),
        _clip("speaking", 1, 40, 70, 36_011),
        _clip("encoding", 0, 0, 100, 240_000),
        _clip("uploading", 0, 0, 100, 1),
        _clip("completed", 0, 0, 100, 24_000),
    ],
    "objects": [
        {
            "key": f"audio/{state}",
            "tenant_id": "ten_a",
            "owner": "job_completed",
            "epoch": 3,
            "state": state,
            "created_at": START,
            "delete_after": None if state == "pending" else START + 5,
        }
        for state in ("pending", "live", "deleting")
    ],
    "workers": [
        {
            "id": "worker",
            "queue": "cpu.tone",
            "model": "tone",
            "engine_info": TEXT,
            "rtf": 0.25,
            "max_chars_learned": 80,
            "breaker": "closed",
            "seen_at": START,
        }
    ],
    "api_keys": [
        {
            "id": "key_1",
            "tenant_id": "ten_a",
            "name": TEXT,
            "hash": "ef" * 32,
            "created_at": START,
            "revoked_at": None,
        }
    ],
    "events": [
        {
            "id": "evt_1",
            "job": "job_completed",
            "tenant_id": "ten_a",
            "type": "speech.job.completed",
            "terminal": True,
            "created_at": START,
            "payload": TEXT,
        }
    ],
    "deliveries": [
        {
            "id": "dlv_1",
            "event": "evt_1",
            "tenant_id": "ten_a",
            "url": "https://hooks.example",
            "status": "pending",
            "queue": "cpu.webhooks",
            "epoch": 2,
            "visible_at": START,
            "failures": 1,
            "holder": "sender",
            "attempts": 1,
            "response_status": 500,
            "error": TEXT,
            "created_at": START,
            "completed_at": None,
        }
    ],
}
#: What each job has to be spoken and has as audio, after the step.
LEFT: Final = {
    "job_queued": ("cpu.tone", 100, 0),
    "job_speaking": ("cpu.tone", 30, 2_500),
    "job_unbegun": ("gpu.tone", 100, 0),
    # Where they were spoken was not written down.
    "job_encoding": (None, 0, 10_000),
    "job_uploading": (None, 0, 0),
    # Nobody asks any more.
    "job_completed": (None, 0, 0),
    "job_failed": (None, 0, 0),
}


def _fill(url: str) -> None:
    engine = create_engine(url)
    found = MetaData()
    found.reflect(engine)
    with engine.begin() as connection:
        for table, rows in DATA.items():
            connection.execute(found.tables[table].insert(), rows)
    engine.dispose()


def _content(url: str) -> dict[str, list[dict[str, Any]]]:
    engine = create_engine(url)
    found = MetaData()
    found.reflect(engine)
    with engine.connect() as connection:
        content = {
            table: sorted(
                (dict(row) for row in connection.execute(select(found.tables[table])).mappings()), key=repr
            )
            for table in DATA
        }
    engine.dispose()
    return content


def _without(content: dict[str, list[dict[str, Any]]], added: Mapping[str, set[str]]) -> dict[str, Any]:
    return {
        table: [{name: row[name] for name in row if name not in added.get(table, ())} for row in rows]
        for table, rows in content.items()
    }


def test_every_row_survives_the_steps_up_and_down_and_up_again(empty_url: str) -> None:
    migrate.upgrade(empty_url, "0001")
    _fill(empty_url)
    before = _content(empty_url)
    assert {table: len(rows) for table, rows in before.items()} == {
        table: len(rows) for table, rows in DATA.items()
    }

    migrate.upgrade(empty_url, "0002")

    after = _content(empty_url)
    assert _without(after, ADDED) == before
    for row in after["jobs"]:
        assert (row["synthesis_queue"], row["characters_left"], row["audio_ms"]) == LEFT[row["id"]], row["id"]
        assert (row["aged_from"], row["remade"]) == (None, 0)

    migrate.downgrade(empty_url, "0001")
    assert _content(empty_url) == before

    migrate.upgrade(empty_url, "0002")
    assert _content(empty_url) == after
    assert _differences(create_engine(empty_url)) == []


def test_the_steps_down_leave_the_schema_as_it_was(empty_url: str) -> None:
    migrate.upgrade(empty_url, "0001")
    before = _schema(empty_url)

    migrate.upgrade(empty_url, "head")
    migrate.downgrade(empty_url, "0001")

    assert _schema(empty_url) == before


def _schema(url: str) -> dict[str, tuple[set[str], set[str]]]:
    engine = create_engine(url)
    try:
        found = inspect(engine)
        return {
            table: (
                {
                    f"{column['name']} {column['type']!r} {column['nullable']}"
                    for column in found.get_columns(table)
                },
                {str(index["name"]) for index in found.get_indexes(table)},
            )
            for table in DATA
        }
    finally:
        engine.dispose()
