"""The runner lists of GitHub that all processes share: one of each scope, and who takes the next.

A list of 10,000 runners is one row of about 250 kB. UNLOGGED: lost in a crash, and then simply taken again. Why
Postgres and not Redis: `docs/decisions/0016-shared-runner-lists.md`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Double, LargeBinary
from sqlalchemy.orm import Mapped, mapped_column

from models.claims.names import INSTALLATION_NOW, SCOPE_NOW
from models.db.base import Base
from models.db.sql import text
from rules.sweeps.runner_checks import ListedRunner, RunnerList

KEPT = timedelta(hours=1)
"""For how long the list of a scope that nobody asks for any more is kept."""


class RunnerListRow(Base):
    """The last whole list of a scope, if there is one, and who takes the next until when."""

    __tablename__ = "runner_lists"
    __table_args__ = ({"prefixes": ["UNLOGGED"]},)

    installation_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    scope: Mapped[str] = mapped_column(primary_key=True)
    taken_at: Mapped[datetime | None] = mapped_column(comment="when its first page was asked for")
    used_for: Mapped[float] = mapped_column(Double, server_default="0", comment="seconds since taken_at")
    runners: Mapped[bytes | None] = mapped_column(LargeBinary, comment="deflated JSON: [id, name, online, busy]")
    versions: Mapped[bytes | None] = mapped_column(
        LargeBinary, comment="deflated JSON: the ids of the runners that have connected, by version"
    )
    reader: Mapped[str | None] = mapped_column(comment="who takes the next list")
    reading_until: Mapped[datetime | None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The list of one scope; `reader` names who asks for it."""

    installation_id: int
    scope: str
    reader: str


def find(db: Connection, wanted: Wanted, *, now: datetime) -> RunnerList | None:
    """Return the list while it is new enough to be used, None when there is none.

    One of a clock that is ahead is none: it would be new for as long as that.
    """
    row = db.execute(
        text("""
            SELECT taken_at, runners, versions FROM runner_lists
            WHERE installation_id = :installation AND scope = :scope
              AND taken_at <= :now AND taken_at + make_interval(secs => used_for) > :now
        """),
        {"installation": wanted.installation_id, "scope": wanted.scope, "now": now},
    ).one_or_none()
    return None if row is None else RunnerList(row.taken_at, _unpack(row.runners, row.versions))


def begin(db: Connection, wanted: Wanted, *, seconds: float, now: datetime) -> bool:
    """Take the turn to list for so many seconds; False when another has it, or has listed meanwhile."""
    db.execute(text("DELETE FROM runner_lists WHERE taken_at < :before"), {"before": now - KEPT})
    mine = db.execute(
        text("""
            INSERT INTO runner_lists AS l (installation_id, scope, reader, reading_until)
            VALUES (:installation, :scope, :reader, :until)
            ON CONFLICT (installation_id, scope) DO UPDATE SET reader = :reader, reading_until = :until
            WHERE (l.taken_at IS NULL OR l.taken_at > :now
                   OR l.taken_at + make_interval(secs => l.used_for) <= :now)
              AND (l.reading_until IS NULL OR l.reading_until <= :now)
            RETURNING l.scope
        """),
        {
            "installation": wanted.installation_id,
            "scope": wanted.scope,
            "reader": wanted.reader,
            "until": now + timedelta(seconds=seconds),
            "now": now,
        },
    ).one_or_none()
    return mine is not None


def extend(db: Connection, wanted: Wanted, *, seconds: float, now: datetime) -> None:
    """Keep the turn for so many seconds more."""
    db.execute(
        text("""
            UPDATE runner_lists SET reading_until = :until
            WHERE installation_id = :installation AND scope = :scope AND reader = :reader
        """),
        {
            "installation": wanted.installation_id,
            "scope": wanted.scope,
            "reader": wanted.reader,
            "until": now + timedelta(seconds=seconds),
        },
    )


def give_back(db: Connection, wanted: Wanted) -> None:
    """Give the turn back without a list: who wants one lists by itself."""
    db.execute(
        text("""
            UPDATE runner_lists SET reader = NULL, reading_until = NULL
            WHERE installation_id = :installation AND scope = :scope AND reader = :reader
        """),
        {"installation": wanted.installation_id, "scope": wanted.scope, "reader": wanted.reader},
    )


def keep(db: Connection, wanted: Wanted, taken: RunnerList, *, now: datetime) -> None:
    """Keep a whole list for all, unless a newer one is there that is not from the future, and give the turn back."""
    db.execute(
        text("""
            UPDATE runner_lists SET taken_at = :taken_at, used_for = :used_for, runners = :runners,
                   versions = :versions
            WHERE installation_id = :installation AND scope = :scope
              AND (taken_at IS NULL OR taken_at < :taken_at OR taken_at > :now)
        """),
        {
            "installation": wanted.installation_id,
            "scope": wanted.scope,
            "taken_at": taken.taken_at,
            "used_for": taken.used_for(whole_at=now),
            "runners": _pack(taken.runners.values()),
            "versions": _pack_versions(taken.runners.values()),
            "now": now,
        },
    )
    give_back(db, wanted)


def executes(db: Connection, wanted: Wanted) -> bool:
    """Return whether a claim of the scope is known to execute: an empty list is suspicious then."""
    found: bool = db.execute(
        text(f"""
            SELECT EXISTS (SELECT FROM claims c WHERE c.ended_at IS NULL AND c.state = 'executing'
                           AND {INSTALLATION_NOW} = :installation AND {SCOPE_NOW} = :scope)
        """),
        {"installation": wanted.installation_id, "scope": wanted.scope},
    ).scalar_one()
    return found


def _pack(runners: Iterable[ListedRunner]) -> bytes:
    rows = [[each.id, each.name, int(each.online), int(each.busy)] for each in runners]
    return zlib.compress(json.dumps(rows, separators=(",", ":")).encode())


def _pack_versions(runners: Iterable[ListedRunner]) -> bytes:
    """Pack the versions in a column of their own, which workers of an earlier release do not read."""
    found: dict[str, list[int]] = {}
    for each in runners:
        if each.has_connected:
            found.setdefault(each.version or "", []).append(each.id)
    return zlib.compress(json.dumps(found, separators=(",", ":")).encode())


def _unpack(packed: bytes, versions: bytes | None) -> dict[str, ListedRunner]:
    known = {} if versions is None else json.loads(zlib.decompress(versions))
    version_of = {number: version for version, numbers in known.items() for number in numbers}
    return {
        name: ListedRunner(
            number,
            name,
            online=bool(online),
            busy=bool(busy),
            has_connected=number in version_of,
            version=version_of.get(number) or None,
        )
        for number, name, online, busy in json.loads(zlib.decompress(packed))
    }
