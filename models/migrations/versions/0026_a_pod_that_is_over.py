"""`terminal_at` is set when a Pod is over, also while further containers keep it from becoming terminal."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

BEFORE = "seen Succeeded or Failed"
AFTER = "when it was first seen over: poller and runner have terminated"


def upgrade() -> None:
    _comment(AFTER, instead_of=BEFORE)


def downgrade() -> None:
    _comment(BEFORE, instead_of=AFTER)


def _comment(comment: str, *, instead_of: str) -> None:
    op.alter_column(
        "runner_pods",
        "terminal_at",
        existing_type=sa.DateTime(timezone=True),
        existing_nullable=True,
        comment=comment,
        existing_comment=instead_of,
    )
