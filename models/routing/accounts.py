"""Accounts, their budgets, and their installations of the GitHub App."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Connection, ForeignKey, Index
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base, GitHubId
from models.db.sql import text
from models.state import renames
from models.state.changes import record
from ostler.settings import Settings
from rules.changes import Author, ChangeKind, Via
from rules.claims.fairness import Budget
from rules.routing.access import Access


class Account(Base):
    """The owner that jobs are charged to.

    A budget of 0 holds all jobs of the account. A reduction of the budget ends no running job (law L2).
    """

    __tablename__ = "accounts"
    __table_args__ = (
        CheckConstraint("weight > 0", name="weight_positive"),
        CheckConstraint("budget_count >= 0 AND budget_vcpu >= 0 AND budget_memory >= 0", name="budget_not_negative"),
        CheckConstraint("access IN ('allowed', 'held')", name="access_known"),
        Index("ix_accounts_login_id", text("lower(login)"), "id"),
        Index("ix_accounts_unasked", "id", postgresql_where=text("access = 'held' AND access_asked_at IS NULL")),
    )

    id: Mapped[GitHubId]
    login: Mapped[str]
    weight: Mapped[float] = mapped_column(server_default="1")
    budget_count: Mapped[int]
    budget_vcpu: Mapped[int] = mapped_column(comment="most vCPU that the account may use at once, in millicores")
    budget_memory: Mapped[int] = mapped_column(comment="most memory that the account may use at once, in MiB")
    # No code reads the next column. It stays for one release, because workers of the previous release read it.
    priority_rules: Mapped[list[dict[str, Any]]] = mapped_column(JSONB, server_default="[]")
    created_at: Mapped[datetime]
    access: Mapped[str] = mapped_column(
        server_default="allowed", comment="whether jobs of the account are served: allowed or held"
    )
    access_asked_at: Mapped[datetime | None] = mapped_column(
        comment="time at which GitHub refused the account, or a person held it; NULL while held: to be asked"
    )


class Installation(Base):
    """One installation of the GitHub App in an account."""

    __tablename__ = "installations"
    __table_args__ = (Index("ix_installations_account_id_id", "account_id", "id"),)

    id: Mapped[GitHubId]
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    created_at: Mapped[datetime]
    event_at: Mapped[datetime | None] = mapped_column(
        comment="time of the last `installation` event that showed it works; NULL: known by webhooks of jobs only"
    )
    left_at: Mapped[datetime | None] = mapped_column(
        comment="time at which GitHub no longer knew it (404 for its token, or event `deleted`); NULL: it is known"
    )


@dataclass(frozen=True, slots=True)
class NewAccount:
    """An account with the login from a webhook.

    `installation_id` is the account's installation of the App, or None if the webhook did not come through an App.
    """

    id: int
    login: str
    installation_id: int | None


def default_budget(settings: Settings) -> Budget:
    """Return the budget that a new account gets."""
    return Budget(
        count=settings.default_budget_count,
        vcpu_millicores=settings.default_budget_vcpu * 1000,
        memory_mib=settings.default_budget_memory_gib * 1024,
    )


_REFER = text("SELECT id, login FROM accounts WHERE id = ANY(:ids) ORDER BY id FOR KEY SHARE SKIP LOCKED")


def access_of_new(settings: Settings) -> Access:
    """Return the access that a new account gets."""
    return Access.ALLOWED if settings.new_accounts == "serve" else Access.HELD


def ensure_accounts(
    db: Connection,
    accounts: Sequence[NewAccount],
    *,
    budget: Budget,
    access: Access = Access.ALLOWED,
    now: datetime,
) -> frozenset[int]:
    """Insert accounts and installations that have no row yet, and update changed logins in all rows that contain them.

    New accounts get `budget` and `access`. If another session has locked an account, the changed login of this account
    is not written now. Ostler writes the login when the next webhook of the account arrives.

    Returns the ids of the accounts that another session has locked `FOR UPDATE`. New rows cannot refer to these
    accounts now.
    """
    unique = {account.id: account for account in accounts}
    wanted = sorted(unique)
    # `FOR KEY SHARE` is the lock that the foreign keys of the new rows need.
    logins: dict[int, str] = {row.id: row.login for row in db.execute(_REFER, {"ids": wanted})}
    if new := [unique[key] for key in wanted if key not in logins]:
        _insert(db, new, budget=budget, access=access, now=now)
        logins |= {row.id: row.login for row in db.execute(_REFER, {"ids": [each.id for each in new]})}
    if renamed := [key for key, login in logins.items() if login != unique[key].login]:
        free = db.execute(
            text("SELECT id FROM accounts WHERE id = ANY(:ids) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED"),
            {"ids": sorted(renamed)},
        )
        for account_id in free.scalars().all():
            rename_owner(db, account_id=account_id, login=unique[account_id].login)
    installed = sorted(
        {(a.installation_id, a.id) for a in accounts if a.installation_id is not None and a.id in logins}
    )
    if installed:
        db.execute(
            text("""
                INSERT INTO installations (id, account_id, created_at)
                SELECT id, account_id, :now
                FROM unnest(CAST(:ids AS bigint[]), CAST(:accounts AS bigint[])) AS new (id, account_id)
                WHERE NOT EXISTS (SELECT FROM installations i WHERE i.id = new.id)
                ORDER BY id
                ON CONFLICT (id) DO NOTHING
            """),
            {"ids": [i for i, _ in installed], "accounts": [a for _, a in installed], "now": now},
        )
    return frozenset(wanted).difference(logins)


def _insert(db: Connection, accounts: Sequence[NewAccount], *, budget: Budget, access: Access, now: datetime) -> None:
    db.execute(
        text("""
            INSERT INTO accounts (id, login, budget_count, budget_vcpu, budget_memory, access, created_at)
            SELECT id, login, :count, :vcpu, :memory, :access, :now
            FROM unnest(CAST(:ids AS bigint[]), CAST(:logins AS text[])) AS new (id, login)
            ORDER BY id
            ON CONFLICT (id) DO NOTHING
        """),
        {
            "ids": [account.id for account in accounts],
            "logins": [account.login for account in accounts],
            "count": budget.count,
            "vcpu": budget.vcpu_millicores,
            "memory": budget.memory_mib,
            "access": access,
            "now": now,
        },
    )


def ensure_account(db: Connection, account_id: int, *, budget: Budget, now: datetime) -> None:
    """Insert an account that is known only from a stamp.

    The login of the account is a placeholder until the next webhook of the account arrives.
    """
    db.execute(
        text("""
            INSERT INTO accounts (id, login, budget_count, budget_vcpu, budget_memory, created_at)
            VALUES (:id, :login, :count, :vcpu, :memory, :now) ON CONFLICT DO NOTHING
        """),
        {
            "id": account_id,
            "login": f"account-{account_id}",
            "count": budget.count,
            "vcpu": budget.vcpu_millicores,
            "memory": budget.memory_mib,
            "now": now,
        },
    )


def set_budget(db: Connection, account_id: int, budget: Budget, *, by: Author) -> bool:
    """Change the budget of an account. A reduction of the budget ends no running job (law L2).

    Returns False if there is no account with this id.
    """
    values = {
        "budget_count": budget.count,
        "budget_vcpu": budget.vcpu_millicores,
        "budget_memory": budget.memory_mib,
    }
    return _set(db, account_id, values, by=by)


def set_weight(db: Connection, account_id: int, weight: float, *, by: Author) -> bool:
    """Change the weight of an account to a positive, finite number.

    Returns False if there is no account with this id.
    """
    return _set(db, account_id, {"weight": weight}, by=by)


def set_access(db: Connection, account_id: int, access: Access, *, by: Author) -> bool:
    """Allow an account or hold it.

    The matcher inserts no further claim for a held account. The sweep `rematch` later routes the jobs of an allowed
    account, and holds the queued jobs of a held account.

    Returns False if there is no account with this id.
    """
    known = _set(db, account_id, {"access": str(access)}, by=by)
    if access is Access.HELD:
        # Without this mark, `record_owner` would allow the account again if it owns the App.
        db.execute(
            text("UPDATE accounts SET access_asked_at = coalesce(access_asked_at, :now) WHERE id = :id"),
            {"id": account_id, "now": by.at},
        )
    return known


def _set(db: Connection, account_id: int, values: dict[str, Any], *, by: Author) -> bool:
    """Write columns of an account and the change. Returns False if there is no account with this id."""
    row = db.execute(
        text(f"SELECT login, {', '.join(values)} FROM accounts WHERE id = :id FOR NO KEY UPDATE"), {"id": account_id}
    ).one_or_none()
    if row is None:
        return False
    db.execute(
        text(f"UPDATE accounts SET {', '.join(f'{name} = :{name}' for name in values)} WHERE id = :id"),
        {"id": account_id, **values},
    )
    before = {name: getattr(row, name) for name in values}
    record(db, ChangeKind.ACCOUNT, row.login, object_id=account_id, before=before, after=values, by=by)
    return True


def unasked_accounts(db: Connection, *, limit: int) -> list[int]:
    """Return up to `limit` held accounts. GitHub was not asked yet whether these accounts own the App."""
    rows = db.execute(
        text("SELECT id FROM accounts WHERE access = 'held' AND access_asked_at IS NULL ORDER BY id LIMIT :limit"),
        {"limit": limit},
    )
    return list(rows.scalars())


def record_owner(db: Connection, account_ids: Sequence[int], *, owner_id: int, now: datetime) -> bool:
    """Allow the account that owns the App. Return True if this account is one of the given held accounts.

    The other accounts stay held, and are recorded as accounts that do not own the App. An account that an operator has
    held since GitHub was asked stays held, too. An account that another session has locked is skipped, and GitHub is
    asked about the skipped account again later.
    """
    rows = db.execute(
        text("""
            UPDATE accounts SET access = CASE WHEN id = :owner THEN 'allowed' ELSE access END, access_asked_at = :now
            WHERE id IN (SELECT id FROM accounts
                         WHERE id = ANY(:ids) AND access = 'held' AND access_asked_at IS NULL
                         ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
            RETURNING id, login
        """),
        {"ids": list(account_ids), "owner": owner_id, "now": now},
    )
    login = {row.id: row.login for row in rows}.get(owner_id)
    if login is None:
        return False
    record(
        db,
        ChangeKind.ACCOUNT,
        login,
        object_id=owner_id,
        before={"access": str(Access.HELD)},
        after={"access": str(Access.ALLOWED)},
        by=Author("ask_owner", Via.OSTLER, now),
        why="the account owns the App",
    )
    return True


def rename_owner(db: Connection, *, account_id: int, login: str) -> bool:
    """Write an owner's new login to the owner's jobs, claims and account. Return True if a row had another login.

    Jobs and claims that other sessions have locked keep the old login. If a later request to GitHub fails because of
    the old login, Ostler asks GitHub for the present login and calls this function again.
    """
    changed = renames.set_login_of_jobs(db, account_id=account_id, login=login)
    changed += db.execute(
        text("UPDATE accounts SET login = :login WHERE id = :id AND login <> :login"),
        {"id": account_id, "login": login},
    ).rowcount
    changed += renames.set_login_of_claims(db, account_id=account_id, login=login)
    return changed > 0
