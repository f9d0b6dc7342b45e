"""`ostler.orphaned_stamps`: retires stamped Pods that have no live claim and never got a JIT.

The stamp might cut such a Pod off from Ostler, so that the Pod waits forever. A Pod that ever got a JIT is left to
`finished_jobs`. The sweep lists all runner Pods, because the budget is a share of all Pods, not of the orphans. The
list is read page by page, with metadata only. The absence of a Pod from the list is no evidence here, so an incomplete
list does no harm.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime

import structlog

from k8s_adapters.calls.metadata import ObjectSeen
from k8s_adapters.runners.pods import get_pod
from models.claims import busy
from models.sweeps import orphans
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.task_names import ORPHANED_STAMPS
from rules.sweeps.limits import Expect
from rules.sweeps.orphans import StampedPod, judge_orphaned_stamp, judge_stamped
from tasks.claims.evidence import evidence_of
from tasks.claims.retire import send_retire
from tasks.sweeps.frame.lists import runner_pages
from tasks.sweeps.frame.pace import LONGEST
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker.base import SWEEP_ROW, calls

log = structlog.get_logger(__name__)


@sweep(ORPHANED_STAMPS, longest=LONGEST)
def orphaned_stamps(tick: Tick) -> None:
    """List the Pods page by page and judge the stamped Pods of each page.

    Each page of Pods is read before the rows of these Pods (law L8).
    """
    rt = tick.rt
    pages = runner_pages(rt, "pods")
    for page in pages:
        tick.listed(len(page))
        check_page(tick, page)
        if not tick.page():
            return


def check_page(tick: Tick, page: Sequence[ObjectSeen]) -> None:
    """Judge the stamped Pods of one page."""
    pods = [pod for pod in page if pod.stamped and not pod.terminating]
    known = tick.read(orphans.claims_of_pods, [pod.uid for pod in pods])
    random.shuffle(pods)  # so that a slow Pod is not always the last (L14)
    tick.each(pods, lambda pod: check(tick, pod, known.get(pod.uid), now=utcnow()))


def check(tick: Tick, listed: ObjectSeen, known: orphans.PodClaims | None, *, now: datetime) -> None:
    """Judge one Pod by its rows. If the rows allow a retirement, read the Pod, judge again, and retire the Pod."""
    since = listed.created_at if known is None else known.last_ended_at or listed.created_at
    kept = judge_stamped(
        StampedPod(
            has_row=known is not None,
            has_live_claim=known is not None and known.has_live_claim,
            ever_delivered=known is not None and known.ever_delivered,
            idle_seconds=(now - since).total_seconds(),
        ),
        grace_seconds=tick.rt.timings.orphaned_stamp_after,
    )
    if kept is not None or known is None:
        return
    rt = tick.rt
    pod = get_pod(rt.kube, namespace=listed.namespace, name=listed.name, policy=calls(SWEEP_ROW))
    if pod is None:
        return
    evidence = evidence_of(tick.read(busy.recorded, listed.uid), pod)
    verdict = judge_orphaned_stamp(
        evidence,
        same_uid=pod.uid == listed.uid,
        stamped=pod.owner is not None,
        terminating=pod.terminating,
        poller_running=pod.poller_running,
    )
    if verdict.keep:
        log.info("orphaned_stamps.pod_not_retired", pod=pod.name, why=verdict.reason)
        return
    case = Case(
        what="retire",
        why=verdict.reason,
        pod_uid=pod.uid,
        before="stamped",
        after="retiring",
        kills=True,
        witnesses=verdict.witnesses,
        agreed=verdict.agreed,
        expects=Expect.POD_GONE,
    )
    retire_id = tick.repair(
        case,
        lambda db: orphans.retire_stamped(
            db, pod.uid, known, why=verdict.reason, due_after=rt.timings.due_after, now=utcnow(), who=rt.who
        ),
    )
    if retire_id is not None:
        send_retire(rt, retire_id)
