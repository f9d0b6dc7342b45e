"""Queries and repairs of the sweeps over orphans, and of the sweep `finished_jobs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from models.claims.names import INSTALLATION_NOW, REPOSITORY_ID, SCOPE_NOW
from models.claims.releases import Registration, apply_job_outcome, insert_retire, lock_claim
from models.db.sql import text
from models.state import claim_transitions
from rules.claims.job_outcomes import JobOutcome
from rules.claims.machines import ClaimState

LIMIT = 1000
"""Maximum number of rows that one query returns. The next tick checks the other rows."""


@dataclass(frozen=True, slots=True)
class PodClaims:
    """A summary of all claims of one Pod UID.

    `last_claim_id` is the id of the newest claim of any purpose, or 0 if the Pod never had a claim. `last_ended_at` is
    the latest time at which a claim of the Pod ended, or None if no claim has ended.
    """

    runner_pod_id: int
    has_live_claim: bool
    ever_delivered: bool
    last_claim_id: int
    last_ended_at: datetime | None


_CLAIMS_OF_PODS = text("""
    SELECT p.uid, p.id, coalesce(bool_or(c.ended_at IS NULL) FILTER (WHERE c.id IS NOT NULL), false) AS live,
           coalesce(bool_or(c.delivered_at IS NOT NULL), false) AS delivered,
           coalesce(max(c.id), 0) AS last_claim_id, max(c.ended_at) AS last_ended_at
    FROM runner_pods p LEFT JOIN claims c ON c.pod_uid = p.uid
    WHERE p.uid = ANY(:uids) GROUP BY p.id
""")


def claims_of_pods(db: Connection, uids: Sequence[str]) -> Mapping[str, PodClaims]:
    """Return the claims of these Pods, by UID. A Pod without a row is missing from the result."""
    return {row.uid: PodClaims(*row[1:]) for row in db.execute(_CLAIMS_OF_PODS, {"uids": list(uids)})}


def retire_stamped(
    db: Connection, uid: str, seen: PodClaims, *, why: str, due_after: float, now: datetime, who: str
) -> int | None:
    """Insert the retire claim of a stamped Pod, and return the id of the claim.

    `seen` is the summary of the Pod's claims that the caller's decision is based on. Return None if the summary is
    different now, or if `insert_retire` inserts no claim. Without this comparison, the sweep could retire a Pod that
    was claimed after the decision. `due_after` is the time in seconds until the retire claim's next step is due.
    """
    db.execute(text("SELECT 1 FROM runner_pods WHERE id = :id FOR NO KEY UPDATE"), {"id": seen.runner_pod_id})
    if claims_of_pods(db, [uid]).get(uid) != seen:
        return None
    return insert_retire(db, seen.runner_pod_id, now=now, who=who, why=why, due_after=due_after)


@dataclass(frozen=True, slots=True)
class Finished:
    """A Pod that is not terminal although its job might be over, with the Pod's newest delivered claim.

    A Pod is selected for one of these reasons:

    - The job is completed, or the claim ended for another reason than a completed job.
    - The runner executes a job that Ostler does not know.
    - The job has run longer than GitHub allows any job to run (`outlasts`). No webhook will report its end.
    - The Pod's node is gone (`on_gone_node`).
    - The Pod lingers: the job that the runner executed is completed and the claim has ended, but the Pod is not
      terminal. Such a Pod is retired only after two checks in which GitHub does not list the Pod's runner.

    A Pod that is selected for one of the first three reasons is `overdue`. An overdue Pod is checked whether or not its
    node is gone.

    Some of the fields need an explanation:

    - `job_id`: the claim's own job. The runner might have executed another job.
    - `asks_for`: the repository of the claim's own job, or None if the claim's own job is completed. GitHub is asked
      about the claim's own job, because the end of another job does not prove that the claim's own job has ended.
    - `executed_over_at`: the end of the job that the runner is known to have executed.
    - `since`: the time of the last change of the claim or of the job.
    - `free_since`: the time of the first check after `since` that found the runner absent or idle.
    - `absent_since`: the time of the first check after `since` that did not find the runner.
    - `installation_id` and `scope`: the present installation and scope of the claim (`models.claims.names`).
    """

    claim_id: int
    state: str
    runner_pod_id: int
    pod_uid: str
    namespace: str
    pod_name: str
    job_id: int | None
    job_over: bool
    outlasts: bool
    asks_for: str | None
    installation_id: int
    scope: str
    runner_name: str
    executed_over_at: datetime | None
    since: datetime
    free_since: datetime | None
    on_gone_node: bool
    overdue: bool
    absent_since: datetime | None


_FINISHED = text(f"""
    SELECT c.id, c.state, p.id AS runner_pod_id, c.pod_uid, p.namespace, p.name, c.job_id,
           coalesce(j.state = 'completed', false) AS job_over,
           coalesce(c.state = 'executing' AND j.state <> 'completed', false) AS outlasts,
           (SELECT own.repository FROM jobs own WHERE own.id = c.job_id AND own.state <> 'completed') AS asks_for,
           {INSTALLATION_NOW}, {SCOPE_NOW}, c.runner_name,
           CASE WHEN x.job_id IS NOT NULL AND j.state = 'completed' THEN j.completed_at END AS executed_over_at,
           t.since, CASE WHEN c.runner_idle_at >= t.since THEN c.runner_idle_at END,
           p.node_gone_at IS NOT NULL AS on_gone_node, w.overdue,
           CASE WHEN c.runner_absent_at >= t.since THEN c.runner_absent_at END
    FROM runner_pods p
    JOIN LATERAL (SELECT * FROM claims d WHERE d.pod_uid = p.uid AND d.delivered_at IS NOT NULL
                  ORDER BY d.id DESC LIMIT 1) c ON true
    LEFT JOIN LATERAL (SELECT x.job_id FROM executions x WHERE x.claim_id = c.id ORDER BY x.id DESC LIMIT 1) x ON true
    LEFT JOIN jobs j ON j.id = coalesce(x.job_id, c.job_id)
    CROSS JOIN LATERAL (SELECT greatest(c.delivered_at, c.changed_at, j.started_at, j.completed_at) AS since) t
    CROSS JOIN LATERAL (SELECT coalesce(
        (j.state = 'completed' AND j.completed_at < :before)
        OR (c.ended_at < :before AND c.end_reason <> 'completed')
        -- The job of the runner is unknown, because its webhook was lost. No other sweep checks this runner.
        OR (c.state = 'executing' AND j.id IS NULL AND c.changed_at < :before)
        -- The `completed` webhook was lost, and GitHub returns neither the job nor its run any more.
        OR (c.state = 'executing' AND j.state <> 'completed' AND t.since < :began_before), false) AS overdue) w
    WHERE p.gone_at IS NULL AND p.terminal_at IS NULL AND p.uid IS NOT NULL
      AND c.installation_id IS NOT NULL AND c.scope IS NOT NULL AND c.runner_name IS NOT NULL
      AND c.state <> 'releasing' AND c.purpose = 'job'
      AND (w.overdue OR (p.node_gone_at IS NOT NULL AND c.state IN ('executing', 'ended'))
           OR (x.job_id IS NOT NULL AND j.state = 'completed' AND j.completed_at < :absent_before
               AND c.state = 'ended' AND c.end_reason = 'completed'))
      AND NOT EXISTS (SELECT FROM claims r WHERE r.pod_uid = p.uid AND r.ended_at IS NULL AND r.id <> c.id)
    ORDER BY random() LIMIT :limit
""")


def finished(db: Connection, *, before: datetime, began_before: datetime, absent_before: datetime) -> list[Finished]:
    """Return the Pods whose job might be over, in random order, so that no Pod is always the last (law L14).

    `Finished` lists the reasons. The parameters are times:

    - `before`: a Pod is overdue if before this time its job was completed, its claim ended without a completed job, or
      its runner began to execute an unknown job.
    - `began_before`: a Pod is overdue if its claim has been executing the same job since before this time. GitHub
      allows no job to run for such a long time.
    - `absent_before`: a Pod lingers if the job that its runner executed was completed before this time.
    """
    rows = db.execute(
        _FINISHED,
        {"before": before, "began_before": began_before, "absent_before": absent_before, "limit": LIMIT},
    )
    return [Finished(*row) for row in rows]


def still_executes(db: Connection, pod: Finished) -> bool:
    """Lock the claim of a finished Pod. Return True if the claim is still `executing` with the same job."""
    claim = lock_claim(db, pod.claim_id)
    return claim is not None and claim.state == ClaimState.EXECUTING and claim.job_id == pod.job_id


@dataclass(frozen=True, slots=True)
class Reaped:
    """The result of `reap_finished`: the id of the claim that is being released, or the id of the new retire claim.

    Exactly one of the two ids is None.
    """

    release_id: int | None
    retire_id: int | None


def reap_finished(
    db: Connection, pod: Finished, job_outcome: JobOutcome, *, why: str, due_after: float, now: datetime, who: str
) -> Reaped | None:
    """Release the claim of a finished Pod, or insert the Pod's retire claim.

    If the claim is delivered, the claim is released. The release first deregisters the runner at GitHub. If the claim
    is executing, the claim ends in the same way as after the webhook `completed`, and the retire claim is inserted.
    Before the call, the caller must have removed the runner of an executing claim from GitHub. If the runner executed
    another job, the claim's own job gets `job_outcome`. The caller has read this outcome from GitHub. If the claim has
    already ended, only the retire claim is inserted.

    Return None if the claim has changed since `pod` was read, or if the retire claim cannot be inserted.
    """
    if pod.state == ClaimState.DELIVERED:
        begun = claim_transitions.request_release(db, pod.claim_id, reason=why, now=now, who=who)
        return Reaped(pod.claim_id, None) if begun else None
    if pod.state == ClaimState.EXECUTING:
        claim = lock_claim(db, pod.claim_id)
        if claim is None or claim.job_id != pod.job_id:
            return None
        moved = claim_transitions.end_completed(db, pod.claim_id, executing=True, now=now, who=who, why=why)
        if moved is None:
            return None
        # A job must not stay claimed without a claim (law L4).
        if moved.job_id is not None and pod.asks_for is not None:
            apply_job_outcome(db, moved.job_id, job_outcome, now=now, who=who)
    retire_id = insert_retire(db, pod.runner_pod_id, now=now, who=who, why=why, due_after=due_after)
    return None if retire_id is None else Reaped(None, retire_id)


@dataclass(frozen=True, slots=True)
class ScopeOfRunners:
    """A scope in which Ostler recently registered runners, with an installation that can still list these runners."""

    installation_id: int
    scope: str


_MAY_BE_REGISTERED = """
    (m.outcome IN ('open', 'minted')
     OR (m.outcome = 'removed' AND m.runner_id IS NULL AND m.closed_at > :unheard_since))
"""
"""SQL condition on a mint attempt `m`: the attempt's runner might be registered at GitHub.

If the response to a mint was lost and the next check finds no runner of this name, the attempt becomes `removed`.
GitHub might still register the runner after that check.
"""


def scopes_of_runners(db: Connection, *, since: datetime, unheard_since: datetime) -> list[ScopeOfRunners]:
    """Return the scopes of mint attempts that began after `since` and whose runners might be registered.

    The scopes of live persistent runners are among them. The order is random (law L14).

    If the response to a mint was lost, GitHub might register the runner after the attempt was recorded as removed. The
    scope of such an attempt is returned if the attempt was closed after `unheard_since`. Scopes of an installation that
    GitHub does not know any more are left out, because GitHub would not list the runners of these scopes.
    """
    rows = db.execute(
        text(f"""
            SELECT installation_id, scope FROM (
                SELECT DISTINCT {INSTALLATION_NOW} AS installation_id, {SCOPE_NOW} AS scope FROM (
                    SELECT DISTINCT c.account_id, c.installation_id, c.scope,
                           CAST(NULL AS bigint) AS id, CAST(NULL AS bigint) AS job_id,
                           CASE WHEN starts_with(c.scope, 'repos/') THEN {REPOSITORY_ID} END AS repository_id
                    FROM mint_attempts m JOIN claims c ON c.id = m.claim_id
                    WHERE m.created_at > :since AND {_MAY_BE_REGISTERED}
                      AND c.installation_id IS NOT NULL AND c.scope IS NOT NULL
                    UNION
                    SELECT DISTINCT c.account_id, c.installation_id, c.scope, CAST(NULL AS bigint),
                           CAST(NULL AS bigint), CASE WHEN starts_with(c.scope, 'repos/') THEN {REPOSITORY_ID} END
                    FROM claims c
                    WHERE c.purpose = 'register' AND c.ended_at IS NULL
                      AND c.installation_id IS NOT NULL AND c.scope IS NOT NULL
                ) c
            ) s
            WHERE NOT EXISTS (SELECT FROM installations i WHERE i.id = s.installation_id AND i.left_at IS NOT NULL)
            ORDER BY random() LIMIT :limit
        """),
        {"since": since, "unheard_since": unheard_since, "limit": LIMIT},
    )
    return [ScopeOfRunners(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class KnownRunner:
    """A runner that Ostler named. `ended_at` is the time at which its claim ended, or None while the claim is live."""

    attempt_id: int
    claim_id: int
    pod_uid: str
    ended_at: datetime | None


def known_runners(db: Connection, names: Sequence[str]) -> Mapping[str, KnownRunner]:
    """Return the runners whose names are in Ostler's mint attempts, by name. Names must match exactly."""
    rows = db.execute(
        text("""
            SELECT m.runner_name, m.id, m.claim_id, c.pod_uid, c.ended_at
            FROM mint_attempts m JOIN claims c ON c.id = m.claim_id WHERE m.runner_name = ANY(:names)
        """),
        {"names": list(names)},
    )
    return {row.runner_name: KnownRunner(*row[1:]) for row in rows}


@dataclass(frozen=True, slots=True)
class CutOff:
    """A removal of a runner that a killed process began. The result of the removal is not recorded."""

    repair_id: int
    runner: Registration


def removals_cut_off(db: Connection, scope: ScopeOfRunners) -> list[CutOff]:
    """Return the interrupted removals of runners in a scope.

    An earlier tick of `orphaned_runners` recorded each of these removals before the call to GitHub. The process of this
    tick was killed before it recorded the result of the call.
    """
    rows = db.execute(
        text(f"""
            SELECT r.id, m.id, m.runner_name, m.runner_id, {INSTALLATION_NOW}, {SCOPE_NOW}, c.delivered_at IS NOT NULL
            FROM repairs r JOIN mint_attempts m ON m.runner_name = r.runner_name JOIN claims c ON c.id = m.claim_id
            WHERE r.sweep = 'orphaned_runners' AND r.outcome = 'begun' AND m.outcome IN ('open', 'minted', 'removed')
              AND {INSTALLATION_NOW} = :installation AND {SCOPE_NOW} = :scope
            ORDER BY random() LIMIT :limit
        """),
        {"installation": scope.installation_id, "scope": scope.scope, "limit": LIMIT},
    )
    return [CutOff(row[0], Registration(*row[1:])) for row in rows]


def open_pod_names(db: Connection, *, namespace: str, names: Sequence[str]) -> set[str]:
    """Return those of `names` that belong to a planned Pod or to a Pod that is not known to be gone."""
    rows = db.execute(
        text("""
            SELECT name FROM runner_pods WHERE namespace = :namespace AND name = ANY(:names) AND gone_at IS NULL
        """),
        {"namespace": namespace, "names": list(names)},
    )
    return set(rows.scalars())


def has_stateful_sets(db: Connection) -> bool:
    """Return True if any pool, also a deleted pool, has the workload `StatefulSet`."""
    return bool(db.execute(text("SELECT EXISTS (SELECT FROM pools WHERE workload = 'StatefulSet')")).scalar_one())


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The row of a runner that was given up before it had a Pod."""

    id: int
    namespace: str
    name: str


def given_up_rows(db: Connection, *, before: datetime) -> Sequence[GivenUp]:
    """Return rows of pools with the workload `StatefulSet` that were given up before this time, in random order."""
    rows = db.execute(
        text("""
            SELECT r.id, r.namespace, r.name FROM runner_pods r JOIN pools p ON p.id = r.pool_id
            WHERE p.workload = 'StatefulSet' AND r.uid IS NULL AND r.gone_at < :before
            ORDER BY random() LIMIT :limit
        """),
        {"before": before, "limit": LIMIT},
    )
    return [GivenUp(*row) for row in rows]
