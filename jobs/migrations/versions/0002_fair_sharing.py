"""Fair sharing: what is left of each job, promotion of jobs that waited long, the workers' pace

Revision ID: 0002
Revises: 0001

Only adds: workers of the release before go on with it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ASKED = "queue IS NOT NULL"
WAITING = "status = 'queued'"
MORTAL = "status = 'queued' AND deadline IS NOT NULL"
AGED = "aged_from IS NOT NULL AND queue IS NOT NULL"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("synthesis_queue", sa.String(length=80), nullable=True))
    op.add_column("jobs", sa.Column("aged_from", sa.SmallInteger(), nullable=True))
    op.add_column("jobs", sa.Column("characters_left", sa.Integer(), server_default="0", nullable=False))
    op.add_column("jobs", sa.Column("audio_ms", sa.Integer(), server_default="0", nullable=False))
    op.add_column("jobs", sa.Column("remade", sa.Integer(), server_default="0", nullable=False))
    op.add_column("workers", sa.Column("seconds_per_char", sa.Double(), nullable=True))
    # Jobs under way; those that have ended are not looked at any more.
    op.execute(
        """
        UPDATE jobs SET synthesis_queue = queue, characters_left = characters
        WHERE queue IS NOT NULL AND (stage IS NULL OR stage = 'synthesizing')
        """
    )
    op.execute(
        """
        UPDATE jobs SET
            characters_left = CASE WHEN stage = 'synthesizing' AND characters_left > spoken.characters
                THEN characters_left - spoken.characters ELSE 0 END,
            audio_ms = spoken.audio_ms
        FROM (
            SELECT
                job,
                SUM(text_end - text_start) AS characters,
                SUM(ROUND(samples * 1000.0 / sample_rate)) AS audio_ms
            FROM clips GROUP BY job
        ) AS spoken
        WHERE spoken.job = jobs.id AND jobs.queue IS NOT NULL
        """
    )
    _index("jobs_left", ["queue", "class", "tenant_id", "characters_left"], ASKED)
    _index("jobs_waiting", ["tenant_id"], WAITING)
    _index("jobs_deadline", ["deadline"], MORTAL)
    _index("jobs_aged", ["queue", "tenant_id"], AGED)


def downgrade() -> None:
    for name in ("jobs_aged", "jobs_deadline", "jobs_waiting", "jobs_left"):
        op.drop_index(name, table_name="jobs")
    op.drop_column("workers", "seconds_per_char")
    for name in ("remade", "audio_ms", "characters_left", "aged_from", "synthesis_queue"):
        op.drop_column("jobs", name)


def _index(name: str, columns: list[str], where: str) -> None:
    op.create_index(name, "jobs", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))
