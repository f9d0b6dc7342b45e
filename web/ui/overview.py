"""Rows of the overview: pools, accounts, recent waits, and what needs attention."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from models.api_tokens import Holder
from models.browse.diagnoses import waits_for
from models.browse.fleet import AccountLine, PoolLine, account_lines, idle_accounts, pool_lines
from models.browse.health import obstacles
from models.browse.nodes import lost_pods
from models.browse.pods import count_failed
from models.browse.sweeps import list_sweeps
from models.browse.waits import By, Waits, queue_age, waits
from models.db import epochs
from models.upstream import gates
from ostler.timings import Timings
from rules.sweeps.limits import is_late, switched_off
from rules.upstream.gates import what_now

WAITS_OF = timedelta(hours=1)

MOST = 200
"""Number of pools and of accounts that the overview shows. They are rendered every second while somebody watches."""


RESTORE = (
    "Running jobs go on, and webhooks are accepted. Run `ostler restore --dry-run`, `ostler restore` and `ostler "
    "doctor` in a worker: `kubectl exec --namespace ostler deploy/ostler-worker-default -- ostler restore`."
)
"""Advice for an operator during a freeze. Source: docs/operations/recovery.md, "Restore from a backup"."""

TICK_WITHIN = timedelta(seconds=60)
"""Maximum age of the last tick of any sweep. The sweep `resume` runs every five seconds."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The period of each sweep in seconds, and the value of `OSTLER_SWEEPS_PAUSED`."""

    periods: Mapping[str, float]
    off: Collection[str]


@dataclass(frozen=True, slots=True)
class Attention:
    """One line of the list of problems. `href` leads to more about it, or is None."""

    title: str
    detail: str
    href: str | None = None


@dataclass(frozen=True, slots=True)
class Overview:
    """The rows of the overview. `pools` is None if the reader sees only some accounts."""

    pools: Sequence[PoolLine] | None
    accounts: Sequence[AccountLine]
    attention: Sequence[Attention]


@dataclass(frozen=True, slots=True)
class OverviewWaits:
    """Waits of the last hour: of each pool or account and of all jobs, and the age of the queue at each minute.

    The ages end with the last full minute, so they change once in a minute. `attention` has problems of the last hour.
    `reasons` says what accounts wait for, by their ids.
    """

    groups: Sequence[Waits]
    ages: Sequence[float]
    until: datetime
    attention: Sequence[Attention]
    reasons: Mapping[int, str]


def read_overview(db: Connection, holder: Holder, schedule: Schedule, *, now: datetime) -> Overview:
    """Return the rows of the overview that the holder of a token may see."""
    seen = holder.accounts
    accounts = _accounts(db, seen)
    pools = pool_lines(db) if seen is None else None
    held = sum(each.held for each in accounts)
    found = []
    if pools is not None:
        for each in obstacles(db, now=now):
            found.append(Attention(each.title, f"{each.effect[:1].upper()}{each.effect[1:]}: {each.cause}"))
            if each.state == "frozen":
                found.append(Attention("What to do now", RESTORE))
        tripped = [each.upstream for each in gates.read(db) if not each.open]
        found += [Attention("What to do now", each) for each in what_now(tripped=tripped, failing=(), held=held)]
        found += _of_pools(pools, now=now)
        found += _of_sweeps(db, schedule, now=now)
        if lost := lost_pods(db):
            what = "1 Pod is on a gone node" if lost == 1 else f"{lost:,} Pods are on gone nodes"
            found.append(
                Attention(what, "Ostler replaces them, and deletes them when their jobs are over.", "/ui/nodes")
            )
    if held:
        what = "1 queued job is held" if held == 1 else f"{held:,} queued jobs are held"
        why = "Ostler matches no held job. The page of a job says why it is held."
        found.append(Attention(what, why, "/ui/jobs?state=queued&held=true"))
    return Overview(pools, accounts, found)


def _accounts(db: Connection, seen: Collection[int] | None) -> Sequence[AccountLine]:
    """Return accounts with work, and then others as long as the page has room for them."""
    busy = account_lines(db, accounts=seen)
    room = max(0, MOST - len(busy))
    return [*busy, *idle_accounts(db, besides=[each.id for each in busy], limit=room, accounts=seen)]


def read_waits(db: Connection, holder: Holder, timings: Timings, *, now: datetime) -> OverviewWaits:
    """Return the waits of the last hour, of the jobs that the holder of a token may see, and what accounts wait for."""
    seen, minute = holder.accounts, now.replace(second=0, microsecond=0)
    by = By.POOL if seen is None else By.ACCOUNT
    failed = count_failed(db, since=now - WAITS_OF) if seen is None else 0
    what = "1 Pod failed" if failed == 1 else f"{failed:,} Pods failed"
    problem = Attention(f"{what} in the last hour", "The list says how each Pod ended.", "/ui/pods?failed=true")
    return OverviewWaits(
        waits(db, since=now - WAITS_OF, until=now, by=by, now=now, accounts=seen),
        queue_age(db, since=minute - WAITS_OF, until=minute, accounts=seen),
        minute,
        [problem] if failed else [],
        waits_for(db, (each.waiting for each in _accounts(db, seen)), timings=timings, now=now, accounts=seen),
    )


def _of_sweeps(db: Connection, schedule: Schedule, *, now: datetime) -> Sequence[Attention]:
    """Return late, paused and failed sweeps, as `ostler doctor` finds them. No sweep is late before any has begun."""
    sweeps = list_sweeps(db, now=now)
    began = [each.began_at for each in sweeps if each.began_at is not None]
    if began and now - max(began) > TICK_WITHIN:
        why = f"A sweep last began at {max(began):%Y-%m-%d %H:%M:%S} UTC. Check that beat, Redis and workers run."
        return [Attention("No sweep runs", why, "/ui/sweeps")]
    lost = epochs.lost(db)
    since = min(began, default=now) if lost is None else max(min(began, default=now), lost.until)
    paused = {
        each.name for each in sweeps if each.paused_at is not None or switched_off(each.name, by_setting=schedule.off)
    }
    late = [
        each.name
        for each in sweeps
        if is_late(
            last=each.succeeded_at or since,
            since=since,
            period=schedule.periods[each.name],
            paused=each.name in paused,
            now=now,
        )
    ]
    return [
        Attention(what, ", ".join(names), "/ui/sweeps")
        for what, names in (("Sweeps missed three periods", late), ("Sweeps are paused", sorted(paused)))
        if names
    ]


def _of_pools(pools: Sequence[PoolLine], *, now: datetime) -> Sequence[Attention]:
    found = [
        Attention(f"Pool {each.name} is degraded", each.problem, f"#pool-{each.id}")
        for each in pools
        if each.problem is not None
    ]
    found += [
        Attention(f"The runner of pool {each.name} is outdated", each.outdated, f"#pool-{each.id}")
        for each in pools
        if each.outdated is not None
    ]
    found += [
        Attention(
            f"The numbers of pool {each.name} are old",
            "Its Pods were never counted."
            if each.counted_at is None
            else f"Its Pods were last counted at {each.counted_at:%Y-%m-%d %H:%M:%S} UTC.",
            f"#pool-{each.id}",
        )
        for each in pools
        if each.is_old(now=now)
    ]
    return found
