"""The chart's Roles on a real API server: each identity has the rights that its process needs, and no others.

Each row is checked as that identity by a SelfSubjectAccessReview. `test_rbac_acts.py` performs the acts.
"""

from __future__ import annotations

import pytest

from k8s_adapters.cluster.access import who_am_i
from k8s_adapters.runners.runner_scripts import scripts_name
from lab.identities import IDENTITIES
from tests.contract.chart.cast import ALL, CRDS, LEASES, POLICIES, POOLS, Cast, allowed

# In the runners' namespace: identity, resource, name, the verbs allowed. All other verbs of ALL are refused.
IN_RUNNERS = [
    ("web", "pods", None, {"get"}),
    ("web", "serviceaccounts", None, set()),
    ("web", "configmaps", "ostler-epoch", set()),
    ("web", "events.k8s.io@events", None, set()),
    ("web", POOLS, None, {"get"}),
    ("web", f"{POOLS}/status", None, set()),
    ("web", LEASES, "ostler-watch", set()),
    ("worker", "pods", None, {"get", "list", "create", "update", "patch", "delete"}),
    ("worker", "pods/status", None, set()),
    ("worker", "pods/log", None, set()),
    ("worker", "pods/exec", None, set()),
    ("worker", "pods/attach", None, set()),
    ("worker", "pods/portforward", None, set()),
    ("worker", "pods/eviction", None, set()),
    ("worker", "pods/ephemeralcontainers", None, set()),
    ("worker", "serviceaccounts", None, {"get", "list", "create", "delete"}),
    ("worker", "serviceaccounts/token", None, set()),
    ("worker", "apps@statefulsets", None, {"get", "list", "create", "delete"}),
    ("worker", "apps@statefulsets/scale", None, set()),
    ("worker", "persistentvolumeclaims", None, {"list", "delete"}),
    ("worker", "configmaps", "ostler-epoch", {"get", "create", "patch"}),
    ("worker", "configmaps", scripts_name(), {"get", "create"}),
    ("worker", "configmaps", "another", {"create"}),
    ("worker", "events.k8s.io@events", None, {"create", "list"}),
    ("worker", "secrets", None, set()),
    ("worker", POOLS, None, {"get", "list", "update", "patch"}),
    ("worker", f"{POOLS}/status", None, {"patch"}),
    ("worker", f"{POOLS}/scale", None, set()),
    ("worker", "apps@deployments", None, set()),
    ("worker", "rbac.authorization.k8s.io@roles", None, set()),
    ("worker", "rbac.authorization.k8s.io@rolebindings", None, set()),
    ("worker", "networking.k8s.io@networkpolicies", None, set()),
    ("worker", "policy@poddisruptionbudgets", None, set()),
    ("worker", LEASES, "ostler-watch", set()),
    ("watch", "pods", None, {"list", "watch"}),
    ("watch", "serviceaccounts", None, set()),
    ("watch", "configmaps", "ostler-epoch", set()),
    ("watch", "events.k8s.io@events", None, set()),
    ("watch", "secrets", None, set()),
    ("watch", POOLS, None, {"list", "watch"}),
    ("watch", f"{POOLS}/status", None, set()),
    ("watch", LEASES, "ostler-watch", {"get", "create", "patch"}),
    ("watch", LEASES, "another", {"create"}),
    ("migrate", "pods", None, set()),
    ("migrate", "secrets", None, set()),
    ("migrate", POOLS, None, {"list"}),
    ("uninstall", "pods", None, {"list", "get", "update"}),
    ("uninstall", "pods/status", None, set()),
    ("uninstall", "apps@statefulsets", None, {"list", "delete"}),
    ("uninstall", "persistentvolumeclaims", None, set()),
    ("uninstall", "secrets", None, set()),
    ("uninstall", POOLS, None, set()),
]

# In the whole cluster.
IN_CLUSTER = [
    ("web", "nodes", None, set()),
    ("web", "authentication.k8s.io@tokenreviews", None, {"create"}),
    ("web", "authorization.k8s.io@subjectaccessreviews", None, set()),
    ("worker", "nodes", None, {"get", "list"}),
    ("worker", "authentication.k8s.io@tokenreviews", None, set()),
    ("worker", "namespaces", None, set()),
    ("worker", "persistentvolumes", None, set()),
    ("worker", CRDS, "runnerpools.ostler.dev", set()),
    ("worker", POLICIES, None, set()),
    ("worker", "users", None, set()),
    ("watch", "nodes", None, set()),
    ("watch", "authentication.k8s.io@tokenreviews", None, set()),
    ("migrate", CRDS, "runnerpools.ostler.dev", {"get", "create", "patch"}),
    ("migrate", CRDS, "another.example.com", {"create"}),
    ("migrate", POLICIES, None, set()),
    ("migrate", "nodes", None, set()),
    ("uninstall", "nodes", None, set()),
    ("uninstall", "persistentvolumes", None, set()),
    ("uninstall", CRDS, "runnerpools.ostler.dev", set()),
]


@pytest.mark.parametrize("process", IDENTITIES)
def test_each_process_is_its_own_service_account(cast: Cast, process: str) -> None:
    assert who_am_i(cast.clients[process]) == f"system:serviceaccount:{cast.release}:ostler-{process}"


@pytest.mark.parametrize(("process", "resource", "name", "verbs"), IN_RUNNERS)
def test_in_the_runners_namespace_exactly_these_verbs_are_allowed(
    cast: Cast, process: str, resource: str, name: str | None, verbs: set[str]
) -> None:
    client = cast.clients[process]
    found = {verb for verb in ALL if allowed(client, verb, resource, namespace=cast.runners, name=_named(verb, name))}
    assert found == verbs


@pytest.mark.parametrize(("process", "resource", "name", "verbs"), IN_CLUSTER)
def test_in_the_whole_cluster_exactly_these_verbs_are_allowed(
    cast: Cast, process: str, resource: str, name: str | None, verbs: set[str]
) -> None:
    client = cast.clients[process]
    found = {verb for verb in ALL if allowed(client, verb, resource, namespace=None, name=_named(verb, name))}
    assert found == verbs


def _named(verb: str, name: str | None) -> str | None:
    """Return the name for the review. A create or a list is reviewed without a name."""
    return None if verb in {"create", "list", "watch", "deletecollection"} else name


@pytest.mark.parametrize("process", IDENTITIES)
def test_nobody_may_do_anything_in_the_releases_own_namespace_or_in_another(cast: Cast, process: str) -> None:
    client = cast.clients[process]
    # What a tool of the cluster gives to every identity is not ours to take.
    for namespace in (cast.release, "default", "kube-system"):
        for resource in ("pods", "secrets", "configmaps", "serviceaccounts", "apps@deployments", LEASES):
            for verb in ALL:
                assert not allowed(client, verb, resource, namespace=namespace), (namespace, resource, verb)


@pytest.mark.parametrize("process", ["beat", "flower"])
def test_beat_and_flower_have_no_right_at_all(cast: Cast, process: str) -> None:
    for manifest in cast.identities.manifests:
        for subject in manifest.get("subjects", ()):
            assert subject["name"] != cast.identities.account(process)
    client = cast.clients[process]
    for resource in ("pods", "serviceaccounts", "configmaps", "secrets", POOLS, LEASES):
        for verb in ALL:
            assert not allowed(client, verb, resource, namespace=cast.runners)


@pytest.mark.parametrize("process", IDENTITIES)
def test_nobody_may_take_more_rights_than_it_has(cast: Cast, process: str) -> None:
    client = cast.clients[process]
    for verb, resource in (
        ("impersonate", "users"),
        ("impersonate", "serviceaccounts"),
        ("bind", "rbac.authorization.k8s.io@clusterroles"),
        ("escalate", "rbac.authorization.k8s.io@clusterroles"),
        ("*", "*@*"),
    ):
        assert not allowed(client, verb, resource, namespace=None)
        assert not allowed(client, verb, resource, namespace=cast.runners)
