"""`backoffs.kind` `runner_group`: what GitHub refuses for one runner group holds no other."""

from __future__ import annotations

from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

_OLD = "an id, a repository's full name, or of a limit installation/quota"
_NEW = "an id, a repository's full name, installation/group, or of a limit installation/quota"


def upgrade() -> None:
    # They were made for whatever a mint had asked for. Now only a mint for the default group ends one.
    op.execute("DELETE FROM backoffs WHERE kind = 'account'")
    op.drop_constraint(op.f("ck_backoffs_kind_known"), "backoffs", type_="check")
    op.create_check_constraint(
        op.f("ck_backoffs_kind_known"),
        "backoffs",
        "kind IN ('installation', 'account', 'repository', 'runner_group', 'limit')",
    )
    op.alter_column("backoffs", "key", comment=_NEW, existing_comment=_OLD)


def downgrade() -> None:
    op.execute("DELETE FROM backoffs WHERE kind = 'runner_group'")
    op.alter_column("backoffs", "key", comment=_OLD, existing_comment=_NEW)
    op.drop_constraint(op.f("ck_backoffs_kind_known"), "backoffs", type_="check")
    op.create_check_constraint(
        op.f("ck_backoffs_kind_known"), "backoffs", "kind IN ('installation', 'account', 'repository', 'limit')"
    )
