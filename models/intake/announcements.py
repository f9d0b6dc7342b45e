"""Changes by webhooks that concern no job: installations, and the names of owners and repositories.

Each is applied once, by its GUID, and may come late: ids and the former name decide, and what moved on since is left
alone. A name that is missed costs a redirect or a 404, after which the installation is asked; so jobs that
others hold locked are skipped here, not waited for.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text

from models.intake import repositories
from models.intake.intake import ACTIONS, Outcome
from models.routing import installations
from models.routing.accounts import rename_owner
from models.tables import deliveries
from models.upstream import backoffs
from rules.intake.events import OwnerRenamed, RepositoryRenamed

RENAMES = ("organization", "installation_target", "repository")
"""Events that tell a new name, by the action `renamed`."""

TAKEN = {"workflow_job": ACTIONS, "installation": installations.BACK, **dict.fromkeys(RENAMES, ("renamed",))}
"""Events and their actions that are asked for again when they did not reach us.

Not `suspend` and `deleted`: the next mint finds that out by itself, and late ones could hold what works again.
"""


def take(db: Connection, *, guid: str, event: str, action: str, now: datetime) -> bool:
    """Write a delivery down; False when it was before, and nothing is to be done."""
    return deliveries.insert(db, guid=guid, event=event, action=action, outcome=Outcome.ACCEPTED, now=now)


def owner_renamed(db: Connection, event: OwnerRenamed, *, now: datetime) -> bool:
    """Write an owner's new login down, unless it is known by yet another one; return whether anything changed."""
    is_known = db.execute(
        text("SELECT 1 FROM accounts WHERE id = :id AND lower(login) = lower(:former)"),
        {"id": event.owner_id, "former": event.former},
    ).one_or_none()
    if is_known is None or not rename_owner(db, account_id=event.owner_id, login=event.login):
        return False
    backoffs.forget_repositories(db, login=event.former)
    backoffs.end_waits(db, account_id=event.owner_id, now=now)
    return True


def repository_renamed(db: Connection, event: RepositoryRenamed, *, now: datetime) -> bool:
    """Write a repository's new name wherever the former one stands for it; return whether it did.

    The former name may be another repository's by now: `models.intake.repositories` tells them apart.
    """
    renaming = repositories.Renaming(
        event.repository_id, event.owner_id, event.former, event.full_name, event.at or now
    )
    return repositories.rename(db, renaming, now=now)
