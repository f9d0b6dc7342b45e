"""Queries of `ostler restore`: reads of the restored rows, and new claims for Pods whose claims are lost.

The writes are in separate transactions. A write that is repeated changes nothing. A rebuilt claim passes through the
usual transitions of a claim in their usual order, so its events look like the events of an ordinary claim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from models.claims.names import REPOSITORY_ID
from models.claims.releases import lock_claim
from models.db.sql import text
from models.state import (
    claim_checks,
    claim_inserts,
    claim_jobs,
    claim_transitions,
    job_holds,
    job_transitions,
    mint_attempts,
    pod_facts,
)
from rules.claims.machines import ClaimState, EndReason, Purpose, Stamp
from rules.restore.restoring import Act, PodVerdict, Registered, RowClaim
from rules.routing.holds import HoldReason

WHO = "restore"
HELD = "Postgres was restored to an earlier state, and GitHub is asked for the state of the job"


@dataclass(frozen=True, slots=True)
class RowPod:
    """The row of a Pod, with its live claim and the job of that claim.

    `used` is True if a claim of the Pod was delivered and has ended.
    """

    id: int
    pool_id: int
    used: bool
    claim: RowClaim | None
    job_id: int | None


def pods(db: Connection, uids: Sequence[str]) -> Mapping[str, RowPod]:
    """Return the rows of these Pods by UID. A Pod without a row is missing from the result."""
    rows = db.execute(
        text(f"""
            SELECT p.uid, p.id, p.pool_id, c.id AS claim_id, c.purpose, c.state, c.job_id, c.account_id,
                   c.installation_id,
                   c.scope || CASE WHEN starts_with(c.scope, 'repos/') THEN coalesce('#' || {REPOSITORY_ID}, '')
                                   ELSE '' END AS scope,
                   c.delivered_at IS NOT NULL AS delivered,
                   EXISTS (SELECT FROM claims d WHERE d.pod_uid = p.uid AND d.ended_at IS NOT NULL
                           AND d.delivered_at IS NOT NULL) AS used
            FROM runner_pods p LEFT JOIN claims c ON c.pod_uid = p.uid AND c.ended_at IS NULL
            WHERE p.uid = ANY(:uids)
        """),
        {"uids": list(uids)},
    )
    return {row.uid: RowPod(row.id, row.pool_id, row.used, _claim(row), row.job_id) for row in rows}


def _claim(row: Row[Any]) -> RowClaim | None:
    if row.claim_id is None:
        return None
    return RowClaim(
        row.claim_id,
        Purpose(row.purpose),
        ClaimState(row.state),
        bool(row.delivered),
        row.account_id,
        row.installation_id,
        row.scope,
    )


@dataclass(frozen=True, slots=True)
class KnownScope:
    """A scope in which runners of an account might be registered, and the installation that can list them."""

    installation_id: int
    scope: str
    account_id: int


def scopes(db: Connection) -> list[KnownScope]:
    """Return every scope that the rows contain, each with the newest installation of its account.

    A repository has one scope, with its id and its newest name. It has a second scope, without the id, if one of its
    jobs has no repository id. An account without jobs is listed as an organisation, because its type is not known.
    Accounts without an installation are left out.
    """
    rows = db.execute(
        text("""
            WITH newest AS (
                SELECT DISTINCT ON (account_id) account_id, id AS installation_id FROM installations
                ORDER BY account_id, (left_at IS NOT NULL), event_at DESC NULLS LAST, id DESC
            )
            SELECT DISTINCT n.installation_id, s.scope, n.account_id FROM newest n JOIN (
                (SELECT DISTINCT ON (account_id, repository_id) account_id, scope || '#' || repository_id AS scope
                 FROM jobs WHERE starts_with(scope, 'repos/') AND repository_id IS NOT NULL
                 ORDER BY account_id, repository_id, queued_at DESC)
                UNION SELECT account_id, scope FROM jobs
                      WHERE NOT starts_with(scope, 'repos/') OR repository_id IS NULL
                UNION SELECT id, 'orgs/' || login FROM accounts a
                      WHERE NOT EXISTS (SELECT FROM jobs j WHERE j.account_id = a.id)
            ) s USING (account_id) ORDER BY 1, 2
        """)
    )
    return [KnownScope(*row) for row in rows]


def live_claims(db: Connection) -> dict[str, int]:
    """Return the number of live claims by the namespace of their Pods."""
    rows = db.execute(
        text("""
            SELECT p.namespace, count(*) AS live FROM claims c JOIN runner_pods p ON p.id = c.runner_pod_id
            WHERE c.ended_at IS NULL GROUP BY p.namespace ORDER BY p.namespace
        """)
    )
    return {row.namespace: row.live for row in rows}


def leased(db: Connection, *, now: datetime) -> int:
    """Return the number of live claims with a lease. The steps of these claims might still be running."""
    return int(
        db.execute(
            text("SELECT count(*) FROM claims WHERE ended_at IS NULL AND leased_until > :now"), {"now": now}
        ).scalar_one()
    )


def skip_claim_ids(db: Connection, highest: int) -> None:
    """Make the ids of new claims start above `highest`, the highest claim id in any stamp of the cluster.

    Otherwise a new claim could get the id of a lost claim, and an old stamp would appear to belong to the new claim.
    """
    db.execute(
        text("""
            SELECT setval(ids.name, :highest) FROM (SELECT pg_get_serial_sequence('claims', 'id') AS name) ids
            WHERE :highest > coalesce(pg_sequence_last_value(CAST(ids.name AS regclass)), 0)
        """),
        {"highest": highest},
    )


@dataclass(frozen=True, slots=True)
class Pod:
    """The facts about a Pod that restore needs to write its claim.

    `row_id` is the id of the Pod's row. `stamp` is the Pod's claim annotation, and `stamped` says whether the Pod has
    an owner label. `account_id` is the account that the Pod is charged to, or None if the account is not known.
    `runners` are the runners that GitHub lists for the Pod.
    """

    uid: str
    row_id: int
    stamp: str
    stamped: bool
    account_id: int | None
    runners: tuple[Registered, ...]


def apply(db: Connection, pod: Pod, verdict: PodVerdict, seen: RowClaim | None, *, now: datetime) -> bool:
    """Apply a verdict to a Pod.

    `seen` is the Pod's live claim at the time of the verdict. Returns False if the Pod has another live claim or
    another claim state now, or if the claim cannot make the transition. The caller must then roll back.
    """
    live = db.execute(
        text("SELECT id, state FROM claims WHERE pod_uid = :uid AND ended_at IS NULL"), {"uid": pod.uid}
    ).one_or_none()
    if (None if live is None else (live.id, live.state)) != (None if seen is None else (seen.id, seen.state)):
        return False
    if seen is not None:
        lock_claim(db, seen.id)
    if verdict.drops is not None:
        _drop(db, verdict.drops, why=verdict.why, now=now)
    kept = None if seen is None or verdict.drops is not None else seen.id
    match verdict.act:
        case Act.LEAVE:
            return True
        case Act.RELEASE:
            claim_id = kept or _insert(db, pod, verdict.runner, why=verdict.why, now=now)
            _register(db, claim_id, pod.runners, now=now)
            claim_transitions.request_release(
                db,
                claim_id,
                reason="Postgres was restored to an earlier state, and nothing was delivered to the Pod",
                now=now,
                who=WHO,
            )
            return _state(db, claim_id) is ClaimState.RELEASING
        case Act.EXECUTE | Act.REBUILD | Act.KEEP | Act.REGISTER:
            claim_id = kept or _insert(db, pod, verdict.runner, why=verdict.why, now=now)
            _register(db, claim_id, pod.runners, now=now)
            claim_checks.show_stamp(db, claim_id, Stamp.ON if pod.stamped else Stamp.GAVE_UP)
            if verdict.act is Act.REGISTER:
                claim_transitions.hand_over(db, claim_id, verdict.runner, why=verdict.why, now=now, who=WHO)
                return _state(db, claim_id) in {ClaimState.DELIVERED, ClaimState.RELEASING}
            return _deliver(db, claim_id, verdict.runner, why=verdict.why, now=now)


def _state(db: Connection, claim_id: int) -> ClaimState:
    return ClaimState(db.execute(text("SELECT state FROM claims WHERE id = :id"), {"id": claim_id}).scalar_one())


def _drop(db: Connection, claim: RowClaim, *, why: str, now: datetime) -> None:
    """End a claim that does not belong to the Pod any more.

    The job of the claim is held until GitHub reports the state of the job.
    """
    if claim.purpose is Purpose.RETIRE:
        claim_transitions.end_retired(db, claim.id, reason=EndReason.RELEASED, now=now, who=WHO, why=why)
        return
    claim_transitions.request_release(db, claim.id, reason=why, now=now, who=WHO)
    moved = claim_transitions.end_released(db, claim.id, reason=EndReason.RELEASED, now=now, who=WHO, why=why)
    if moved is not None and moved.job_id is not None:
        hold(db, [moved.job_id])
        job_transitions.requeue(db, moved.job_id, now=now, who=WHO, why=why)


def _insert(db: Connection, pod: Pod, runner: Registered | None, *, why: str, now: datetime) -> int:
    """Insert a claim for a Pod whose claim is lost, and return its id.

    The claim has no job, because the job is not known. A webhook or GitHub names the job later.
    """
    db.execute(text("SELECT 1 FROM runner_pods WHERE id = :id FOR NO KEY UPDATE"), {"id": pod.row_id})
    pod_facts.record_annotation_of_row(db, pod.row_id, value=pod.stamp)
    return claim_inserts.insert_rebuilt(
        db,
        runner_pod_id=pod.row_id,
        account_id=pod.account_id,
        runner=runner,
        stamp=Stamp.ON if pod.stamped else Stamp.GAVE_UP,
        now=now,
        who=WHO,
        why=why,
    )


def _register(db: Connection, claim_id: int, runners: Sequence[Registered], *, now: datetime) -> None:
    """Record the runners that GitHub lists for this Pod. The code that ends the claim then deletes these runners."""
    for runner in runners:
        mint_attempts.register(db, claim_id, runner_name=runner.name, runner_id=runner.id, now=now)


def _deliver(db: Connection, claim_id: int, runner: Registered | None, *, why: str, now: datetime) -> bool:
    """Deliver a claim, and move it to the state `executing` unless its runner is online and idle.

    If the runner is online and idle, a claim without a job becomes a spare, and a claim with a job stays `delivered`.
    A claim in the state `releasing` moves to `executing` even if its runner is idle. If such a claim stayed
    `releasing`, the release would treat it as never delivered, and would free a Pod that might hold a JIT. Returns
    False if the claim cannot make the transition.
    """
    claim_transitions.hand_over(db, claim_id, runner, why=why, now=now, who=WHO)
    idle = runner is not None and runner.online and not runner.busy
    if idle and _state(db, claim_id) is ClaimState.DELIVERED:
        claim_jobs.make_spare(db, claim_id, now=now)
        return True
    return claim_transitions.execute_handed_over(db, claim_id, runner, why=why, now=now, who=WHO)


def hold(db: Connection, job_ids: Sequence[int]) -> None:
    """Hold these jobs until GitHub reports their state. A claimed job keeps its hold when it is queued again."""
    job_holds.hold_restored(db, job_ids, detail=HELD)


def hold_open_jobs(db: Connection, *, limit: int) -> int:
    """Hold up to `limit` restored jobs that are not completed and have no live claim.

    Jobs that changed after the freeze began are left out. Returns how many jobs this call held. The result is 0 if all
    such jobs are held already.
    """
    found = db.execute(
        text("""
            SELECT j.id FROM jobs j CROSS JOIN epochs e
            WHERE j.state <> 'completed' AND j.changed_at < e.older_since
              AND j.hold_reason IS DISTINCT FROM :hold
              AND NOT EXISTS (SELECT FROM claims c WHERE c.job_id = j.id AND c.ended_at IS NULL)
            ORDER BY j.id LIMIT :limit FOR NO KEY UPDATE OF j
        """),
        {"hold": HoldReason.ASK_GITHUB, "limit": limit},
    )
    return job_holds.hold_restored(db, found.scalars().all(), detail=HELD)


def open_jobs(db: Connection) -> int:
    """Return the number of jobs that are not completed and have no live claim."""
    return int(
        db.execute(
            text("""
                SELECT count(*) FROM jobs j WHERE j.state <> 'completed'
                  AND NOT EXISTS (SELECT FROM claims c WHERE c.job_id = j.id AND c.ended_at IS NULL)
            """)
        ).scalar_one()
    )


def held_jobs(db: Connection) -> int:
    """Return the number of jobs that are held until GitHub reports their state."""
    return int(
        db.execute(
            text("SELECT count(*) FROM jobs WHERE hold_reason = :hold AND state <> 'completed'"),
            {"hold": HoldReason.ASK_GITHUB},
        ).scalar_one()
    )
