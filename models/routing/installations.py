"""Installations that are suspended, removed or active again, and the holds of the jobs of these installations."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row

from models.db.sql import text
from models.routing.accounts import NewAccount, ensure_accounts
from models.state import renames
from models.upstream import backoffs
from rules.claims.fairness import Budget
from rules.routing.access import Access

OUT_OF_REACH = timedelta(hours=1)
"""Time during which the queued jobs of a suspended or removed installation are held.

A webhook can end the period earlier.
"""

LEFT = {"suspend": "the App's installation is suspended", "deleted": "the App is not installed any more"}
"""Reasons of the holds, by the action of the `installation` webhook after which Ostler cannot use the installation."""
GONE = frozenset({"deleted"})
"""The actions in `LEFT` that remove the installation from GitHub."""

BACK = ("created", "unsuspend", "new_permissions_accepted")
"""Actions of `installation` webhooks that show that an installation works."""


def mark_left(db: Connection, installation_id: int, *, now: datetime) -> bool:
    """Record that GitHub no longer knows an installation.

    Return False if this fact was recorded before, or if the installation has no row.
    """
    marked = db.execute(
        text("UPDATE installations SET left_at = :now WHERE id = :id AND left_at IS NULL"),
        {"id": installation_id, "now": now},
    )
    return marked.rowcount > 0


def mark_working(db: Connection, installation_id: int) -> bool:
    """Record that GitHub knows an installation, because a call with its token succeeded.

    Returns True if the installation had been recorded as removed, and False otherwise. If the result is True, this
    function has moved the jobs and claims of all removed installations of the account to its newest working
    installation.
    """
    account_id = db.execute(
        text("UPDATE installations SET left_at = NULL WHERE id = :id AND left_at IS NOT NULL RETURNING account_id"),
        {"id": installation_id},
    ).scalar()
    if account_id is None:
        return False
    # While the installation was wrongly recorded as removed, its jobs might have moved to one that was removed later.
    gone = db.execute(
        text("SELECT id FROM installations WHERE account_id = :account AND left_at IS NOT NULL ORDER BY id"),
        {"account": account_id},
    )
    for former in gone.scalars().all():
        succeed(db, former)
    return True


def has_successor(db: Connection, installation_id: int) -> bool:
    """Return True if the account of an installation has another installation that works, and False otherwise."""
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
    """Move the jobs and claims of a removed installation to the newest working installation of its account.

    Returns the id of the working installation, or None if the account has none. Jobs and claims that other sessions
    have locked are not moved. The next mint for such a job or claim fails, and this function is then called again.
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
    """Hold the queued jobs of an installation that cannot be used. Return the time at which the hold ends.

    `gone` is True if GitHub no longer knows the installation, and False if the installation is suspended.
    """
    until = now + OUT_OF_REACH
    backoffs.wait_until(db, kind="installation", key=str(installation_id), reason=reason, not_before=until, now=now)
    if gone:  # last, because the commit of a mint also locks the backoff before the installation
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
    """End the holds of an account's jobs, because its installation works again. The installation might have a new id.

    `at` is GitHub's time of the event, or None if the time is not known. Webhooks can arrive late, so the event is
    ignored if another working installation of the account is newer. Another installation is newer in one of these
    cases:

    - Its last event is later than `at`.
    - It had no event, its id is larger, and it was first seen after `at`.
    - `at` is None and its id is larger.
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
    backoffs.delete_account(db, installation_id=installation_id, account_id=account_id, login=login)
    # The installation is locked after claims and backoffs, as in the commit of a mint. Another order could deadlock.
    db.execute(
        text("""
            UPDATE installations SET left_at = NULL, event_at = greatest(event_at, :at)
            WHERE id = :installation AND account_id = :account
        """),
        {"installation": installation_id, "account": account_id, "at": at or now},
    )
    backoffs.end_waits(db, account_id=account_id, now=now)
