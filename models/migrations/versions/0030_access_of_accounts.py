"""Jobs of accounts that nobody has let in are held. Accounts that are known by now are allowed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

UNASKED = sa.text("access = 'held' AND access_asked_at IS NULL")


def upgrade() -> None:
    # The default also serves web processes of the version before, which insert accounts without it during a deploy.
    op.add_column(
        "accounts",
        sa.Column(
            "access",
            sa.Text(),
            nullable=False,
            server_default="allowed",
            comment="whether its jobs are served: allowed, held",
        ),
    )
    op.add_column(
        "accounts",
        sa.Column(
            "access_asked_at",
            sa.DateTime(timezone=True),
            comment="when GitHub said that the App is another account's; NULL while held: to be asked",
        ),
    )
    op.create_check_constraint("access_known", "accounts", "access IN ('allowed', 'held')")
    op.create_index("ix_accounts_unasked", "accounts", ["id"], postgresql_where=UNASKED)


def downgrade() -> None:
    op.drop_index("ix_accounts_unasked", table_name="accounts", postgresql_where=UNASKED)
    op.drop_constraint("access_known", "accounts", type_="check")
    op.drop_column("accounts", "access_asked_at")
    op.drop_column("accounts", "access")
