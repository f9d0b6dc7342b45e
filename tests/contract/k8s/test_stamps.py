"""Stamp and un-stamp on a real API server: a compare-and-swap that trusts only the values that it reads."""

from __future__ import annotations

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient, object_path
from k8s_adapters.runners.pods import get_pod
from k8s_adapters.runners.resources import Created
from k8s_adapters.runners.stamps import StampOutcome, StampResult, stamp, unstamp
from ostler.errors import Forbidden, RateLimited, Retryable
from tests.contract.k8s.transport import FaultyTransport, MakeRunner

Faulty = tuple[KubeClient, FaultyTransport]
OWNER = 9_876_543_210


def put(client: KubeClient, namespace: str, runner: Created, expected: str = "0.0", value: str = "7.1") -> StampResult:
    return stamp(
        client, namespace=namespace, name=runner.name, uid=runner.uid, expected=expected, value=value, owner=OWNER
    )


def take_off(client: KubeClient, namespace: str, runner: Created, expected: str, value: str) -> StampResult:
    return unstamp(client, namespace=namespace, name=runner.name, uid=runner.uid, expected=expected, value=value)


def bind_to_a_node(client: KubeClient, namespace: str, name: str) -> None:
    """Bind the Pod to a node, so that a deletion leaves it Terminating.

    The node does not exist. The garbage collector of Pods deletes every Pod on such a node 40 s after it first saw the
    node's name, so each namespace has its own node.
    """
    target = {"kind": "Node", "name": namespace}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    client.request("POST", f"{object_path('pods', namespace=namespace, name=name)}/binding", body=body)


def test_a_stamp_marks_the_pod_for_its_owner(admin: KubeClient, namespace: str, make_runner: MakeRunner) -> None:
    runner = make_runner()

    result = put(admin, namespace, runner)

    assert result == StampResult(outcome=StampOutcome.DONE, seen="7.1", owner=OWNER)
    pod = get_pod(admin, namespace=namespace, name=runner.name)
    assert pod is not None
    assert (pod.stamp, pod.owner) == ("7.1", OWNER)
    metadata = admin.request("GET", object_path("pods", namespace=namespace, name=runner.name))["metadata"]
    assert metadata["labels"]["ostler.dev/runner-pool-owner"] == str(OWNER)
    assert metadata["annotations"]["karpenter.sh/do-not-disrupt"] == "true"


def test_an_unstamp_frees_the_pod_and_keeps_the_register(
    admin: KubeClient, namespace: str, make_runner: MakeRunner
) -> None:
    runner = make_runner()
    put(admin, namespace, runner)

    result = take_off(admin, namespace, runner, "7.1", "7.2")

    assert result == StampResult(outcome=StampOutcome.DONE, seen="7.2", owner=None)
    metadata = admin.request("GET", object_path("pods", namespace=namespace, name=runner.name))["metadata"]
    assert "ostler.dev/runner-pool-owner" not in metadata["labels"]
    assert "karpenter.sh/do-not-disrupt" not in metadata["annotations"]


def test_an_unstamp_of_a_pod_that_was_never_stamped_writes_its_value(
    admin: KubeClient, namespace: str, make_runner: MakeRunner
) -> None:
    assert take_off(admin, namespace, make_runner(), "0.0", "7.2").outcome is StampOutcome.DONE


def test_a_late_stamp_changes_nothing_after_the_release(
    admin: KubeClient, namespace: str, make_runner: MakeRunner
) -> None:
    runner = make_runner()
    take_off(admin, namespace, runner, "0.0", "7.2")

    result = put(admin, namespace, runner, expected="0.0", value="7.1")

    assert result == StampResult(outcome=StampOutcome.MOVED_ON, seen="7.2", owner=None)


def test_a_late_unstamp_does_not_touch_the_next_claims_stamp(
    admin: KubeClient, namespace: str, make_runner: MakeRunner
) -> None:
    runner = make_runner()
    put(admin, namespace, runner, expected="0.0", value="8.1")

    result = take_off(admin, namespace, runner, "7.1", "7.2")

    assert result == StampResult(outcome=StampOutcome.MOVED_ON, seen="8.1", owner=OWNER)


def test_a_stamp_of_another_uid_is_a_pod_that_is_gone(
    admin: KubeClient, namespace: str, make_runner: MakeRunner
) -> None:
    runner = make_runner()
    old = Created(name=runner.name, uid="00000000-0000-4000-8000-000000000000")
    assert put(admin, namespace, old).outcome is StampOutcome.POD_GONE
    seen = get_pod(admin, namespace=namespace, name=runner.name)
    assert seen is not None
    assert (seen.stamp, seen.owner) == ("0.0", None)


def test_a_stamp_of_a_name_that_does_not_exist_is_a_pod_that_is_gone(admin: KubeClient, namespace: str) -> None:
    assert put(admin, namespace, Created(name="nobody", uid="u")).outcome is StampOutcome.POD_GONE


def test_a_stamp_of_a_terminating_pod_is_a_pod_that_is_gone(
    admin: KubeClient, namespace: str, make_runner: MakeRunner
) -> None:
    runner = make_runner()
    bind_to_a_node(admin, namespace, runner.name)
    admin.request("DELETE", object_path("pods", namespace=namespace, name=runner.name))
    assert put(admin, namespace, runner).outcome is StampOutcome.POD_GONE


def test_a_stamp_whose_reply_was_lost_is_known_to_be_done(
    namespace: str, faulty: Faulty, make_runner: MakeRunner
) -> None:
    runner = make_runner()
    client, faults = faulty
    faults.lose_reply("PATCH")

    result = put(client, namespace, runner)

    assert result == StampResult(outcome=StampOutcome.DONE, seen="7.1", owner=OWNER)
    assert faults.calls == ["PATCH", "PATCH", "GET"]


def test_a_stamp_whose_reply_was_lost_and_then_released_has_moved_on(
    admin: KubeClient, namespace: str, faulty: Faulty, make_runner: MakeRunner
) -> None:
    runner = make_runner()
    client, faults = faulty
    faults.lose_reply("PATCH")
    faults.before("PATCH", lambda: take_off(admin, namespace, runner, "7.1", "7.2"))

    assert put(client, namespace, runner) == StampResult(outcome=StampOutcome.MOVED_ON, seen="7.2", owner=None)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_stamp_is_tried_three_times_and_ignores_retry_after(
    namespace: str, faulty: Faulty, make_runner: MakeRunner, status: int
) -> None:
    runner = make_runner()
    client, faults = faulty
    for _ in range(2):
        faults.answer("PATCH", status, Retry_After="30")
    assert put(client, namespace, runner).outcome is StampOutcome.DONE

    for _ in range(3):
        faults.answer("PATCH", status, Retry_After="30")
    with pytest.raises((Retryable, RateLimited)):
        put(client, namespace, runner, expected="7.1", value="8.1")
    assert faults.calls.count("PATCH") == 6


def test_a_stamp_that_is_forbidden_says_so(namespace: str, faulty: Faulty, make_runner: MakeRunner) -> None:
    runner = make_runner()
    client, faults = faulty
    faults.answer("PATCH", 403)
    with pytest.raises(Forbidden):
        put(client, namespace, runner)


def test_a_pod_without_the_register_has_moved_on(admin: KubeClient, namespace: str, make_runner: MakeRunner) -> None:
    runner = make_runner()
    path = object_path("pods", namespace=namespace, name=runner.name)
    admin.request(
        "PATCH", path, body={"metadata": {"annotations": {"ostler.dev/claim": None}}}, content_type=MERGE_PATCH
    )
    assert put(admin, namespace, runner) == StampResult(outcome=StampOutcome.MOVED_ON, seen=None, owner=None)
