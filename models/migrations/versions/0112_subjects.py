"""Column for the person whose sessions a token stands for.

Code of the previous release does not read the column, and leaves it NULL.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0112"
down_revision = "0111"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "api_tokens",
        sa.Column(
            "subject",
            sa.Text(),
            nullable=True,
            comment="issuer and subject of the person who logs in with this row; NULL: a command created the token",
        ),
    )
    op.create_index(
        "ix_api_tokens_subject", "api_tokens", ["subject"], unique=True, postgresql_where=sa.text("revoked_at IS NULL")
    )


def downgrade() -> None:
    op.drop_index("ix_api_tokens_subject", "api_tokens")
    op.drop_column("api_tokens", "subject")
