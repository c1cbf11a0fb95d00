"""The first tables

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=20), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=120), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("api_keys_pkey")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("class", sa.SmallInteger(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("stage", sa.String(length=20), nullable=True),
        sa.Column("model", sa.String(length=80), nullable=False),
        sa.Column("queue", sa.String(length=80), nullable=True),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("visible_at", sa.Double(), nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("holder", sa.String(length=120), nullable=True),
        sa.Column("queued_at", sa.Double(), nullable=False),
        sa.Column("voice", sa.String(length=120), nullable=False),
        sa.Column("language", sa.String(length=40), nullable=False),
        sa.Column("response_format", sa.String(length=20), nullable=False),
        sa.Column("characters", sa.Integer(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("spoken_text", sa.Text(), nullable=True),
        sa.Column("pipeline_version", sa.Integer(), nullable=True),
        sa.Column("chunks_total", sa.Integer(), nullable=True),
        sa.Column("chunks_done", sa.Integer(), server_default="0", nullable=False),
        sa.Column("staged", sa.Boolean(), server_default=sa.text("(false)"), nullable=False),
        sa.Column("deadline", sa.Double(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), server_default=sa.text("(false)"), nullable=False),
        sa.Column("retry_of", sa.String(length=40), nullable=True),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("completed_at", sa.Double(), nullable=True),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("expires_in", sa.Integer(), nullable=False),
        sa.Column("degraded", sa.Boolean(), server_default=sa.text("(false)"), nullable=False),
        sa.Column("warnings", sa.Text(), server_default="[]", nullable=False),
        sa.Column("metadata", sa.Text(), server_default="{}", nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("errors", sa.Text(), server_default="[]", nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("jobs_pkey")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(
            "jobs_held",
            ["queue", "tenant_id"],
            unique=False,
            sqlite_where=sa.text("holder IS NOT NULL"),
            postgresql_where=sa.text("holder IS NOT NULL"),
        )
        batch_op.create_index(
            "jobs_ready",
            ["queue", "class", "tenant_id", "queued_at", "visible_at"],
            unique=False,
            sqlite_where=sa.text("queue IS NOT NULL"),
            postgresql_where=sa.text("queue IS NOT NULL"),
        )
        batch_op.create_index(
            "jobs_staged",
            ["id"],
            unique=False,
            sqlite_where=sa.text("staged AND queue IS NULL"),
            postgresql_where=sa.text("staged AND queue IS NULL"),
        )

    op.create_table(
        "objects",
        sa.Column("key", sa.String(length=300), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("owner", sa.String(length=40), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("delete_after", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("objects_pkey")),
    )
    with op.batch_alter_table("objects", schema=None) as batch_op:
        batch_op.create_index("objects_due", ["state", "delete_after"], unique=False)

    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=120), nullable=False),
        sa.Column("queue", sa.String(length=80), nullable=False),
        sa.Column("model", sa.String(length=80), nullable=True),
        sa.Column("engine_info", sa.Text(), nullable=True),
        sa.Column("rtf", sa.Double(), nullable=True),
        sa.Column("max_chars_learned", sa.Integer(), nullable=True),
        sa.Column("breaker", sa.String(length=20), nullable=True),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("workers_pkey")),
    )
    with op.batch_alter_table("workers", schema=None) as batch_op:
        batch_op.create_index("workers_model", ["model", "seen_at"], unique=False)

    op.create_table(
        "clips",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("text_start", sa.Integer(), nullable=False),
        sa.Column("text_end", sa.Integer(), nullable=False),
        sa.Column("pause_ms", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=300), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("sample_rate", sa.Integer(), nullable=False),
        sa.Column("seed", sa.String(length=20), nullable=False),
        sa.Column("engine_revision", sa.String(length=120), nullable=False),
        sa.Column("voice_state_key", sa.String(length=300), nullable=True),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("clips_job_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", "seq", name=op.f("clips_pkey")),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("type", sa.String(length=60), nullable=False),
        sa.Column("terminal", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("events_job_fkey"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("events_pkey")),
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("events_job"), ["job"], unique=False)
        batch_op.create_index(
            "events_terminal",
            ["job"],
            unique=True,
            sqlite_where=sa.text("terminal"),
            postgresql_where=sa.text("terminal"),
        )

    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("event", sa.String(length=40), nullable=False),
        sa.Column("tenant_id", sa.String(length=40), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("queue", sa.String(length=80), nullable=True),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("visible_at", sa.Double(), nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("holder", sa.String(length=120), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("response_status", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("completed_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["event"], ["events.id"], name=op.f("deliveries_event_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("deliveries_pkey")),
    )
    with op.batch_alter_table("deliveries", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("deliveries_event"), ["event"], unique=False)
        batch_op.create_index(
            "deliveries_ready",
            ["queue", "visible_at"],
            unique=False,
            sqlite_where=sa.text("queue IS NOT NULL"),
            postgresql_where=sa.text("queue IS NOT NULL"),
        )


def downgrade() -> None:
    with op.batch_alter_table("deliveries", schema=None) as batch_op:
        batch_op.drop_index(
            "deliveries_ready",
            sqlite_where=sa.text("queue IS NOT NULL"),
            postgresql_where=sa.text("queue IS NOT NULL"),
        )
        batch_op.drop_index(batch_op.f("deliveries_event"))

    op.drop_table("deliveries")
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.drop_index(
            "events_terminal", sqlite_where=sa.text("terminal"), postgresql_where=sa.text("terminal")
        )
        batch_op.drop_index(batch_op.f("events_job"))

    op.drop_table("events")
    op.drop_table("clips")
    with op.batch_alter_table("workers", schema=None) as batch_op:
        batch_op.drop_index("workers_model")

    op.drop_table("workers")
    with op.batch_alter_table("objects", schema=None) as batch_op:
        batch_op.drop_index("objects_due")

    op.drop_table("objects")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index(
            "jobs_staged",
            sqlite_where=sa.text("staged AND queue IS NULL"),
            postgresql_where=sa.text("staged AND queue IS NULL"),
        )
        batch_op.drop_index(
            "jobs_ready",
            sqlite_where=sa.text("queue IS NOT NULL"),
            postgresql_where=sa.text("queue IS NOT NULL"),
        )
        batch_op.drop_index(
            "jobs_held",
            sqlite_where=sa.text("holder IS NOT NULL"),
            postgresql_where=sa.text("holder IS NOT NULL"),
        )

    op.drop_table("jobs")
    op.drop_table("api_keys")
