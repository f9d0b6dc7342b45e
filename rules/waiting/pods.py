"""Reasons why a pool has no warm Pod or no runner that executes jobs, and the cures."""

from __future__ import annotations

from rules.claims.runner_brakes import Brake
from rules.pools.starts import Trouble
from rules.waiting.facts import SupplyFacts


def why_no_pod(pool: SupplyFacts) -> tuple[str, str]:
    """Return the reason why no Pod is warm, and the cure.

    If there are several obstacles, the reason is the first obstacle that a person can remove.
    """
    if pool.spec.problem is not None:
        return f"the RunnerPool is invalid ({pool.spec.problem})", f"Correct the spec of RunnerPool {pool.spec.name}."
    if pool.spec.paused:
        return "the pool is paused and creates no Pods", f"Resume the pool: `ostler pool resume {pool.spec.name}`."
    most = pool.spec.max_replicas if pool.spec.autoscaled else pool.spec.replicas
    if most <= 0:
        field = "spec.autoscaling.maxReplicas" if pool.spec.autoscaled else "replicas"
        return f"the field {field} of the pool is 0", f"Waiting does not help. {enlarge(pool, 1)}"
    if pool.failing is not None:
        return f"the API server does not create its Pods ({pool.failing})", _FAILING_CURE
    if pool.trouble is not None:
        why, cure = _TROUBLES[pool.trouble]
        detail = f" ({pool.trouble_detail})" if pool.trouble_detail else ""
        after = pool.create_after
        later = "" if after is None else f"; the next Pod is not created before {after:%Y-%m-%d %H:%M:%S} UTC"
        return f"{why}{detail}{later}", cure
    if pool.silent > 0:
        return f"{pool.silent} of its Pods poll a web process that has sent no heartbeat for 15 seconds", (
            "Check that the web processes run and reach Postgres. The Pods poll another web process when their "
            "connection ends."
        )
    if pool.gated is not None:
        return pool.gated[:1].lower() + pool.gated[1:], _GATED_CURE
    counts = f"{pool.taken} of {pool.spec.replicas} Pods have a job"
    counts += "" if pool.top is None else f": {pool.top.describe()}"
    if pool.taken < pool.spec.replicas:
        why = ", without a surge Pod because no node has room for one more" if pool.without_surge else ""
        return f"{counts}, and the others start, end or are replaced{why}{_starts(pool)}", (
            "Wait until a Pod starts. If none starts within a few minutes, run "
            f"`kubectl describe rpool {pool.spec.name}` in the namespace of the pool."
        )
    if not pool.spec.autoscaled or pool.spec.replicas >= most:
        return counts, f"Wait until one of these jobs ends, or make the pool larger. {enlarge(pool, most + 1)}"
    if pool.cluster_gate is not None:
        return f"{counts}, and the autoscaler adds no Pods while the gate of Kubernetes is tripped", (
            f"See `ostler gates`: {pool.cluster_gate}."
        )
    return f"{counts}, and the autoscaler can set up to {most} replicas", (
        "Wait: the autoscaler adds Pods within seconds. If it adds none, `ostler pool list --why` shows the reason."
    )


def _starts(pool: SupplyFacts) -> str:
    if not pool.starting:
        return ""
    seconds = "less than 1" if pool.starts_in is not None and pool.starts_in < 1 else f"{pool.starts_in or 0:.0f}"
    usual = "" if pool.starts_in is None else f"; a start takes {seconds} s in the median"
    return f"; {pool.starting} {'Pod starts' if pool.starting == 1 else 'Pods start'} now{usual}"


def cure_of_brake(brake: Brake) -> str:
    """Return the cure for runners that end without a job."""
    if not brake.too_old:
        return RUNNERS_CURE
    return _TOO_OLD_CURE if brake.accepted is None else _DISPUTED_CURE


def enlarge(pool: SupplyFacts, least: int) -> str:
    """Return a sentence that tells an operator how to enlarge a pool to at least `least` Pods.

    In an autoscaled pool, the operator may only change `maxReplicas`.
    """
    if pool.spec.autoscaled:
        return f"Set spec.autoscaling.maxReplicas of RunnerPool {pool.spec.name} to {least} or more."
    return f"Set the replicas: `ostler pool scale {pool.spec.name} {least}`, or more."


_TOO_OLD_CURE = "Use an image with a newer runner in the RunnerPool. The pool resumes as soon as its template changes."
_DISPUTED_CURE = (
    "Wait until GitHub accepts the version again; the pool then resumes by itself. A newer runner might help."
)
RUNNERS_CURE = (
    "See the log of container `runner` of a Pod of the pool. Usual causes are a broken image, a read-only file system, "
    "a missing proxy or CA, and no route to GitHub. The pool resumes with its first execution, or when its template "
    "changes."
)
_FAILING_CURE = (
    "Repair the component that the message names, for example an admission webhook without running Pods. Ostler "
    "repeats the calls with each reconcile."
)
_GATED_CURE = (
    "Wait until the program that manages the gates, for example Kueue, admits the Pods, or give the queue of this "
    "program more room."
)

_TROUBLES = {
    Trouble.IMAGE: (
        "the nodes cannot pull its image",
        "Correct `image` of the RunnerPool, or the registry's credentials. A new Pod is created right after a change.",
    ),
    Trouble.CONTAINER: (
        "the containers of its Pods cannot be created or started",
        "Check that each Secret, ConfigMap and volume that its Pod template names exists in its namespace.",
    ),
    Trouble.UNSCHEDULABLE: (
        "no node accepts its Pods",
        "Add nodes, or lower the resources of the pool, or correct its node selector and tolerations.",
    ),
    Trouble.POLLER: (
        "its Pods end before their first poll",
        "See the log of container `poller` of one of these Pods. The log shows why web refused the poll.",
    ),
    Trouble.UNRESPONSIVE: (
        "its Pods run, but web receives no poll from them",
        "Check that the Pods reach web at OSTLER_DISPATCH_URL: DNS, network policies, and the log of `poller`.",
    ),
    Trouble.REFUSED: (
        "the API server refuses its Pods",
        "Correct what the message names: Pod Security of the namespace, an admission webhook, or a field of the spec.",
    ),
    Trouble.QUOTA: (
        "a ResourceQuota of its namespace is used up",
        "Raise the quota, or make pools of this namespace smaller. The next Pod is created when there is room.",
    ),
}
