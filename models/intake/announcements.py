"""Webhooks that concern no job: changes of installations, and new names of owners and repositories.

Each webhook delivery is identified by its GUID and is applied once. A delivery might arrive late. A webhook delivery
about a new name therefore changes only rows that have the id and the former name given in the event. Rows that have
another name by now stay unchanged. `models.routing.installations.come_back` ignores a late delivery about an
installation that works.

If a webhook about a new name is lost, GitHub later answers a request with a redirect or a 404. Ostler then asks GitHub
for the present name. The former name of a skipped row is corrected in the same way. This module therefore skips jobs
that other sessions have locked, and does not wait for the locks.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, text

from models.intake import repositories
from models.intake.intake import ACTIONS, Outcome
from models.routing import installations
from models.routing.accounts import rename_owner
from models.state import deliveries
from models.upstream import backoffs
from rules.intake.events import OwnerRenamed, RepositoryRenamed

RENAMES = ("organization", "installation_target", "repository")
"""Events with the action `renamed`, which announce a new name."""

TAKEN = {"workflow_job": ACTIONS, "installation": installations.BACK, **dict.fromkeys(RENAMES, ("renamed",))}
"""Events and actions of webhooks. Ostler requests the redelivery of such a webhook if the webhook was lost.

`suspend` and `deleted` are missing on purpose. The next mint detects both actions, and a late delivery could hold the
jobs of an installation that works again.
"""


def take(db: Connection, *, guid: str, event: str, action: str, now: datetime) -> bool:
    """Record a webhook delivery. Return False if the delivery was recorded before and must not be applied again."""
    return deliveries.insert(db, guid=guid, event=event, action=action, outcome=Outcome.ACCEPTED, now=now)


def owner_renamed(db: Connection, event: OwnerRenamed, *, now: datetime) -> bool:
    """Apply an owner's new login to the rows, and return whether any row changed.

    Nothing changes if the account's present login is not the former login of the event.
    """
    is_known = db.execute(
        text("SELECT 1 FROM accounts WHERE id = :id AND lower(login) = lower(:former)"),
        {"id": event.owner_id, "former": event.former},
    ).one_or_none()
    if is_known is None or not rename_owner(db, account_id=event.owner_id, login=event.login):
        return False
    backoffs.delete_repositories(db, login=event.former)
    backoffs.end_waits(db, account_id=event.owner_id, now=now)
    return True


def repository_renamed(db: Connection, event: RepositoryRenamed, *, now: datetime) -> bool:
    """Replace a repository's former name by its new name in the rows, and return whether any row changed.

    Another repository might have the former name by now. `models.intake.repositories` distinguishes the two
    repositories.
    """
    renaming = repositories.Renaming(
        event.repository_id, event.owner_id, event.former, event.full_name, event.at or now
    )
    return repositories.rename(db, renaming, now=now)
