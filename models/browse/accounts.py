"""Queries for accounts: their budgets, their weights and their present usage."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from models.browse.page import Choice, Order, choices, read
from models.db.sql import text
from models.routing.usage import ending_pods, usage_of
from rules.changes import Author, Via
from rules.claims.fairness import Usage
from rules.waiting.facts import HeldAccount

_COLUMNS = "t.id, t.login, t.weight, t.budget_count, t.budget_vcpu, t.budget_memory, t.access, t.created_at"


@dataclass(frozen=True, slots=True)
class AccountFilter:
    """Filter for accounts. None selects all accounts."""

    login: str | None = None
    accounts: Collection[int] | None = None
    """The ids of the accounts that the caller may see. None means all accounts."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Numbers of queued jobs without and with a hold.

    `oldest_queued_at` is the queue time of the oldest job without a hold. If all are held, it is that of the oldest.
    """

    queued: int = 0
    held: int = 0
    oldest_queued_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """An account, and the queue time of its oldest job without a hold, or None if it has no such job."""

    id: int
    access: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class AccountStory:
    """An account with its present usage and its queue. `ending` is the number of its Pods whose job is over."""

    account: Row[Any]
    usage: Usage
    jobs: Queue
    ending: int

    @property
    def waiting(self) -> Waiting:
        """Return the part of the story that `diagnoses.waits_for` needs."""
        since = self.jobs.oldest_queued_at if self.jobs.queued else None
        return Waiting(self.account.id, self.account.access, since)


@dataclass(frozen=True, slots=True)
class Accounts:
    """One page of accounts, in the order of their ids."""

    stories: Sequence[AccountStory]
    next_id: int | None


def list_accounts(db: Connection, wanted: AccountFilter, *, after: int | None = None, limit: int) -> Accounts:
    """Return one page of accounts, in the order of their ids. Like GitHub, the filter ignores the case of a login."""
    conditions = {
        "lower(t.login) = lower(:value)": wanted.login,
        "t.id = ANY(CAST(:value AS bigint[]))": None if wanted.accounts is None else list(wanted.accounts),
    }
    page = read(db, _COLUMNS, source="accounts t", conditions=conditions, order=Order.OLDEST, after=after, limit=limit)
    return Accounts(_stories(db, page.rows), page.next_id)


def account_choices(db: Connection, *, accounts: Collection[int] | None = None, limit: int) -> Sequence[Choice]:
    """Return the ids and the logins of accounts, in the order of their ids. `accounts` limits them, if it is given."""
    conditions = {"t.id = ANY(CAST(:value AS bigint[]))": None if accounts is None else list(accounts)}
    return choices(db, "login", source="accounts t", conditions=conditions, limit=limit)


def told(story: AccountStory) -> dict[str, Any]:
    """Return an account with its story as the commands and the API show it. Sizes are in vCPU and GiB."""
    row, usage = story.account, story.usage
    return {
        "id": row.id,
        "login": row.login,
        "weight": row.weight,
        "budget": amount(row.budget_count, row.budget_vcpu, row.budget_memory),
        "usage": amount(usage.count, usage.vcpu_millicores, usage.memory_mib),
        "ending_pods": story.ending,
        "access": row.access,
        "jobs": asdict(story.jobs),
        "created_at": row.created_at,
    }


def amount(count: int, vcpu: int, memory: int) -> dict[str, float]:
    """Return an amount of millicores and MiB in vCPU and GiB."""
    return {"count": count, "vcpu": vcpu / 1000, "memory_gib": memory / 1024}


def _stories(db: Connection, accounts: Sequence[Row[Any]]) -> Sequence[AccountStory]:
    ids = [account.id for account in accounts]
    rows = db.execute(
        text("""
            SELECT account_id, count(*) FILTER (WHERE hold_reason IS NULL) AS queued,
                   count(*) FILTER (WHERE hold_reason IS NOT NULL) AS held,
                   coalesce(min(queued_at) FILTER (WHERE hold_reason IS NULL), min(queued_at)) AS oldest_queued_at
            FROM jobs WHERE account_id = ANY(:ids) AND state = 'queued' GROUP BY account_id
        """),
        {"ids": ids},
    )
    queues = {row.account_id: Queue(row.queued, row.held, row.oldest_queued_at) for row in rows}
    usage, ending = usage_of(db, ids), ending_pods(db, ids)
    return [AccountStory(each, usage[each.id], queues.get(each.id, Queue()), ending[each.id]) for each in accounts]


def held_by(db: Connection, account_id: int, *, accounts: Collection[int] | None) -> HeldAccount:
    """Return who held an account that is not allowed, and since when, as far as the table of changes knows.

    If `accounts` is given, the reader is limited to these accounts, and the operator's name is left out.
    """
    row = db.execute(
        text("""
            SELECT who, via, at FROM changes
            WHERE kind = 'account' AND object_id = :id AND new ->> 'access' = 'held' ORDER BY id DESC LIMIT 1
        """),
        {"id": account_id},
    ).one_or_none()
    if row is None:
        return HeldAccount()
    by = str(Author(row.who, Via(row.via), row.at)) if accounts is None else "an operator"
    return HeldAccount(by, row.at)


def account_story(
    db: Connection, account_id: int, *, lock: bool = False, accounts: Collection[int] | None = None
) -> AccountStory | None:
    """Return an account with its story, or None if there is no such account.

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
    return _stories(db, [account])[0]
