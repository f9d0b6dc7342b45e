"""Inserts of claims with their first events: for jobs, for retirements, and for Pods whose claims a restore lost.

The caller must hold the locks of the Pods' rows and, for job claims, of the rows of jobs and accounts. Two unique
indexes reject a second live claim of a Pod or of a job (law L1).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row

from models.db.prepared import Prepared
from models.db.sql import text
from models.state.transitions import insert_events, of_running_task
from rules.claims.machines import ClaimState, Stamp
from rules.restore.restoring import Registered

REGISTERED_REPOSITORY = "CASE WHEN starts_with(j.scope, 'repos/') THEN j.repository_id END"
"""SQL expression on a job `j`: the id of the repository that the job's runner is registered in.

The value is NULL if the runner is registered in an organisation.
"""

_INSERT_MATCHED = Prepared(
    "insert_claims",
    f"""
    WITH made AS (
        INSERT INTO claims (purpose, job_id, runner_pod_id, pod_uid, pool_id, account_id, installation_id, scope,
                            repository_id, vcpu, memory, state, created_at, changed_at, due_at)
        SELECT 'job', j.id, pair.pod_id, pair.uid, :pool_id, j.account_id, j.installation_id, j.scope,
               {REGISTERED_REPOSITORY},
               :vcpu, :memory, :state, :now, :now, :due
        FROM unnest(:jobs, :pods, :uids) WITH ORDINALITY AS pair (job_id, pod_id, uid, place)
        JOIN jobs j ON j.id = pair.job_id
        ORDER BY pair.place
        RETURNING id, job_id, pod_uid
    ), events AS (
        INSERT INTO claim_events (claim_id, at, transition, from_state, to_state, who, why, task_id, attempt)
        SELECT id, :now, :transition, NULL, :state, :who, :why, :task_id, :attempt FROM made
    )
    SELECT id, job_id, pod_uid FROM made
    """,
    pool_id="bigint",
    vcpu="bigint",
    memory="bigint",
    state="text",
    now="timestamptz",
    due="timestamptz",
    jobs="bigint[]",
    pods="bigint[]",
    uids="text[]",
    transition="text",
    who="text",
    why="text",
    task_id="text",
    attempt="bigint",
)


def insert_matched(
    db: Connection,
    pairs: Sequence[tuple[int, int, str]],
    *,
    pool_id: int,
    vcpu: int,
    memory: int,
    due: datetime,
    now: datetime,
    who: str,
) -> Sequence[Row[Any]]:
    """Insert one job claim per pair, and return the `id`, `job_id` and `pod_uid` of each claim.

    `pairs` contains for each claim the id of the job, the id of the Pod's row and the UID of the Pod. `vcpu`
    (millicores) and `memory` (MiB) are the size of one Pod of the pool. `due` is the time at which the next step of
    each claim is due.
    """
    return _INSERT_MATCHED.execute(
        db,
        pool_id=pool_id,
        vcpu=vcpu,
        memory=memory,
        state=ClaimState.CLAIMED,
        now=now,
        due=due,
        jobs=[job_id for job_id, _, _ in pairs],
        pods=[row_id for _, row_id, _ in pairs],
        uids=[uid for _, _, uid in pairs],
        transition="claim",
        who=who,
        why="matched",
        **of_running_task(),
    ).all()


def insert_registrations(
    db: Connection,
    pods: Sequence[tuple[int, str]],
    *,
    pool_id: int,
    account_id: int,
    installation_id: int,
    scope: str,
    repository_id: int | None,
    due: datetime,
    now: datetime,
    who: str,
) -> Sequence[int]:
    """Insert one registration claim per Pod, and return the ids of the claims.

    `pods` contains the id of the Pod's row and the UID of each Pod. The runners are registered in `scope`, which
    belongs to the account. The claims have no size, because a registration uses no budget.
    """
    ids = (
        db.execute(
            text("""
                INSERT INTO claims (purpose, runner_pod_id, pod_uid, pool_id, account_id, installation_id, scope,
                                    repository_id, vcpu, memory, state, created_at, changed_at, due_at)
                SELECT 'register', pod_id, uid, :pool_id, :account, :installation, :scope, :repository, 0, 0, :state,
                       :now, :now, :due
                FROM unnest(CAST(:pods AS bigint[]), CAST(:uids AS text[])) AS pod (pod_id, uid)
                RETURNING id
            """),
            {
                "pods": [row_id for row_id, _ in pods],
                "uids": [uid for _, uid in pods],
                "pool_id": pool_id,
                "account": account_id,
                "installation": installation_id,
                "scope": scope,
                "repository": repository_id,
                "state": ClaimState.CLAIMED,
                "now": now,
                "due": due,
            },
        )
        .scalars()
        .all()
    )
    why = f"registers in {scope}"
    insert_events(db, "claim", ids, name="claim", state=ClaimState.CLAIMED, now=now, who=who, why=why)
    return ids


def insert_retirement(
    db: Connection,
    *,
    runner_pod_id: int,
    pod_uid: str,
    pool_id: int,
    due: datetime,
    now: datetime,
    who: str,
    why: str,
) -> int:
    """Insert the retire claim of a Pod, and return the claim's id. The claim's next step is due at `due`."""
    claim_id: int = db.execute(
        text("""
            INSERT INTO claims (purpose, runner_pod_id, pod_uid, pool_id, vcpu, memory, state, release_reason,
                                created_at, changed_at, due_at)
            VALUES ('retire', :pod_id, :uid, :pool_id, 0, 0, :state, :why, :now, :now, :due) RETURNING id
        """),
        {
            "pod_id": runner_pod_id,
            "uid": pod_uid,
            "pool_id": pool_id,
            "state": ClaimState.CLAIMED,
            "why": why,
            "now": now,
            "due": due,
        },
    ).scalar_one()
    insert_events(db, "claim", [claim_id], name="retire", state=ClaimState.CLAIMED, now=now, who=who, why=why)
    return claim_id


def insert_rebuilt(
    db: Connection,
    *,
    runner_pod_id: int,
    account_id: int | None,
    runner: Registered | None,
    stamp: Stamp,
    now: datetime,
    who: str,
    why: str,
) -> int:
    """Insert a claim for a Pod whose claim was lost in a restore, and return the id of the new claim.

    `runner` is the runner of the Pod, or None if it is not known. If the id of its repository is known, its scope ends
    with `#` and this id. `stamp` is the stamp that the Pod carries.
    """
    claim_id: int = db.execute(
        text("""
            INSERT INTO claims (purpose, runner_pod_id, pod_uid, pool_id, account_id, installation_id, scope,
                                repository_id, vcpu, memory, state, stamp, created_at, changed_at)
            SELECT 'job', p.id, p.uid, p.pool_id, :account, :installation, split_part(CAST(:scope AS text), '#', 1),
                   CAST(nullif(split_part(CAST(:scope AS text), '#', 2), '') AS bigint), pool.vcpu, pool.memory, :state,
                   :stamp, :now, :now
            FROM runner_pods p JOIN pools pool ON pool.id = p.pool_id WHERE p.id = :pod_id RETURNING id
        """),
        {
            "pod_id": runner_pod_id,
            "account": account_id,
            "state": ClaimState.CLAIMED,
            "now": now,
            "installation": None if runner is None else runner.installation_id,
            "scope": None if runner is None else runner.scope,
            "stamp": stamp,
        },
    ).scalar_one()
    insert_events(db, "claim", [claim_id], name="claim", state=ClaimState.CLAIMED, now=now, who=who, why=why)
    return claim_id
