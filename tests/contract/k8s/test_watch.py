"""Watches of runner Pods and Leases, on both API servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from k8s_adapters.calls.client import KubeClient, make_client, object_path
from k8s_adapters.cluster.leases import create_lease, read_lease, write_lease
from k8s_adapters.cluster.watching import Event, PodWatch, WatchBroken, WatchExpired
from k8s_adapters.runners.pods import list_pods_at
from lab.control_plane import ClusterAccess
from lab.faults import Fault, FaultProxy
from rules.claims.pod_view import PodView
from rules.upstream.retry import ONCE
from tests.contract.k8s.transport import MakeRunner

WATCHES = r"/api/v1/namespaces/[^/]+/pods\?watch=1.*"


@pytest.fixture
def through(control_plane: ClusterAccess) -> Iterator[tuple[KubeClient, FaultProxy]]:
    """A client behind a proxy that injects faults on demand."""
    with (
        FaultProxy(control_plane.url, ca_file=control_plane.ca_file) as proxy,
        closing(make_client(kubeconfig=str(proxy.kubeconfig(control_plane.kubeconfig)))) as client,
    ):
        yield client, proxy


def delete(client: KubeClient, namespace: str, name: str) -> None:
    client.request("DELETE", object_path("pods", namespace=namespace, name=name), body={"gracePeriodSeconds": 0})


def story(events: list[Event[PodView]]) -> list[tuple[str, str]]:
    """Return the kind and the name of each event, without the events of deletions that have only begun."""
    return [
        (event.kind, event.item.name)
        for event in events
        if event.item is not None and not (event.kind == "MODIFIED" and event.item.terminating)
    ]


def test_watch_reports_what_followed_a_list_and_ends_when_the_server_says_so(
    admin: KubeClient, namespace: str, make_runner: MakeRunner
) -> None:
    make_runner("pool-0000000a")
    listed, since = list_pods_at(admin, namespace=namespace)
    made = make_runner("pool-0000000b")
    delete(admin, namespace, "pool-0000000a")
    # Not of a pool: no event of it comes.
    spec = {"containers": [{"name": "c", "image": "i"}], "serviceAccountName": "pool-0000000b"}
    body = {"metadata": {"name": "other"}, "spec": spec}
    admin.request("POST", object_path("pods", namespace=namespace), body=body)

    with PodWatch(admin, namespace=namespace, since=since, seconds=3) as watch:
        events = list(watch.events())

    assert [pod.name for pod in listed] == ["pool-0000000a"]
    assert story(events) == [("ADDED", "pool-0000000b"), ("DELETED", "pool-0000000a")]
    (added,) = [event.item for event in events if event.item is not None and event.kind == "ADDED"]
    assert added.uid == made.uid
    with PodWatch(admin, namespace=namespace, since=events[-1].version, seconds=1) as again:
        assert story(list(again.events())) == []


def test_a_watch_can_be_ended_from_another_thread_while_nothing_happens(admin: KubeClient, namespace: str) -> None:
    _, since = list_pods_at(admin, namespace=namespace)
    with PodWatch(admin, namespace=namespace, since=since, seconds=120) as watch:
        reading = threading.Thread(target=lambda: list(watch.events()))
        reading.start()
        watch.stop()
        reading.join(20)
        assert not reading.is_alive()


def test_what_the_real_server_says_of_a_version_it_has_forgotten_is_understood(
    real_control_plane: ClusterAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its cache of Pods goes back to its start. That of our own kind began later, and says the same in the same way.
    pools = "/apis/ostler.dev/v1alpha1/runnerpools"
    monkeypatch.setattr("k8s_adapters.cluster.watching.object_path", lambda *_, **__: pools)
    with (
        closing(make_client(kubeconfig=str(real_control_plane.kubeconfig))) as client,
        PodWatch(client, namespace="default", since="1", seconds=5) as watch,
        pytest.raises(WatchExpired) as error,
    ):
        list(watch.events())
    assert error.value.status == 410


def test_a_410_before_the_watch_is_expired_too(through: tuple[KubeClient, FaultProxy], namespace: str) -> None:
    client, proxy = through
    proxy.add(Fault(kind="status", status=410, path_regex=WATCHES))
    with pytest.raises(WatchExpired):
        PodWatch(client, namespace=namespace, since="1", seconds=5)


def test_an_event_that_is_cut_short_is_not_half_believed(
    through: tuple[KubeClient, FaultProxy], admin: KubeClient, namespace: str, make_runner: MakeRunner
) -> None:
    client, proxy = through
    _, since = list_pods_at(admin, namespace=namespace)
    make_runner()
    proxy.add(Fault(kind="truncate", path_regex=WATCHES))
    with PodWatch(client, namespace=namespace, since=since, seconds=5) as watch, pytest.raises(WatchBroken):
        list(watch.events())


def test_of_two_that_read_the_same_lease_one_takes_it(admin: KubeClient, namespace: str) -> None:
    where = {"namespace": namespace, "name": "ostler-watch"}
    assert read_lease(admin, **where, policy=ONCE) is None
    made = create_lease(admin, **where, holder="a", duration=10, policy=ONCE)
    assert made is not None
    assert create_lease(admin, **where, holder="b", duration=10, policy=ONCE) is None

    taken = write_lease(admin, **where, seen=made, holder="b", duration=20, policy=ONCE)
    assert taken is not None
    assert write_lease(admin, **where, seen=made, holder="a", duration=10, policy=ONCE) is None

    assert (taken.holder, taken.duration, taken.transitions) == ("b", 20, 1)
    assert read_lease(admin, **where, policy=ONCE) == taken
    given_back = write_lease(admin, **where, seen=taken, holder="", duration=20, policy=ONCE)
    assert given_back is not None
    assert (given_back.holder, given_back.transitions) == ("", 1)
