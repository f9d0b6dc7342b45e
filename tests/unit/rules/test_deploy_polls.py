"""Idle Pods poll the address of their creation, and a deploy must continue to serve it."""

from __future__ import annotations

from typing import Any

import pytest

from deploys.deploy_plan import Deploy, judge
from deploys.deploy_polls import judge_polls
from deploys.deploys import Danger
from deploys.manifests import Manifests, read_manifests

OLD = "http://ostler-web.ostler.svc/runners/v1/dispatch"
NEW = "http://ostler-web-polls.ostler.svc/runners/v1/dispatch"
LABELS = {"app": "web"}


def deployment(name: str, labels: dict[str, str], env: dict[str, str], ports: dict[str, int]) -> dict[str, Any]:
    container = {
        "name": name,
        "env": [{"name": key, "value": value} for key, value in env.items()],
        "ports": [{"name": key, "containerPort": value} for key, value in ports.items()],
    }
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"template": template},
    }


def service(name: str, target: str | int) -> dict[str, Any]:
    spec = {"selector": LABELS, "ports": [{"port": 80, "targetPort": target}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def release(address: str, *, public_polls: bool | None) -> Manifests:
    """Return a release. With None, it is from the time before polls had a separate port."""
    env, ports, services = {"OSTLER_WEB_PORT": "8080"}, {"http": 8080}, [service("ostler-web", "http")]
    if public_polls is not None:
        env |= {"OSTLER_WEB_POLLS_PORT": "8081", "OSTLER_WEB_PUBLIC_POLLS": str(public_polls).lower()}
        ports |= {"polls": 8081}
        services.append(service("ostler-web-polls", "polls"))
    web = deployment("web", LABELS, env, ports)
    worker = deployment("worker", {"app": "worker"}, {"OSTLER_DISPATCH_URL": address}, {})
    return read_manifests([web, worker, *services], namespace="ostler")


@pytest.mark.parametrize(
    ("before", "after", "stalls"),
    [
        (release(OLD, public_polls=None), release(NEW, public_polls=True), False),
        (release(OLD, public_polls=None), release(NEW, public_polls=False), True),
        (release(NEW, public_polls=True), release(NEW, public_polls=False), False),
        (release(OLD, public_polls=True), release(OLD, public_polls=False), True),
        (release(NEW, public_polls=True), release(OLD, public_polls=None), True),
        (release("https://ci.example/runners/v1/dispatch", public_polls=True), release(NEW, public_polls=False), False),
    ],
    ids=[
        "upgrade",
        "upgrade without the old port",
        "switched off later",
        "switched off too early",
        "rollback",
        "an address that no Service has",
    ],
)
def test_deploy_stalls_idle_pods_when_their_address_is_served_no_more(
    before: Manifests, after: Manifests, stalls: bool
) -> None:
    assert [each.danger for each in judge_polls(before, after)] == [Danger.IDLE_STRANDS] * stalls


SECURE = "https://ostler-web-polls.ostler.svc/runners/v1/dispatch"


def secured(address: str, *, tls: bool = True, plain: bool = True, signer: str = "1", trusts: str = "1") -> Manifests:
    """Return a release that serves polls by TLS, without TLS, or both."""
    env = {"OSTLER_WEB_PORT": "8080", "OSTLER_WEB_POLLS_PORT": "8081", "OSTLER_WEB_PLAIN_POLLS": str(plain).lower()}
    if tls:
        env |= {"OSTLER_WEB_POLLS_TLS_PORT": "8443", "OSTLER_WEB_POLLS_TLS_CERT": "/tls.crt"}
    polls = service("ostler-web-polls", "polls")
    polls["spec"]["ports"].append({"port": 443, "targetPort": "polls-tls"})
    worker = deployment("worker", {"app": "worker"}, {"OSTLER_DISPATCH_URL": address}, {})
    web = deployment("web", LABELS, env, {"http": 8080, "polls": 8081, "polls-tls": 8443})
    said = [("Secret", "tls", {"ostler.dev/signer": signer}), ("ConfigMap", "ca", {"ostler.dev/trusts": trusts})]
    marked = [
        {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "annotations": annotations}}
        for kind, name, annotations in said
    ]
    return read_manifests([web, worker, polls, *(marked if tls else [])], namespace="ostler")


@pytest.mark.parametrize(
    ("before", "after", "stalls"),
    [
        (release(NEW, public_polls=True), secured(SECURE), False),
        (release(NEW, public_polls=True), secured(SECURE, plain=False), True),
        (secured(SECURE), secured(SECURE, plain=False), False),
        (secured(SECURE), release(NEW, public_polls=True), True),
        (secured(SECURE), secured(NEW), False),
        (secured(SECURE), secured(NEW, tls=False), True),
        (secured(SECURE), secured(SECURE, trusts="1,2"), False),
        (secured(SECURE, trusts="1,2"), secured(SECURE, signer="2", trusts="1,2"), False),
        (secured(SECURE), secured(SECURE, signer="2", trusts="1,2"), True),
        (secured(SECURE, signer="2", trusts="2"), secured(SECURE), True),
    ],
    ids=[
        "to TLS",
        "to TLS alone",
        "plain off later",
        "back to a version without",
        "back with both",
        "back with plain alone",
        "a second CA",
        "signed by the second",
        "both at once",
        "two steps back",
    ],
)
def test_deploy_stalls_idle_pods_when_they_cannot_verify_or_reach_web_any_more(
    before: Manifests, after: Manifests, stalls: bool
) -> None:
    assert [each.danger for each in judge_polls(before, after)] == [Danger.IDLE_STRANDS] * stalls


def test_first_installation_stalls_nobody() -> None:
    assert list(judge_polls(None, release(NEW, public_polls=False))) == []


def test_check_of_a_deploy_names_the_address() -> None:
    verdict = judge(Deploy(old=release(OLD, public_polls=None), new=release(NEW, public_polls=False)))
    (found,) = (each for each in verdict.refusals if each.danger is Danger.IDLE_STRANDS)
    assert OLD in found.reason


def stalled(before: Manifests, after: Manifests) -> bool:
    return bool(list(judge_polls(before, after)))


def one(body: dict[str, Any], service_body: dict[str, Any], address: str, *more: dict[str, Any]) -> Manifests:
    worker = deployment("worker", {"app": "worker"}, {"OSTLER_DISPATCH_URL": address}, {})
    return read_manifests([body, service_body, worker, *more], namespace="ostler")


PLAIN = deployment("web", LABELS, {"OSTLER_WEB_PORT": "8080"}, {"http": 8080})
GONE = read_manifests([], namespace="ostler")


def test_an_address_is_followed_by_the_full_name_of_its_service() -> None:
    full = one(PLAIN, service("ostler-web", "http"), "http://ostler-web.ostler.svc.cluster.local/x")
    assert stalled(full, GONE)


def test_a_service_without_a_target_leads_to_its_own_port() -> None:
    bare = service("ostler-web", "http")
    bare["spec"]["ports"] = [{"port": 8080}]
    assert stalled(one(PLAIN, bare, "http://ostler-web.ostler.svc:8080/x"), GONE)
    assert not stalled(one(PLAIN, bare, "http://ostler-web.ostler.svc/x"), GONE)


@pytest.mark.parametrize(("kind", "serves"), [("Deployment", True), ("StatefulSet", True), ("Job", False)])
def test_polls_are_served_by_pods_that_stay(kind: str, *, serves: bool) -> None:
    assert stalled(one(PLAIN | {"kind": kind}, service("ostler-web", "http"), OLD), GONE) is serves


def test_pods_of_another_namespace_or_of_no_selector_serve_nothing() -> None:
    elsewhere = PLAIN | {"metadata": {"name": "web", "namespace": "other"}}
    assert not stalled(one(elsewhere, service("ostler-web", "http"), OLD), GONE)
    selects_nothing = service("ostler-web", "http")
    selects_nothing["spec"]["selector"] = {}
    assert not stalled(one(PLAIN, selects_nothing, OLD), GONE)


def test_tls_without_a_certificate_serves_nothing() -> None:
    polls = service("ostler-web-polls", "polls")
    polls["spec"]["ports"] = [{"port": 443, "targetPort": "tls"}]
    env = {"OSTLER_WEB_POLLS_TLS_PORT": "8443", "OSTLER_WEB_POLLS_TLS_CERT": "/tls.crt"}
    served = one(deployment("web", LABELS, env, {"tls": 8443}), polls, SECURE)
    assert stalled(served, GONE)
    assert not stalled(one(deployment("web", LABELS, env, {"tls": 8444}), polls, SECURE), GONE)
    del env["OSTLER_WEB_POLLS_TLS_CERT"]
    assert not stalled(one(deployment("web", LABELS, env, {"tls": 8443}), polls, SECURE), GONE)


def test_an_object_without_the_annotation_names_no_authority() -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other", "annotations": {"a": "b"}}}
    signed = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "tls", "annotations": {"ostler.dev/signer": "1"}},
    }
    assert not stalled(read_manifests([other], namespace="ostler"), read_manifests([other, signed], namespace="ostler"))
