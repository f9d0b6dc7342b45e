"""Checks of the cluster: the API server, permissions, the RunnerPool definition and the admission policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cli.cluster import cause_of
from cli.doctor.context import Context
from cli.doctor.findings import Verdict, failed, ok, unknown, warning
from cli.kubeconfigs import choose
from k8s_adapters.calls.client import KubeClient
from k8s_adapters.cluster.access import CONTAINER_RIGHTS, RIGHTS, Right, may, who_am_i
from k8s_adapters.cluster.admission import PolicyAnswer, refuses_other_pods, refuses_other_roles, refuses_the_collector
from k8s_adapters.hooks.hook_pods import LEFT_AFTER, find_left_over
from k8s_adapters.names import API_VERSION, PLURAL
from k8s_adapters.pools.crd import CRD_NAME, crd_manifest
from ostler.errors import ConfigurationError, Forbidden, Gone, Invalid, Retryable, UpstreamError
from rules.pools.pod_security import admits_forks

_SHOWN = 4  # maximum number of names in one sentence

OLDEST = 30
"""First minor version of Kubernetes that enables ValidatingAdmissionPolicies by default."""


def kubernetes(context: Context) -> Verdict:
    """Check that the API server answers, accepts the credentials, and is new enough."""
    try:
        version = context.kube.request("GET", "/version")
        name = who_am_i(context.kube)
    except ConfigurationError as error:
        return failed(str(error), "run the command where a worker runs, or set OSTLER_KUBECONFIG to a kubeconfig")
    except Retryable as error:
        cure = f"check {choose().named}, and that the API server runs there"
        return failed(f"the API server {context.kube.server} does not answer: {cause_of(error)}", cure)
    except Forbidden as error:
        return failed(f"the API server rejects our credentials: {error}", f"check the credentials of {choose().named}")
    except (Gone, Invalid) as error:
        return failed(f"{context.kube.server} is not a Kubernetes API server: {error}", f"check {choose().named}")
    told = f"{version.get('gitVersion', 'Kubernetes')} answers {name}"
    minor = "".join(each for each in str(version.get("minor", "")) if each.isdecimal())
    if minor and int(minor) < OLDEST:
        return failed(
            told, f"upgrade to 1.{OLDEST}: older versions cannot protect busy Pods from the garbage collector"
        )
    return ok(told)


def rights(context: Context) -> Verdict:
    """Check the permissions of the command's identity in the cluster.

    The ServiceAccount of a process of Ostler needs only the permissions of that process. Any other identity needs the
    permissions of all processes.
    """
    kube, namespaces = context.kube, context.place.namespaces
    name = who_am_i(kube)
    if context.lab_cluster:
        return ok(f"{name} is allowed everything: the lab's API server has no access control")
    mine = [process for process in RIGHTS if name.startswith("system:serviceaccount:") and name.endswith(f"-{process}")]
    if not mine and name.startswith("system:serviceaccount:") and name.rpartition("-")[2] in {"beat", "flower"}:
        return ok(f"{name} needs no permissions")
    required = _required(context)
    for namespace in namespaces:
        lacking = {
            process: [str(right) for right in required[process] if not may(kube, right, namespace=namespace)]
            for process in mine or RIGHTS
        }
        if any(lacking.values()):
            told = "; ".join(f"{process}: {', '.join(each)}" for process, each in lacking.items() if each)
            return failed(
                f"{name} is not allowed in {namespace}: {told}", "apply the Roles of the chart (docs/security.md)"
            )
    if not mine:
        return ok(
            f"{name} has the rights of {', '.join(RIGHTS)}; run the command as each of these processes to "
            "check its own rights"
        )
    return ok(f"{name} has the rights of {', '.join(mine)}")


def _required(context: Context) -> Mapping[str, Sequence[Right]]:
    """Return the rights that each process needs. They include the rights for container jobs if a pool has such jobs."""
    try:
        found = context.pools()
    except UpstreamError:  # the identity cannot list pools, or the check `definition` reports the reason
        return RIGHTS
    if all(pool.containers is None for pool in found):
        return RIGHTS
    return {process: (*needed, *CONTAINER_RIGHTS.get(process, ())) for process, needed in RIGHTS.items()}


def definition(context: Context) -> Verdict:
    """Check that the cluster serves RunnerPool with the schema of this version."""
    cure = "run `ostler crd` as an administrator"
    try:
        live = context.kube.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{CRD_NAME}")
    except Gone:
        return failed(f"the cluster has no {CRD_NAME}", cure)
    except Forbidden:
        try:
            context.kube.request(
                "GET", f"/apis/{API_VERSION}/namespaces/{context.place.namespace}/{PLURAL}", query={"limit": 1}
            )
        except Gone:
            return failed(f"the cluster has no {CRD_NAME}", cure)
        except Forbidden:
            return unknown(
                "this identity is not allowed to read the definition",
                "run the command as an administrator, or as a worker",
            )
        return unknown(
            f"{CRD_NAME} is served, but this identity is not allowed to read the schema of the definition",
            "run the command as an administrator",
        )
    missing = lacks(crd_manifest()["spec"]["versions"], live["spec"]["versions"], "versions")
    if missing:
        return failed(
            f"{CRD_NAME} has the schema of another version of Ostler: fields that differ: {len(missing)}, the first is "
            f"{missing[0]}",
            cure,
        )
    return ok(f"{CRD_NAME} is served with the schema of this version")


def lacks(ours: Any, theirs: Any, place: str) -> list[str]:
    """Return the paths where `theirs` lacks a value of `ours` or has another value.

    Values that only `theirs` contains do not count.
    """
    if isinstance(ours, dict):
        if not isinstance(theirs, dict):
            return [place]
        return [
            each
            for key, value in ours.items()
            for each in (lacks(value, theirs[key], f"{place}.{key}") if key in theirs else _absent(value, place, key))
        ]
    if isinstance(ours, list):
        if not isinstance(theirs, list) or len(ours) != len(theirs):
            return [place]
        return [
            each
            for number, (one, other) in enumerate(zip(ours, theirs, strict=True))
            for each in lacks(one, other, f"{place}[{number}]")
        ]
    return [] if ours == theirs else [place]


def _absent(value: Any, place: str, key: str) -> list[str]:
    """Return the path of a key that is missing. An empty value does not count, because the API server omits it."""
    return [f"{place}.{key}"] if value or (isinstance(value, int | float) and not isinstance(value, bool)) else []


def admission(context: Context) -> Verdict:
    """Check that the admission policy prevents the garbage collector from deleting Pods that are not over."""
    return _judge_policy(
        context,
        refuses_the_collector,
        good="the garbage collector cannot delete a runner Pod that is not over",
        lab="the lab's API server has no admission policies and no garbage collector; a cluster gets the chart's",
    )


def pod_creation(context: Context) -> Verdict:
    """Check that the admission policy prevents workers from creating Pods that are not runner Pods."""
    return _judge_policy(
        context,
        refuses_other_pods,
        good="workers can create no Pods but runner Pods",
        lab="the lab's API server has no admission policies; a cluster gets the chart's",
        missing=warning,
    )


def role_creation(context: Context) -> Verdict:
    """Check that workers can create no Roles besides those of runner Pods with container jobs."""
    return _judge_policy(
        context,
        refuses_other_roles,
        good="workers can create no Roles with rights of their choice",
        lab="the lab's API server has no access control; a cluster gets the chart's Roles and policies",
    )


def _judge_policy(
    context: Context,
    ask: Callable[[KubeClient, str], PolicyAnswer],
    *,
    good: str,
    lab: str,
    missing: Callable[[str, str], Verdict] = failed,
) -> Verdict:
    """Return the verdict on one admission policy. `missing` creates the verdict if the cluster allows the action."""
    in_lab = context.lab_cluster  # before the slow probe: raises at once without an API server
    answer = ask(context.kube, context.place.namespace)
    for namespace in context.place.namespaces[1:]:
        if answer.refused:
            answer = ask(context.kube, namespace)
    if answer.refused:
        return ok(good)
    if in_lab:
        return ok(lab)
    if answer.refused is False:
        return missing(answer.why, answer.cure or "apply the admission policies of the chart")
    return unknown(answer.why, answer.cure)


def hook_pods(context: Context) -> Verdict:
    """Check that the garbage collector deletes the hook Pods of runner Pods that are gone."""
    left = [pod for each in context.place.namespaces for pod in find_left_over(context.kube, namespace=each)]
    if not left:
        return ok("no hook Pod is left over")
    minutes = LEFT_AFTER.total_seconds() / 60
    shown = ", ".join(left[:_SHOWN]) + (f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else "")
    return warning(
        f"{len(left)} hook Pods older than {minutes:.0f} minutes have no runner Pod any more: {shown}",
        "check that the garbage collector of the cluster runs (kube-controller-manager), and delete these Pods",
    )


def pools(context: Context) -> Verdict:
    """Check that every pool of the cluster is valid."""
    found = context.pools()
    bad = [f"{pool.name}: {pool.problem}" for pool in found if pool.problem is not None]
    if bad:
        return failed("; ".join(bad), "correct the RunnerPool; other pools are not affected")
    if not found:
        return warning(
            f"there is no RunnerPool in {' or '.join(context.place.namespaces)}",
            "create one: docs/first-run.md, step 4",
        )
    return ok(f"{len(found)} {'pool' if len(found) == 1 else 'pools'}: {', '.join(pool.name for pool in found)}")


def unread_namespaces(context: Context) -> Verdict:
    """Check that the settings contain the namespace of every pool in Postgres.

    If a namespace is removed from the settings, the rows of its pools remain. Jobs are still routed to them.
    """
    if context.rows.needed is not None:
        return unknown("the schema of the database does not fit this version of Ostler", "run `ostler migrate`")
    namespaces = context.place.namespaces
    unread: dict[str, list[str]] = {}
    for namespace, name in context.rows.pools:
        if namespace not in namespaces:
            unread.setdefault(namespace, []).append(name)
    if not unread:
        if not context.rows.pools:
            return ok("Postgres has no pool")
        return ok(f"every pool in Postgres is in {' or '.join(namespaces)}")
    told = "; ".join(f"{namespace}: {', '.join(names)}" for namespace, names in unread.items())
    if len(unread) == len(namespaces) == 1:
        again = f"set OSTLER_ELEVATED_NAMESPACE to {next(iter(unread))} again in every process"
    else:
        again = "set OSTLER_NAMESPACE and OSTLER_ELEVATED_NAMESPACE to their former values in every process"
    return failed(
        f"Postgres has pools in namespaces that are not in the settings, {told}. Their jobs wait without end, and "
        "Ostler manages no Pod there",
        "if a worker has other settings than this command, run the command in the worker; otherwise "
        f"{again}, drain these pools with `ostler pool drain NAME`, wait until they and their Pods are gone, and "
        "change the setting then",
    )


def pod_security(context: Context) -> Verdict:
    """List the pools above the Pod Security level `restricted`, and warn of those that serve jobs of forks."""
    found = [pool for pool in context.pools() if pool.pod_security.elevated]
    if not found:
        return ok("every pool has the Pod Security level restricted")
    named = ", ".join(f"{pool.name} ({pool.pod_security})" for pool in found)
    forks = [
        pool.name
        for pool in found
        if admits_forks(pool.pod_security, allow_forks=pool.allow_forks, elevated_forks=pool.elevated_forks)
    ]
    if forks:
        return warning(
            f"pools above the Pod Security level restricted: {named}. These serve jobs of forks: {', '.join(forks)}",
            "set security.allowForks of these pools to false (docs/security.md)",
        )
    return ok(f"pools above the Pod Security level restricted: {named}")
