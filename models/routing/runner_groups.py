"""Cache of the runner groups of organisations. Intake, `rematch` and the mint read this cache.

For each installation, one row has all runner groups (`repository_id` 0). Each further row has the groups that one
repository may use. Such a row is needed only if a group admits selected repositories. The mint requests the lists from
GitHub (`tasks.routing.runner_groups`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base
from models.db.sql import text
from models.state import job_holds
from rules.routing.holds import HoldReason
from rules.routing.routing import Wait
from rules.routing.runner_groups import GroupSeen, GroupVerdict, judge_group

KNOWN_FOR = timedelta(hours=1)
"""Maximum age of a cached list that is used as proof that a group admits a repository.

A refused mint deletes the list.
"""

REFUSED_FOR = timedelta(minutes=10)
"""Maximum age of a cached list that is used as proof that a group does not admit a repository.

This age is short, so that jobs soon run after an administrator has corrected the group.
"""

KEPT_FOR = timedelta(days=1)

EVERY = 0
"""Value of the column `repository_id` in the row that lists all groups of an installation."""


class RunnerGroupList(Base):
    """A complete list of runner groups from GitHub. Each group is stored as a `rules.routing.runner_groups.GroupSeen`.

    A list is deleted when it is older than a day.
    """

    __tablename__ = "runner_group_lists"

    installation_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    repository_id: Mapped[int] = mapped_column(
        primary_key=True,
        autoincrement=False,
        comment="repository whose groups are listed; 0: all groups of the installation",
    )
    groups: Mapped[list[dict[str, Any]]] = mapped_column(JSONB)
    read_at: Mapped[datetime]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The runner group that a pool asks for, and facts about the job that needs the group.

    `group` is the number or the name of the group. `organization` is True if the owner of the repository is an
    organisation. `public` is True if the repository is public. `private_only` is True if the group must not admit
    public repositories (`rules.routing.forks.private_only`).
    """

    group: int | str
    installation_id: int | None
    repository: str
    repository_id: int | None
    organization: bool
    public: bool
    private_only: bool

    @property
    def owner(self) -> str:
        """Return the login of the repository's owner."""
        return self.repository.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict from the cached lists.

    `until` is the time at which the verdict expires, or None if the verdict needed no list.
    """

    verdict: GroupVerdict
    until: datetime | None


class GroupBook:
    """The cached group lists at the time `now`. Each row is read at most once, and only if a verdict needs the row."""

    def __init__(self, db: Connection, *, now: datetime) -> None:
        self._db = db
        self._now = now
        self._rows: dict[tuple[int, int], tuple[list[GroupSeen], datetime] | None] = {}

    def judge(self, wanted: Wanted) -> Judged:
        """Return the verdict on a group for a job.

        If the cached lists are not sufficient, the verdict is a question to GitHub (`ask`).
        """
        blank = judge_blank(wanted)
        if blank.ask is None:
            return Judged(blank, None)
        every, visible = self._known(wanted, EVERY), self._known(wanted, wanted.repository_id)
        verdict = _judge(wanted, groups=every and every[0])
        read_at = None if every is None else every[1]
        if verdict.ask is not None and every is not None:
            verdict = _judge(wanted, groups=every[0], visible=visible and frozenset(each.id for each in visible[0]))
            read_at = read_at if visible is None else min(every[1], visible[1])
        if verdict.refusal is not None and read_at is not None and read_at + REFUSED_FOR <= self._now:
            return Judged(blank, None)
        kept = REFUSED_FOR if verdict.refusal is not None else KNOWN_FOR
        return Judged(verdict, None if read_at is None else read_at + kept)

    def wait(self, wanted: Wanted) -> Wait | None:
        """Return the wait of a job that must not use the group, or None if the cached lists do not show a refusal.

        If the cached lists are not sufficient, the result is None. The mint then asks GitHub.
        """
        judged = self.judge(wanted)
        if judged.verdict.refusal is None:
            return None
        return Wait(judged.verdict.refusal, judged.until or self._now + REFUSED_FOR)

    def _known(self, wanted: Wanted, repository_id: int | None) -> tuple[list[GroupSeen], datetime] | None:
        if wanted.installation_id is None or repository_id is None:
            return None
        key = (wanted.installation_id, repository_id)
        if key not in self._rows:
            row = self._db.execute(
                text("""
                    SELECT groups, read_at FROM runner_group_lists
                    WHERE installation_id = :installation AND repository_id = :repository AND read_at > :since
                """),
                {"installation": key[0], "repository": key[1], "since": self._now - KNOWN_FOR},
            ).one_or_none()
            self._rows[key] = None if row is None else ([GroupSeen(**each) for each in row.groups], row.read_at)
        return self._rows[key]


def judge_blank(wanted: Wanted) -> GroupVerdict:
    """Return the verdict without any list of groups.

    For most jobs this verdict is final. For all other jobs, the verdict is a question to GitHub (`ask`).
    """
    return _judge(wanted)


def _judge(
    wanted: Wanted, *, groups: Sequence[GroupSeen] | None = None, visible: frozenset[int] | None = None
) -> GroupVerdict:
    return judge_group(
        wanted.group,
        owner=wanted.owner,
        organization=wanted.organization,
        repository=wanted.repository,
        public=wanted.public,
        private_only=wanted.private_only,
        groups=groups,
        visible=visible,
    )


def store(
    db: Connection, *, installation_id: int, repository_id: int, groups: Sequence[GroupSeen], now: datetime
) -> None:
    """Store a list of groups from GitHub, and delete lists that are older than `KEPT_FOR`.

    `repository_id` is `EVERY` if the list has all groups of the installation.
    """
    db.execute(
        text("""
            INSERT INTO runner_group_lists (installation_id, repository_id, groups, read_at)
            VALUES (:installation, :repository, CAST(:groups AS jsonb), :now)
            ON CONFLICT (installation_id, repository_id) DO UPDATE SET groups = excluded.groups, read_at = :now
        """),
        {
            "installation": installation_id,
            "repository": repository_id,
            "now": now,
            "groups": json.dumps([asdict(group) for group in groups]),
        },
    )
    db.execute(text("DELETE FROM runner_group_lists WHERE read_at < :before"), {"before": now - KEPT_FOR})


def delete(db: Connection, installation_id: int) -> None:
    """Delete all cached lists of an installation, because GitHub refused a request that relied on these lists."""
    db.execute(
        text("DELETE FROM runner_group_lists WHERE installation_id = :installation"), {"installation": installation_id}
    )


def hold_alike(
    db: Connection, *, pool_id: int, wanted: Wanted, verdict: GroupVerdict, until: datetime, now: datetime
) -> int:
    """Hold the queued jobs that the refusal in `verdict` concerns, in one pool. Return how many jobs were held.

    Jobs that other sessions have locked are skipped.
    """
    found = db.execute(
        text("""
            SELECT id FROM jobs
            WHERE pool_id = :pool AND state = 'queued' AND hold_reason IS NULL
              AND installation_id = :installation AND (:everywhere OR repository = :repository)
            ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
        """),
        {
            "pool": pool_id,
            "installation": wanted.installation_id,
            "everywhere": verdict.everywhere,
            "repository": wanted.repository,
        },
    )
    return job_holds.hold(
        db, found.scalars().all(), reason=HoldReason.RUNNER_GROUP, detail=verdict.refusal, not_before=until, now=now
    )
