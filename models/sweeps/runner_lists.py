"""Shared runner lists of GitHub: the last list of each scope, and the process that requests the next list.

A list of 10,000 runners is one row of about 250 kB. The table is UNLOGGED. A crash of Postgres empties the table, and
the lists are requested again. `docs/decisions/0016-shared-runner-lists.md` explains why the lists are stored in
Postgres and not in Redis.
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
"""Age at which the list of a scope is deleted. Usually, no process needs a list of this age any more."""


class RunnerListRow(Base):
    """The last complete list of a scope, if there is one, and the process that has reserved the next list."""

    __tablename__ = "runner_lists"
    __table_args__ = ({"prefixes": ["UNLOGGED"]},)

    installation_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    scope: Mapped[str] = mapped_column(primary_key=True)
    taken_at: Mapped[datetime | None] = mapped_column(
        comment="time at which the first page was requested; NULL: no list is stored"
    )
    used_for: Mapped[float] = mapped_column(
        Double, server_default="0", comment="seconds after `taken_at` during which the list may be used"
    )
    runners: Mapped[bytes | None] = mapped_column(
        LargeBinary, comment="deflated JSON: [id, name, online, busy] of each runner"
    )
    versions: Mapped[bytes | None] = mapped_column(
        LargeBinary, comment="deflated JSON: for each version, the ids of the runners that have connected"
    )
    reader: Mapped[str | None] = mapped_column(comment="process that has reserved the next list; NULL: none")
    reading_until: Mapped[datetime | None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request for the list of one scope. `reader` names the process that makes this request."""

    installation_id: int
    scope: str
    reader: str


def find(db: Connection, wanted: Wanted, *, now: datetime) -> RunnerList | None:
    """Return the stored list of a scope, or None if no list is recent enough to be used.

    A list is not used if its time is in the future. Otherwise a list from a process with a fast clock would be used for
    too long.
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
    """Reserve the next list of a scope for this process. Return True if the list is reserved now.

    The reservation lasts for `seconds` seconds. Return False if another process has reserved the list, or if another
    process has stored a recent list in the meantime.
    """
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
    """Extend this process's reservation. The reservation then ends `seconds` seconds from now."""
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
    """Cancel this process's reservation. The next process that needs the list can then reserve it."""
    db.execute(
        text("""
            UPDATE runner_lists SET reader = NULL, reading_until = NULL
            WHERE installation_id = :installation AND scope = :scope AND reader = :reader
        """),
        {"installation": wanted.installation_id, "scope": wanted.scope, "reader": wanted.reader},
    )


def store(db: Connection, wanted: Wanted, taken: RunnerList, *, now: datetime) -> None:
    """Store a complete list for all processes, and cancel this process's reservation.

    A stored list that is newer is not replaced, unless the time of the stored list is in the future.
    """
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
    """Return True if a claim of the scope is `executing`. In that case an empty list of runners is suspicious."""
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
    """Pack the versions of the runners for the column `versions`.

    The column `runners` does not contain the versions, because workers of an earlier release could not read them.
    """
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
