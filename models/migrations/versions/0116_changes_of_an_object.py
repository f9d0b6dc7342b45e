"""Index for the changes of one object, and the comment of a column whose meaning grew.

Code of the previous release does not need the index.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0116"
down_revision = "0115"
branch_labels = None
depends_on = None

OLD = "time at which GitHub said that another account owns the App; NULL while held: to be asked"
NEW = "time at which GitHub refused the account, or a person held it; NULL while held: to be asked"


def upgrade() -> None:
    op.create_index("ix_changes_kind_object", "changes", ["kind", "object_id", "id"])
    _comment(OLD, NEW)


def downgrade() -> None:
    _comment(NEW, OLD)
    op.drop_index("ix_changes_kind_object", "changes")


def _comment(old: str, new: str) -> None:
    op.alter_column(
        "accounts", "access_asked_at", existing_type=sa.DateTime(timezone=True), existing_comment=old, comment=new
    )
