"""The epoch, by which a Postgres that was put back to an earlier state is told."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "epochs",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("database", sa.Text(), nullable=False, comment="made with the row, put back with a backup"),
        sa.Column("number", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("confirmed_at", _TIME, nullable=True, comment="when it was last seen as new as the cluster"),
        sa.Column("trusted_until", _TIME, nullable=True),
        sa.Column("trusted_server", _TIME, nullable=True, comment="when the server that was trusted was started"),
        sa.Column("older_since", _TIME, nullable=True, comment="when it was noticed that this is an earlier state"),
        sa.Column("why", sa.Text(), nullable=True, comment="of older_since, or why it could not be confirmed"),
        sa.Column("lost_from", _TIME, nullable=True, comment="what came between these two may be missing here"),
        sa.Column("lost_until", _TIME, nullable=True),
        sa.CheckConstraint("id = 1", name=op.f("ck_epochs_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_epochs")),
    )
    op.execute("INSERT INTO epochs (id, database) VALUES (1, gen_random_uuid())")


def downgrade() -> None:
    op.drop_table("epochs")
