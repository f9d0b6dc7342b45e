"""Accounts, their budgets, and the installations through which we act for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Connection, ForeignKey, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from models.base import Base, GitHubId
from rules.fairness import Budget, Usage


class Account(Base):
    """The owner that jobs are charged to. A budget of 0 holds its jobs; lowering one kills nothing (L2)."""

    __tablename__ = "accounts"
    __table_args__ = (
        CheckConstraint("weight > 0", name="weight_positive"),
        CheckConstraint("budget_count >= 0 AND budget_vcpu >= 0 AND budget_memory >= 0", name="budget_not_negative"),
    )

    id: Mapped[GitHubId]
    login: Mapped[str]
    weight: Mapped[float] = mapped_column(server_default="1")
    budget_count: Mapped[int]
    budget_vcpu: Mapped[int] = mapped_column(comment="millicores")
    budget_memory: Mapped[int] = mapped_column(comment="MiB")
    priority_rules: Mapped[list[dict[str, Any]]] = mapped_column(JSONB, server_default="[]")
    created_at: Mapped[datetime]


class Installation(Base):
    """One installation of the GitHub App. `not_before`: its mints failed, only a probe goes through."""

    __tablename__ = "installations"

    id: Mapped[GitHubId]
    account_id: Mapped[int] = mapped_column(ForeignKey("accounts.id"))
    created_at: Mapped[datetime]


@dataclass(frozen=True, slots=True)
class NewAccount:
    """What a webhook tells of an account and, when it came through an App, of its installation."""

    id: int
    login: str
    installation_id: int | None


def ensure_accounts(db: Connection, accounts: Sequence[NewAccount], *, budget: Budget, now: datetime) -> None:
    """Insert what is seen for the first time, with the default budget; refresh changed logins."""
    unique = {account.id: account for account in accounts}
    rows = [unique[key] for key in sorted(unique)]
    db.execute(
        text("""
            INSERT INTO accounts (id, login, budget_count, budget_vcpu, budget_memory, created_at)
            SELECT id, login, :count, :vcpu, :memory, :now
            FROM unnest(CAST(:ids AS bigint[]), CAST(:logins AS text[])) AS new (id, login)
            WHERE NOT EXISTS (SELECT FROM accounts a WHERE a.id = new.id AND a.login = new.login)
            ORDER BY id
            ON CONFLICT (id) DO UPDATE SET login = excluded.login WHERE accounts.login <> excluded.login
        """),
        {
            "ids": [row.id for row in rows],
            "logins": [row.login for row in rows],
            "count": budget.count,
            "vcpu": budget.vcpu_millicores,
            "memory": budget.memory_mib,
            "now": now,
        },
    )
    installed = sorted({(a.installation_id, a.id) for a in accounts if a.installation_id is not None})
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


def usage_of(db: Connection, account_ids: Sequence[int]) -> Mapping[int, Usage]:
    """Return what each account uses: live job claims plus executions without a claim (law L2).

    Only those on runners that we registered: what an account runs elsewhere is not ours to ration.
    """
    rows = db.execute(
        text("""
            SELECT account_id, count(*) AS jobs, sum(vcpu) AS vcpu, sum(memory) AS memory
            FROM (
                SELECT account_id, vcpu, memory FROM claims
                WHERE ended_at IS NULL AND purpose = 'job' AND account_id = ANY(:ids)
                UNION ALL
                SELECT account_id, vcpu, memory FROM executions
                WHERE ended_at IS NULL AND account_id = ANY(:ids) AND claim_id IS NULL
                  AND EXISTS (SELECT FROM mint_attempts m WHERE m.runner_name = executions.runner_name)
            ) used
            GROUP BY account_id
        """),
        {"ids": list(account_ids)},
    )
    used = {
        row.account_id: Usage(count=row.jobs, vcpu_millicores=int(row.vcpu), memory_mib=int(row.memory)) for row in rows
    }
    nothing = Usage(count=0, vcpu_millicores=0, memory_mib=0)
    return {account_id: used.get(account_id, nothing) for account_id in account_ids}
