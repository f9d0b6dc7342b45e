"""Jobs of an installation that is suspended, removed or active again: their holds and releases."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row

from models.db.sql import text
from models.routing.accounts import NewAccount, ensure_accounts
from models.tables import renames
from models.upstream import backoffs
from rules.claims.fairness import Budget
from rules.routing.access import Access

OUT_OF_REACH = timedelta(hours=1)
"""How long nothing is tried for an installation that is suspended or gone, unless a webhook says otherwise."""

LEFT = {"suspend": "the App's installation is suspended", "deleted": "the App is not installed any more"}
GONE = frozenset({"deleted"})
"""Actions of `LEFT` after which GitHub knows the installation no more."""

BACK = ("created", "unsuspend", "new_permissions_accepted")


def mark_left(db: Connection, installation_id: int, *, now: datetime) -> bool:
    """Remember that GitHub does not know an installation; return whether that is news."""
    marked = db.execute(
        text("UPDATE installations SET left_at = :now WHERE id = :id AND left_at IS NULL"),
        {"id": installation_id, "now": now},
    )
    return marked.rowcount > 0


def mark_working(db: Connection, installation_id: int) -> bool:
    """Remember that GitHub knows an installation: a call in its name went through. Return whether that is news.

    What its account has with installations that left goes over to one that works: it may have been moved there when
    this one was taken for gone.
    """
    account_id = db.execute(
        text("UPDATE installations SET left_at = NULL WHERE id = :id AND left_at IS NOT NULL RETURNING account_id"),
        {"id": installation_id},
    ).scalar()
    if account_id is None:
        return False
    gone = db.execute(
        text("SELECT id FROM installations WHERE account_id = :account AND left_at IS NOT NULL ORDER BY id"),
        {"account": account_id},
    )
    for former in gone.scalars().all():
        succeed(db, former)
    return True


def has_successor(db: Connection, installation_id: int) -> bool:
    """Return whether the account of an installation has another one that works."""
    return _successor(db, installation_id) is not None


def _successor(db: Connection, installation_id: int) -> Row[Any] | None:
    return db.execute(
        text("""
            SELECT own.id, own.account_id FROM installations gone JOIN installations own
                ON own.account_id = gone.account_id AND own.id <> gone.id AND own.left_at IS NULL
            WHERE gone.id = :id ORDER BY own.event_at DESC NULLS LAST, own.id DESC LIMIT 1
        """),
        {"id": installation_id},
    ).one_or_none()


def succeed(db: Connection, installation_id: int) -> int | None:
    """Move what an installation that left has to the one of its account that works; None when there is no such one.

    Jobs and claims that others hold locked are left: their own mints find out.
    """
    row = _successor(db, installation_id)
    if row is None:
        return None
    about = {"account_id": row.account_id, "installation_id": row.id, "former": installation_id}
    renames.set_installation_of_jobs(db, **about)
    renames.set_installation_of_claims(db, **about)
    found: int = row.id
    return found


def leave(db: Connection, *, installation_id: int, reason: str, gone: bool, now: datetime) -> datetime:
    """Hold the queued jobs of an installation that cannot be used; return until when.

    `gone`: GitHub does not know it any more, rather than that it is suspended.
    """
    until = now + OUT_OF_REACH
    backoffs.wait_until(db, kind="installation", key=str(installation_id), reason=reason, not_before=until, now=now)
    if gone:  # after the backoff, as in the commit of a mint
        mark_left(db, installation_id, now=now)
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
    at: datetime | None = None,
) -> None:
    """End what held the jobs of an account whose installation works (again), which may have another id now.

    `at` is GitHub's time of the event: what is told late of an installation changes nothing when another one works that
    was told of later, or that has a larger id and was first seen later. Without a time the larger id is the newer one.
    """
    at = None if at is None else min(at, now)
    newer = db.execute(
        text("""
            SELECT 1 FROM installations WHERE account_id = :account AND id <> :installation AND left_at IS NULL
              AND CASE WHEN CAST(:at AS timestamptz) IS NULL THEN id > :installation
                       WHEN event_at IS NULL THEN id > :installation AND created_at > :at
                       ELSE event_at > :at END LIMIT 1
        """),
        {"installation": installation_id, "account": account_id, "at": at},
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
    renames.set_installation_of_jobs(db, account_id=account_id, installation_id=installation_id)
    renames.set_installation_of_claims(db, account_id=account_id, installation_id=installation_id)
    backoffs.forget_account(db, installation_id=installation_id, account_id=account_id, login=login)
    # After claims and backoffs, as the commit of a mint does: else the two could wait for each other.
    db.execute(
        text("""
            UPDATE installations SET left_at = NULL, event_at = greatest(event_at, :at)
            WHERE id = :installation AND account_id = :account
        """),
        {"installation": installation_id, "account": account_id, "at": at or now},
    )
    backoffs.end_waits(db, account_id=account_id, now=now)
