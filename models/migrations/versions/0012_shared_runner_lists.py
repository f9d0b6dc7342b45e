"""Runner lists that all sweeps share, and the newest installation of an account found quickly."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "runner_lists",
        sa.Column("installation_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("taken_at", _TIME, nullable=True, comment="when its first page was asked for"),
        sa.Column("runners", sa.LargeBinary(), nullable=True, comment="deflated JSON: [id, name, online, busy]"),
        sa.Column("reader", sa.Text(), nullable=True, comment="who takes the next list"),
        sa.Column("reading_until", _TIME, nullable=True),
        sa.PrimaryKeyConstraint("installation_id", "scope", name=op.f("pk_runner_lists")),
        prefixes=["UNLOGGED"],
    )
    op.create_index("ix_installations_account_id_id", "installations", ["account_id", "id"])


def downgrade() -> None:
    op.drop_index("ix_installations_account_id_id", "installations")
    op.drop_table("runner_lists")
