"""Webhooks that are not about a job: the App's installations, and renamed owners and repositories.

Such webhooks are called announcements. They are rare, so each announcement has its own transaction. An announcement
that arrives twice or late does no lasting harm.
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
"""Milliseconds that an announcement waits for one lock.

After this time the announcement is retried later, so that other announcements can be applied first.
"""


def parse(event: str, body: bytes) -> Announcement | None:
    """Return the announcement in a webhook. `event` is one of `EVENTS`. Return None if Ostler does not use the webhook.

    Raises `MalformedPayload` if the body cannot be parsed.
    """
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
    """Apply an announcement, unless an announcement with the same GUID was applied before.

    Return two values: the outcome, and True if held jobs must be matched again. All announcements are applied in the
    same thread, so a long wait for a lock would delay other announcements. After `LOCK_MS`, an announcement that waits
    for a lock therefore fails with the error of the database. The caller retries the announcement.
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
