"""Backoffs of installations, accounts, repositories and runner groups, stored so that they survive a restart.

`rules.claims.mint_questions` decides which kind of backoff a refused mint causes. One held job becomes the probe of a
backoff, and Ostler tries to mint for the probe first. The probe of a refusal (`REFUSALS`) is chosen when the wait of
the backoff is over (`WaitBook`). The probe of an installation is chosen at regular intervals, also during the wait
(`allow_probe`). If the mint succeeds, the other held jobs continue. If the mint fails, the next wait is twice as long,
up to `CAP`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import CheckConstraint, Connection
from sqlalchemy.orm import Mapped, mapped_column

from models.db.base import Base
from models.db.sql import text
from models.state import job_holds
from rules.claims.mint_questions import ACCOUNT, REPOSITORY, RUNNER_GROUP, describe, group_key, is_default
from rules.routing.holds import HoldReason
from rules.routing.routing import Wait
from rules.routing.runner_groups import DEFAULT, DEFAULT_NAME

BASE = {"installation": 10.0, "account": 60.0, "repository": 60.0, "runner_group": 60.0}
CAP = {"installation": 300.0, "account": 3600.0, "repository": 3600.0, "runner_group": 3600.0}
"""Duration of the first wait (`BASE`) and of the longest wait (`CAP`), in seconds, by kind of backoff.

Each further failure doubles the wait.
"""

REFUSALS = (ACCOUNT, REPOSITORY, RUNNER_GROUP)
"""Kinds of backoffs that a refused mint causes. A backoff of such a kind is called a refusal in this module.

The probes of these backoffs are chosen by `WaitBook`. The probes of an installation's backoff are chosen by
`allow_probe`.
"""

PROBE_WITHIN = timedelta(seconds=30)
"""Time after the start of a probe. During this time, the backoff lets no other job through."""

PROBE_LOST = timedelta(minutes=2)
"""Time after which another job replaces a probe that is still queued or claimed.

The pool of the first probe might have no Pod.
"""

GROUP_OF_POOL = """
    CASE WHEN p.runner_group_name IS NULL THEN p.runner_group_id::text
         ELSE chr(39) || p.runner_group_name || chr(39) END
"""
"""SQL expression on a pool `p`: its runner group, in the form of `rules.claims.mint_questions.group_key`."""

IS_DEFAULT = f"""
    CASE WHEN p.runner_group_name IS NULL THEN p.runner_group_id = {DEFAULT}
         ELSE lower(p.runner_group_name) = '{DEFAULT_NAME}' END
"""
"""SQL condition on a pool `p`: its runner group is the default group (see `rules.claims.mint_questions.is_default`)."""


_HELD_BY = {
    "installation": "installation_id::text",
    ACCOUNT: f"""CASE WHEN starts_with(scope, 'orgs/')
                      AND (SELECT {IS_DEFAULT} FROM pools p WHERE p.id = jobs.pool_id)
                      THEN account_id::text END""",
    REPOSITORY: "repository",
    RUNNER_GROUP: f"installation_id || '/' || (SELECT {GROUP_OF_POOL} FROM pools p WHERE p.id = jobs.pool_id)",
}
"""SQL expression on a row of `jobs`, by kind of backoff.

A job belongs to a backoff if the value of this expression equals the key of the backoff.
"""


class Backoff(Base):
    """A backoff of one installation, account, repository or runner group, which is identified by `kind` and `key`.

    The jobs with this key wait until `not_before`. Each further failure doubles the wait.

    A backoff of the kind `limit` holds no job. It stores that GitHub asked Ostler to pause the calls of an
    installation, or the calls of one quota of an installation. The governor (`github_adapters.calls.governor`) stores
    the pause in Redis. If Redis loses its data, the governor reads the pause from this table.
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
        comment="installation id, account id, repository name, or installation/group; of a limit: installation/quota",
    )
    not_before: Mapped[datetime]
    failures: Mapped[int]
    reason: Mapped[str]
    changed_at: Mapped[datetime]
    probed_at: Mapped[datetime | None] = mapped_column(
        comment="time of the last probe or of the last failure, whichever is later"
    )
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
    """Record a failed call for this key, and hold the queued jobs of the key. Return the end of the wait.

    A call that began before the wait might fail during the wait. Such a failure does not double the wait. The failure
    of a probe doubles the wait. The failed call was a probe if `probing` is True, or if the job `job_id` is the
    recorded probe of this backoff.
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
    """Hold the queued jobs of this key until `not_before`. If an existing wait ends later, its end is kept."""
    db.execute(
        text("""
            INSERT INTO backoffs (kind, key, not_before, failures, reason, changed_at)
            VALUES (:kind, :key, :not_before, 0, :reason, :now)
            ON CONFLICT (kind, key) DO UPDATE SET
                not_before = greatest(backoffs.not_before, :not_before), reason = :reason, changed_at = :now
        """),
        {"kind": kind, "key": key, "not_before": not_before, "reason": reason, "now": now},
    )
    queued = db.execute(
        text(f"""
            SELECT id FROM jobs WHERE state = 'queued' AND hold_reason IS NULL AND {_HELD_BY[kind]} = :key
            ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
        """),
        {"key": key},
    )
    detail = f"{describe(kind, key)}: {reason}"
    job_holds.hold(db, queued.scalars().all(), reason=HoldReason.BACKOFF, detail=detail, not_before=not_before, now=now)


def record_limit(db: Connection, *, installation_id: int, quota: str, seconds: float, now: datetime) -> None:
    """Store that GitHub asked an installation to wait for `seconds` seconds. The quota "" stands for all calls."""
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
    """Return how many more seconds GitHub asked an installation to wait, by quota."""
    prefix = f"{installation_id}/"
    rows = db.execute(
        text("""
            SELECT key, extract(epoch FROM not_before - CAST(:now AS timestamptz)) AS left_seconds FROM backoffs
            WHERE kind = 'limit' AND starts_with(key, :prefix) AND not_before > :now
        """),
        {"prefix": prefix, "now": now},
    )
    return {row.key.removeprefix(prefix): float(row.left_seconds) for row in rows}


def delete(db: Connection, keys: Sequence[tuple[str, str]]) -> bool:
    """End the backoffs of these (kind, key) pairs. Return True if at least one existed."""
    gone = db.execute(
        text("""
            DELETE FROM backoffs
            WHERE (kind, key) IN (
                SELECT kind, key FROM backoffs
                WHERE (kind, key) IN (SELECT * FROM unnest(CAST(:kinds AS text[]), CAST(:keys AS text[])))
                -- Two calls for one account lock the same rows. In one order, they cannot deadlock.
                ORDER BY kind, key FOR UPDATE)
        """),
        {"kinds": [kind for kind, _ in keys], "keys": [key for _, key in keys]},
    )
    return gone.rowcount > 0


def keep(db: Connection, kind: str, key: str) -> bool:
    """Return True if a backoff exists, and prevent its end until this transaction ends.

    A transaction that ends a backoff also ends the waits of its jobs. Without this lock, such a transaction could miss
    a job whose hold is not committed yet. The job would then wait for a backoff that does not exist any more.
    """
    found = db.execute(
        text("SELECT 1 FROM backoffs WHERE kind = :kind AND key = :key FOR KEY SHARE"), {"kind": kind, "key": key}
    )
    return found.one_or_none() is not None


def delete_repositories(db: Connection, *, login: str) -> None:
    """End the backoffs of all repositories of an owner that was renamed. `login` is the owner's former login."""
    db.execute(
        text("DELETE FROM backoffs WHERE kind = 'repository' AND starts_with(key, :former)"), {"former": f"{login}/"}
    )


def delete_account(db: Connection, *, installation_id: int, account_id: int, login: str) -> None:
    """End the backoffs of an account, because GitHub might now accept the refused calls.

    The backoffs of its repositories, of all its installations, and of the runner groups of `installation_id` end too.
    """
    found = db.execute(text("SELECT id FROM installations WHERE account_id = :account"), {"account": account_id})
    former = [("installation", str(each)) for each in found.scalars()]
    delete(db, [*former, ("installation", str(installation_id)), (ACCOUNT, str(account_id))])
    db.execute(
        text("""
            DELETE FROM backoffs WHERE (kind = 'runner_group' AND starts_with(key, :installation))
                OR (kind = 'repository' AND starts_with(lower(key), lower(:login)))
        """),
        {"installation": f"{installation_id}/", "login": f"{login}/"},
    )


def end_waits(db: Connection, *, account_id: int, now: datetime) -> int:
    """End the waits of all jobs of an account that have the hold `backoff`. Return how many waits were ended.

    The next tick of the sweep `rematch` checks the queued jobs. A job whose claim is not released yet is checked after
    its release. Locked rows are skipped, because the callers hold other locks. A job with a locked row is checked when
    its own wait is over.
    """
    held = db.execute(
        text("""
            SELECT id FROM jobs
            WHERE hold_reason = :hold AND state IN ('queued', 'claimed') AND account_id = :account AND not_before > :now
            ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
        """),
        {"hold": HoldReason.BACKOFF, "account": account_id, "now": now},
    )
    return job_holds.end_waits(db, held.scalars().all(), now=now)


PROBE_DUE = """
    b.kind = 'installation' AND b.failures > 0 AND b.probed_at <= :probed_before
    AND NOT EXISTS (SELECT FROM jobs probe WHERE probe.id = b.probe_job_id
                    AND (probe.state = 'claimed' OR (probe.state = 'queued' AND probe.hold_reason IS NULL)))
    AND NOT EXISTS (SELECT FROM backoffs l WHERE l.kind = 'limit' AND starts_with(l.key, b.key || '/')
                    AND l.not_before > :now)
"""
"""SQL condition on a backoff `b`: an installation's probe is due.

The mints of the installation fail, no probe is running, and GitHub has not asked for a pause. The last failure and the
last probe were at `:probed_before` or earlier.
"""

_NO_OTHER_PROBE = """
    (b.probe_job_id IS NULL OR b.probed_at <= :lost
     OR NOT EXISTS (SELECT FROM jobs probe WHERE probe.id = b.probe_job_id AND probe.id <> :job
                    AND (probe.state = 'claimed' OR (probe.state = 'queued' AND probe.hold_reason IS NULL))))
"""
"""SQL condition on a backoff `b`: no other job than `:job` is its probe. A probe from before `:lost` is lost."""

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
"""SQL condition on a job `j`: the backoff `b` of an installation holds the job, and no other backoff holds the job."""

_PROBE_HERE = f"""
    j.pool_id = :pool_id AND j.account_id IS DISTINCT FROM CAST(:without AS bigint) AND {PROBE_JOB}
"""
"""SQL condition on a job `j`: the job is in the given pool and can be the probe of the backoff `b`.

Jobs of the account `:without` do not satisfy the condition.
"""


def allow_probe(
    db: Connection, *, pool_id: int, probe_every: float, without: int | None = None, now: datetime
) -> int | None:
    """Lift the hold of one job of this pool as a probe of its installation, and return the job's id.

    Return None if no probe is due, or if no job can be a probe. A probe is due `probe_every` seconds after the previous
    probe or failure. Jobs of the account `without` are left out, because the caller would not match them.
    """
    values = {
        "now": now,
        "probed_before": now - timedelta(seconds=probe_every),
        "pool_id": pool_id,
        "without": without,
    }
    # The row of the backoff is locked, because an installation has at most one probe at a time over all pools. Rows
    # that another session has locked are skipped, here and below, so that this function waits for no lock.
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
    job_id: int | None = db.execute(
        text(f"""
            SELECT j.id FROM jobs j JOIN backoffs b ON b.kind = 'installation' AND b.key = :key
            WHERE {_PROBE_HERE}
            ORDER BY j.priority DESC, j.queued_at, j.id LIMIT 1 FOR NO KEY UPDATE OF j SKIP LOCKED
        """),
        {"now": now, "pool_id": pool_id, "without": without, "key": key},
    ).scalar()
    if job_id is not None:
        job_holds.lift(db, job_id, now=now)
        db.execute(
            text(
                "UPDATE backoffs SET probed_at = :now, probe_job_id = :job WHERE kind = 'installation' AND key = :key"
            ),
            {"now": now, "job": job_id, "key": key},
        )
    return job_id


def set_probe(db: Connection, keys: Sequence[tuple[str, str]], *, job_id: int, now: datetime) -> None:
    """Make a job that a person queued again the probe of its backoffs.

    Backoffs with another probe under way and backoffs with locked rows are skipped.
    """
    db.execute(
        text(f"""
            UPDATE backoffs SET probed_at = :now, probe_job_id = :job
            WHERE (kind, key) IN (
                SELECT b.kind, b.key FROM backoffs b
                WHERE (b.kind, b.key) IN (SELECT * FROM unnest(CAST(:kinds AS text[]), CAST(:keys AS text[])))
                  AND b.failures > 0 AND {_NO_OTHER_PROBE}
                ORDER BY b.kind, b.key FOR NO KEY UPDATE SKIP LOCKED)
        """),
        {
            "now": now,
            "lost": now - PROBE_LOST,
            "job": job_id,
            "kinds": [kind for kind, _ in keys],
            "keys": [key for _, key in keys],
        },
    )


@dataclass(frozen=True, slots=True)
class Standing:
    """An existing backoff.

    `refused` is True if a refused mint caused the backoff. When the wait of such a backoff is over, the backoff lets
    one job through as a probe.
    """

    kind: str
    key: str
    not_before: datetime
    reason: str
    refused: bool
    probe_job_id: int | None = None

    def wait(self, *, until: datetime | None = None) -> Wait:
        """Return the wait that this backoff causes for a job.

        The wait ends at `until`. If `until` is None, the wait ends at `not_before`.
        """
        return Wait(f"{describe(self.kind, self.key)}: {self.reason}", until or self.not_before)


def keys_of(
    *, account_id: int, organization: bool, repository: str, installation_id: int | None, group: int | str | None
) -> list[tuple[str, str]]:
    """Return the kind and the key of every backoff that can hold a job. `group` is the runner group of the job's pool.

    The backoff of an account holds only jobs that run in the default runner group of an organisation. Only the mint of
    such a job can end the backoff.
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
    """Return the backoffs with these keys that hold jobs now, and the refusals whose wait is over.

    A refusal (`REFUSALS`) exists until a call succeeds. A backoff of another kind is not returned after the end of its
    wait.
    """
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
"""Time after the end of a wait until the backoff is no longer reported.

If no call was made within this time, Ostler assumes that no job waits for the backoff any more, because a waiting job
would have become the probe.
"""


def in_force(db: Connection, *, now: datetime) -> list[Standing]:
    """Return the backoffs that a failed call caused and that no successful call has ended.

    At most 100 backoffs are returned. The backoff that changed last comes first. Backoffs of the kind `limit`, and
    backoffs whose wait ended more than `QUIET_AFTER` ago, are not returned.
    """
    rows = db.execute(
        text("""
            SELECT kind, key, not_before, reason, kind = ANY(:refusals) AS refused FROM backoffs
            WHERE kind <> 'limit' AND failures > 0 AND not_before > :since ORDER BY changed_at DESC, kind, key LIMIT 100
        """),
        {"refusals": list(REFUSALS), "since": now - QUIET_AFTER},
    )
    return [Standing(**row._mapping) for row in rows]


class WaitBook:
    """The backoffs of some jobs, read once.

    When the wait of a refusal (`REFUSALS`) is over, the refusal lets one of the jobs through as a probe.
    """

    def __init__(self, db: Connection, keys: Iterable[tuple[str, str]], *, now: datetime) -> None:
        self._db = db
        self._now = now
        self._standing = standing(db, keys, now=now)
        self._passed_on: set[tuple[str, str]] = set()
        """Refusals with a waiting job in a pool that can run jobs now. Only such a job may become the probe."""

    def in_force(self, keys: Sequence[tuple[str, str]], *, free: int | None) -> Wait | None:
        """Return the unfinished wait of a job, or None if the job has no unfinished wait.

        If the job has several unfinished waits, the wait that ends last is returned. `keys` are the keys of the job's
        backoffs. `free` is the id of the job if the job is not held. `free` is None if the job is held. A job that is
        not held and is the probe of a backoff does not wait for that backoff.
        """
        waits = [each for each in self._met(keys, free) if each.not_before > self._now]
        return max(waits, key=lambda each: each.not_before).wait() if waits else None

    def lets_one_past(self, keys: Sequence[tuple[str, str]], *, free: int | None) -> bool:
        """Return True if the job can become the probe of a refusal and waits for no other backoff."""
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
        """Return the wait that backoffs cause for a job, or None if the job can continue.

        The caller has checked that no other reason holds the job. The job can continue if no backoff holds the job, or
        if the job becomes the probe of its refusals.

        `keys` and `free` are described in `in_force`. `ready` contains the ids of the pools that can run a job now. If
        a refusal has a waiting job in a ready pool, no job of another pool becomes the probe of the refusal. Otherwise
        the probe might get no Pod. Such a probe would block all other jobs of the refusal until `PROBE_LOST`, and the
        next probe might block them again.
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
        """Return True if a job in one of these pools waits only to become the probe of the refusal."""
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
        """Make the job the probe of a refusal, and return None.

        If another job is the probe or becomes the probe now, return the wait of this job.
        """
        until = self._now + PROBE_WITHIN
        taken = self._db.execute(
            text(f"""
                UPDATE backoffs SET probed_at = :now, probe_job_id = :job, not_before = :until
                WHERE (kind, key) IN (
                    SELECT b.kind, b.key FROM backoffs b
                    WHERE b.kind = :kind AND b.key = :key AND b.not_before <= :now AND {_NO_OTHER_PROBE}
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
