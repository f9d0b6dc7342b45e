"""`ostler.orphaned_service_accounts`: deletes the objects that runners left behind, and rows of given-up runners.

The objects are ServiceAccounts and StatefulSets. The deletion of a StatefulSet never deletes a Pod. A runner is given
up if it is no longer needed before it has a Pod. Its row reserves the name of the runner, so that a later runner could
not get the volumes of this name.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta

from k8s_adapters.calls.metadata import ObjectSeen
from k8s_adapters.runners.owners.kinds import owner_of
from k8s_adapters.runners.owners.stateful_set import APPS, KIND
from k8s_adapters.runners.pods import get_pod
from k8s_adapters.runners.runners import delete_left_by_runner, is_free
from models.state import pod_births
from models.sweeps import orphans
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.task_names import ORPHANED_SERVICE_ACCOUNTS
from rules.pools.workloads import pod_name_of
from rules.sweeps.orphans import judge_service_account
from tasks.sweeps.frame.lists import runner_pages
from tasks.sweeps.frame.pace import LONGEST
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker.base import SWEEP_ROW, calls

ACCOUNTS = "serviceaccounts"


@sweep(ORPHANED_SERVICE_ACCOUNTS, longest=LONGEST)
def orphaned_service_accounts(tick: Tick) -> None:
    """Check the ServiceAccounts of runner Pods page by page, then StatefulSets, then the rows of given-up runners.

    StatefulSets are listed only if a pool has this workload.
    """
    if not check_pages(tick, ACCOUNTS) or not tick.read(orphans.has_stateful_sets):
        return
    if not check_pages(tick, KIND, group=APPS):
        return
    before = utcnow() - timedelta(seconds=tick.rt.timings.orphaned_account_after)
    tick.each(tick.read(orphans.given_up_rows, before=before), lambda row: check_row(tick, row))


def check_pages(tick: Tick, kind: str, *, group: str = "") -> bool:
    """Check the objects of one kind page by page. Return False if the tick must end.

    Each page of objects is read before the rows of the Pods with the same names (law L8).
    """
    rt = tick.rt
    for page in runner_pages(rt, kind, group=group):
        tick.listed(len(page))
        namespace = page[0].namespace if page else rt.settings.namespace
        runners = page if kind == ACCOUNTS else [replace(each, name=pod_name_of(each.name)) for each in page]
        names = [each.name for each in runners]
        still_open = tick.read(orphans.open_pod_names, namespace=namespace, names=names)
        left = [each for each in runners if each.name not in still_open]
        random.shuffle(left)  # so that a slow object is not always the last (L14)
        tick.each(left, lambda each: check(tick, each, kind=kind))
        if not tick.page():
            return False
    return True


def check(tick: Tick, left: ObjectSeen, *, kind: str) -> None:
    """Delete an object after a GET proved that no Pod has its name. `left.name` is the name of the runner's Pod.

    The StatefulSet of a ServiceAccount is deleted before it, because no Pod can be created without the ServiceAccount.
    """
    rt = tick.rt
    namespace, name = left.namespace, left.name
    age = (utcnow() - left.created_at).total_seconds()
    grace = rt.timings.orphaned_account_after
    if age < grace:
        return
    pod = get_pod(rt.kube, namespace=namespace, name=name, policy=calls(SWEEP_ROW))
    verdict = judge_service_account(
        row_is_open=False,
        pod_exists=pod is not None,
        terminating=left.terminating,
        age_seconds=age,
        grace_seconds=grace,
    )
    if verdict.keep:
        return

    def delete() -> None:
        policy = calls(SWEEP_ROW)
        if kind == ACCOUNTS:
            delete_left_by_runner(
                rt.kube, namespace=namespace, name=name, attempt=left.attempt, account_uid=left.uid, policy=policy
            )
        else:
            owner_of(name).end(rt.kube, namespace=namespace, name=name, uid=left.uid, policy=policy)

    what = "delete service account" if kind == ACCOUNTS else "delete stateful set"
    tick.repair(
        Case(what=what, why=verdict.reason, subject=name, kills=True, witnesses=verdict.witnesses),
        lambda _db: True,
        still=lambda db: name not in orphans.open_pod_names(db, namespace=namespace, names=[name]),
        call=delete,
    )


def check_row(tick: Tick, row: orphans.GivenUp) -> None:
    """Delete the row of a given-up runner after GETs proved that no object has the name of the runner."""
    if not is_free(tick.rt.kube, namespace=row.namespace, name=row.name, policy=calls(SWEEP_ROW)):
        return
    case = Case(what="delete row of runner", why="it was given up, and no object has its name", subject=row.name)
    tick.repair(case, lambda db: pod_births.drop_given_up(db, row_id=row.id))
