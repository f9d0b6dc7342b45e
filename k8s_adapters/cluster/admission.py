"""Probes that test whether the chart's admission policies are in force.

The text of a policy does not prove that the policy is in force. The policy might not be bound, or it might be bound to
other namespaces. The API server might not know the policy yet. Each probe therefore tries a forbidden action as a dry
run.

One probe impersonates the garbage collector, and tries to delete a probe Pod that no scheduler assigns to a node. The
other probes try to create a Pod and a Role as a worker. No probe tries to delete a runner Pod, because a proxy might
drop the dry-run flag.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import quote

from k8s_adapters.calls.client import Json, KubeClient, object_path
from k8s_adapters.calls.retry import answer_of
from k8s_adapters.cluster.access import who_am_i
from k8s_adapters.cluster.probe_pods import create_probe, delete_probe, probe_pod, restricted
from k8s_adapters.hooks.hook_rights import RBAC
from ostler.errors import Forbidden, Gone, Invalid, UpstreamError

COLLECTORS = ("system:serviceaccount:kube-system:generic-garbage-collector", "system:kube-controller-manager")
"""User names of the garbage collector, with and without the option `--use-service-account-credentials`."""

_ACCOUNTS = "system:serviceaccount:"
_GATE = "ostler.dev/probe"  # a scheduling gate: no scheduler assigns such a Pod to a node, so it never runs
_IMAGE = "registry.k8s.io/pause:3.10"  # never pulled
_NO_ROLES = ('cannot create resource "roles"', "attempting to grant RBAC permissions")
"""Texts of refusals: the worker has no right to create Roles, or it lacks rights that the Role would grant."""


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """Result of a probe. `refused` is True if the API server refuses the action; False if it allows the action.

    `refused` is None if the probe could not find out whether the API server refuses the action. `why` is a sentence
    that explains the result. `cure` says what the operator has to do. `cure` is None if the API server refuses the
    action.
    """

    why: str
    refused: bool | None = None
    cure: str | None = None


def refuses_the_collector(client: KubeClient, namespace: str) -> PolicyAnswer:
    """Test whether the API server forbids the garbage collector to delete a Pod with the pool's label in a namespace.

    The caller needs the rights to create, list and delete Pods in the namespace, and to impersonate users and
    ServiceAccounts. This function raises no error of the API server. It describes every such error in its result.
    """
    try:
        with _probe(client, namespace) as pod:
            answers = [_ask(client, pod, collector) for collector in COLLECTORS]
    except Gone:
        return PolicyAnswer(f"there is no namespace {namespace}", cure="name an existing namespace of runner Pods")
    except UpstreamError as error:
        return PolicyAnswer(
            f"a Pod for the test could not be created in {namespace}: {_said(error)}",
            cure="run the command with an identity that can create, list and delete Pods there",
        )
    allowed = next((each for each in answers if each.refused is False), None)
    if allowed is not None:
        return allowed
    return next((each for each in answers if each.refused), answers[0])


def refuses_other_pods(client: KubeClient, namespace: str) -> PolicyAnswer:
    """Test whether the API server forbids workers to create Pods other than runner Pods in a namespace.

    A caller that is a worker needs no further rights. Any other caller needs the rights to list RoleBindings and to
    impersonate ServiceAccounts. This function raises no error of the API server. It describes every such error in its
    result.
    """
    spec = {"schedulingGates": [{"name": _GATE}], "containers": [restricted({"name": "probe", "image": _IMAGE})]}
    return _ask_workers(
        client,
        namespace,
        _Creation(
            kind="Pod",
            path=object_path("pods", namespace=namespace),
            body=probe_pod(purpose="creation", labels={}, spec=spec),
            danger="may create any Pod in {}. With such a Pod it can read every Secret and use every ServiceAccount "
            "there",
            cure="apply the chart's ValidatingAdmissionPolicy for creations and its binding: set "
            "admissionPolicy.enabled",
        ),
    )


def refuses_other_roles(client: KubeClient, namespace: str) -> PolicyAnswer:
    """Test whether the API server forbids workers to create Roles with rights of their choice in a namespace.

    Workers may create Roles only if the chart allows container jobs. The caller needs the same rights as for
    `refuses_other_pods`, and the result describes errors in the same way.
    """
    name = f"ostler-role-{secrets.token_hex(4)}"
    rules = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["list"]}]
    return _ask_workers(
        client,
        namespace,
        _Creation(
            kind="Role",
            path=object_path("roles", namespace=namespace, group=RBAC),
            body={"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules},
            danger="may create any Role in {}. With such a Role it can read every Secret and execute commands there",
            cure="apply the chart's ValidatingAdmissionPolicies for hook Pods and their bindings, or set "
            "runners.containers.enabled to false",
        ),
    )


@dataclass(frozen=True, slots=True)
class _Creation:
    """A creation that an admission policy should refuse.

    `danger` describes what a worker can do if the creation is allowed. The text has one placeholder, for the namespace.
    """

    kind: str
    path: str
    body: Json
    danger: str
    cure: str


def _ask_workers(client: KubeClient, namespace: str, creation: _Creation) -> PolicyAnswer:
    """Try a creation as each worker of a namespace, and return the worst answer."""
    try:
        mine = who_am_i(client)
        if _is_worker(mine):
            return _ask_creation(client, namespace, mine, creation, impersonate=None)
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{quote(namespace, safe='')}/rolebindings"
        bindings = client.request("GET", path).get("items") or []
    except UpstreamError as error:
        return PolicyAnswer(
            f"the ServiceAccounts of the workers could not be read in {namespace}: {_said(error)}",
            cure="run the command as a worker, or as an administrator of the cluster",
        )
    subjects = [
        each for binding in bindings for each in binding.get("subjects") or () if each.get("kind") == "ServiceAccount"
    ]
    users = {f"{_ACCOUNTS}{each.get('namespace') or namespace}:{each['name']}" for each in subjects}
    workers = sorted(filter(_is_worker, users))
    if not workers:
        return PolicyAnswer(f"no worker has a role in {namespace}", cure="apply the Roles of the chart")
    answers = [_ask_creation(client, namespace, each, creation, impersonate=each) for each in workers]
    allowed = next((each for each in answers if each.refused is False), None)
    return allowed or next((each for each in answers if each.refused is None), answers[0])


def _is_worker(user: str) -> bool:
    return user.startswith(_ACCOUNTS) and user.endswith("-worker")


def _ask_creation(
    client: KubeClient, namespace: str, worker: str, creation: _Creation, *, impersonate: str | None
) -> PolicyAnswer:
    try:
        client.request("POST", creation.path, body=creation.body, query={"dryRun": "All"}, impersonate=impersonate)
    except (Forbidden, Invalid) as error:
        said = _said(error)
        if "ValidatingAdmissionPolicy" in said or (creation.kind == "Role" and any(each in said for each in _NO_ROLES)):
            return PolicyAnswer(f"the API server refuses {worker}: {said}", refused=True)
        cure = (
            "run the command as a worker, or as an administrator of the cluster"
            if "cannot" in said
            else "correct the reason that the API server gave"
        )
        return PolicyAnswer(f"the test creation of a {creation.kind} failed for {worker}: {said}", cure=cure)
    except UpstreamError as error:
        return PolicyAnswer(f"the API server gave no verdict: {_said(error)}", cure="try again")
    return PolicyAnswer(f"{worker} {creation.danger.format(namespace)}", refused=False, cure=creation.cure)


@contextmanager
def _probe(client: KubeClient, namespace: str) -> Iterator[Json]:
    spec = {"schedulingGates": [{"name": _GATE}], "containers": [restricted({"name": "probe", "image": _IMAGE})]}
    pod = create_probe(client, namespace=namespace, purpose="admission", labels={}, spec=spec)
    try:
        yield pod
    finally:
        with suppress(UpstreamError):  # the result is valid without this deletion, and a later probe deletes the Pod
            delete_probe(client, pod)


def _ask(client: KubeClient, pod: Json, collector: str) -> PolicyAnswer:
    metadata = pod["metadata"]
    path = object_path("pods", namespace=metadata["namespace"], name=metadata["name"])
    body = {"dryRun": ["All"], "preconditions": {"uid": metadata["uid"]}}
    try:
        client.request("DELETE", path, body=body, query={"dryRun": "All"}, impersonate=collector)
    except (Forbidden, Invalid) as error:
        said = _said(error)
        if "cannot impersonate" in said:
            cure = "run the command with an identity that can impersonate users and service accounts"
            return PolicyAnswer(f"this identity is not allowed to impersonate {collector}", cure=cure)
        if "cannot delete resource" in said:
            # The API server refused the user because the user lacks the right, not because of the policy. The collector
            # of this cluster therefore has another user name.
            return PolicyAnswer(
                f"{collector} has no right to delete Pods",
                cure="find the identity of the garbage collector of this cluster, and add it to "
                "admissionPolicy.collectors of the chart",
            )
        return PolicyAnswer(f"the API server refuses {collector}: {said}", refused=True)
    except UpstreamError as error:
        return PolicyAnswer(f"the API server gave no verdict: {_said(error)}", cure="try again")
    return PolicyAnswer(
        (
            f"{collector} may delete a Pod with the pool's label in {metadata['namespace']}: the foreground deletion "
            "of a pool would delete its busy Pods too"
        ),
        refused=False,
        cure="apply the chart's ValidatingAdmissionPolicy and its binding first; both take effect after about a second",
    )


def _said(error: UpstreamError) -> str:
    answer = answer_of(error)
    return str(error) if answer is None else answer.message or str(answer)
