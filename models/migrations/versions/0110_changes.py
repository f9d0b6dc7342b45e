"""Table of the changes that people and programs make to accounts, gates, jobs, pools, sweeps and tokens.

Code of the previous release does not use the table.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0110"
down_revision = "0109"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "changes",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False, comment="name of the object when it was changed"),
        sa.Column(
            "object_id",
            sa.BigInteger(),
            nullable=True,
            comment="id of the object; NULL: objects of its kind have no id",
        ),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column(
            "via", sa.Text(), nullable=False, comment="way of the change: API, shell, dashboard, cluster, Ostler"
        ),
        sa.Column(
            "database_user",
            sa.Text(),
            server_default=sa.text("SESSION_USER"),
            nullable=False,
            comment="login of the database session that made the change",
        ),
        sa.Column("old", JSONB(), nullable=False, comment="the changed fields before"),
        sa.Column("new", JSONB(), nullable=False, comment="the changed fields after"),
        sa.Column("why", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_changes")),
    )
    op.create_index("ix_changes_at", "changes", ["at"])


def downgrade() -> None:
    op.drop_table("changes")
