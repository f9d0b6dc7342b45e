"""Columns for login links of tokens.

Code of the previous release does not read the columns, and leaves them NULL.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0115"
down_revision = "0114"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "api_tokens",
        sa.Column(
            "link_digest",
            sa.LargeBinary(),
            nullable=True,
            comment="SHA-256 of the code of a login link; NULL: there is no link, or it was used",
        ),
    )
    op.add_column(
        "api_tokens",
        sa.Column(
            "link_until",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="time until which the login link is valid",
        ),
    )
    op.create_check_constraint("link_digest_is_sha256", "api_tokens", "octet_length(link_digest) = 32")


def downgrade() -> None:
    op.drop_column("api_tokens", "link_until")
    op.drop_column("api_tokens", "link_digest")
