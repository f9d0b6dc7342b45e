"""Accounts, their budgets, and the installations through which we act for them."""

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
from models.tables import renames
from ostler.settings import Settings
from rules.claims.fairness import Budget
from rules.routing.access import Access


class Account(Base):
    """The owner that jobs are charged to. A budget of 0 holds its jobs; lowering one kills nothing (L2)."""

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
    budget_vcpu: Mapped[int] = mapped_column(comment="millicores")
    budget_memory: Mapped[int] = mapped_column(comment="MiB")
    priority_rules: Mapped[list[dict[str, Any]]] = mapped_column(JSONB, server_default="[]")
    created_at: Mapped[datetime]
    access: Mapped[str] = mapped_column(server_default="allowed", comment="whether its jobs are served: allowed, held")
    access_asked_at: Mapped[datetime | None] = mapped_column(
        comment="when GitHub said that the App is another account's; NULL while held: to be asked"
    )


class Installation(Base):
    """One installation of the GitHub App."""

    __tablename__ = "installations"
    __table_args__ = (Index("ix_installations_account_id_id", "account_id", "id"),)

    id: Mapped[GitHubId]
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    created_at: Mapped[datetime]
    event_at: Mapped[datetime | None] = mapped_column(
        comment="GitHub's time of the last `installation` event that said that it works; NULL: known by jobs alone"
    )
    left_at: Mapped[datetime | None] = mapped_column(comment="GitHub does not know it (404 on its token, or `deleted`)")


@dataclass(frozen=True, slots=True)
class NewAccount:
    """What a webhook tells of an account and, when it came through an App, of its installation."""

    id: int
    login: str
    installation_id: int | None


def default_budget(settings: Settings) -> Budget:
    """Return the budget of an account that is new."""
    return Budget(
        count=settings.default_budget_count,
        vcpu_millicores=settings.default_budget_vcpu * 1000,
        memory_mib=settings.default_budget_memory_gib * 1024,
    )


_REFER = text("SELECT id, login FROM accounts WHERE id = ANY(:ids) ORDER BY id FOR KEY SHARE SKIP LOCKED")


def access_of_new(settings: Settings) -> Access:
    """Return the access of an account that is new."""
    return Access.ALLOWED if settings.new_accounts == "serve" else Access.HELD


def ensure_accounts(
    db: Connection,
    accounts: Sequence[NewAccount],
    *,
    budget: Budget,
    access: Access = Access.ALLOWED,
    now: datetime,
) -> frozenset[int]:
    """Insert what is seen for the first time, with this budget and access; write changed logins wherever they stand.

    Returns the accounts that no row can refer to now, because another session holds them `FOR UPDATE`. The new login
    of an account that others hold locked is left to the next webhook that has it.
    """
    unique = {account.id: account for account in accounts}
    wanted = sorted(unique)
    # The lock that the foreign keys of the new rows need.
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
    """Insert an account that only a stamp tells of; the next webhook of it tells its login."""
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


def set_budget(db: Connection, account_id: int, budget: Budget) -> bool:
    """Give an account another budget; False when there is none with this id. A lower one ends nothing (L2)."""
    changed = db.execute(
        text("""
            UPDATE accounts SET budget_count = :count, budget_vcpu = :vcpu, budget_memory = :memory
            WHERE id = :id RETURNING id
        """),
        {
            "id": account_id,
            "count": budget.count,
            "vcpu": budget.vcpu_millicores,
            "memory": budget.memory_mib,
        },
    )
    return changed.one_or_none() is not None


def set_weight(db: Connection, account_id: int, weight: float) -> bool:
    """Give an account another weight, positive and finite; False when there is none with this id."""
    changed = db.execute(
        text("UPDATE accounts SET weight = :weight WHERE id = :id RETURNING id"), {"id": account_id, "weight": weight}
    )
    return changed.one_or_none() is not None


def set_access(db: Connection, account_id: int, access: Access) -> bool:
    """Let an account in, or hold it; False when there is none with this id. `rematch` moves its jobs."""
    changed = db.execute(
        text("UPDATE accounts SET access = :access WHERE id = :id RETURNING id"),
        {"id": account_id, "access": access},
    )
    return changed.one_or_none() is not None


def unasked_accounts(db: Connection, *, limit: int) -> list[int]:
    """Return held accounts of which it was not asked yet whether the App is theirs."""
    rows = db.execute(
        text("SELECT id FROM accounts WHERE access = 'held' AND access_asked_at IS NULL ORDER BY id LIMIT :limit"),
        {"limit": limit},
    )
    return list(rows.scalars())


def record_owner(db: Connection, account_ids: Sequence[int], *, owner_id: int, now: datetime) -> bool:
    """Allow the owner of the App if it is one of these held accounts; return whether it is. The others stay held.

    Rows that another session has locked are asked about again.
    """
    rows = db.execute(
        text("""
            UPDATE accounts SET access = CASE WHEN id = :owner THEN 'allowed' ELSE access END, access_asked_at = :now
            WHERE id IN (SELECT id FROM accounts WHERE id = ANY(:ids) AND access = 'held'
                         ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
            RETURNING id
        """),
        {"ids": list(account_ids), "owner": owner_id, "now": now},
    )
    return owner_id in set(rows.scalars())


def rename_owner(db: Connection, *, account_id: int, login: str) -> bool:
    """Write an owner's new login wherever its jobs, claims and account have the old one; return whether any had.

    Jobs and claims that others hold locked are left: whoever meets the old name later asks again.
    """
    changed = renames.set_login_of_jobs(db, account_id=account_id, login=login)
    changed += db.execute(
        text("UPDATE accounts SET login = :login WHERE id = :id AND login <> :login"),
        {"id": account_id, "login": login},
    ).rowcount
    changed += renames.set_login_of_claims(db, account_id=account_id, login=login)
    return changed > 0
