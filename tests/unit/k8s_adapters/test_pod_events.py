"""Events about a Pod in the answers of API servers: only Events of this Pod are used, and no invalid ones."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from k8s_adapters.calls.client import Json, KubeClient
from k8s_adapters.runners.pod_events import MOST, list_pod_events
from rules.claims.pod_events import LONGEST_NOTE, LONGEST_WORD, PodEvent

AT = datetime(2026, 11, 23, 12, 3, 4, tzinfo=UTC)


class Server:
    """A server that gives the answers of the test, and records the requests."""

    def __init__(self, answer: Json) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str, Any]] = []

    def request(self, method: str, path: str, *, query: Any, policy: Any) -> Json:
        del policy
        self.asked.append((method, path, query))
        return self.answer


def read(*items: Any) -> list[PodEvent]:
    server = Server({"items": list(items)})
    return list_pod_events(cast("KubeClient", server), namespace="n", name="small-1", uid="u-1")


def event(**more: Any) -> Json:
    about = {"kind": "Pod", "namespace": "n", "name": "small-1", "uid": "u-1"}
    return {"regarding": about, "reason": "Evicted", "reportingController": "kubelet", "note": "why"} | more


def test_one_bounded_list_selects_by_the_name_of_the_pod() -> None:
    server = Server({"items": []})
    list_pod_events(cast("KubeClient", server), namespace="n", name="small-1", uid="u-1")
    query = {"fieldSelector": "regarding.kind=Pod,regarding.name=small-1", "limit": MOST}
    assert server.asked == [("GET", "/apis/events.k8s.io/v1/namespaces/n/events", query)]


def test_event_of_a_namesake_is_left_out_and_one_without_a_uid_is_not() -> None:
    found = read(
        event(regarding={"uid": "u-0"}), event(regarding={"name": "small-1"}, reason="TaintManagerEviction"), event()
    )
    assert [each.reason for each in found] == ["TaintManagerEviction", "Evicted"]


def test_event_of_the_older_api_names_its_component_in_another_place() -> None:
    (found,) = read(event(reportingController="", deprecatedSource={"component": "taint-eviction-controller"}))
    assert found.component == "taint-eviction-controller"
    (found,) = read(event(reportingController=""))
    assert found.component == "an unnamed component"


@pytest.mark.parametrize(
    "when",
    [
        {"eventTime": "2026-11-23T12:03:04.000000Z"},
        {"eventTime": None, "deprecatedLastTimestamp": "2026-11-23T12:03:04Z"},
        {"eventTime": "2026-11-23T11:00:00Z", "series": {"lastObservedTime": "2026-11-23T12:03:04.000000Z"}},
        {"eventTime": "soon", "metadata": {"creationTimestamp": "2026-11-23T12:03:04Z"}},
    ],
)
def test_time_is_when_it_happened_last(when: Json) -> None:
    assert read(event(**when)) == [PodEvent("Evicted", "kubelet", "why", at=AT)]


def test_words_of_others_are_cleaned_and_cut() -> None:
    (found,) = read(event(note="a\x1b\n" + "n" * 999, reason="R" * 999, reportingController="c\x00" * 999))
    assert (len(found.note), len(found.reason), len(found.component)) == (LONGEST_NOTE, LONGEST_WORD, LONGEST_WORD)
    assert (found.note + found.component).isprintable()


def test_nonsense_is_left_out() -> None:
    nonsense: tuple[Any, ...] = (None, 7, [], {}, event(reason=None), event(reason="\x00"), event(regarding=None))
    odd = event(note=7, action=[], series=3, metadata="x", eventTime=4, deprecatedSource="y")
    assert read(*nonsense, odd) == [PodEvent("Evicted", "kubelet", "")]
    assert list_pod_events(cast("KubeClient", Server({"items": None})), namespace="n", name="p", uid="u") == []
