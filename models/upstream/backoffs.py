"""Backoffs of installations, accounts, repositories and runner groups, persisted so that no restart forgets them.

What a refused mint holds is decided in `rules.claims.mint_questions`. When its wait is over one job is let past it
(`WaitBook`); the others go on with the first mint that succeeds, or wait twice as long.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import CheckConstraint, Connection
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base
from models.db.sql import text
from models.tables import job_holds
from rules.claims.mint_questions import ACCOUNT, REPOSITORY, RUNNER_GROUP, describe, group_key, is_default
from rules.routing.holds import HoldReason
from rules.routing.routing import Wait
from rules.routing.runner_groups import DEFAULT, DEFAULT_NAME

BASE = {"installation": 10.0, "account": 60.0, "repository": 60.0, "runner_group": 60.0}
CAP = {"installation": 300.0, "account": 3600.0, "repository": 3600.0, "runner_group": 3600.0}
"""Seconds of the first wait and of the longest; each further failure doubles it."""

REFUSALS = (ACCOUNT, REPOSITORY, RUNNER_GROUP)
"""Kinds of backoffs that a refusal makes. An installation that fails has probes of its own (`allow_probe`)."""

PROBE_WITHIN = timedelta(seconds=30)
"""For how long nothing else is tried after a job was let past a refusal."""

PROBE_LOST = timedelta(minutes=2)
"""After this time a probe that is still queued or claimed is given up: its pool may have no Pod."""

GROUP_OF_POOL = """
    CASE WHEN p.runner_group_name IS NULL THEN p.runner_group_id::text
         ELSE chr(39) || p.runner_group_name || chr(39) END
"""
"""Of a pool `p`: its runner group as `rules.claims.mint_questions.group_key` writes it."""

IS_DEFAULT = f"""
    CASE WHEN p.runner_group_name IS NULL THEN p.runner_group_id = {DEFAULT}
         ELSE lower(p.runner_group_name) = '{DEFAULT_NAME}' END
"""
"""Of a pool `p`: it names the default group, as `rules.claims.mint_questions.is_default` says."""


_HELD_BY = {
    "installation": "installation_id::text",
    ACCOUNT: f"""CASE WHEN starts_with(scope, 'orgs/')
                      AND (SELECT {IS_DEFAULT} FROM pools p WHERE p.id = jobs.pool_id)
                      THEN account_id::text END""",
    REPOSITORY: "repository",
    RUNNER_GROUP: f"installation_id || '/' || (SELECT {GROUP_OF_POOL} FROM pools p WHERE p.id = jobs.pool_id)",
}
"""By kind: the column or expression of a row of `jobs` that is compared with the key."""


class Backoff(Base):
    """Until `not_before` the jobs of this key are held; each further failure doubles the wait.

    A `limit` holds no job: it is what GitHub asked of an installation (or of one of its quotas), which the governor
    must not forget when Redis does.
    """

    __tablename__ = "backoffs"
    __table_args__ = (
        CheckConstraint(
            "kind IN ('installation', 'account', 'repository', 'runner_group', 'limit')", name="kind_known"
        ),
    )

    kind: Mapped[str] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(
        primary_key=True,
        comment="an id, a repository's full name, installation/group, or of a limit installation/quota",
    )
    not_before: Mapped[datetime]
    failures: Mapped[int]
    reason: Mapped[str]
    changed_at: Mapped[datetime]
    probed_at: Mapped[datetime | None] = mapped_column(comment="when a job was last let past it")
    probe_job_id: Mapped[int | None]


def record_failure(
    db: Connection,
    *,
    kind: str,
    key: str,
    reason: str,
    probing: bool = False,
    job_id: int | None = None,
    now: datetime,
) -> datetime:
    """Double the wait of this key and hold its queued jobs; return the time before which nothing is tried.

    What was under way when the wait began fails within it and doubles nothing; a probe does: the caller says so,
    or it is the job `job_id` that was let past this wait.
    """
    row = db.execute(
        text("""
            INSERT INTO backoffs (kind, key, not_before, failures, reason, changed_at, probed_at)
            VALUES (:kind, :key, :now, 1, :reason, :now, :now)
            ON CONFLICT (kind, key) DO UPDATE SET
                failures = CASE WHEN backoffs.failures = 0 OR backoffs.not_before <= :now OR :probing
                                     OR backoffs.probe_job_id = :job_id
                                THEN least(backoffs.failures + 1, 30) ELSE backoffs.failures END,
                probed_at = :now, reason = :reason, changed_at = :now
            RETURNING failures, not_before, probe_job_id
        """),
        {"kind": kind, "key": key, "reason": reason, "now": now, "probing": probing, "job_id": job_id},
    ).one()
    probing = probing or (job_id is not None and row.probe_job_id == job_id)
    wait = timedelta(seconds=min(CAP[kind], BASE[kind] * 2 ** (row.failures - 1)))
    not_before: datetime = now + wait if probing or row.not_before <= now else row.not_before
    wait_until(db, kind=kind, key=key, reason=reason, not_before=not_before, now=now)
    return not_before


def wait_until(db: Connection, *, kind: str, key: str, reason: str, not_before: datetime, now: datetime) -> None:
    """Try nothing for this key before a time that GitHub named, and hold its queued jobs until then."""
    db.execute(
        text("""
            INSERT INTO backoffs (kind, key, not_before, failures, reason, changed_at)
            VALUES (:kind, :key, :not_before, 0, :reason, :now)
            ON CONFLICT (kind, key) DO UPDATE SET
                not_before = greatest(backoffs.not_before, :not_before), reason = :reason, changed_at = :now
        """),
        {"kind": kind, "key": key, "not_before": not_before, "reason": reason, "now": now},
    )
    job_holds.hold(
        db,
        f"""
            id IN (SELECT id FROM jobs WHERE state = 'queued' AND hold_reason IS NULL AND {_HELD_BY[kind]} = :key
                   ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
        """,
        reason=HoldReason.BACKOFF,
        detail=f"{describe(kind, key)}: {reason}",
        not_before=not_before,
        changed_at=now,
        key=key,
    )


def remember_limit(db: Connection, *, installation_id: int, quota: str, seconds: float, now: datetime) -> None:
    """Keep that GitHub asked an installation to wait; `quota` "" stands for all of its calls."""
    db.execute(
        text("""
            INSERT INTO backoffs (kind, key, not_before, failures, reason, changed_at)
            VALUES ('limit', :key, :not_before, 0, 'GitHub''s rate limit', :now)
            ON CONFLICT (kind, key) DO UPDATE SET
                not_before = greatest(backoffs.not_before, :not_before), changed_at = :now
        """),
        {"key": f"{installation_id}/{quota}", "not_before": now + timedelta(seconds=seconds), "now": now},
    )


def limits_of(db: Connection, *, installation_id: int, now: datetime) -> Mapping[str, float]:
    """Return the seconds that are left of what GitHub asked of an installation, by quota."""
    prefix = f"{installation_id}/"
    rows = db.execute(
        text("""
            SELECT key, extract(epoch FROM not_before - CAST(:now AS timestamptz)) AS left_seconds FROM backoffs
            WHERE kind = 'limit' AND starts_with(key, :prefix) AND not_before > :now
        """),
        {"prefix": prefix, "now": now},
    )
    return {row.key.removeprefix(prefix): float(row.left_seconds) for row in rows}


def forget(db: Connection, keys: Sequence[tuple[str, str]]) -> bool:
    """End the backoffs of these (kind, key) pairs: a call for them went through. Return whether there were any."""
    gone = db.execute(
        text("""
            DELETE FROM backoffs
            WHERE (kind, key) IN (SELECT * FROM unnest(CAST(:kinds AS text[]), CAST(:keys AS text[])))
        """),
        {"kinds": [kind for kind, _ in keys], "keys": [key for _, key in keys]},
    )
    return gone.rowcount > 0


def forget_repositories(db: Connection, *, login: str) -> None:
    """End the backoffs of all repositories of an owner's former login."""
    db.execute(
        text("DELETE FROM backoffs WHERE kind = 'repository' AND starts_with(key, :former)"), {"former": f"{login}/"}
    )


def forget_account(db: Connection, *, installation_id: int, account_id: int, login: str) -> None:
    """End every backoff of an account and its installation: whatever GitHub refused, it may grant now."""
    forget(db, [("installation", str(installation_id)), (ACCOUNT, str(account_id))])
    db.execute(
        text("""
            DELETE FROM backoffs WHERE (kind = 'runner_group' AND starts_with(key, :installation))
                OR (kind = 'repository' AND starts_with(lower(key), lower(:login)))
        """),
        {"installation": f"{installation_id}/", "login": f"{login}/"},
    )


def end_waits(db: Connection, *, account_id: int, now: datetime) -> int:
    """Let `rematch` check the backed-off jobs of an account at its next tick; return how many there are.

    Those that others hold locked are left, not waited for: callers hold other locks, and such a job is checked when
    its own wait is over.
    """
    return job_holds.end_waits(
        db,
        "hold_reason = :hold AND state = 'queued' AND account_id = :account",
        hold=HoldReason.BACKOFF,
        account=account_id,
        now=now,
    )


PROBE_DUE = """
    b.kind = 'installation' AND b.failures > 0 AND b.probed_at <= :probed_before
    AND NOT EXISTS (SELECT FROM jobs probe WHERE probe.id = b.probe_job_id
                    AND (probe.state = 'claimed' OR (probe.state = 'queued' AND probe.hold_reason IS NULL)))
    AND NOT EXISTS (SELECT FROM backoffs l WHERE l.kind = 'limit' AND starts_with(l.key, b.key || '/')
                    AND l.not_before > :now)
"""
"""Of a backoff `b`: the installation failed, no probe of it is under way, and GitHub asks for no pause."""

PROBE_JOB = f"""
    j.state = 'queued' AND j.hold_reason = 'backoff' AND j.installation_id::text = b.key
    AND NOT EXISTS (SELECT FROM backoffs o WHERE o.not_before > :now
                    AND ((o.kind = 'account' AND o.key = j.account_id::text AND starts_with(j.scope, 'orgs/')
                          AND (SELECT {IS_DEFAULT} FROM pools p WHERE p.id = j.pool_id))
                      OR (o.kind = 'repository' AND o.key = j.repository)
                      OR (o.kind = 'runner_group'
                          AND o.key = j.installation_id || '/' || (SELECT {GROUP_OF_POOL} FROM pools p
                                                                   WHERE p.id = j.pool_id))))
"""
"""Of a job `j`: it is held by the backoff `b` and by no other."""

_PROBE_HERE = f"""
    j.pool_id = :pool_id AND j.account_id IS DISTINCT FROM CAST(:without AS bigint) AND {PROBE_JOB}
"""
"""Of a job `j` of a pool: it may be the probe of the backoff `b`, and is not of an account that is left out."""


def allow_probe(
    db: Connection, *, pool_id: int, probe_every: float, without: int | None = None, now: datetime
) -> int | None:
    """Lift the hold of one job of this pool, to find out whether its installation answers again; return the job.

    Jobs of the account `without` are left out: the caller would not match them.
    At most one probe of an installation is under way, whichever pool sends it: its backoff is locked, and skipped by
    who finds it locked. So nothing is waited for here, whatever else is held.
    """
    values = {
        "now": now,
        "probed_before": now - timedelta(seconds=probe_every),
        "pool_id": pool_id,
        "without": without,
    }
    key = db.execute(
        text(f"""
            SELECT b.key FROM backoffs b
            WHERE {PROBE_DUE} AND EXISTS (SELECT FROM jobs j WHERE {_PROBE_HERE})
            ORDER BY b.probed_at, b.key LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
        """),
        values,
    ).scalar()
    if key is None:
        return None
    lifted = job_holds.lift(
        db,
        f"""
            id = (SELECT j.id FROM jobs j JOIN backoffs b ON b.kind = 'installation' AND b.key = :key
                  WHERE {_PROBE_HERE}
                  ORDER BY j.priority DESC, j.queued_at, j.id LIMIT 1 FOR NO KEY UPDATE OF j SKIP LOCKED)
        """,
        now=now,
        pool_id=pool_id,
        without=without,
        key=key,
    )
    for job_id in lifted:
        db.execute(
            text(
                "UPDATE backoffs SET probed_at = :now, probe_job_id = :job WHERE kind = 'installation' AND key = :key"
            ),
            {"now": now, "job": job_id, "key": key},
        )
    return lifted[0] if lifted else None


@dataclass(frozen=True, slots=True)
class Standing:
    """A backoff that is not forgotten. `refused`: it is a refusal, past which one job is let when the wait is over."""

    kind: str
    key: str
    not_before: datetime
    reason: str
    refused: bool
    probe_job_id: int | None = None

    def wait(self, *, until: datetime | None = None) -> Wait:
        """Return what it holds a job for, until its end or another time."""
        return Wait(f"{describe(self.kind, self.key)}: {self.reason}", until or self.not_before)


def keys_of(
    *, account_id: int, organization: bool, repository: str, installation_id: int | None, group: int | str | None
) -> list[tuple[str, str]]:
    """Return kind and key of every backoff that can hold a job; `group` is that of the pool it is routed to.

    A refused account holds those jobs whose mints can end it: of an organisation's default group.
    """
    keys = [(REPOSITORY, repository)]
    if organization and group is not None and is_default(group):
        keys.append((ACCOUNT, str(account_id)))
    if installation_id is not None:
        keys.append(("installation", str(installation_id)))
        if group is not None:
            keys.append((RUNNER_GROUP, group_key(installation_id, group)))
    return keys


def standing(db: Connection, keys: Iterable[tuple[str, str]], *, now: datetime) -> dict[tuple[str, str], Standing]:
    """Return those of these backoffs that hold jobs now, and refusals whose wait is over and that nobody ended."""
    wanted = sorted(set(keys))
    rows = db.execute(
        text("""
            SELECT kind, key, not_before, reason, failures > 0 AND kind = ANY(:refusals) AS refused, probe_job_id
            FROM backoffs
            WHERE (not_before > :now OR (failures > 0 AND kind = ANY(:refusals)))
              AND (kind, key) IN (SELECT * FROM unnest(CAST(:kinds AS text[]), CAST(:keys AS text[])))
        """),
        {
            "now": now,
            "refusals": list(REFUSALS),
            "kinds": [kind for kind, _ in wanted],
            "keys": [key for _, key in wanted],
        },
    )
    return {(row.kind, row.key): Standing(**row._mapping) for row in rows}


QUIET_AFTER = timedelta(hours=1)
"""After the end of its wait a backoff that nobody tried again is no news any more: its jobs are over."""


def in_force(db: Connection, *, now: datetime) -> list[Standing]:
    """Return the backoffs that failures or refusals made and no success ended, the latest first, 100 at most."""
    rows = db.execute(
        text("""
            SELECT kind, key, not_before, reason, kind = ANY(:refusals) AS refused FROM backoffs
            WHERE kind <> 'limit' AND failures > 0 AND not_before > :since ORDER BY changed_at DESC, kind, key LIMIT 100
        """),
        {"refusals": list(REFUSALS), "since": now - QUIET_AFTER},
    )
    return [Standing(**row._mapping) for row in rows]


class WaitBook:
    """The backoffs that concern some jobs, read once; lets one job past each refusal whose wait is over."""

    def __init__(self, db: Connection, keys: Iterable[tuple[str, str]], *, now: datetime) -> None:
        self._db = db
        self._now = now
        self._standing = standing(db, keys, now=now)
        self._passed_on: set[tuple[str, str]] = set()
        """Refusals whose probe is to be a job of a pool that can run it."""

    def in_force(self, keys: Sequence[tuple[str, str]], *, free: int | None) -> Wait | None:
        """Return the longest wait that is not over; None when there is none.

        `free`: the id of the job, if nothing holds it now. What it is the probe of does not take it back.
        """
        waits = [each for each in self._met(keys, free) if each.not_before > self._now]
        return max(waits, key=lambda each: each.not_before).wait() if waits else None

    def lets_one_past(self, keys: Sequence[tuple[str, str]], *, free: int | None) -> bool:
        """Return whether there is a refusal that lets a probe past, and nothing else to wait for."""
        met = self._met(keys, free)
        return bool(met) and all(each.not_before <= self._now for each in met)

    def _met(self, keys: Sequence[tuple[str, str]], free: int | None) -> list[Standing]:
        met = [self._standing[key] for key in keys if key in self._standing]
        return [each for each in met if free is None or each.probe_job_id != free]

    def wait(
        self,
        keys: Sequence[tuple[str, str]],
        *,
        job_id: int,
        free: int | None,
        pool_id: int | None,
        ready: Collection[int],
    ) -> Wait | None:
        """Return what a job that could go on has to wait for; None when there is nothing, or it is the probe.

        `ready`: pools that can run a job now. Where one of them has a job for a probe, that of another pool is none:
        without a Pod it would be given up only after `PROBE_LOST`, one after the other.
        """
        if (wait := self.in_force(keys, free=free)) is not None:
            return wait
        for each in self._met(keys, free):
            if pool_id not in ready and self._is_for(each, ready):
                return each.wait(until=self._now + PROBE_WITHIN)
            refusal = self._probe(each, job_id)
            if refusal is not None:
                return refusal
        return None

    def _is_for(self, refusal: Standing, pools: Collection[int]) -> bool:
        """Return whether a job of one of these pools waits for nothing but to be the probe of a refusal."""
        key = (refusal.kind, refusal.key)
        if pools and key not in self._passed_on:
            found = self._db.execute(
                text(f"""
                    SELECT EXISTS (SELECT FROM jobs WHERE state = 'queued' AND hold_reason = :hold
                                   AND not_before <= :now AND pool_id = ANY(:pools) AND {_HELD_BY[refusal.kind]} = :key)
                """),
                {"hold": HoldReason.BACKOFF, "now": self._now, "pools": sorted(pools), "key": refusal.key},
            ).scalar_one()
            if found:
                self._passed_on.add(key)
        return key in self._passed_on

    def _probe(self, refusal: Standing, job_id: int) -> Wait | None:
        """Make the job the probe of a refusal; return the wait when another job is, or just becomes it."""
        until = self._now + PROBE_WITHIN
        taken = self._db.execute(
            text("""
                UPDATE backoffs SET probed_at = :now, probe_job_id = :job, not_before = :until
                WHERE (kind, key) IN (
                    SELECT b.kind, b.key FROM backoffs b
                    WHERE b.kind = :kind AND b.key = :key AND b.not_before <= :now
                      AND (b.probe_job_id IS NULL OR b.probed_at <= :lost
                           OR NOT EXISTS (SELECT FROM jobs probe WHERE probe.id = b.probe_job_id AND probe.id <> :job
                                          AND (probe.state = 'claimed'
                                               OR (probe.state = 'queued' AND probe.hold_reason IS NULL))))
                    FOR NO KEY UPDATE SKIP LOCKED)
            """),
            {
                "kind": refusal.kind,
                "key": refusal.key,
                "job": job_id,
                "now": self._now,
                "until": until,
                "lost": self._now - PROBE_LOST,
            },
        )
        self._standing[refusal.kind, refusal.key] = replace(
            refusal, not_before=until, probe_job_id=job_id if taken.rowcount else refusal.probe_job_id
        )
        return None if taken.rowcount else refusal.wait(until=until)
