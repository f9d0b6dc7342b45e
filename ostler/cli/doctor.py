"""`ostler doctor`: what is wrong, why, and what to do about it. Exit status 1 when something is.

A check is one function that takes `Seen` and returns a `Finding`; it joins by a line in `CHECKS`. It may raise: what
could not be looked at is `unknown`, and stops no other check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from ostler.cli.healthy import holds_lock
from ostler.cli.output import Json, age, print_json, print_table, query
from ostler.clock import utcnow
from ostler.settings import load_stores

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

    from models.epochs import EpochSeen

TICK_WITHIN = 60.0
"""Seconds within which some sweep begins wherever beat and a worker run: `resume` comes every five."""


class Outcome(StrEnum):
    """What a check found; `unknown`: it could not look."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. `cause` says what is, in one sentence; `cure` what to do where it is not ok."""

    name: str
    outcome: Outcome
    cause: str
    cure: str | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """What was read once for all checks.

    `revision`: what the database is at. `needed`: the newest of this version, None where the database fits it.
    """

    now: datetime
    revision: str | None
    needed: str | None
    epoch: EpochSeen | None
    last_tick: datetime | None
    beat_holds_its_lock: bool | None
    """None: Redis was not asked or did not answer."""


def epoch(seen: Seen) -> Finding:
    """Postgres is as new as the cluster: nobody put it back to an earlier state."""
    from models.epochs import CURE  # noqa: PLC0415

    name = "epoch"
    if seen.epoch is None:
        return Finding(name, Outcome.UNKNOWN, "the database lacks the table of the epoch", "run `ostler migrate`")
    if seen.epoch.older_since is not None:
        why = f"Postgres is older than the cluster since {seen.epoch.older_since:%Y-%m-%d %H:%M:%S} UTC: "
        return Finding(name, Outcome.FAILED, f"{why}{seen.epoch.why}. Nothing is matched, released or retired", CURE)
    if seen.epoch.doubt is not None:
        cure = (
            "see that beat and a worker on the queue `pools` run, and that they may get, create and patch the "
            "ConfigMap `ostler-epoch` in OSTLER_NAMESPACE. A copy of Postgres that was taken since then looks current: "
            "if one was put back, run `ostler restore --anyway`"
        )
        return Finding(name, Outcome.FAILED, f"{seen.epoch.doubt}. Nothing is released or retired", cure)
    return Finding(name, Outcome.OK, f"at {seen.epoch.epoch.number}, as new as the cluster")


def revision(seen: Seen) -> Finding:
    """The database has the schema of this version, or of a newer one."""
    name = "database revision"
    if seen.needed is None:
        return Finding(name, Outcome.OK, f"at {seen.revision}")
    cause = f"at {seen.revision or 'none'}, this version needs {seen.needed}"
    return Finding(name, Outcome.FAILED, cause, "run `ostler migrate`")


def beats(seen: Seen) -> Finding:
    """Something sends the sweeps, and something runs them."""
    name = "beat"
    told = "never" if seen.last_tick is None else f"{age(seen.last_tick, now=seen.now)} ago"
    if seen.last_tick is not None and (seen.now - seen.last_tick).total_seconds() < TICK_WITHIN:
        return Finding(name, Outcome.OK, f"a sweep began {told}")
    cause = f"a sweep last began {told}"
    if seen.beat_holds_its_lock is False:
        return Finding(name, Outcome.FAILED, f"{cause}; no beat holds the lock in Redis", "start `ostler beat`, twice")
    if seen.beat_holds_its_lock is None:
        return Finding(name, Outcome.FAILED, f"{cause}; Redis was not asked or did not answer",
                       "see that Redis, `ostler beat` and a worker on the queue `sweeps` run")  # fmt: skip
    return Finding(name, Outcome.FAILED, f"{cause}, though a beat holds its lock",
                   "see that a worker runs on the queue `sweeps`")  # fmt: skip


CHECKS: tuple[Callable[[Seen], Finding], ...] = (epoch, revision, beats)
"""In the order in which an operator should read them."""


def doctor(as_json: Json = False) -> None:
    """Look at what has to be right, and say cause and cure of what is not. Needs OSTLER_DATABASE_URL."""
    seen = _look()
    findings = [_run(check, seen) for check in CHECKS]
    if as_json:
        print_json([asdict(each) for each in findings])
    else:
        print_table(
            ("check", "", "cause", "cure"),
            ((each.name, each.outcome, each.cause, each.cure) for each in findings),
            empty="no checks",
        )
    if any(each.outcome is not Outcome.OK for each in findings):
        raise typer.Exit(1)


def _run(check: Callable[[Seen], Finding], seen: Seen) -> Finding:
    try:
        return check(seen)
    except Exception as error:  # noqa: BLE001  one check that fails stops no other
        return Finding(check.__name__, Outcome.UNKNOWN, f"it could not be looked at: {type(error).__name__}")


def _look() -> Seen:
    from models import epochs, migrate, sweep_runs  # noqa: PLC0415

    now, known, lock = utcnow(), migrate.revisions(), _beat_lock()

    def read(db: Connection) -> Seen:
        revision = migrate.revision_of(db)
        fits = migrate.fits(revision, known)
        return Seen(
            now=now,
            revision=revision,
            needed=None if fits else known[-1],
            epoch=epochs.read(db, now=now) if fits else None,
            last_tick=sweep_runs.last_tick(db) if fits else None,
            beat_holds_its_lock=lock,
        )

    return query(read)


def _beat_lock() -> bool | None:
    from redis.exceptions import RedisError  # noqa: PLC0415

    url = load_stores().redis_url
    try:
        return None if url is None else holds_lock(url.reveal())
    except RedisError:
        return None
