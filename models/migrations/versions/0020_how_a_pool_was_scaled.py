"""How a pool was scaled last, and why."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_COLUMNS: tuple[tuple[str, sa.types.TypeEngine[Any], str | None], ...] = (
    ("scaled_up_at", sa.DateTime(timezone=True), "by the autoscaler, which waits before it shrinks it"),
    ("scaled_down_at", sa.DateTime(timezone=True), None),
    ("scaling", JSONB(), "the autoscaler's last decision, in numbers"),
    ("typical_pods", sa.BigInteger(), "95th percentile of the last hour's minutes"),
    ("typical_at", sa.DateTime(timezone=True), "when that was counted"),
)


def upgrade() -> None:
    for name, kind, comment in _COLUMNS:
        op.add_column("pools", sa.Column(name, kind, nullable=True, comment=comment))


def downgrade() -> None:
    for name, *_ in reversed(_COLUMNS):
        op.drop_column("pools", name)
