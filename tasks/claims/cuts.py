"""Un-stamp of a Pod with a delivered claim whose JIT never arrived (`rules.claims.cuts`).

No other Pod with a delivered claim is un-stamped. The claim stays `delivered`, so that the next poll of this Pod gets
the same JIT (law L11). Before the un-stamp, the Pod is read from Kubernetes and the runner of the claim from GitHub.
The un-stamp is a compare-and-swap under the claim's lease. A JIT that arrives after the un-stamp does no harm: the Pod
is stamped again as soon as Ostler sees that the poller has ended.
"""

from __future__ import annotations

from datetime import timedelta

import structlog
from sqlalchemy import Connection

from k8s_adapters.runners.pods import get_pod
from k8s_adapters.runners.stamps import StampOutcome
from models.claims import cuts
from models.state import claim_transitions, pod_facts
from ostler.clock import utcnow
from ostler.task_names import STAMP
from rules.claims.busy import RunnerSeen
from rules.claims.cuts import CutEvidence, CutVerdict, judge_cut
from rules.claims.machines import Stamp
from rules.routing.scopes import Scope
from tasks.claims.annotation import write
from tasks.worker.base import SWEEP_ROW, calls
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)


def reopen(rt: Runtime, claim_id: int) -> None:
    """Remove the stamp of a delivered claim's Pod if the Pod and GitHub show that its JIT never arrived.

    Raises what the adapters of Kubernetes and GitHub raise. After such an error, `resume` requests another check of the
    Pod.
    """
    claim = rt.transaction(cuts.suspect, claim_id)
    if claim is None:
        return
    verdict = check(rt, claim)
    if verdict is None:
        return
    if not verdict.cut:
        log.debug("stamp.left_on_pod", claim=claim_id, why=verdict.why)
        if claim.stamp == Stamp.REMOVING:
            rt.transaction(cuts.stamp_now, claim_id, why=verdict.why, now=NOW)
        return
    log.warning("stamp.removed_because_it_blocks_polls", claim=claim_id, pod=claim.pod_name, why=verdict.why)
    due_after = rt.timings.due_after
    work = rt.transaction(cuts.begin, claim, why=verdict.why, due_after=due_after, now=NOW, who=rt.who)
    if work is None or write(rt, work, owner=None).outcome is not StampOutcome.DONE:
        return  # the annotation changed, or the Pod is gone; `missing_pods` ends the claim of a Pod that is gone

    def finish(db: Connection) -> None:
        now = utcnow()
        pod_facts.record_annotation(db, pod_uid=work.pod_uid, value=work.value)
        claim_transitions.finish_stamp(
            db,
            work,
            "stamp_off",
            error=None,
            due_after=due_after,
            stamp_after=now + timedelta(seconds=rt.timings.unused_polling_after),
            now=now,
            who=rt.who,
        )

    rt.transaction(finish)


def check(rt: Runtime, claim: cuts.Suspect) -> CutVerdict | None:
    """Return the verdict on whether to un-stamp the Pod, or None if the Pod is gone or its poller has ended.

    The verdict is made from the state of the Pod and the state of the claim's runner on GitHub. If the poller has
    ended, the end of the poller is recorded. If the Pod then lacks its stamp, the stamp is requested again.
    """
    pod = get_pod(rt.kube, namespace=claim.namespace, name=claim.pod_name, policy=calls(SWEEP_ROW))
    if pod is None or pod.uid != claim.pod_uid:
        return None
    if pod.poller_exit_code is not None:
        ended = rt.transaction(cuts.pollers_ended, [claim.pod_uid], now=NOW)
        for claim_id in ended:
            rt.waker.send(STAMP, claim_id=claim_id)
        return None
    seen: RunnerSeen = "unknown"
    if pod.poller_running and not pod.runner_ready:
        seen = runner_of(rt, claim)
    return judge_cut(
        CutEvidence(
            delivered_seconds=(utcnow() - claim.delivered_at).total_seconds(),
            stamped=pod.owner is not None or claim.stamp == Stamp.REMOVING,
            poller_running=pod.poller_running,
            runner_began=pod.runner_ready or pod.runner_exit_code is not None,
            github_runner_seen=seen,
        ),
        after=rt.timings.cut_off_after,
    )


def runner_of(rt: Runtime, claim: cuts.Suspect) -> RunnerSeen:
    """Return the state of a claim's runner on GitHub.

    If GitHub does not list the runner, and the scope might belong to another owner by now, the state is `unknown`. The
    absence of the runner proves nothing in that case.
    """
    scope = Scope.parse(claim.scope)
    found = rt.github.find_runner(
        installation_id=claim.installation_id, scope=scope, name=claim.runner_name, policy=calls(SWEEP_ROW)
    )
    if found is None:
        return "absent" if scope.certain else "unknown"
    if found.busy:
        return "busy"
    return "online" if found.online else "offline"
