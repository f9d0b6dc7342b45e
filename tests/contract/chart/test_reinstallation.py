"""Admission policies after a reinstallation on the same API server: they read the pools and refuse as before."""

from __future__ import annotations

from functools import partial

from k8s_adapters.calls.client import Json, KubeClient
from lab.manifests import Kinds
from rules.pools.hook_names import step_pod
from tests.contract.chart.test_hook_rights import (
    BINDINGS,
    CPU,
    PODS,
    ROLES,
    SECRETS,
    SIZE,
    Stage,
    binding,
    create,
    role,
    stage,
    wait_for_policies,
    wait_for_role_sizes,
)
from tests.contract.chart.test_hook_sizes import Hire, hire, of_size, says, whole
from tests.guard import POLICY
from tests.waiting import eventually

__all__ = ["hire", "stage"]


def test_policies_refuse_again_after_a_reinstallation(stage: Stage, hire: Hire) -> None:
    """An API server has stopped reading the parameters of policies after the last binding was deleted.

    See kubernetes/kubernetes#130887. Helm keeps some of the policies, so here an administrator deletes these too.
    """
    one, namespace, admin = stage.one, stage.cast.runners, stage.cast.admin
    earlier = hire(one.pool, "one-0000000c", earlier=True)
    large = role(namespace, "one-0000000b", size="64000m-128Mi")
    assert says(earlier, of_size(earlier, "1501m"), CPU)
    kinds = Kinds(admin)
    for each in stage.cast.identities.manifests:
        if each["kind"] in POLICY:
            admin.request("DELETE", f"{kinds.collection(each)}/{each['metadata']['name']}")
    for client, body in (
        (stage.worker, large),
        (one.client, of_size(one, "64")),
        (earlier.client, of_size(earlier, "64")),
    ):
        eventually(partial(_is_allowed, client, body), within=60)

    stage.cast.identities.put_in_place()
    wait_for_role_sizes(stage.worker, one.pool)
    wait_for_policies(one)
    eventually(partial(says, earlier, of_size(earlier, "1501m"), CPU), within=60)

    assert create(stage.worker, role(namespace, "one-0000000b", SIZE)) == (200, "")
    for tenant in (one, earlier):
        assert create(tenant.client, whole(tenant)) == (200, "")
    for changes, client, new in (
        (PODS, one.client, partial(one.hook_pod, step_pod(one.pod.name, 1))),
        (SECRETS, one.client, partial(one.secret, 1)),
        (ROLES, stage.worker, partial(role, namespace, "one-0000000b")),
        (BINDINGS, stage.worker, partial(binding, namespace, "one-0000000b")),
    ):
        for what, (change, why) in changes.items():
            body = new()
            change(body)
            status, message = create(client, body)
            assert (status, any(each in message for each in why.split("|"))) == (403, True), f"{what}: {message}"


def _is_allowed(client: KubeClient, body: Json) -> bool:
    return create(client, body)[0] == 200
