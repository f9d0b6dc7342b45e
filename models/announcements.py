"""What webhooks that are about no job change: who is installed where, and what owners and repositories are called.

Each is applied once, by its GUID, and may come late: ids and the former name decide, and what moved on since is left
alone. A name that is missed costs a redirect or a 404, after which the installation is asked; so jobs that
others hold locked are skipped here, not waited for.
"""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from sqlalchemy import Connection, text

from models import backoffs, installations
from models.accounts import rename_owner
from models.intake import ACTIONS, Outcome

RENAMES = ("organization", "installation_target", "repository")
"""Events that tell a new name, by the action `renamed`."""

TAKEN = {"workflow_job": ACTIONS, "installation": installations.BACK, **dict.fromkeys(RENAMES, ("renamed",))}
"""Events and their actions that are asked for again when they did not reach us.

Not `suspend` and `deleted`: the next mint finds that out by itself, and late ones could hold what works again.
"""


class OwnerRenamed(Protocol):
    """`github_adapters.webhooks.OwnerRenamed` is one."""

    @property
    def owner_id(self) -> int: ...  # noqa: D102
    @property
    def former(self) -> str: ...  # noqa: D102
    @property
    def login(self) -> str: ...  # noqa: D102


class RepositoryRenamed(Protocol):
    """`github_adapters.webhooks.RepositoryRenamed` is one."""

    @property
    def owner_id(self) -> int: ...  # noqa: D102
    @property
    def former(self) -> str: ...  # noqa: D102
    @property
    def full_name(self) -> str: ...  # noqa: D102
    @property
    def at(self) -> datetime | None: ...  # noqa: D102


def take(db: Connection, *, guid: str, event: str, action: str, now: datetime) -> bool:
    """Write a delivery down; False when it was before, and nothing is to be done."""
    fresh = db.execute(
        text("""
            INSERT INTO deliveries (guid, event, action, outcome, received_at)
            VALUES (:guid, :event, :action, :outcome, :now) ON CONFLICT (guid) DO NOTHING RETURNING guid
        """),
        {"guid": guid, "event": event, "action": action, "outcome": Outcome.ACCEPTED, "now": now},
    )
    return fresh.one_or_none() is not None


def owner_renamed(db: Connection, event: OwnerRenamed, *, now: datetime) -> bool:
    """Write an owner's new login down, unless it is known by yet another one; return whether anything changed."""
    is_known = db.execute(
        text("SELECT 1 FROM accounts WHERE id = :id AND lower(login) = lower(:former)"),
        {"id": event.owner_id, "former": event.former},
    ).one_or_none()
    if is_known is None or not rename_owner(db, account_id=event.owner_id, login=event.login):
        return False
    db.execute(
        text("DELETE FROM backoffs WHERE kind = 'repository' AND starts_with(key, :former)"),
        {"former": f"{event.former}/"},
    )
    backoffs.end_waits(db, account_id=event.owner_id, now=now)
    return True


def repository_renamed(db: Connection, event: RepositoryRenamed, *, now: datetime) -> bool:
    """Write a repository's new name wherever its jobs that are not over have the former one; return whether any had.

    A job that was queued under the former name after the change belongs to another repository, which has it now.
    """
    moved = list(
        db.execute(
            text("""
                UPDATE jobs SET repository = :name,
                       scope = CASE WHEN scope = 'repos/' || :former THEN 'repos/' || :name ELSE scope END
                WHERE id IN (SELECT id FROM jobs WHERE account_id = :owner AND state <> 'completed'
                               AND repository = :former AND queued_at <= :at ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
                RETURNING id
            """),
            {"owner": event.owner_id, "former": event.former, "name": event.full_name, "at": event.at or now},
        ).scalars()
    )
    # Every claim that was made before, one without a job too: its runner must be looked for where it is.
    parted = db.execute(
        text("""
            UPDATE claims SET scope = 'repos/' || :name
            WHERE id IN (SELECT id FROM claims WHERE account_id = :owner AND ended_at IS NULL AND created_at <= :at
                           AND scope = 'repos/' || :former ORDER BY id FOR NO KEY UPDATE)
        """),
        {"owner": event.owner_id, "former": event.former, "name": event.full_name, "at": event.at or now},
    ).rowcount
    if not moved and not parted:
        return False
    backoffs.forget(db, [("repository", event.former)])
    backoffs.end_waits(db, account_id=event.owner_id, now=now)
    return True
