"""Evidence on whether a Pod might hold a JIT, to be read before the Pod is deleted, un-stamped or scaled away (law L3).

The evidence comes from the rows, and also from the Pod if the caller has just read the Pod. The rows also show which
runners have been removed from GitHub. The test `tests/unit/tasks/test_who_asks.py` fails if code acts on a Pod without
this evidence.
"""

from __future__ import annotations

from models.claims import busy
from models.claims.busy import Recorded
from rules.claims.busy import BusyVerdict, PodEvidence, may_hold_jit
from rules.claims.pod_view import PodView
from tasks.worker.runtime import Runtime


def evidence_of(recorded: Recorded, pod: PodView | None, *, gone: bool = False) -> PodEvidence:
    """Return the evidence about a Pod from its rows and the cluster.

    `pod`: the Pod as the caller has just read it, or None. `gone`: True if a GET by name and UID proved that the Pod is
    gone.
    """
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


def judge(recorded: Recorded, pod: PodView | None = None, *, gone: bool = False) -> BusyVerdict:
    """Return the verdict on whether a Pod might hold a JIT.

    `recorded`: the evidence that the caller has just read from the rows. `pod`: the Pod as the caller has just read it,
    or None. `gone`: True if a GET by name and UID proved that the Pod is gone.
    """
    return may_hold_jit(evidence_of(recorded, pod, gone=gone))


def ask(
    rt: Runtime, pod_uid: str, pod: PodView | None = None, *, gone: bool = False, claim_id: int | None = None
) -> BusyVerdict:
    """Read the rows of a Pod and return the verdict on whether the Pod might hold a JIT.

    With `claim_id`, only the JIT of this claim counts. `pod` and `gone` have the same meaning as in `judge`.
    """
    return judge(rt.transaction(busy.recorded, pod_uid, claim_id=claim_id), pod, gone=gone)
