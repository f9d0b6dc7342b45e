"""Tasks that act on the watch's hints: `pods_changed`, `pod_gone`, `pod_executes` and `poller_ended`.

A hint names Pods to read and proves nothing (law L6), because any client that can write to Redis can send a hint. A GET
by name and UID proves that a Pod is gone, that its runner began a job, or that its poller ended. The reconciler's own
list proves that a Pod is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from k8s_adapters.runners.pods import get_pod
from models.claims import cuts, hook_pods, pod_ends, watch_reports
from models.state import claim_transitions
from models.sweeps import sweeps
from ostler.clock import utcnow
from ostler.logging import also_about
from ostler.reasons import words_of
from ostler.task_names import POD_EXECUTES, POD_GONE, PODS_CHANGED, POLLER_ENDED, STAMP
from rules.claims.hook_pods import read_all
from rules.claims.machines import Purpose
from rules.claims.pod_view import PodView
from rules.claims.stalls import FoundBy
from tasks.claims.pod_events import ask_for_events
from tasks.claims.retire import send_retire
from tasks.pools.finished_pods import end_claim
from tasks.worker.base import DISPATCH, HINT, SWEEP, calls, repeated, task
from tasks.worker.runtime import Runtime, runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

WHY = "the runner of the claim has begun a job"


@task(PODS_CHANGED, policy=DISPATCH)
def pods_changed(
    *,
    namespace: str,
    pools: Sequence[str] = (),
    ended: Sequence[str] = (),
    gone: Sequence[str] = (),
    executing: Sequence[str] = (),
    unstamped: Sequence[str] = (),
    endings: Mapping[str, Mapping[str, Any]] | None = None,
    hooks: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> None:
    """Request the tasks that check what the watch saw.

    `pools`: names of pools with a Pod that ended. `ended`: those of them whose ended Pods are all terminal, so that a
    list of the terminal Pods shows them. `gone`: UIDs of Pods that are gone. `executing`: UIDs of Pods whose
    runner began a job. `unstamped`: UIDs of Pods without a stamp whose poller ended. `endings`: the last state that the
    watch saw of Pods that are gone, by UID. These states are recorded for operators and for a metric. They also count
    as failures of runners that execute no job, and tell a runner that updates itself from one that has ended. `hooks`:
    hook Pods that changed, by the UID of their runner Pod. They are recorded for people.
    """
    rt = runtime()
    pool_ids: set[int] = set()
    ended_ids: set[int] = set()
    if ended:
        ended_ids.update(rt.transaction(watch_reports.pools_named, namespaces=[namespace], names=ended))
    if others := [name for name in pools if name not in ended]:
        pool_ids.update(rt.transaction(watch_reports.pools_named, namespaces=[namespace], names=others))
    if endings:
        record_endings(rt, endings)
    record_hook_pods(rt, hooks or {})
    if gone:
        pool_ids |= report_gone(rt, gone)
    for pool_id in sorted(pool_ids | ended_ids):
        rt.waker.reconcile(pool_id, ended=pool_id not in pool_ids)
    if executing:
        for claim_id in rt.transaction(watch_reports.not_executing, executing):
            rt.waker.send(POD_EXECUTES, claim_id=claim_id)
    if unstamped:
        for claim_id in rt.transaction(cuts.waiting_for_pollers, unstamped):
            rt.waker.send(POLLER_ENDED, claim_id=claim_id)


def record_endings(rt: Runtime, endings: Mapping[str, Mapping[str, Any]]) -> None:
    """Record how Pods ended, from the states that the watch saw last. A state in an unknown format is skipped."""
    known = {uid: ending for uid, each in endings.items() if (ending := read_ending(each)) is not None}
    left = len(endings) - rt.transaction(pod_ends.record, known)
    if left:
        log.info("pods.end_states_not_recorded", pods=left)


def record_hook_pods(rt: Runtime, hooks: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Record hook Pods with their runner Pods. A hook Pod in an unknown format is skipped."""
    if not hooks:
        return
    known = {uid: read_all(pods) for uid, pods in hooks.items()}
    left = len(known) - rt.transaction(hook_pods.record, known)
    if left:
        log.info("pods.hook_pods_not_recorded", pods=left)


def read_ending(given: Mapping[str, Any]) -> pod_ends.Ending | None:
    """Return how a Pod ended, as a message describes it, or None if the format of the message is unknown."""
    try:
        at, code = given.get("deletion_at"), given.get("runner_exit_code")
        first = given.get("deleted_first")
        return pod_ends.Ending(
            deletion_at=None if at is None else datetime.fromisoformat(at),
            deleted_first=None if first is None else bool(first),
            reason=None if given.get("reason") is None else str(given["reason"])[: pod_ends.LONGEST_REASON],
            runner_exit_code=None if code is None else int(code) & 0xFFFF,
            node=None if given.get("node") is None else str(given["node"])[: pod_ends.LONGEST_NODE],
        )
    except (AttributeError, TypeError, ValueError):
        return None


def report_gone(rt: Runtime, uids: Sequence[str]) -> set[int]:
    """Send a task for the claim of each given Pod: `retire` for a retire claim, `pod_gone` for a job claim.

    Return the ids of the pools that need a reconcile, because one of their Pods is gone and has no claim.
    """
    pool_ids = set()
    for pod in rt.transaction(watch_reports.known_pods, uids):
        if pod.claim_id is None:
            pool_ids.add(pod.pool_id)
        elif pod.purpose == Purpose.RETIRE:
            send_retire(rt, pod.claim_id)
        else:
            rt.waker.send(POD_GONE, claim_id=pod.claim_id)
    ask_for_events(rt, uids, live=False)
    return pool_ids


@task(POD_GONE, policy=SWEEP)
def pod_gone(*, claim_id: int) -> None:
    """End a claim if one GET by name and UID proves that its Pod is gone, as the sweep `missing_pods` does."""
    rt = runtime()
    claim = rt.transaction(sweeps.live_pod, claim_id)
    if claim is None or read_pod_of(rt, claim) is not None:
        return
    also_about(job=claim.job_id, pod=claim.pod_name, pod_uid=claim.pod_uid)
    log.info("pod.gone")
    end_claim(rt, claim_id, found_by=FoundBy.WATCH, spent=False, unavailable=set())
    rt.waker.reconcile(claim.pool_id)


@task(POD_EXECUTES, policy=HINT)
def pod_executes(*, claim_id: int) -> None:
    """Mark a claim as executing if one GET shows that its runner began a job. The job stays unidentified.

    Only a ready container `runner` proves that a job began: a container that has ended might never have had a job. If
    another session has locked the claim, the webhook of the job or the sweep `unused_runners` marks the claim later
    (law L14).
    """
    rt = runtime()
    claim = rt.transaction(sweeps.live_pod, claim_id)
    with repeated():
        pod = None if claim is None else read_pod_of(rt, claim)
    if pod is None or not pod.runner_ready:
        log.debug("claim.execution_not_confirmed", claim=claim_id, pod_found=pod is not None)
        return

    def body(db: Connection) -> bool:
        return claim_transitions.execute_unidentified(db, claim_id, now=utcnow(), who=rt.who, why=WHY)

    try:
        moved = rt.transaction(body)
    except DBAPIError as error:
        log.warning("claim.execution_not_recorded", claim=claim_id, error=words_of(error))
        return
    if moved:
        log.info("claim.unidentified_execution_recorded", claim=claim_id)


@task(POLLER_ENDED, policy=HINT)
def poller_ended(*, claim_id: int) -> None:
    """Request the stamp of a delivered claim if one GET shows that the poller of its Pod ended."""
    rt = runtime()
    claim = rt.transaction(sweeps.live_pod, claim_id)
    with repeated():
        pod = None if claim is None else read_pod_of(rt, claim)
    if pod is None or pod.poller_exit_code is None:
        return
    for each in rt.transaction(cuts.pollers_ended, [pod.uid], now=NOW):
        rt.waker.send(STAMP, claim_id=each)


def read_pod_of(rt: Runtime, claim: sweeps.LivePod) -> PodView | None:
    """Return the Pod of a claim, or None if no Pod has its name and UID."""
    pod = get_pod(rt.kube, namespace=claim.namespace, name=claim.pod_name, policy=calls(SWEEP))
    return pod if pod is not None and pod.uid == claim.pod_uid else None
