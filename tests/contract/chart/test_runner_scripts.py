"""The ConfigMap with the scripts of runner Pods, under the chart's rights and policy, on a real API server."""

from __future__ import annotations

import pytest

from k8s_adapters.calls.client import Json, KubeClient, object_path
from k8s_adapters.calls.refusals import refusal_of
from k8s_adapters.runners.runner_scripts import (
    PREFIX,
    ForeignScripts,
    RunnerScripts,
    build_scripts,
    ensure_scripts,
    script_texts,
    scripts_name,
)
from lab.manifests import Kinds
from ostler.errors import Gone, UpstreamError
from rules.upstream.retry import ONCE
from tests.contract.chart.cast import Cast
from tests.guard import POLICY
from tests.waiting import eventually


def refusal(client: KubeClient, body: Json) -> str | None:
    """Return why a creation of a ConfigMap is refused, by a dry run, or None."""
    path = object_path("configmaps", namespace=body["metadata"]["namespace"])
    try:
        client.request("POST", path, body=body, query={"dryRun": "All"}, policy=ONCE)
    except UpstreamError as error:
        if (found := refusal_of(error)) is None:
            raise
        return found.text
    return None


@pytest.fixture(scope="module")
def worker(cast: Cast) -> KubeClient:
    """A worker under the policy."""
    other = build_scripts(namespace=cast.runners)
    other["metadata"]["name"] = f"{PREFIX}0000000000000000"
    eventually(lambda: bool(refusal(cast.admin, other)), within=60)
    return cast.clients["worker"]


def path_of(namespace: str) -> str:
    return object_path("configmaps", namespace=namespace, name=scripts_name())


def remove(cast: Cast) -> None:
    try:
        cast.admin.request("DELETE", path_of(cast.runners))
    except Gone:
        return


def test_worker_creates_the_scripts_once_and_checks_them(cast: Cast, worker: KubeClient) -> None:
    remove(cast)
    ensure_scripts(worker, namespace=cast.runners, policy=ONCE)
    made = cast.admin.request("GET", path_of(cast.runners))
    ensure_scripts(worker, namespace=cast.runners, policy=ONCE)

    assert (made["data"], made["immutable"]) == (script_texts(), True)
    assert cast.admin.request("GET", path_of(cast.runners))["metadata"]["uid"] == made["metadata"]["uid"]


def test_deleted_scripts_come_back_after_a_minute(cast: Cast, worker: KubeClient) -> None:
    clock = [0.0]
    scripts = RunnerScripts(monotonic=lambda: clock[0])
    scripts.ensure(worker, namespace=cast.runners, policy=ONCE)
    remove(cast)

    clock[0] = 59.0
    scripts.ensure(worker, namespace=cast.runners, policy=ONCE)
    with pytest.raises(Gone):
        cast.admin.request("GET", path_of(cast.runners))
    clock[0] = 60.0
    scripts.ensure(worker, namespace=cast.runners, policy=ONCE)
    assert cast.admin.request("GET", path_of(cast.runners))["data"] == script_texts()


def test_nobody_changes_the_scripts(cast: Cast, worker: KubeClient) -> None:
    ensure_scripts(worker, namespace=cast.runners, policy=ONCE)
    for change in ({"data": {"poll.sh": "true"}}, {"immutable": False}):
        with pytest.raises(UpstreamError):
            cast.admin.request(
                "PATCH", path_of(cast.runners), body=change, content_type="application/merge-patch+json", policy=ONCE
            )
    assert cast.admin.request("GET", path_of(cast.runners))["data"] == script_texts()


def test_only_a_worker_creates_config_maps_with_this_prefix(cast: Cast, worker: KubeClient) -> None:
    later = build_scripts(namespace=cast.runners)
    later["metadata"]["name"] = f"{PREFIX}00000000ffffffff"
    generated = build_scripts(namespace=cast.runners)
    generated["metadata"] = {"generateName": PREFIX, "namespace": cast.runners}
    other = build_scripts(namespace=cast.runners)
    other["metadata"]["name"] = "cache"

    assert "only a worker of Ostler creates ConfigMap" in (refusal(cast.admin, later) or "")
    assert "only a worker of Ostler creates ConfigMap" in (refusal(cast.admin, generated) or "")
    assert refusal(worker, later) is None
    assert refusal(cast.admin, other) is None


def test_worker_creates_no_scripts_that_could_change(cast: Cast, worker: KubeClient) -> None:
    later = build_scripts(namespace=cast.runners)
    later["metadata"]["name"] = f"{PREFIX}00000000ffffffff"
    del later["immutable"]

    assert "must be immutable" in (refusal(worker, later) or "")


@pytest.mark.parametrize("change", [{"data": {"poll.sh": "true"}}, {"immutable": False}], ids=["data", "changeable"])
def test_scripts_of_others_are_not_used(cast: Cast, namespace: str, change: Json) -> None:
    """In a namespace without the policy, another client created the ConfigMap first."""
    cast.admin.request(
        "POST", object_path("configmaps", namespace=namespace), body=build_scripts(namespace=namespace) | change
    )

    with pytest.raises(ForeignScripts, match="does not contain the scripts of this release"):
        ensure_scripts(cast.admin, namespace=namespace, policy=ONCE)


def test_the_expressions_pass_the_type_check(cast: Cast, worker: KubeClient) -> None:
    assert worker is not None
    (policy,) = [
        each
        for each in cast.identities.manifests
        if each["kind"] == POLICY[0] and each["metadata"]["name"].endswith("-scripts")
    ]
    path = f"{Kinds(cast.admin).collection(policy)}/{policy['metadata']['name']}"
    eventually(lambda: "typeChecking" in (cast.admin.request("GET", path).get("status") or {}), within=60)
    assert cast.admin.request("GET", path)["status"]["typeChecking"].get("expressionWarnings") is None
