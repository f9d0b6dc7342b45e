"""`ostler.orphaned_service_accounts`: deletes the ServiceAccounts of runner Pods that are gone.

A StatefulSet that such a Pod left behind is deleted before the ServiceAccount. A runner's ServiceAccount is created
before its StatefulSet, so the ServiceAccount shows that the StatefulSet might exist.
"""

from __future__ import annotations

import random

from k8s_adapters.metadata import ObjectSeen
from k8s_adapters.pods import get_pod
from k8s_adapters.runners import delete_left_by_runner
from models.sweeps import orphans
from models.sweeps.repairs import Case
from ostler.clock import utcnow
from ostler.task_names import ORPHANED_SERVICE_ACCOUNTS
from rules.sweeps.orphans import judge_service_account
from tasks.sweeps.frame import sweep
from tasks.sweeps.lists import runner_pages
from tasks.sweeps.pace import LONGEST
from tasks.sweeps.tick import Tick
from tasks.worker.base import SWEEP_ROW, calls


@sweep(ORPHANED_SERVICE_ACCOUNTS, longest=LONGEST)
def orphaned_service_accounts(tick: Tick) -> None:
    """Check the ServiceAccounts of runner Pods page by page.

    Each page of ServiceAccounts is read before the rows of the Pods with the same names (law L8).
    """
    rt = tick.rt
    for page in runner_pages(rt, "serviceaccounts"):
        tick.listed(len(page))
        namespace = page[0].namespace if page else rt.settings.namespace
        names = [account.name for account in page]
        still_open = tick.read(orphans.open_pod_names, namespace=namespace, names=names)
        left = [account for account in page if account.name not in still_open]
        random.shuffle(left)  # so that a slow object is not always the last (L14)
        tick.each(left, lambda account: check(tick, account))
        if not tick.page():
            return


def check(tick: Tick, account: ObjectSeen) -> None:
    """Delete a ServiceAccount by UID after a GET proved that no Pod has the same name."""
    rt = tick.rt
    namespace, name = account.namespace, account.name
    age = (utcnow() - account.created_at).total_seconds()
    grace = rt.timings.orphaned_account_after
    if age < grace:
        return
    pod = get_pod(rt.kube, namespace=namespace, name=name, policy=calls(SWEEP_ROW))
    verdict = judge_service_account(
        row_is_open=False,
        pod_exists=pod is not None,
        terminating=account.terminating,
        age_seconds=age,
        grace_seconds=grace,
    )
    if verdict.keep:
        return
    case = Case(
        what="delete service account", why=verdict.reason, subject=name, kills=True, witnesses=verdict.witnesses
    )
    tick.repair(
        case,
        lambda _db: True,
        still=lambda db: name not in orphans.open_pod_names(db, namespace=namespace, names=[name]),
        call=lambda: delete_left_by_runner(
            rt.kube,
            namespace=namespace,
            name=name,
            attempt=account.attempt,
            account_uid=account.uid,
            policy=calls(SWEEP_ROW),
        ),
    )
