"""The Role of a runner Pod, and the metadata of its hook objects."""

from __future__ import annotations

from k8s_adapters.calls.client import Json
from k8s_adapters.hooks.hook_rights import build_role, build_role_binding, hook_metadata, role_rules
from k8s_adapters.names import HOOK_OF_LABEL, HOOK_POOL_LABEL, POOL_LABEL
from rules.pools.hook_names import pod_names, secret_names

POD = "linux-0000000a"
SIZE = "1500m-128Mi"


def rights(rules: list[Json]) -> set[tuple[str, str, str | None]]:
    return {
        (verb, resource, name)
        for rule in rules
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", (None,))
    }


def test_role_of_a_runner_pod_has_exactly_these_rights() -> None:
    pods = {
        (verb, resource, name)
        for verb, resource in (
            ("get", "pods"),
            ("delete", "pods"),
            ("create", "pods/exec"),
            ("get", "pods/exec"),
            ("get", "pods/log"),
        )
        for name in pod_names(POD)
    }
    secrets = {(verb, "secrets", name) for verb in ("get", "delete") for name in secret_names(POD)}
    sizes = {("use", "hooksizes", "limited"), ("use", "hooksizes", SIZE)}
    creations = {("create", "pods", None), ("create", "secrets", None)}
    assert rights(role_rules(POD, SIZE)) == pods | secrets | creations | sizes


def test_role_of_a_shared_workspace_has_rights_on_its_own_pod_only() -> None:
    own = {
        ("get", "pods", POD),
        ("patch", "pods/ephemeralcontainers", POD),
        ("create", "pods/exec", POD),
        ("get", "pods/exec", POD),
    }
    secrets = {(verb, "secrets", name) for verb in ("get", "delete") for name in secret_names(POD)}
    assert rights(role_rules(POD, None)) == own | secrets | {("create", "secrets", None)}


def test_roles_of_two_runner_pods_have_no_name_in_common() -> None:
    first, second = (
        {name for rule in role_rules(pod, SIZE) for name in rule.get("resourceNames", ())} for pod in (POD, f"{POD}b")
    )
    assert first & second == {"limited", SIZE}


def test_service_account_owns_the_role_and_the_binding() -> None:
    given = {
        "namespace": "n",
        "name": POD,
        "pool": "linux",
        "attempt": "a1",
        "digest": "d",
        "account_uid": "u",
    }
    role, binding = build_role(**given, size=SIZE), build_role_binding(**given)
    for each in (role, binding):
        (owner,) = each["metadata"]["ownerReferences"]
        assert owner == {"apiVersion": "v1", "kind": "ServiceAccount", "name": POD, "uid": "u"}
    assert binding["roleRef"]["name"] == role["metadata"]["name"] == POD
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": POD, "namespace": "n"}]


def test_hook_object_belongs_to_its_runner_pod_and_to_no_list_of_runner_pods() -> None:
    found = hook_metadata(namespace="n", name=f"{POD}-workflow", pod=POD, pod_uid="u", pool="linux", digest="d")
    assert found["labels"][HOOK_OF_LABEL] == POD
    assert found["labels"][HOOK_POOL_LABEL] == "linux"
    assert POOL_LABEL not in found["labels"]
    (owner,) = found["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["blockOwnerDeletion"]) == ("Pod", "u", False)


def test_autoscalers_keep_the_node_of_a_hook_pod() -> None:
    pod, secret = (
        hook_metadata(namespace="n", name=f"{POD}-x", pod=POD, pod_uid="u", pool="linux", digest="d", size=size)
        for size in (SIZE, None)
    )
    assert pod["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert set(secret["annotations"]) == {"ostler.dev/spec-digest"}


def test_hook_pod_carries_its_size_in_no_key_that_an_earlier_policy_refuses() -> None:
    """After a rollback, the policies of the previous release judge the hook Pods of sidecars of this release."""
    found = hook_metadata(namespace="n", name=f"{POD}-x", pod=POD, pod_uid="u", pool="linux", digest="d", size=SIZE)
    assert found["annotations"].pop("ostler.dev/spec-digest") == f"{SIZE}.d"
    assert set(found["annotations"]) == {
        "cluster-autoscaler.kubernetes.io/safe-to-evict",
        "karpenter.sh/do-not-disrupt",
    }
    assert set(found["labels"]) == {"app.kubernetes.io/managed-by", "ostler.dev/hook-of", "ostler.dev/hook-pool"}
