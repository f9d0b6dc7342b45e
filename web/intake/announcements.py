"""Webhooks that are about no job: the App's installations, and new names of owners and repositories.

Few and far between, so each has a transaction of its own. Doubled or late ones change nothing that lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from sqlalchemy import Connection, text

from github_adapters.webhooks import parse_installation, parse_owner, parse_repository
from models.intake import announcements
from models.intake.intake import Outcome
from models.routing import installations
from rules.claims.fairness import Budget
from rules.intake.events import InstallationEvent, OwnerRenamed, RepositoryRenamed
from rules.routing.access import Access

Announcement = InstallationEvent | OwnerRenamed | RepositoryRenamed

_PARSERS: Mapping[str, Callable[[bytes], Announcement | None]] = {
    "installation": parse_installation,
    "organization": parse_owner,
    "installation_target": parse_owner,
    "repository": parse_repository,
}
EVENTS = frozenset(_PARSERS)

LOCK_MS = 50
"""Milliseconds that one lock is waited for before other announcements go first."""


def parse(event: str, body: bytes) -> Announcement | None:
    """Return what one of `EVENTS` announces; None: nothing that is used here. Raises `MalformedPayload`."""
    found = _PARSERS[event](body)
    if isinstance(found, InstallationEvent) and found.action not in {*installations.LEFT, *installations.BACK}:
        return None
    return found


def apply(
    db: Connection,
    announced: Announcement,
    *,
    guid: str,
    event: str,
    budget: Budget,
    now: datetime,
    access: Access = Access.ALLOWED,
) -> tuple[Outcome, bool]:
    """Apply it once; return its outcome, and whether held jobs should be matched again.

    Other announcements wait for its thread: one that meets a lock for longer than `LOCK_MS` fails with the error of the
    database, and is retried.
    """
    db.execute(text("SELECT set_config('lock_timeout', :most, true)"), {"most": str(LOCK_MS)})
    if not announcements.take(db, guid=guid, event=event, action=announced.action, now=now):
        return Outcome.DUPLICATE, False
    return Outcome.ACCEPTED, _change(db, announced, budget=budget, access=access, now=now)


def _change(db: Connection, announced: Announcement, *, budget: Budget, access: Access, now: datetime) -> bool:
    match announced:
        case OwnerRenamed():
            return announcements.owner_renamed(db, announced, now=now)
        case RepositoryRenamed():
            return announcements.repository_renamed(db, announced, now=now)
        case InstallationEvent() if announced.action in installations.LEFT:
            reason = installations.LEFT[announced.action]
            installations.leave(
                db,
                installation_id=announced.installation_id,
                reason=reason,
                gone=announced.action in installations.GONE,
                now=now,
            )
            return False
        case InstallationEvent():
            installations.come_back(
                db,
                installation_id=announced.installation_id,
                account_id=announced.owner_id,
                login=announced.owner_login,
                budget=budget,
                access=access,
                at=announced.at,
                now=now,
            )
            return True
