"""`ostler.finished_jobs`: ends Pods that still run long after the job of their latest delivered claim is over.

A Pod is also ended in three other cases:

- GitHub has removed the runner. The job that the runner executed has been over for `lingering_after` seconds, and two
  lists that began after the end of the job do not show the runner. Without this case, a job could occupy its Pod and a
  place in the pool by leaving a process behind.
- The claim has executed for longer than GitHub lets a job run. The end of the job was never reported, and GitHub might
  show no trace of the job.
- The node of the Pod is gone, and the runner is absent or offline. Nothing on this node will end by itself.

The end of the *claimed* job proves nothing, because GitHub gives a job to any runner that fits. Therefore the runner
itself is looked up in two of GitHub's lists, a minute apart. Before a Pod is ended, its runner is deregistered. If
GitHub refuses because the runner is busy, the Pod is not deleted (law L3). A live claim does not end before GitHub has
removed its runner. Otherwise the runner might take another job, and the other job would have no claim.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from functools import partial

import structlog

from k8s_adapters.runners.pods import get_pod
from models.claims.releases import registrations_of
from models.state import claim_checks
from models.sweeps import orphans
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.errors import UpstreamError
from ostler.task_names import FINISHED_JOBS
from rules.claims.machines import ClaimState
from rules.sweeps.limits import Expect
from rules.sweeps.nodes import OVERDUE_AFTER
from rules.sweeps.orphans import FinishedPod, RunnerCheck, Verdict, judge_finished
from rules.sweeps.runner_checks import CHECKS_APART, RunnerList
from rules.sweeps.unresolved import LONGEST_EXECUTING
from tasks.claims.github import ask_job_outcome, deregister
from tasks.claims.release import send_release
from tasks.claims.retire import send_retire
from tasks.sweeps.frame.pace import LONGEST, UNAVAILABLE
from tasks.sweeps.frame.runner_lists import runners_of
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker.base import SWEEP_ROW, calls
from tasks.worker.nodes import gone_now
from tasks.worker.runtime import Runtime

log = structlog.get_logger(__name__)


@sweep(FINISHED_JOBS, longest=LONGEST)
def finished_jobs(tick: Tick) -> None:
    """Check each scope once.

    If GitHub does not answer for an installation, the tick skips all further scopes of the installation (law L14).
    """
    now = utcnow()
    settings = tick.rt.settings
    found = tick.read(
        orphans.finished,
        before=now - timedelta(seconds=settings.timings.finished_job_after),
        began_before=now - LONGEST_EXECUTING,
        absent_before=now - timedelta(seconds=settings.timings.lingering_after),
    )
    by_scope: dict[tuple[int, str], list[orphans.Finished]] = defaultdict(list)
    for pod in found:
        by_scope[pod.installation_id, pod.scope].append(pod)
    unavailable: set[int] = set()
    for (installation_id, scope), pods in by_scope.items():
        if installation_id not in unavailable:
            try:
                seen = runners_of(tick, installation_id=installation_id, scope=scope)
            except UpstreamError as error:
                tick.skipped(error, scope=scope)
                if isinstance(error, UNAVAILABLE):
                    unavailable.add(installation_id)
            else:
                tick.listed(len(seen.runners))
                tick.each(pods, partial(check, tick, listed=seen))
        if not tick.page():
            return


def check(tick: Tick, pod: orphans.Finished, listed: RunnerList) -> None:
    """Judge one Pod, store the result of the check, and end the Pod if two checks agree."""
    rt = tick.rt
    if listed.age_of(pod.since) < 0:
        log.info(
            "finished_jobs.pod_not_retired",
            pod=pod.pod_name,
            why="GitHub's runner list is older than the end of the job",
        )
        return
    seen = _see(pod, listed)
    verdict = _judge(rt, pod, listed, seen)
    if not tick.dry:
        free, at = seen != "busy", listed.taken_at
        absent = None if pod.executed_over_at is None else seen == "absent"
        rt.transaction(claim_checks.set_free, pod.claim_id, free=free, absent=absent, since=pod.since, at=at)
    if verdict.keep:
        log.info("finished_jobs.pod_not_retired", pod=pod.pod_name, why=verdict.reason)
    elif not _ends_by_itself(rt, pod):
        _end_pod(tick, pod, verdict)


def _hurried(pod: orphans.Finished) -> bool:
    """Return True if the Pod is checked before its time, because its node is gone."""
    return pod.on_gone_node and not pod.overdue


def _see(pod: orphans.Finished, listed: RunnerList) -> RunnerCheck:
    """Return what GitHub's list says about the runner. Before its time, a Pod's runner counts as busy while online."""
    runner = listed.runners.get(pod.runner_name)
    if runner is None:
        return "absent"
    return "busy" if runner.busy or (_hurried(pod) and runner.online) else "idle"


def _judge(rt: Runtime, pod: orphans.Finished, listed: RunnerList, seen: RunnerCheck) -> Verdict:
    return judge_finished(
        FinishedPod(
            job_over=pod.job_over,
            outlasts=pod.outlasts,
            job_over_seconds=None if pod.executed_over_at is None else listed.age_of(pod.executed_over_at),
            runner=seen,
            free_for_seconds=None if pod.free_since is None else listed.age_of(pod.free_since),
            node_gone="the node of the Pod is gone" if _hurried(pod) else None,
            absent_for_seconds=None if pod.absent_since is None else listed.age_of(pod.absent_since),
            overdue=pod.overdue or pod.on_gone_node,
        ),
        checks_apart=CHECKS_APART,
        job_over_after=rt.timings.finished_job_after,
        absent_after=rt.timings.lingering_after,
    )


def _ends_by_itself(rt: Runtime, pod: orphans.Finished) -> bool:
    """Read the Pod and its node. Return True if the Pod is over or ends by itself, or if its node is back."""
    living = get_pod(rt.kube, namespace=pod.namespace, name=pod.pod_name, policy=calls(SWEEP_ROW))
    if living is None or living.uid != pod.pod_uid or living.is_over:
        return True  # the reconciler handles the end
    if pod.on_gone_node and living.node is not None and gone_now(rt, living.node).gone is not None:
        return False
    return _hurried(pod) or (living.terminating and not living.is_overdue(now=utcnow(), after=OVERDUE_AFTER))


def _end_pod(tick: Tick, pod: orphans.Finished, verdict: Verdict) -> None:
    """End the claim and retire the Pod, unless GitHub refuses to remove the runner of an executing claim."""
    rt = tick.rt
    executing = pod.state == ClaimState.EXECUTING
    asks = executing and not tick.dry and pod.job_id is not None and pod.asks_for is not None
    job_outcome = ask_job_outcome(
        rt,
        job_id=pod.job_id if asks else None,
        repository=pod.asks_for,
        installation_id=pod.installation_id,
        policy=SWEEP_ROW,
        lookups=tick.lookups,
    )

    def remove() -> None:
        # The runner is removed while its claim is live: if it has just taken a job, GitHub refuses the removal.
        deregister(rt, tick.read(registrations_of, pod.claim_id), policy=SWEEP_ROW)

    reaped = tick.repair(
        Case(
            what="retire",
            why=verdict.reason,
            claim_id=pod.claim_id,
            job_id=pod.job_id,
            pod_uid=pod.pod_uid,
            runner_name=pod.runner_name,
            before=pod.state,
            kills=True,
            witnesses=verdict.witnesses,
            proof=verdict.proof,
            expects=Expect.POD_GONE,
        ),
        lambda db: orphans.reap_finished(
            db, pod, job_outcome, why=verdict.reason, due_after=rt.timings.due_after, now=utcnow(), who=rt.who
        ),
        call=remove if executing else None,
        still=lambda db: not executing or orphans.still_executes(db, pod),
    )
    if reaped is None:
        return
    if reaped.release_id is not None:
        send_release(rt, reaped.release_id)
    if reaped.retire_id is not None:
        send_retire(rt, reaped.retire_id)
