"""Hook Pods that the garbage collector did not delete."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import orjson
import pytest

from k8s_adapters.hooks.hook_pods import LEFT_AFTER, find_left_over
from k8s_adapters.names import HOOK_OF_LABEL
from ostler.clock import utcnow
from ostler.errors import Retryable

OLD = LEFT_AFTER + timedelta(minutes=1)


class Cluster:
    """A namespace that answers lists of Pods. Each sleep executes `meanwhile`."""

    def __init__(self, *, runners: tuple[str, ...] = (), hooks: tuple[dict[str, Any], ...] = ()) -> None:
        self.runners, self.hooks = list(runners), list(hooks)
        self.slept: list[float] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.timing = self

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.meanwhile()

    def get(self, _path: str, *, decode: Callable[[bytes], Any], query: dict[str, Any], **_: Any) -> Any:
        if query["labelSelector"] == HOOK_OF_LABEL:
            return decode(orjson.dumps({"items": [{"metadata": each} for each in self.hooks]}))
        created = f"{utcnow():%FT%TZ}"
        items = [{"metadata": {"name": uid, "uid": uid, "creationTimestamp": created}} for uid in self.runners]
        return decode(orjson.dumps({"items": items}))


def hook(name: str, *, owner: str | None, age: timedelta = OLD, **more: Any) -> dict[str, Any]:
    owners = [] if owner is None else [{"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": owner}]
    created = f"{utcnow() - age:%FT%TZ}"
    return {"name": name, "creationTimestamp": created, "ownerReferences": owners, **more}


def left(cluster: Cluster) -> list[str]:
    return find_left_over(cluster, namespace="runners")  # type: ignore[arg-type]


def test_hook_pod_of_a_gone_runner_pod_is_left_over() -> None:
    cluster = Cluster(runners=("a",), hooks=(hook("a-workflow", owner="a"), hook("b-workflow", owner="b")))
    assert left(cluster) == ["b-workflow"]
    assert cluster.slept == [5.0]


def test_hook_pod_without_an_owner_is_left_over() -> None:
    assert left(Cluster(hooks=(hook("b-workflow", owner=None),))) == ["b-workflow"]


@pytest.mark.parametrize(
    "fields", [{"age": LEFT_AFTER - timedelta(minutes=1)}, {"deletionTimestamp": "2026-11-22T10:00:00Z"}]
)
def test_young_and_terminating_hook_pods_are_not_left_over(fields: dict[str, Any]) -> None:
    cluster = Cluster(hooks=(hook("b-workflow", owner="b", **fields),))
    assert (left(cluster), cluster.slept) == ([], [])


def test_hook_pod_that_is_collected_meanwhile_is_not_left_over() -> None:
    cluster = Cluster(hooks=(hook("b-workflow", owner="b"),))
    cluster.meanwhile = cluster.hooks.clear
    assert left(cluster) == []


def test_answer_without_items_is_no_empty_list() -> None:
    cluster = Cluster()
    cluster.get = lambda *_, decode, **__: decode(b"{}")  # type: ignore[method-assign]
    with pytest.raises(Retryable):
        left(cluster)
