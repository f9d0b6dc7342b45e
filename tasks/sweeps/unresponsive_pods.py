"""`ostler.unresponsive_pods`: retires Pods that stopped polling, for example because their poller failed.

A Pod whose poller still runs is retired only if web processes sent heartbeats while the Pod did not poll. A Pod that
might hold a JIT is not retired. The reconciler creates the replacement, and retires Pods that never polled.
"""

from __future__ import annotations

import random
from datetime import timedelta

from k8s_adapters.runners.pods import get_pod
from models.claims import busy
from models.sweeps import unresponsive
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.task_names import UNRESPONSIVE_PODS
from rules.sweeps.limits import Expect
from rules.sweeps.orphans import QuietPod, judge_unresponsive
from tasks.claims.evidence import evidence_of
from tasks.claims.retire import send_retire
from tasks.sweeps.frame.lists import runner_pages
from tasks.sweeps.frame.pace import LONGEST
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker.base import SWEEP_ROW, calls
from tasks.worker.transactions import NOW


@sweep(UNRESPONSIVE_PODS, longest=LONGEST)
def unresponsive_pods(tick: Tick) -> None:
    """List the Pods page by page, then check the Pods that do not poll.

    The rows of the Pods on a page are read after the page (law L8).
    """
    rt = tick.rt
    pages = runner_pages(rt, "pods")
    quiet: list[unresponsive.Quiet] = []
    for page in tick.whole("Pods", pages):
        uids = [pod.uid for pod in page if not pod.terminating]
        quiet += tick.read(unresponsive.quiet_pods, uids, now=NOW)
    random.shuffle(quiet)  # so that Pods that cannot be retired are not always the first (L14)
    tick.each(quiet, lambda row: check(tick, row))


def check(tick: Tick, row: unresponsive.Quiet) -> None:
    """Judge one Pod after a GET, and retire the Pod if it is unresponsive."""
    rt = tick.rt
    pod = get_pod(rt.kube, namespace=row.namespace, name=row.name, policy=calls(SWEEP_ROW))
    if pod is None or pod.uid != row.uid or pod.terminating:
        return
    now = utcnow()
    # The row is older than the Pod, because the Pod might have waited long for quota. The later of the two times
    # counts.
    quiet_seconds = (now - max(row.heard_at, pod.created_at)).total_seconds()
    web_beats = tick.read(unresponsive.web_beats, since=now - timedelta(seconds=row.grace), now=now)
    evidence = evidence_of(tick.read(busy.recorded, pod.uid), pod)
    verdict = judge_unresponsive(
        QuietPod(quiet_seconds=quiet_seconds, web_beats=web_beats), evidence, grace_seconds=row.grace
    )
    if verdict.keep:
        return
    case = Case(
        what="retire",
        why=verdict.reason,
        pod_uid=pod.uid,
        before="unresponsive",
        after="retiring",
        kills=True,
        witnesses=verdict.witnesses,
        expects=Expect.POD_GONE,
    )
    retire_id = tick.repair(
        case,
        lambda db: unresponsive.retire_quiet(
            db, row, why=verdict.reason, due_after=rt.timings.due_after, now=utcnow(), who=rt.who
        ),
    )
    if retire_id is not None:
        send_retire(rt, retire_id)
