"""Queries for accounts: their budgets, their weights and their present usage."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from models.browse.page import Order, Page, read
from models.db.sql import text
from models.routing.usage import ending_pods, usage_of
from rules.claims.fairness import Usage

_COLUMNS = "t.id, t.login, t.weight, t.budget_count, t.budget_vcpu, t.budget_memory, t.access, t.created_at"


@dataclass(frozen=True, slots=True)
class AccountFilter:
    """Filter for accounts. None selects all accounts."""

    login: str | None = None
    accounts: Collection[int] | None = None
    """The ids of the accounts that the caller may see. None means all accounts."""


@dataclass(frozen=True, slots=True)
class Accounts:
    """One page of accounts.

    `usage` maps the id of an account to the present usage of the account. `ending` maps the id of an account to the
    number of its Pods whose job is over.
    """

    page: Page
    usage: Mapping[int, Usage]
    ending: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class AccountStory:
    """An account with its present usage and the counts of its queued jobs.

    `jobs` has the count of queued jobs without a hold, the count of held jobs, and the queue time of the oldest job
    without a hold. `ending` is the number of the account's Pods whose job is over.
    """

    account: Row[Any]
    usage: Usage
    jobs: Row[Any]
    ending: int


def list_accounts(db: Connection, wanted: AccountFilter, *, after: int | None = None, limit: int) -> Accounts:
    """Return one page of accounts, in the order of their ids. Like GitHub, the filter ignores the case of a login."""
    conditions = {
        "lower(t.login) = lower(:value)": wanted.login,
        "t.id = ANY(CAST(:value AS bigint[]))": None if wanted.accounts is None else list(wanted.accounts),
    }
    page = read(db, _COLUMNS, table="accounts", conditions=conditions, order=Order.OLDEST, after=after, limit=limit)
    ids = [row.id for row in page.rows]
    return Accounts(page, usage_of(db, ids), ending_pods(db, ids))


def account_story(
    db: Connection, account_id: int, *, lock: bool = False, accounts: Collection[int] | None = None
) -> AccountStory | None:
    """Return an account with its usage and the counts of its jobs, or None if there is no such account.

    If `lock` is True, the account's row is locked, so that the caller can change the account. If `accounts` is given,
    the result is None for an account that is not in `accounts`.
    """
    if accounts is not None and account_id not in accounts:
        return None
    locking = "FOR NO KEY UPDATE" if lock else ""
    account = db.execute(
        text(f"SELECT {_COLUMNS} FROM accounts t WHERE t.id = :id {locking}"),
        {"id": account_id},
    ).one_or_none()
    if account is None:
        return None
    jobs = db.execute(
        text("""
            SELECT count(*) FILTER (WHERE hold_reason IS NULL) AS queued,
                   count(*) FILTER (WHERE hold_reason IS NOT NULL) AS held,
                   min(queued_at) FILTER (WHERE hold_reason IS NULL) AS oldest_queued_at
            FROM jobs WHERE account_id = :id AND state = 'queued'
        """),
        {"id": account_id},
    ).one()
    return AccountStory(
        account, usage_of(db, [account_id])[account_id], jobs, ending_pods(db, [account_id])[account_id]
    )
