"""What a pool asks for: how it is scaled, rolled, provisioned, paused and drained."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_COLUMNS: tuple[tuple[str, sa.types.TypeEngine[Any], str | None, str | None], ...] = (
    ("generation", sa.BigInteger(), "0", "of the spec that is mirrored"),
    ("paused", sa.Boolean(), "false", None),
    ("autoscaled", sa.Boolean(), "false", None),
    ("min_warm", sa.BigInteger(), "1", None),
    ("max_replicas", sa.BigInteger(), "10", None),
    ("scale_down_delay", sa.Double(), "600", "seconds"),
    ("max_unavailable_percent", sa.BigInteger(), "10", None),
    ("start_timeout", sa.Double(), "300", "seconds"),
    ("max_concurrent", sa.BigInteger(), "100", "Pods that may be starting at a time"),
    ("drain_timeout", sa.Double(), None, "seconds"),
    ("draining_since", sa.DateTime(timezone=True), None, "the deletion of its object was asked for"),
)


def upgrade() -> None:
    for name, kind, default, comment in _COLUMNS:
        op.add_column("pools", sa.Column(name, kind, server_default=default, nullable=default is None, comment=comment))


def downgrade() -> None:
    for name, *_ in reversed(_COLUMNS):
        op.drop_column("pools", name)
