"""The tables. Times are seconds since the epoch by the database's clock; JSON is kept as text."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    text,
)

metadata: Final = MetaData(
    naming_convention={
        "ix": "%(table_name)s_%(column_0_N_name)s",
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
    }
)


def _lease() -> list[Column[object]]:
    """The columns of everything that a worker may hold: jobs and deliveries alike.

    `queue` names the work that is asked for, None when none is; `epoch` is the fence and rises with every
    claim; before `visible_at` nobody claims the row; `holder` is who claimed it last and has not let go.
    """
    return [
        Column("queue", String(80)),
        Column("epoch", Integer, nullable=False, server_default="0"),
        Column("visible_at", Double, nullable=False),
        Column("failures", Integer, nullable=False, server_default="0"),
        Column("holder", String(120)),
    ]


jobs: Final = Table(
    "jobs",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("tenant_id", String(40), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("class", SmallInteger, nullable=False),
    Column("status", String(20), nullable=False),
    Column("stage", String(20)),
    Column("model", String(80), nullable=False),
    *_lease(),
    # Its place in its lane, as a time; a job that gave up its place in favour of others, or that will keep a
    # worker for long, is put behind them by it.
    Column("queued_at", Double, nullable=False),
    # Where its text is spoken; `queue` moves on with the work.
    Column("synthesis_queue", String(80)),
    # The class it was asked for in, once it has waited so long that it was promoted.
    Column("aged_from", SmallInteger),
    Column("voice", String(120), nullable=False),
    Column("language", String(40), nullable=False),
    Column("response_format", String(20), nullable=False),
    Column("characters", Integer, nullable=False),
    Column("characters_left", Integer, nullable=False, server_default="0"),
    Column("audio_ms", Integer, nullable=False, server_default="0"),
    # How often lost clips sent it back from the encoders.
    Column("remade", Integer, nullable=False, server_default="0"),
    Column("request", Text, nullable=False),
    Column("spoken_text", Text),
    Column("pipeline_version", Integer),
    Column("chunks_total", Integer),
    Column("chunks_done", Integer, nullable=False, server_default="0"),
    # Whether objects under the job's staged prefix may exist.
    Column("staged", Boolean, nullable=False, server_default=text("false")),
    Column("deadline", Double),
    Column("cancel_requested", Boolean, nullable=False, server_default=text("false")),
    Column("retry_of", String(40)),
    Column("version", Integer, nullable=False, server_default="1"),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("completed_at", Double),
    Column("expires_at", Double),
    Column("expires_in", Integer, nullable=False),
    Column("degraded", Boolean, nullable=False, server_default=text("false")),
    Column("warnings", Text, nullable=False, server_default="[]"),
    Column("metadata", Text, nullable=False, server_default="{}"),
    Column("error", Text),
    # The last few errors that were tried again, oldest first.
    Column("errors", Text, nullable=False, server_default="[]"),
    Column("result", Text),
)
_ASKED = text("queue IS NOT NULL")
# The claim walks it: lanes by skip-scan, then the head of one lane.
Index(
    "jobs_ready",
    jobs.c.queue,
    jobs.c["class"],
    jobs.c.tenant_id,
    jobs.c.queued_at,
    jobs.c.visible_at,
    sqlite_where=_ASKED,
    postgresql_where=_ASKED,
)
# The shortest work of each lane, and how much there is in all.
Index(
    "jobs_left",
    jobs.c.queue,
    jobs.c["class"],
    jobs.c.tenant_id,
    jobs.c.characters_left,
    sqlite_where=_ASKED,
    postgresql_where=_ASKED,
)
# What a tenant has waiting.
_WAITING = text("status = 'queued'")
Index("jobs_waiting", jobs.c.tenant_id, sqlite_where=_WAITING, postgresql_where=_WAITING)
# What may expire.
_MORTAL = text("status = 'queued' AND deadline IS NOT NULL")
Index("jobs_deadline", jobs.c.deadline, sqlite_where=_MORTAL, postgresql_where=_MORTAL)
# What was promoted and has not ended.
_AGED = text("aged_from IS NOT NULL AND queue IS NOT NULL")
Index("jobs_aged", jobs.c.queue, jobs.c.tenant_id, sqlite_where=_AGED, postgresql_where=_AGED)
# Running work per tenant.
_HELD = text("holder IS NOT NULL")
Index("jobs_held", jobs.c.queue, jobs.c.tenant_id, sqlite_where=_HELD, postgresql_where=_HELD)
# Staged objects that nobody needs any more.
_SWEEP = text("staged AND queue IS NULL")
Index("jobs_staged", jobs.c.id, sqlite_where=_SWEEP, postgresql_where=_SWEEP)

clips: Final = Table(
    "clips",
    metadata,
    Column("job", String(40), ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("text_start", Integer, nullable=False),
    Column("text_end", Integer, nullable=False),
    Column("pause_ms", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("key", String(300), nullable=False),
    Column("sha256", String(64), nullable=False),
    Column("samples", Integer, nullable=False),
    Column("sample_rate", Integer, nullable=False),
    Column("seed", String(20), nullable=False),
    Column("engine_revision", String(120), nullable=False),
    Column("voice_state_key", String(300)),
)

#: The ledger of published objects: a row is written before the object's first byte and leaves after its last.
objects: Final = Table(
    "objects",
    metadata,
    Column("key", String(300), primary_key=True),
    Column("tenant_id", String(40), nullable=False),
    Column("owner", String(40), nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("state", String(20), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("delete_after", Double),
    Index("objects_due", "state", "delete_after"),
)

workers: Final = Table(
    "workers",
    metadata,
    Column("id", String(120), primary_key=True),
    Column("queue", String(80), nullable=False),
    Column("model", String(80)),
    Column("engine_info", Text),
    # Processing seconds per second of audio, and per code point of text.
    Column("rtf", Double),
    Column("seconds_per_char", Double),
    Column("max_chars_learned", Integer),
    Column("breaker", String(20)),
    Column("seen_at", Double, nullable=False),
    Index("workers_model", "model", "seen_at"),
)

api_keys: Final = Table(
    "api_keys",
    metadata,
    Column("id", String(20), primary_key=True),
    Column("tenant_id", String(40), nullable=False),
    Column("name", String(120), nullable=False),
    # SHA-256 of the whole key, lower-case hex: keys hold 160 random bits, so nothing slower is needed.
    Column("hash", String(64), nullable=False),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
)

events: Final = Table(
    "events",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("job", String(40), ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("tenant_id", String(40), nullable=False),
    Column("type", String(60), nullable=False),
    Column("terminal", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
    # The exact bytes that are signed and sent, as UTF-8.
    Column("payload", Text, nullable=False),
)
_TERMINAL = text("terminal")
# The database itself refuses a second terminal event of a job.
Index("events_terminal", events.c.job, unique=True, sqlite_where=_TERMINAL, postgresql_where=_TERMINAL)

deliveries: Final = Table(
    "deliveries",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("event", String(40), ForeignKey("events.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("tenant_id", String(40), nullable=False),
    Column("url", Text, nullable=False),
    Column("status", String(20), nullable=False),
    *_lease(),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("response_status", Integer),
    Column("error", Text),
    Column("created_at", Double, nullable=False),
    Column("completed_at", Double),
)
Index(
    "deliveries_ready",
    deliveries.c.queue,
    deliveries.c.visible_at,
    sqlite_where=_ASKED,
    postgresql_where=_ASKED,
)
