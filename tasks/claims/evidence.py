"""May a Pod hold a JIT: the question that comes before it is deleted, un-stamped or scaled away (L3).

Everything that does one of these asks here, with what is at hand: rows always, the Pod where somebody has just looked
at it, GitHub's removals as they are recorded. `tests/unit/tasks/test_who_asks.py` finds whoever does not.
"""

from __future__ import annotations

from k8s_adapters.pods import PodSeen
from models.claims import busy
from models.claims.busy import Recorded
from rules.claims.busy import BusyVerdict, PodEvidence, may_hold_jit
from tasks.worker.runtime import Runtime


def evidence_of(recorded: Recorded, pod: PodSeen | None, *, gone: bool = False) -> PodEvidence:
    """Return what rows and, where somebody looked, the cluster say of a Pod; `gone`: a GET by name and UID said so."""
    poller = recorded.poller_exit_code
    if pod is not None and pod.poller_exit_code is not None:
        poller = pod.poller_exit_code
    return PodEvidence(
        any_delivered=recorded.any_delivered,
        poller_exit_code=poller,
        runner_ever_ready=recorded.executed or (pod is not None and pod.runner_ready),
        github_runner_seen="unknown",
        terminal=recorded.terminal or (pod is not None and pod.is_over),
        gone=recorded.gone or gone,
        runner_removed_proof=recorded.runners_removed,
    )


def judge(recorded: Recorded, pod: PodSeen | None = None, *, gone: bool = False) -> BusyVerdict:
    """Return whether a Pod may hold a JIT, by rows that were just read and, where somebody looked, the Pod."""
    return may_hold_jit(evidence_of(recorded, pod, gone=gone))


def ask(
    rt: Runtime, pod_uid: str, pod: PodSeen | None = None, *, gone: bool = False, claim_id: int | None = None
) -> BusyVerdict:
    """Read what is recorded of a Pod and return whether it may hold a JIT; with `claim_id` whether that claim's."""
    return judge(rt.transaction(busy.recorded, pod_uid, claim_id=claim_id), pod, gone=gone)
