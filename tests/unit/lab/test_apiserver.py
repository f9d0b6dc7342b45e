"""The embedded API server in cases that the real one cannot show on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from k8s_adapters.pools.crd import crd_manifest
from lab.apiserver import discovery, tables
from lab.apiserver import store as stores
from lab.apiserver.kinds import BUILT_IN, NAMESPACE, POD, SECRET, SERVICE_ACCOUNT, Json, Kind, defined_by
from lab.apiserver.lists import list_page, watch
from lab.apiserver.objects import Objects
from lab.apiserver.refusals import Refused
from lab.apiserver.store import Store


@pytest.fixture
def objects() -> Objects:
    made = Objects(Store())
    made.create(NAMESPACE, "", {"metadata": {"name": "n"}})  # brings the ServiceAccount `default`
    return made


def account(objects: Objects, name: str) -> None:
    objects.create(SERVICE_ACCOUNT, "n", {"metadata": {"name": name}})


def page(objects: Objects, **query: str) -> Json:
    found: Json = json.loads(list_page(objects.store, SERVICE_ACCOUNT, "n", query, partial=False))
    return found


def names(found: Json) -> list[str]:
    return [each["metadata"]["name"] for each in found["items"]]


async def following(lines: AsyncIterator[bytes]) -> Json:
    event: Json = json.loads(await anext(lines))
    return event


def events_of(objects: Objects, **query: str) -> AsyncIterator[bytes]:
    return watch(objects.store, SERVICE_ACCOUNT, "n", query, partial=False)


def test_the_bookmark_after_the_initial_events_is_not_ahead_of_what_is_still_to_come(objects: Objects) -> None:
    async def story() -> tuple[Json, Json]:
        lines = events_of(objects, sendInitialEvents="true", allowWatchBookmarks="true")
        await following(lines)
        account(objects, "meanwhile")
        return await following(lines), await following(lines)

    bookmark, event = asyncio.run(story())

    assert bookmark["type"] == "BOOKMARK"
    assert event["object"]["metadata"]["name"] == "meanwhile"
    assert int(bookmark["object"]["metadata"]["resourceVersion"]) < int(event["object"]["metadata"]["resourceVersion"])


def test_a_watch_from_a_revision_that_is_forgotten_says_expired(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "HISTORY", 2)
    objects = Objects(Store())
    objects.create(NAMESPACE, "", {"metadata": {"name": "n"}})
    since = page(objects)["metadata"]["resourceVersion"]
    for name in ("a", "b", "c"):
        account(objects, name)

    event = asyncio.run(following(events_of(objects, resourceVersion=since)))

    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_lists_of_two_kinds_at_one_moment_keep_their_own_pages(objects: Objects) -> None:
    for name in ("a", "b"):
        account(objects, name)
    objects.create(NAMESPACE, "", {"metadata": {"name": "other"}})
    first = page(objects, limit="1")
    list_page(objects.store, NAMESPACE, "", {"limit": "1"}, partial=False)

    rest = page(objects, **{"continue": first["metadata"]["continue"]})

    assert [*names(first), *names(rest)] == ["a", "b", "default"]


def test_a_page_of_a_list_that_was_given_up_is_expired(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "SNAPSHOTS", 1)
    for name in ("a", "b", "c"):
        account(objects, name)
    first = page(objects, limit="1")
    account(objects, "d")
    page(objects, limit="1")

    with pytest.raises(Refused) as refused:
        page(objects, **{"continue": first["metadata"]["continue"]})

    body: Any = refused.value.body()
    assert (body["code"], body["reason"]) == (410, "Expired")


def test_string_data_of_a_new_secret_is_stored_as_data(objects: Objects) -> None:
    body = {"metadata": {"name": "s"}, "stringData": {"a": "text"}, "data": {"b": "AA=="}}

    content = objects.create(SECRET, "n", body).content

    assert (content["data"], content["type"]) == ({"a": "dGV4dA==", "b": "AA=="}, "Opaque")
    assert "stringData" not in content


POOL_KIND = defined_by(crd_manifest())


def cells(objects: Objects, kind: Kind) -> list[list[Any]]:
    found: Json = json.loads(list_page(objects.store, kind, "", {}, partial=False, table=True))
    assert [len(row["cells"]) for row in found["rows"]] == [len(found["columnDefinitions"])] * len(found["rows"])
    return [row["cells"] for row in found["rows"]]


def test_discovery_leads_from_a_group_to_its_resources() -> None:
    kinds = [*BUILT_IN, POOL_KIND]
    groups = discovery.answer("/apis", kinds)
    assert groups is not None
    assert {each["name"] for each in groups["groups"]} >= {"ostler.dev", "coordination.k8s.io"}
    paths = ["/api/v1", *(f"/apis/{each['preferredVersion']['groupVersion']}" for each in groups["groups"])]
    found = {each["name"]: each for path in paths for each in (discovery.answer(path, kinds) or {})["resources"]}
    assert {kind.plural for kind in kinds} <= set(found)
    assert (found["runnerpools"]["shortNames"], found["pods"]["shortNames"]) == (["rpool"], ["po"])


@pytest.mark.parametrize("path", ["/apis/unknown", "/apis/ostler.dev/v2", "/apis/ostler.dev/v1alpha1/more", "/metrics"])
def test_discovery_does_not_answer_other_paths(path: str) -> None:
    assert discovery.answer(path, [*BUILT_IN, POOL_KIND]) is None


def test_table_of_pods_counts_ready_containers_and_restarts(objects: Objects) -> None:
    objects.create(POD, "n", {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "a"}]}})
    status = {"phase": "Succeeded", "containerStatuses": [{"ready": True, "restartCount": 2, "state": {"running": {}}}]}
    objects.change(POD, "n", "p", lambda content: content | {"status": status}, status=True)
    assert cells(objects, POD) == [["p", "1/1", "Completed", "2", "0s", None, None]]


def test_table_of_a_custom_kind_has_the_columns_of_its_definition(objects: Objects) -> None:
    ready = {"type": "Ready", "status": "True"}
    pool = {"spec": {"replicas": 3, "runnerLabels": ["a"], "image": "i"}, "status": {"warm": 2, "conditions": [ready]}}
    metadata = {"name": "p", "namespace": "n", "creationTimestamp": "2025-11-28T20:00:00Z"}
    objects.store.put(POOL_KIND, {"metadata": metadata, **pool})
    ((*row, old),) = cells(objects, POOL_KIND)
    assert row == ["p", 3, 2, None, "True", '["a"]', None, "i"]
    assert old.endswith("d")


@pytest.mark.parametrize(("seconds", "text"), [(-1, "0s"), (59, "59s"), (5400, "1h"), (200_000, "2d")])
def test_age_in_a_table_has_one_unit(seconds: int, text: str) -> None:
    now = datetime(2026, 11, 28, tzinfo=UTC)
    assert tables.age(now - timedelta(seconds=seconds), now=now) == text
