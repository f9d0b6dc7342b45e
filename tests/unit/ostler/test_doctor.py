"""Every check of `ostler doctor`, passing and failing, on the data that it would read."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli import doctor
from cli.doctor import (
    certificate,
    cluster,
    fleet,
    github,
    installation,
    network,
    postgres,
    redis,
    runner,
    runners,
    strangers,
)
from cli.doctor.checks import CHECKS
from cli.doctor.context import Rows
from cli.doctor.findings import Check, Finding, Outcome, Verdict, ok, unknown
from cli.doctor.runner import is_bad, run
from deploys.addresses import PRIVATE_V4
from github_adapters import permissions
from github_adapters.endpoints.app import AppInstallation, AppSeen
from github_adapters.endpoints.deliveries import DeliveryPage, DeliverySeen
from k8s_adapters.cluster.admission import PolicyAnswer
from models.browse.health import Server
from models.browse.sweeps import SweepSeen
from models.db.epochs import Lost
from models.upstream.backoffs import Standing
from ostler.clock import utcnow
from ostler.errors import ConfigurationError, Forbidden, Gone, Retryable, StoreUnreachable
from ostler.timings import Timings
from rules.pools.pod_security import PodSecurity

NOW = datetime(2026, 11, 22, 10, tzinfo=UTC)
SERVER = Server(
    version="18.1", most_connections=100, connections=20, isolation="read committed", standby=False, read_only=False
)
SWEEP = SweepSeen("resume", None, None, None, None, NOW, NOW, "done", None)
NEW_SWEEPS = (replace(SWEEP, began_at=None, succeeded_at=None),)
OLD_SWEEPS = (replace(SWEEP, began_at=NOW - timedelta(hours=1), succeeded_at=NOW - timedelta(hours=1)),)
ROWS = Rows(
    NOW,
    "0020",
    None,
    SERVER,
    last_tick=NOW,
    sweeps=(SWEEP,),
    web_beats=(NOW,),
    last_delivery=NOW,
    images={"small": "ghcr.io/actions/actions-runner:2.330.0"},
)
REDIS = {
    "redis_version": "7.2.4",
    "role": "master",
    "maxmemory_policy": "noeviction",
    "maxmemory": 100,
    "used_memory": 10,
    "lock": True,
    "heads": {"pools": None},
}
ACME = AppInstallation(
    id=1,
    login="acme",
    organization=True,
    suspended=False,
    permissions=permissions.ORGANIZATION,
    events=("workflow_job",),
)
SETTINGS = SimpleNamespace(
    connection_budget=41,
    namespace="runners",
    timings=Timings(),
    new_accounts="hold",
    sweeps_paused=(),
)


def paused_by(*sweeps: str) -> SimpleNamespace:
    """Return the settings with these names in `OSTLER_SWEEPS_PAUSED`."""
    return SimpleNamespace(**vars(SETTINGS) | {"sweeps_paused": sweeps})


class GitHub:
    """A GitHub that gives the answer of the test, or raises it."""

    def __init__(self, **says: Any) -> None:
        self.says = {
            "get_app": AppSeen(
                name="ostler", slug="ostler", organization=True, permissions={}, events=("workflow_job",)
            ),
            "clock_ahead": timedelta(seconds=1),
            "list_deliveries": listed((1, "a", 202)),
            "runner_ends": NOW + timedelta(days=90),
            "is_public": False,
        } | says

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def answer(**_: Any) -> Any:
            said = self.says[name]
            if isinstance(said, Exception):
                raise said
            return said

        return answer


class Kube:
    """A cluster with an answer for each path, or an error."""

    server = "kube.example:6443"

    def __init__(self, **says: Any) -> None:
        self.says = says

    def request(self, method: str, path: str, **_: Any) -> Any:
        for part, said in self.says.items():
            if part in path:
                if isinstance(said, Exception):
                    raise said
                return said
        raise Gone(f"{method} {path}")


class Context:
    """The data of the checks, as the test sets them. A value that is an exception is raised."""

    def __init__(self, **seen: Any) -> None:
        self._seen = {
            "rows": ROWS,
            "redis_info": REDIS,
            "github": GitHub(),
            "installations": [ACME],
            "settings": SETTINGS,
            "app": SimpleNamespace(github_api_url="https://api.github.com", check_runs_after=0),
            "place": SimpleNamespace(namespace="runners", namespaces=("runners",)),
            "lab_cluster": False,
            "lab_github": False,
        } | seen

    def __getattr__(self, name: str) -> Any:
        found = self._seen[name]
        if isinstance(found, Exception):
            raise found
        return found


def levelled(level: str = "restricted", *, forks: int = 0) -> Callable[[], list[Any]]:
    """Return a function that lists one pool of this level.

    With `forks` 1 its spec has `allow_forks`, and with 2 also the field for higher levels.
    """
    pool = SimpleNamespace(
        name="small", pod_security=PodSecurity(level), allow_forks=forks > 0, elevated_forks=forks > 1
    )
    return lambda: [pool]


def listed(*deliveries: tuple[int, str, int]) -> DeliveryPage:
    found = tuple(
        DeliverySeen(
            id=number,
            guid=guid,
            delivered_at=NOW,
            accepted=200 <= status < 300,
            event="workflow_job",
            action="queued",
            status_code=status,
        )
        for number, guid, status in deliveries
    )
    return DeliveryPage(deliveries=found, next_cursor=None, malformed=0)


def rows(**changes: Any) -> Rows:
    return replace(ROWS, **changes)


def server(**changes: Any) -> Rows:
    return rows(server=replace(SERVER, **changes))


def installed(**changes: Any) -> list[AppInstallation]:
    return [replace(ACME, **changes)]


IP_LIST = Standing("runner_group", "5/2", NOW, "GitHub answers 403: IP allow list", refused=True)

OK, BAD, WARN, DUNNO = Outcome.OK, Outcome.FAILED, Outcome.WARNING, Outcome.UNKNOWN
AWAY = StoreUnreachable("refused")
CASES: list[tuple[Callable[..., Verdict], dict[str, Any], Outcome, str]] = [
    (postgres.epoch, {"rows": rows(epoch=None)}, DUNNO, "migrate"),
    (postgres.postgres, {}, OK, "18.1"),
    (postgres.postgres, {"rows": AWAY}, BAD, "refused"),
    (postgres.postgres, {"rows": server(standby=True)}, BAD, "standby"),
    (postgres.postgres, {"rows": server(read_only=True)}, BAD, "refuses writes"),
    (postgres.postgres, {"rows": server(isolation="serializable")}, BAD, "serializable"),
    (postgres.postgres, {"rows": server(version="13.2")}, WARN, "13.2"),
    (postgres.postgres, {"rows": ConfigurationError("OSTLER_DATABASE_URL: it is not set")}, BAD, "DATABASE_URL"),
    (postgres.clock_of_postgres, {}, OK, "agree"),
    (postgres.clock_of_postgres, {"rows": rows(clock_ahead=-2.5)}, WARN, "2.5 s behind"),
    (postgres.clock_of_postgres, {"rows": rows(clock_ahead=5.0)}, BAD, "5.0 s ahead"),
    (postgres.connections, {}, OK, "budget is 41"),
    (postgres.connections, {"rows": server(most_connections=50)}, BAD, "refuse"),
    (postgres.connections, {"rows": server(connections=95)}, WARN, "95"),
    (postgres.revision, {}, OK, "0020"),
    (postgres.revision, {"rows": rows(revision="0001", needed="0020")}, BAD, "needs 0020"),
    (redis.redis, {}, OK, "7.2.4"),
    (redis.redis, {"redis_info": AWAY}, BAD, "refused"),
    (redis.redis, {"redis_info": ConfigurationError("OSTLER_REDIS_URL: it is not set")}, BAD, "REDIS_URL"),
    (redis.redis, {"redis_info": REDIS | {"role": "slave"}}, BAD, "replica"),
    (redis.redis, {"redis_info": REDIS | {"redis_version": "5.0.1"}}, WARN, "5.0.1"),
    (redis.options, {}, OK, "noeviction"),
    (redis.options, {"redis_info": REDIS | {"maxmemory_policy": "allkeys-lru"}}, BAD, "allkeys-lru"),
    (redis.options, {"redis_info": REDIS | {"used_memory": 90}}, WARN, "used"),
    (installation.versions, {}, OK, "Python"),
    (installation.settings, {"settings": ConfigurationError("OSTLER_REDIS_URL: it is not set")}, BAD, "REDIS_URL"),
    (github.way, {}, OK, "api.github.com:443 is reached directly, trusting the system's certificate authorities"),
    (github.way, {"github": GitHub(get_app=Retryable("GitHub at x did not answer"))}, BAD, "at x did not answer"),
    (github.way, {"github": GitHub(get_app=Forbidden("401"))}, OK, "api.github.com:443"),
    (github.way, {"github": ConfigurationError("HTTPS_PROXY: found a value")}, BAD, "HTTPS_PROXY"),
    (github.app, {}, OK, "ostler"),
    (github.app, {"github": GitHub(get_app=Forbidden("401"))}, BAD, "id and key"),
    (github.app, {"github": GitHub(get_app=Retryable("down"))}, BAD, "does not answer"),
    (github.app, {"github": ConfigurationError("OSTLER_GITHUB_APP_ID: it is not set")}, BAD, "APP_ID"),
    (github.clock, {}, OK, "1 s ahead"),
    (github.clock, {"github": GitHub(clock_ahead=timedelta(seconds=61))}, BAD, "61 s ahead"),
    (github.clock, {"github": GitHub(clock_ahead=timedelta(seconds=-301))}, BAD, "301 s behind"),
    (github.clock, {"github": GitHub(clock_ahead=timedelta(seconds=-40))}, WARN, "40 s behind"),
    (github.clock, {"github": GitHub(clock_ahead=None)}, DUNNO, "no date"),
    (github.permissions, {}, OK, "acme"),
    (github.permissions, {"installations": []}, BAD, "not installed anywhere"),
    (github.permissions, {"installations": installed(permissions={"metadata": "read"})}, BAD, "acme lacks actions"),
    (github.permissions, {"installations": installed(suspended=True)}, WARN, "suspended"),
    (github.permissions, {"app": SimpleNamespace(check_runs_after=300)}, BAD, "acme lacks checks: write"),
    (
        github.permissions,
        {"installations": installed(permissions={**permissions.ORGANIZATION, "contents": "read"})},
        WARN,
        "contents: read",
    ),
    (cluster.unread_namespaces, {"rows": rows(pools=(("runners", "small"),))}, OK, "is in runners"),
    (cluster.unread_namespaces, {"rows": rows(pools=())}, OK, "no pool"),
    (cluster.unread_namespaces, {"rows": rows(pools=(("runners", "a"), ("up", "b")))}, BAD, "up: b. Their jobs"),
    (cluster.unread_namespaces, {"rows": rows(pools=(("up", "big"),))}, BAD, "OSTLER_ELEVATED_NAMESPACE to up"),
    (cluster.unread_namespaces, {"rows": rows(pools=(("a", "p"), ("b", "q")))}, BAD, "a: p; b: q"),
    (cluster.unread_namespaces, {"rows": rows(needed="0020", pools=())}, DUNNO, "migrate"),
    (cluster.pod_security, {"pools": levelled()}, OK, "every pool"),
    (cluster.pod_security, {"pools": levelled("baseline")}, OK, "small (baseline)"),
    (cluster.pod_security, {"pools": levelled("privileged", forks=1)}, OK, "small (privileged)"),
    (cluster.pod_security, {"pools": levelled("privileged", forks=2)}, WARN, "jobs of forks: small"),
    (strangers.strangers, {}, OK, "private"),
    (strangers.strangers, {"github": GitHub(is_public=None)}, DUNNO, "does not say"),
    (
        github.permissions,
        {
            "installations": [
                replace(ACME, permissions={**permissions.ORGANIZATION, **permissions.USER}),
                replace(
                    ACME, login="ann", organization=False, permissions={**permissions.ORGANIZATION, **permissions.USER}
                ),
            ]
        },
        OK,
        "at acme, ann",
    ),
    (github.events, {}, OK, "workflow_job"),
    (github.events, {"github": GitHub(get_app=SimpleNamespace(events=("push",)))}, BAD, "workflow_job"),
    (github.deliveries, {}, OK, "accepted"),
    (github.deliveries, {"github": GitHub(list_deliveries=listed((2, "a", 401)))}, BAD, "webhook secret"),
    (github.deliveries, {"github": GitHub(list_deliveries=listed((3, "b", 202), (2, "a", 503)))}, WARN, "1 of"),
    (github.deliveries, {"github": GitHub(list_deliveries=listed((3, "a", 202), (2, "a", 503)))}, OK, "accepted"),
    (github.deliveries, {"github": GitHub(list_deliveries=listed())}, WARN, "no webhook"),
    (runners.runner_version, {}, OK, "2.330.0 until"),
    (runners.runner_version, {"github": GitHub(runner_ends=NOW - timedelta(days=1))}, BAD, "refuse"),
    (runners.runner_version, {"github": GitHub(runner_ends=NOW + timedelta(days=3))}, WARN, "soon"),
    (runners.runner_version, {"github": GitHub(runner_ends=None)}, DUNNO, "does not say"),
    (runners.runner_version, {"github": GitHub(runner_ends=None), "lab_github": True}, OK, "the lab's GitHub"),
    (runners.runner_version, {"rows": rows(images={"p": "registry.example/ci:7"})}, DUNNO, "have no version"),
    (runners.runner_version, {"rows": rows(images={})}, OK, "no pool"),
    (runners.unused_runners, {}, OK, "had a job"),
    (runners.unused_runners, {"rows": rows(unused_runners=[("sim", 2), ("x", 1)])}, WARN, "job: sim (2), x (1)"),
    (runners.runner_version, {"rows": rows(images={"p": "ci:7"}, versions={"p": "2.331.0"})}, OK, "2.331.0 until"),
    (runners.runner_version, {"rows": rows(versions={"small": "2.3.4", "gone": "1.0.0"})}, OK, "runner 2.3.4 until"),
    (runners.runner_version, {"installations": installed(organization=False)}, DUNNO, "organisation"),
    (github.mints, {}, OK, "refuses no request"),
    (github.mints, {"rows": rows(backoffs=(IP_LIST,))}, WARN, "installation id 5: GitHub answers 403: IP allow list"),
    (github.mints, {"rows": rows(backoffs=(IP_LIST, IP_LIST, IP_LIST))}, WARN, "; 2 more"),
    (github.mints, {"rows": rows(needed="0020")}, DUNNO, "do not fit"),
    (fleet.beats, {}, OK, "ago"),
    (fleet.beats, {"rows": rows(last_tick=None)}, BAD, "although a beat holds the lock in Redis"),
    (fleet.beats, {"rows": rows(last_tick=None), "redis_info": REDIS | {"lock": False}}, BAD, "no beat"),
    (fleet.beats, {"rows": rows(last_tick=None), "redis_info": AWAY}, BAD, "Redis is not configured or did not answer"),
    (fleet.messages, {}, OK, "0 s"),
    (fleet.messages, {"redis_info": REDIS | {"heads": {"pools": utcnow() - timedelta(seconds=90)}}}, BAD, "pools: "),
    (fleet.web, {}, OK, "1 web process sends heartbeats"),
    (fleet.web, {"rows": rows(web_beats=(NOW - timedelta(minutes=3),))}, BAD, "3m0s ago"),
    (fleet.web, {"rows": rows(web_beats=())}, BAD, "no web process"),
    (fleet.sweeps, {}, OK, "on time"),
    (fleet.sweeps, {"rows": rows(sweeps=())}, DUNNO, "lacks"),
    (fleet.sweeps, {"rows": rows(sweeps=(replace(SWEEP, began_at=None, succeeded_at=None),))}, DUNNO, "no sweep"),
    (fleet.sweeps, {"rows": rows(sweeps=OLD_SWEEPS)}, BAD, "resume"),
    (fleet.sweeps, {"rows": rows(sweeps=(replace(OLD_SWEEPS[0], succeeded_at=None),))}, BAD, "resume"),
    (fleet.sweeps, {"rows": rows(sweeps=OLD_SWEEPS, lost=Lost(None, NOW - timedelta(seconds=14)))}, OK, "on time"),
    (fleet.sweeps, {"rows": rows(sweeps=OLD_SWEEPS, lost=Lost(None, NOW - timedelta(seconds=16)))}, BAD, "resume"),
    (fleet.sweeps, {"rows": rows(sweeps=(replace(SWEEP, paused_at=NOW),))}, WARN, "paused: resume"),
    (fleet.sweeps, {"rows": rows(sweeps=OLD_SWEEPS), "settings": paused_by("resume")}, WARN, "paused: resume"),
    (fleet.sweeps, {"rows": rows(sweeps=OLD_SWEEPS), "settings": paused_by("all")}, WARN, "change the setting"),
    (fleet.sweeps, {"rows": rows(sweeps=OLD_SWEEPS), "settings": paused_by("prune")}, BAD, "resume"),
    (fleet.sweeps, {"rows": rows(sweeps=NEW_SWEEPS), "settings": paused_by("all")}, WARN, "paused: resume"),
    (fleet.webhooks, {}, OK, "accepted"),
    (fleet.webhooks, {"rows": rows(last_delivery=None)}, WARN, "ever"),
    (fleet.webhooks, {"rows": rows(last_delivery=NOW - timedelta(days=2))}, WARN, "2d"),
    (cluster.kubernetes, {"kube": Kube(version=Retryable("down"))}, BAD, "does not answer"),
    (cluster.kubernetes, {"kube": Kube(version=Forbidden("401"))}, BAD, "rejects our credentials"),
    (cluster.definition, {"kube": Kube()}, BAD, "has no"),
    (cluster.definition, {"kube": Kube(customresource=Forbidden("403"), runnerpools={})}, DUNNO, "not allowed to read"),
]


def policed(*excepted: str, **says: Any) -> dict[str, Any]:
    """Return a cluster with a policy of runner Pods, two addresses of the API server and one node."""
    blocks = [{"cidr": "0.0.0.0/0", "except": list(excepted)}]
    spec = {
        "podSelector": {"matchExpressions": [{"key": "ostler.dev/pool", "operator": "Exists"}]},
        "policyTypes": ["Egress"],
        "egress": [{"to": [{"ipBlock": each} for each in blocks]}],
    }
    policy = {"metadata": {"name": "runners-base", "namespace": "runners"}, "spec": spec}
    slices = {"items": [{"endpoints": [{"addresses": ["35.1.1.1"]}]}]}
    addresses = [{"type": "ExternalIP", "address": "35.1.1.2"}, {"type": "Hostname", "address": "a"}]
    nodes = {"items": [{"metadata": {"name": "a"}, "status": {"addresses": addresses}}]}
    kube = Kube(**{"networkpolicies": {"items": [policy]}, "endpointslices": slices, "nodes": nodes} | says)
    kube.host = "https://35.1.1.0:6443"  # type: ignore[attr-defined]
    return {"kube": kube}


OWN = ("35.1.1.0/30", *PRIVATE_V4)
NETWORK = [
    (policed(*OWN), OK, "any of the cluster's 3 addresses"),
    (policed(*PRIVATE_V4), WARN, "jobs can reach 35.1.1.0 (the API server), 35.1.1.1 (the API server), 35.1.1.2 (node"),
    (policed("35.1.1.0/31", *PRIVATE_V4), WARN, "clusterAddresses"),
    (policed("35.1.1.0/30", *PRIVATE_V4[1:]), WARN, "private addresses: 0.0.0.0/8"),
    (policed(networkpolicies={"items": []}), WARN, "no NetworkPolicy"),
    (policed(networkpolicies=Gone("404")), OK, "this API server has no NetworkPolicies"),
    (policed(networkpolicies=Forbidden("403")), DUNNO, "not allowed to read NetworkPolicies"),
    (policed(*OWN, endpointslices=Forbidden("403")), DUNNO, "not allowed to read endpoint slices"),
]


@pytest.mark.parametrize(("seen", "outcome", "says"), NETWORK)
def test_job_network_names_the_addresses_that_jobs_reach(seen: dict[str, Any], outcome: Outcome, says: str) -> None:
    found = network.job_network(Context(**seen))  # type: ignore[arg-type]
    assert found.outcome is outcome, found
    assert says in f"{found.cause} {found.cure}"


@pytest.mark.parametrize(("check", "seen", "outcome", "says"), CASES)
def test_a_check_says_what_is(check: Callable[..., Verdict], seen: dict[str, Any], outcome: Outcome, says: str) -> None:
    found = check(Context(**seen))
    assert found.outcome is outcome, found
    assert says in f"{found.cause} {found.cure}"
    assert found.cure or outcome in {OK, DUNNO}, "what is not well has a cure"


def test_every_check_was_seen_failing_here_or_against_the_real_thing() -> None:
    seen = {check for check, _, outcome, _ in CASES if outcome is not OK}
    elsewhere = {cluster.rights, cluster.admission, cluster.pools}  # tests/integration/cli/test_doctor.py
    elsewhere |= {network.job_network}  # above
    elsewhere |= {certificate.certificate}  # test_doctor_certificate.py
    elsewhere |= {cluster.pod_creation}  # below, and tests/contract/chart/test_creation_policy.py
    elsewhere |= {cluster.role_creation, cluster.hook_pods}  # below, and tests/contract/chart/test_hook_rights.py
    assert {check.run for check in CHECKS} - seen - elsewhere == {installation.versions}


def test_a_definition_of_another_version_is_told_by_what_differs() -> None:
    ours = {"a": [{"b": 1, "c": {"d": "x"}}], "list": [], "off": False}
    assert cluster.lacks(ours, {"a": [{"b": 1, "c": {"d": "x"}, "server": 7}]}, "v") == []
    assert cluster.lacks(ours, {"a": [{"b": 2, "c": {"d": "x"}}]}, "v") == ["v.a[0].b"]
    assert cluster.lacks(ours, {"a": [{"b": 1}]}, "v") == ["v.a[0].c"]
    assert cluster.lacks(ours, {"a": []}, "v") == ["v.a"]


@pytest.mark.parametrize(("refused", "outcome"), [(True, OK), (False, BAD), (None, DUNNO)])
def test_policy_check_fails_when_the_collector_passes_and_is_unknown_when_untried(
    monkeypatch: pytest.MonkeyPatch, refused: bool | None, outcome: Outcome
) -> None:
    answer = PolicyAnswer("what it said", refused=refused, cure="what to do")
    monkeypatch.setattr(cluster, "refuses_the_collector", lambda *_: answer)
    assert cluster.admission(Context(kube=None)).outcome is outcome  # type: ignore[arg-type]


@pytest.mark.parametrize(("refused", "outcome"), [(True, OK), (False, WARN), (None, DUNNO)])
def test_workers_that_may_create_any_pod_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, refused: bool | None, outcome: Outcome
) -> None:
    answer = PolicyAnswer("what it said", refused=refused, cure="what to do")
    monkeypatch.setattr(cluster, "refuses_other_pods", lambda *_: answer)
    assert cluster.pod_creation(Context(kube=None)).outcome is outcome  # type: ignore[arg-type]


@pytest.mark.parametrize(("refused", "outcome"), [(True, OK), (False, BAD), (None, DUNNO)])
def test_workers_that_may_create_any_role_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, refused: bool | None, outcome: Outcome
) -> None:
    answer = PolicyAnswer("what it said", refused=refused, cure="what to do")
    monkeypatch.setattr(cluster, "refuses_other_roles", lambda *_: answer)
    assert cluster.role_creation(Context(kube=None)).outcome is outcome  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("left", "outcome", "says"), [((), OK, "no hook Pod"), ("abcdef", WARN, "a, b, c, d and 2 more")]
)
def test_hook_pods_without_a_runner_pod_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, left: str, outcome: Outcome, says: str
) -> None:
    monkeypatch.setattr(cluster, "find_left_over", lambda *_, **__: list(left))
    found = cluster.hook_pods(Context(kube=None))  # type: ignore[arg-type]
    assert (found.outcome, says in found.cause) == (outcome, True), found


# How they run


def test_the_families_of_the_help_are_those_of_the_checks() -> None:
    assert set(doctor.FAMILIES) == {check.family for check in CHECKS}


@pytest.mark.parametrize("path", sorted(Path(runner.__file__).parent.glob("[!_]*.py")), ids=lambda path: path.name)
def test_no_check_imports_while_others_run(path: Path) -> None:
    functions = [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.FunctionDef)]
    found = [
        each for function in functions for each in ast.walk(function) if isinstance(each, ast.Import | ast.ImportFrom)
    ]
    assert not found, "an import that waits for another thread's may be given a module that is half made"


def check(name: str, look: Callable[..., Verdict], within: float = 5) -> Check:
    return Check(name, "test", look, within)


def test_one_that_hangs_or_breaks_stops_no_other_and_all_of_it_ends() -> None:
    never = threading.Event()

    def hangs(_: object) -> Verdict:
        never.wait(60)
        return ok("too late")

    def breaks(_: object) -> Verdict:
        raise ZeroDivisionError("a secret")

    def lacks_settings(_: object) -> Verdict:
        raise ConfigurationError("OSTLER_GITHUB_APP_ID: it is not set")

    began = time.monotonic()
    found = run(
        [
            check("hangs", hangs, 0.5),
            check("breaks", breaks),
            check("lacks", lacks_settings),
            check("fine", lambda _: ok("well")),
        ],
        Context(),  # type: ignore[arg-type]
    )
    never.set()
    assert time.monotonic() - began < 30
    assert [(each.name, each.outcome) for each in found] == [
        ("hangs", DUNNO),
        ("breaks", DUNNO),
        ("lacks", DUNNO),
        ("fine", OK),
    ]
    assert "ZeroDivisionError at test_doctor.py:" in found[1].cause, "where it broke"
    assert "secret" not in found[1].cause
    assert "OSTLER_GITHUB_APP_ID" in found[2].cause


@pytest.mark.parametrize(
    ("outcome", "bad", "strictly"), [(OK, False, False), (WARN, False, True), (DUNNO, False, True), (BAD, True, True)]
)
def test_the_exit_status_tells_what_failed(outcome: Outcome, bad: bool, strictly: bool) -> None:
    checks = [check("c", lambda _: replace(unknown("x"), outcome=outcome)), check("fine", lambda _: ok("well"))]
    found = run(checks, Context())  # type: ignore[arg-type]
    assert (is_bad(found, strict=False), is_bad(found, strict=True)) == (bad, strictly)


@pytest.mark.parametrize(
    ("new_accounts", "allowed", "outcome", "told"),
    [("serve", (), BAD, "small"), ("serve", (1,), OK, "names the accounts"), ("hold", (), WARN, "account allow")],
)
def test_a_public_app_with_open_pools_fails_where_new_accounts_are_served(
    new_accounts: str, allowed: tuple[int, ...], outcome: Outcome, told: str
) -> None:
    pools = [
        SimpleNamespace(name="small", allowed_accounts=allowed),
        SimpleNamespace(name="own", allowed_accounts=(1,)),
    ]
    settings = SimpleNamespace(new_accounts=new_accounts)
    context = Context(github=GitHub(is_public=True), settings=settings, pools=lambda: pools)

    found = strangers.strangers(context)  # type: ignore[arg-type]

    assert found.outcome is outcome
    assert told in f"{found.cause} {found.cure}"


def test_exit_status_is_bad_when_nothing_could_be_checked() -> None:
    found = run([check("one", lambda _: unknown("x")), check("two", lambda _: unknown("x"))], Context())  # type: ignore[arg-type]
    assert is_bad(found, strict=False)


def test_check_whose_setting_is_missing_names_the_variable_and_no_bug() -> None:
    def lacks(_: object) -> Verdict:
        raise ConfigurationError("OSTLER_A: it is not set; x\nOSTLER_B: it is not set; y")

    (found,) = run([check("lacks", lacks)], Context())  # type: ignore[arg-type]
    assert (found.cause, found.cure) == ("not checked: OSTLER_A, OSTLER_B", "correct the failed checks first")


def test_doctor_names_the_proxy_and_the_authorities_without_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://ann:hunter2@proxy.corp:3128")
    monkeypatch.setenv("OSTLER_CA_BUNDLE", "/etc/ca.pem")
    found = github.way(Context())  # type: ignore[arg-type]
    assert (found.outcome, "hunter2" in found.cause) == (OK, False)
    assert "by the proxy proxy.corp:3128 (HTTPS_PROXY)" in found.cause
    assert "/etc/ca.pem (OSTLER_CA_BUNDLE)" in found.cause


def test_problems_are_printed_first_and_healthy_checks_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    found = [
        Finding("postgres", "postgres", Outcome.OK, "it answers"),
        Finding("redis", "redis", Outcome.UNKNOWN, "not checked", "correct the failed checks first"),
        Finding("beat", "fleet", Outcome.WARNING, "no tick for 90 s", "start beat"),
        Finding("web", "fleet", Outcome.FAILED, "no web process has sent a heartbeat " * 2, "start a web process"),
        Finding("clock", "fleet", Outcome.OK, "it is right"),
    ]
    doctor._print_problems(found)
    assert capsys.readouterr().out.splitlines() == [
        "failed   web: no web process has sent a heartbeat no web",
        "         process has sent a heartbeat",
        "         → start a web process",
        "warning  beat: no tick for 90 s",
        "         → start beat",
        "unknown  redis: not checked",
        "         → correct the failed checks first",
        "ok       postgres, clock",
        "2 ok, 1 warning, 1 failed, 1 unknown; --wide shows each check",
    ]
