"""The repository in which the runner of a claim is registered, by its id: its job may go, its name may be another's."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "claims",
        sa.Column(
            "repository_id",
            sa.BigInteger(),
            nullable=True,
            comment="GitHub's, of the repository that the scope is; NULL: of an organisation, or not known",
        ),
    )


def downgrade() -> None:
    op.drop_column("claims", "repository_id")
