"""Usage of accounts: the Pods that count against a budget (law L2). Each Pod counts once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from models.db.prepared import Prepared
from models.db.sql import text
from rules.claims.fairness import Usage

CHARGED = """
    charged_account_id IS NOT NULL AND gone_at IS NULL AND terminal_at IS NULL AND node_gone_at IS NULL
"""
"""SQL condition on a runner Pod: a JIT was delivered to the Pod, and the Pod might still run.

No evidence shows that the Pod has ended, and its node is not gone.

The condition is also the predicate of a partial index.
"""


def used_pods(only: str = "") -> str:
    """Return an SQL query for the Pods that count against the budgets of accounts.

    The query has one row per account and Pod, with the size of the Pod. `only` is an SQL condition on `account_id`. The
    query combines four sources, which might name the same Pod:

    - Live job claims.
    - The charge of a Pod, which is written at delivery. The charge remains after the claim has ended, so a Pod that
      outlives its job still counts.
    - Open executions on persistent runners.
    - Open executions without a claim on runners that Ostler registered. The mint attempt of the runner leads to the
      Pod.

    A Pod on a gone node does not count.
    """
    return f"""
        SELECT account_id, runner_pod_id, max(vcpu) AS vcpu, max(memory) AS memory
        FROM (
            SELECT account_id, runner_pod_id, vcpu, memory FROM claims
            WHERE ended_at IS NULL AND purpose = 'job' AND account_id IS NOT NULL {only}
            UNION ALL
            SELECT account_id, runner_pod_id, vcpu, memory
            FROM (SELECT charged_account_id AS account_id, id AS runner_pod_id, charged_vcpu AS vcpu,
                         charged_memory AS memory
                  FROM runner_pods WHERE {CHARGED}) charged
            WHERE true {only}
            UNION ALL
            SELECT account_id, runner_pod_id, vcpu, memory
            FROM (SELECT e.account_id, c.runner_pod_id, e.vcpu, e.memory
                  FROM executions e JOIN claims c ON c.id = e.claim_id
                  WHERE e.ended_at IS NULL AND c.purpose = 'register') persistent
            WHERE true {only}
            UNION ALL
            SELECT account_id, runner_pod_id, vcpu, memory
            FROM (SELECT e.account_id, c.runner_pod_id, e.vcpu, e.memory
                  FROM executions e JOIN mint_attempts m ON m.runner_name = e.runner_name
                  JOIN claims c ON c.id = m.claim_id
                  WHERE e.ended_at IS NULL AND e.claim_id IS NULL) unclaimed
            WHERE true {only}
        ) found
        WHERE runner_pod_id <> ALL (ARRAY(
            SELECT id FROM runner_pods WHERE node_gone_at IS NOT NULL AND gone_at IS NULL))
        GROUP BY account_id, runner_pod_id
    """


_USAGE = Prepared(
    "usage",
    f"""
    SELECT account_id, count(*) AS pods, sum(vcpu) AS vcpu, sum(memory) AS memory
    FROM ({used_pods("AND account_id = ANY(:ids)")}) used
    GROUP BY account_id
    """,
    ids="bigint[]",
)


def usage_of(db: Connection, account_ids: Sequence[int]) -> Mapping[int, Usage]:
    """Return the usage of each account: its Pods, including the Pods whose execution has no claim (law L2).

    Executions on runners that Ostler did not register do not count, because they use no Pod of Ostler.
    """
    rows = _USAGE.execute(db, ids=list(account_ids))
    used = {
        row.account_id: Usage(count=row.pods, vcpu_millicores=int(row.vcpu), memory_mib=int(row.memory)) for row in rows
    }
    nothing = Usage(count=0, vcpu_millicores=0, memory_mib=0)
    return {account_id: used.get(account_id, nothing) for account_id in account_ids}


def ending_pods(db: Connection, account_ids: Sequence[int] | None = None) -> Mapping[int, int]:
    """Return how many Pods of each account have outlived their job claim. Such a Pod still counts against the budget.

    If `account_ids` is None, the result has all accounts with at least one such Pod.
    """
    rows = db.execute(
        text(f"""
            SELECT charged_account_id AS account_id, count(*) AS pods FROM runner_pods p
            WHERE {CHARGED} AND (CAST(:ids AS bigint[]) IS NULL OR charged_account_id = ANY(CAST(:ids AS bigint[])))
              AND NOT EXISTS (SELECT FROM claims c WHERE c.pod_uid = p.uid AND c.ended_at IS NULL
                              AND c.purpose = 'job')
            GROUP BY charged_account_id ORDER BY charged_account_id
        """),
        {"ids": None if account_ids is None else list(account_ids)},
    )
    found = {row.account_id: row.pods for row in rows}
    return found if account_ids is None else {each: found.get(each, 0) for each in account_ids}


def pools_after_pods(db: Connection, uids: Sequence[str]) -> list[int]:
    """Return the pools to wake after the end of these Pods.

    The end of a Pod frees budget of the account that the Pod was charged to. The result contains the pools in which
    such an account has dispatchable jobs, because the jobs might fit into the budget now.
    """
    if not uids:
        return []
    rows = db.execute(
        text("SELECT DISTINCT charged_account_id FROM runner_pods WHERE uid = ANY(:uids) AND charged_account_id > 0"),
        {"uids": list(uids)},
    )
    return pools_with_work(db, list(rows.scalars()))


def pools_with_work(db: Connection, account_ids: Sequence[int]) -> list[int]:
    """Return the pools that have dispatchable jobs of these accounts.

    The query checks the index once per account and pool, so its cost does not depend on the length of a queue.
    """
    if not account_ids:
        return []
    rows = db.execute(
        text("""
            SELECT p.id FROM pools p
            WHERE p.deleted_at IS NULL AND EXISTS (
                SELECT FROM unnest(CAST(:accounts AS bigint[])) AS a (id)
                CROSS JOIN LATERAL (
                    SELECT FROM jobs j WHERE j.pool_id = p.id AND j.account_id = a.id AND j.state = 'queued'
                      AND j.hold_reason IS NULL LIMIT 1) j)
            ORDER BY p.id
        """),
        {"accounts": sorted(account_ids)},
    )
    return list(rows.scalars())
