"""What becomes of the jobs of an installation that is suspended, removed or let in again."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection

from models import backoffs
from models.accounts import NewAccount, ensure_accounts
from models.sql import text
from rules.access import Access
from rules.fairness import Budget

OUT_OF_REACH = timedelta(hours=1)
"""How long nothing is tried for an installation that is suspended or gone, unless a webhook says otherwise."""

LEFT = {"suspend": "the App's installation is suspended", "deleted": "the App is not installed any more"}
BACK = ("created", "unsuspend", "new_permissions_accepted")


def leave(db: Connection, *, installation_id: int, reason: str, now: datetime) -> datetime:
    """Hold the queued jobs of an installation that cannot be used; return until when."""
    until = now + OUT_OF_REACH
    backoffs.wait_until(db, kind="installation", key=str(installation_id), reason=reason, not_before=until, now=now)
    return until


def come_back(
    db: Connection,
    *,
    installation_id: int,
    account_id: int,
    login: str,
    budget: Budget,
    now: datetime,
    access: Access = Access.ALLOWED,
) -> None:
    """End what held the jobs of an account whose installation works (again), which may have another id now.

    GitHub numbers installations upwards, and an account has one: what is told late of an older one changes nothing.
    """
    newer = db.execute(
        text("SELECT 1 FROM installations WHERE account_id = :account AND id > :installation LIMIT 1"),
        {"installation": installation_id, "account": account_id},
    ).one_or_none()
    if newer is not None:
        return
    ensure_accounts(
        db,
        [NewAccount(id=account_id, login=login, installation_id=installation_id)],
        budget=budget,
        access=access,
        now=now,
    )
    db.execute(
        text("""
            UPDATE jobs SET installation_id = :installation
            WHERE id IN (SELECT id FROM jobs WHERE account_id = :account AND state <> 'completed'
                           AND installation_id IS DISTINCT FROM :installation ORDER BY id FOR NO KEY UPDATE)
        """),
        {"installation": installation_id, "account": account_id},
    )
    db.execute(
        text("""
            UPDATE claims SET installation_id = :installation
            WHERE id IN (SELECT id FROM claims WHERE account_id = :account AND ended_at IS NULL
                           AND installation_id IS DISTINCT FROM :installation ORDER BY id FOR NO KEY UPDATE)
        """),
        {"installation": installation_id, "account": account_id},
    )
    backoffs.forget(db, [("installation", str(installation_id)), ("account", str(account_id))])
    backoffs.end_waits(db, account_id=account_id, now=now)
