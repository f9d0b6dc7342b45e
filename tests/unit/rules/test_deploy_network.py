"""The rule of deploys about network policies, for a release that is written in this file.

The tests of charts judge the manifests of Helm. These tests judge single policies.
"""

from __future__ import annotations

from typing import Any

import pytest

from deploys.addresses import PRIVATE_V4, block
from deploys.deploy_network import ANY_OTHER, ANY_WITH_CONTAINERS, NetworkVerdict, Question, Row, judge_network
from deploys.deploy_plan import Deploy, Live, judge
from deploys.deploys import Danger
from deploys.manifests import CONTAINERS_LABEL, HOOK_OF_LABEL, OWNER_LABEL, POOL_LABEL, Manifests, read_manifests
from deploys.selectors import Operator, Requirement, Selector

Json = dict[str, Any]

RUNNERS = frozenset({"runners"})
IS_RUNNER = {"key": POOL_LABEL, "operator": "Exists"}
IS_IDLE = {"key": OWNER_LABEL, "operator": "DoesNotExist"}
WEB_LABELS = {"app.kubernetes.io/component": "web"}
TO_WEB = {
    "to": [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ostler"}},
            "podSelector": {"matchLabels": WEB_LABELS},
        }
    ],
    "ports": [{"port": 8080}],
}
OF_DNS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
TO_DNS = {
    "to": [OF_DNS],
    "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53}],
}
TO_PUBLIC = {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": list(PRIVATE_V4)}}]}


def policy(name: str, selected: list[Json], namespace: str = "runners", **spec: Any) -> Json:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"podSelector": {"matchExpressions": selected}, **spec},
    }


def base(*egress: Json, ingress: list[Json] | None = None, labels: dict[str, str] | None = None) -> Json:
    """Return the policy of all runner Pods."""
    made = policy(
        "base",
        [IS_RUNNER],
        policyTypes=["Ingress", "Egress"],
        ingress=ingress or [],
        egress=list(egress or (TO_DNS, TO_PUBLIC)),
    )
    made["metadata"]["labels"] = labels or {}
    return made


def idle(*egress: Json) -> Json:
    """Return the policy of runner Pods without an owner."""
    return policy("idle", [IS_RUNNER, IS_IDLE], policyTypes=["Egress"], egress=list(egress or (TO_WEB,)))


def of_web(port: int = 8080) -> Json:
    """Return the policy that lets runner Pods connect to web."""
    own = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "runners"}}}
    selected = [{"key": "app.kubernetes.io/component", "operator": "In", "values": ["web"]}]
    rules = [{"from": [own], "ports": [{"port": port}]}]
    return policy("web", selected, "ostler", policyTypes=["Ingress"], ingress=rules)


def web(tag: str = "1", labels: dict[str, str] | None = None) -> Json:
    """Return the Deployment of web."""
    container = {"name": "web", "image": f"ostler:{tag}", "ports": [{"name": "http", "containerPort": 8080}]}
    template = {"metadata": {"labels": WEB_LABELS | (labels or {})}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "ostler"},
        "spec": {"template": template},
    }


def pool(name: str = "linux", labels: dict[str, str] | None = None) -> Json:
    spec = {"podTemplate": {"metadata": {"labels": labels or {}}}}
    metadata = {"name": name, "namespace": "runners"}
    return {"apiVersion": "ostler.dev/v1alpha1", "kind": "RunnerPool", "metadata": metadata, "spec": spec}


def read(*bodies: Json) -> Manifests:
    return read_manifests(bodies, namespace="ostler")


def sound(*more: Json) -> Manifests:
    return read(base(), idle(), of_web(), web(), pool(), *more)


def judged(before: Manifests | None, after: Manifests, **question: Any) -> NetworkVerdict:
    return judge_network(Question(before, after, RUNNERS, **question))


def dangers(verdict: NetworkVerdict) -> list[Danger]:
    return [each.danger for each in verdict.refusals]


def only(verdict: NetworkVerdict) -> str:
    """Return the reason of the one refusal, which is about both kinds of pools and says what to do."""
    (found,) = verdict.refusals
    assert found.subjects == ("runners/linux", f"runners/{ANY_OTHER}")
    assert found.cure
    return found.reason


def test_a_sound_release_is_told_with_a_row_for_each_pool_and_state() -> None:
    verdict = judged(sound(), sound())
    assert verdict.refusals == ()
    assert verdict.rows == tuple(
        row
        for name in ("runners/linux", f"runners/{ANY_OTHER}")
        for row in (
            Row(name, "idle", ("base", "idle"), None, reaches_web=True),
            Row(name, "stamped", ("base",), same=True, reaches_web=False),
        )
    )


def test_a_first_installation_has_nothing_to_compare_with() -> None:
    verdict = judged(None, sound())
    assert verdict.refusals == ()
    assert {row.same for row in verdict.rows} == {None}


def test_a_new_pool_has_nothing_to_compare_with() -> None:
    verdict = judged(sound(), sound(pool("arm")))
    assert [row.same for row in verdict.rows if row.pool == "runners/arm"] == [None, None]
    assert [row.same for row in verdict.rows if row.pool == "runners/linux"] == [None, True]


def test_a_pool_that_goes_is_still_judged() -> None:
    assert "runners/arm" in {row.pool for row in judged(sound(pool("arm")), sound()).rows}


def test_without_pods_of_web_nothing_is_said_of_who_reaches_it() -> None:
    verdict = judged(None, read(base(), idle(), pool()))
    assert verdict.refusals == ()
    assert {row.reaches_web for row in verdict.rows} == {None}


def test_a_direction_without_a_policy_is_told() -> None:
    only_ingress = policy("base", [IS_RUNNER], policyTypes=["Ingress"])
    verdict = judged(None, read(only_ingress, web(), pool()))
    assert "egress" in only(verdict)
    assert {row.reaches_web for row in verdict.rows if row.state == "stamped"} == {True}
    only_egress = policy("base", [IS_RUNNER], policyTypes=["Egress"], egress=[TO_PUBLIC])
    assert "ingress" in only(judged(None, read(only_egress, idle(), of_web(), web(), pool())))
    assert dangers(judged(None, read(pool()))) == [Danger.NOT_RULED, Danger.NOT_RULED]


def test_any_rule_of_ingress_is_told_with_its_policy() -> None:
    opened = base(ingress=[{"from": [{"podSelector": {"matchLabels": {"app": "debug"}}}]}])
    verdict = judged(None, read(opened, idle(), of_web(), web(), pool()))
    assert dangers(verdict) == [Danger.OPEN_INGRESS]
    assert only(verdict).startswith("Stamped Pods accept connections under policy base")


def test_private_addresses_are_told_unless_they_are_allowed() -> None:
    private = {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 443}]}
    after = read(base(TO_DNS, private), idle(), of_web(), web(), pool())
    assert dangers(judged(None, after)) == [Danger.PRIVATE_EGRESS]
    assert "10.1.0.0/16." in only(judged(None, after))
    assert dangers(judged(None, after, allowed=block("10.0.0.0/8"))) == []
    assert "10.1.128.0/17." in only(judged(None, after, allowed=block("10.1.0.0/17")))


def test_private_addresses_may_answer_for_names() -> None:
    for port in (53, 5353):
        names = {"to": [{"ipBlock": {"cidr": "10.0.0.10/32"}}], "ports": [{"port": port, "protocol": "UDP"}]}
        assert dangers(judged(None, read(base(names), idle(), of_web(), web(), pool()))) == []
    other = {"to": [{"ipBlock": {"cidr": "10.0.0.10/32"}}], "ports": [{"port": 54, "protocol": "UDP"}]}
    assert dangers(judged(None, read(base(other), idle(), of_web(), web(), pool()))) == [Danger.PRIVATE_EGRESS]


def test_of_many_blocks_four_are_named() -> None:
    private = {"to": [{"ipBlock": {"cidr": f"10.{n}.0.0/16"}} for n in (1, 3, 5, 7, 9)]}
    told = only(judged(None, read(base(private), idle(), of_web(), web(), pool())))
    assert told.endswith("10.1.0.0/16, 10.3.0.0/16, 10.5.0.0/16, 10.7.0.0/16 and 1 more.")
    private["to"].pop()
    told = only(judged(None, read(base(private), idle(), of_web(), web(), pool())))
    assert told.endswith("10.5.0.0/16, 10.7.0.0/16.")


def test_a_stamped_pod_that_reaches_web_is_told_by_pods_and_addresses() -> None:
    verdict = judged(None, read(base(TO_DNS, TO_WEB), idle(), of_web(), web(), pool()))
    assert dangers(verdict) == [Danger.ROLLING_PEER, Danger.BUSY_REACHES_WEB]
    rolling, reaching = verdict.refusals
    assert "Policy base" in rolling.reason
    assert "Deployment ostler/web." in rolling.reason
    assert OWNER_LABEL in rolling.cure
    assert "as Deployment ostler/web." in reaching.reason
    assert [row.reaches_web for row in verdict.rows if row.state == "stamped"] == [True, True]


def test_a_policy_of_idle_pods_may_have_peers_that_roll() -> None:
    assert Danger.ROLLING_PEER not in dangers(judged(None, sound()))


def test_runner_pods_roll_too() -> None:
    each_other = {"to": [{"podSelector": {"matchExpressions": [IS_RUNNER]}}]}
    verdict = judged(None, read(base(TO_DNS, each_other), idle(), of_web(), web(), pool()))
    assert dangers(verdict) == [Danger.ROLLING_PEER]
    assert "Pods of pool runners/linux" in verdict.refusals[0].reason


def test_an_address_of_web_is_told_wherever_it_comes_from() -> None:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "ostler"},
        "spec": {"selector": WEB_LABELS, "externalIPs": ["203.0.113.7"]},
    }
    for verdict in (
        judged(None, sound(service)),
        judged(sound(service), sound()),
        judged(None, sound(), web_addresses=block("203.0.113.7")),
    ):
        assert dangers(verdict) == [Danger.BUSY_REACHES_WEB]
        assert "at 203.0.113.7/32." in verdict.refusals[0].reason


def test_idle_pods_need_both_ends_of_the_way_to_web() -> None:
    for after in (
        read(base(), of_web(), web(), pool()),
        read(base(), idle(), of_web(port=9090), web(), pool()),
        read(base(), idle(TO_WEB | {"ports": [{"port": 9090}]}), of_web(), web(), pool()),
    ):
        verdict = judged(None, after)
        assert dangers(verdict) == [Danger.IDLE_MISSES_WEB]
        assert "Deployment ostler/web." in only(verdict)
        assert [row.reaches_web for row in verdict.rows if row.state == "idle"] == [False, False]


def test_idle_pods_reach_web_of_before_and_of_after() -> None:
    by_version = {"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"version": "2"}}}]}
    before = read(base(), idle(), of_web(), web(labels={"version": "1"}), pool())
    after = read(base(), idle(by_version), of_web(), web(labels={"version": "2"}), pool())
    verdict = judged(before, after)
    assert dangers(verdict) == [Danger.IDLE_MISSES_WEB]
    assert "Deployment ostler/web (before)" in only(verdict)


def test_peers_that_are_gained_or_lost_are_told() -> None:
    wider = read(
        base(TO_DNS, TO_PUBLIC, {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}), idle(), of_web(), web(), pool()
    )
    told = only(judged(sound(), wider, allowed=block("10.0.0.0/8")))
    assert "Egress of stamped Pods changes: gained 10.1.0.0/16." in told
    verdict = judged(wider, sound())
    assert dangers(verdict) == [Danger.PEERS_CHANGE]
    assert "Egress of stamped Pods changes: lost 10.1.0.0/16." in only(verdict)
    assert [row.same for row in verdict.rows if row.state == "stamped"] == [False, False]


def test_pods_that_are_gained_or_lost_are_told() -> None:
    opened = read(base(TO_DNS, TO_PUBLIC, TO_WEB), idle(), of_web(), web(), pool())
    gained = judged(sound(), opened)
    assert dangers(gained) == [Danger.PEERS_CHANGE, Danger.ROLLING_PEER, Danger.BUSY_REACHES_WEB]
    assert "changes: gained Deployment ostler/web." in gained.refusals[0].reason
    assert "changes: lost Deployment ostler/web." in only(judged(opened, sound()))


def test_other_ports_at_the_same_addresses_are_told() -> None:
    def at(port: int) -> Manifests:
        return read(base(TO_DNS, TO_PUBLIC | {"ports": [{"port": port}]}), idle(), of_web(), web(), pool())

    assert "other ports at the same addresses" in only(judged(at(80), at(443)))


def test_a_direction_that_is_ruled_first_or_last_is_told() -> None:
    open_out = policy("base", [IS_RUNNER], policyTypes=["Ingress"])
    unruled = read(open_out, idle(), of_web(), web(), pool())
    assert "Egress of stamped Pods changes: no policy controlled it before, and one does now." in only(
        judged(unruled, sound())
    )
    lost = judged(sound(), unruled).refusals
    assert [each.danger for each in lost] == [Danger.NOT_RULED, Danger.PEERS_CHANGE]
    assert "Egress of stamped Pods changes: a policy controlled it before, and none does now." in lost[1].reason


def test_labels_of_peers_that_no_manifest_has_are_compared() -> None:
    other = {"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "dns"}}}]}
    changed = read(base(TO_DNS | other, TO_PUBLIC), idle(), of_web(), web(), pool())
    verdict = judged(sound(), changed)
    assert dangers(verdict) == [Danger.PEERS_CHANGE]
    assert "the label selectors or the ports of its rules are different" in only(verdict)


def test_a_policy_that_is_written_again_with_the_same_peers_is_told() -> None:
    again = read(base(labels={"version": "2"}), idle(), of_web(), web("2"), pool())
    verdict = judged(sound(), again)
    assert dangers(verdict) == [Danger.POLICY_REWRITTEN]
    assert "Policy base, which selects stamped Pods, is rewritten." in only(verdict)


def test_a_policy_that_comes_or_goes_with_the_same_peers_is_told() -> None:
    second = base()
    second["metadata"]["name"] = "second"
    assert "Policy second, which selects stamped Pods, is new." in only(judged(sound(), sound(second)))
    assert "Policy second, which selects stamped Pods, is deleted." in only(judged(sound(second), sound()))


def test_a_policy_of_idle_pods_may_be_written_again() -> None:
    before = read(base(), idle(TO_WEB, TO_DNS), of_web(), web(), pool())
    assert judged(before, sound()).refusals == ()


def test_an_owner_that_a_policy_names_is_judged_too() -> None:
    named = {"key": OWNER_LABEL, "operator": "In", "values": ["42"]}
    own = policy("own", [IS_RUNNER, named], policyTypes=["Egress"], egress=[TO_WEB])
    verdict = judged(None, sound(own))
    assert dangers(verdict) == [Danger.ROLLING_PEER, Danger.BUSY_REACHES_WEB]
    assert "Policy own selects" in verdict.refusals[0].reason
    assert [row.reaches_web for row in verdict.rows] == [True, True, True, True]
    assert {row.policies for row in verdict.rows if row.state == "stamped"} == {("base", "own")}
    changed = judged(sound(), sound(own))
    assert changed.refusals[0].danger is Danger.PEERS_CHANGE
    assert [row.same for row in changed.rows if row.state == "stamped"] == [False, False]


def test_labels_of_a_pools_template_count() -> None:
    selected = [{"key": "team", "operator": "In", "values": ["red"]}]
    red = policy("red", selected, policyTypes=["Egress"], egress=[TO_WEB])
    of_red = read(base(), idle(), of_web(), web(), red, pool(labels={"team": "red", OWNER_LABEL: "1"}))
    verdict = judged(None, of_red)
    assert {each.subjects for each in verdict.refusals} == {("runners/linux",)}
    assert dangers(verdict) == [Danger.ROLLING_PEER, Danger.BUSY_REACHES_WEB]
    assert ("runners/linux", "idle") in {(row.pool, row.state) for row in verdict.rows}
    # Pods of both templates are there while the pool rolls.
    both = judged(of_red, read(base(), idle(), of_web(), web(), red, pool(labels={"team": "blue"})))
    assert dangers(both) == [Danger.ROLLING_PEER, Danger.BUSY_REACHES_WEB]


def test_pods_that_were_seen_are_judged_by_their_own_labels() -> None:
    selected = [{"key": "team", "operator": "In", "values": ["red"]}]
    red = policy("red", selected, policyTypes=["Egress"], egress=[TO_WEB])
    seen = {POOL_LABEL: "old", "team": "red"}
    busy = judged(None, sound(red), seen=(("runners", seen | {OWNER_LABEL: "77"}),))
    assert {each.subjects for each in busy.refusals} == {("runners/old",)}
    assert ("runners/old", "stamped") in {(row.pool, row.state) for row in busy.rows}
    warm = judged(None, sound(red), seen=(("runners", seen),))
    assert warm.refusals == ()
    assert ("runners/old", "idle") in {(row.pool, row.state) for row in warm.rows}


def test_a_seen_pod_makes_its_pool_one_of_before() -> None:
    seen = (("runners", {POOL_LABEL: "arm", OWNER_LABEL: "77", "app.kubernetes.io/managed-by": "ostler"}),)
    rows = judged(sound(), sound(pool("arm")), seen=seen).rows
    assert [row.same for row in rows if (row.pool, row.state) == ("runners/arm", "stamped")] == [True]


def test_a_namespace_that_runners_did_not_have_is_new() -> None:
    moved = {"kind": "NetworkPolicy", "apiVersion": "networking.k8s.io/v1"}
    other = base() | moved
    other["metadata"] = {"name": "base", "namespace": "more"}
    verdict = judge_network(Question(sound(), sound(other), frozenset({"runners", "more"})))
    assert [row.same for row in verdict.rows if row.pool == f"more/{ANY_OTHER}"] == [None, None]
    assert [row.same for row in verdict.rows if row.pool == f"runners/{ANY_OTHER}"] == [None, True]


@pytest.mark.parametrize("what", ["policyTypes", "egress"])
def test_the_same_policy_written_otherwise_changes_nothing(what: str) -> None:
    before = policy("base", [IS_RUNNER], policyTypes=["Ingress", "Egress"], egress=[TO_DNS, TO_PUBLIC])
    after = base()
    if what == "egress":
        after["spec"]["egress"] = [TO_PUBLIC, TO_DNS]
        expected = [Danger.POLICY_REWRITTEN]
    else:
        expected = []
    old = read(before, idle(), of_web(), web(), pool())
    assert dangers(judged(old, read(after, idle(), of_web(), web(), pool()))) == expected


def at_owner(owner: str) -> Json:
    named = {"key": OWNER_LABEL, "operator": "In", "values": [owner]}
    return policy("own", [IS_RUNNER, named], policyTypes=["Egress"], egress=[TO_WEB])


@pytest.mark.parametrize("owner", ["0", "42"])
def test_the_row_of_a_pool_is_that_of_the_owner_for_which_most_is_wrong(owner: str) -> None:
    for before, after, reaches_web in (
        (sound(), sound(at_owner(owner)), True),
        (sound(at_owner(owner)), sound(), False),
    ):
        verdict = judged(before, after)
        assert verdict.refusals[0].danger is Danger.PEERS_CHANGE
        assert [(row.same, row.reaches_web) for row in verdict.rows if row.state == "stamped"] == [
            (False, reaches_web),
            (False, reaches_web),
        ]
    installed = judged(None, sound(at_owner(owner)))
    assert [row.reaches_web for row in installed.rows if row.state == "stamped"] == [True, True]


def test_a_danger_of_another_kind_says_nothing_of_web() -> None:
    private = {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}], "ports": [{"port": 443}]}
    verdict = judged(None, read(base(TO_DNS, private), idle(), of_web(), web(), pool()))
    assert [row.reaches_web for row in verdict.rows if row.state == "stamped"] == [False, False]


def test_pods_that_look_different_have_names_of_their_own() -> None:
    each_other = {"to": [{"podSelector": {"matchExpressions": [IS_RUNNER]}}]}
    rest = base(TO_DNS, each_other), idle(), of_web(), web()
    verdict = judged(read(*rest, pool(labels={"team": "red"})), read(*rest, pool(labels={"team": "blue"})))
    assert dangers(verdict) == [Danger.ROLLING_PEER]
    assert (
        "idle Pods of pool runners/(any other), idle Pods of pool runners/linux, "
        "idle Pods of pool runners/linux (2), stamped Pods of pool runners/(any other) and 2 more."
    ) in verdict.refusals[0].reason


def test_labels_that_a_template_gets_are_judged() -> None:
    selected = [{"key": "team", "operator": "In", "values": ["red"]}]
    red = policy("red", selected, policyTypes=["Egress"], egress=[TO_WEB])
    rest = base(), idle(), of_web(), web(), red
    verdict = judged(read(*rest, pool(labels={"team": "blue"})), read(*rest, pool(labels={"team": "red"})))
    assert dangers(verdict) == [Danger.ROLLING_PEER, Danger.BUSY_REACHES_WEB]


def test_labels_of_a_namespace_that_only_before_has_still_count() -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ostler", "labels": {"team": "web"}}}
    by_label = {"to": [{"namespaceSelector": {"matchLabels": {"team": "web"}}}]}
    rest = base(), idle(by_label), of_web(), web(), pool()
    assert judged(read(*rest, namespace), read(*rest)).refusals == ()


def test_web_without_declared_ports_is_reached_at_any() -> None:
    bare: Any = web()
    del bare["spec"]["template"]["spec"]["containers"][0]["ports"]
    sound_one = judged(None, read(base(), idle(), of_web(), bare, pool()))
    assert sound_one.refusals == ()
    opened = judged(None, read(base(TO_DNS, TO_WEB), idle(), of_web(), bare, pool()))
    assert dangers(opened) == [Danger.ROLLING_PEER, Danger.BUSY_REACHES_WEB]


def test_idle_pods_need_a_way_to_the_ports_that_web_declares() -> None:
    elsewhere = read(base(), idle(TO_WEB | {"ports": [{"port": 9090}]}), of_web(port=9090), web(), pool())
    assert dangers(judged(None, elsewhere)) == [Danger.IDLE_MISSES_WEB]


@pytest.mark.parametrize(
    "change",
    [
        {"ports": [{"port": 54}]},
        {"ports": None},
        {"to": [{**OF_DNS, "podSelector": {"matchLabels": {"k8s-app": "dns"}}}]},
    ],
)
def test_ports_and_labels_of_peers_that_no_manifest_has_are_compared(change: Json) -> None:
    assert dangers(judged(sound(), read(base(TO_DNS | change, TO_PUBLIC), idle(), of_web(), web(), pool()))) == [
        Danger.PEERS_CHANGE
    ]


def test_several_policies_are_named_together() -> None:
    second = base(TO_DNS, {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]})
    second["metadata"]["name"] = "second"
    assert only(judged(None, sound(second))).startswith("Under policies base and second, stamped")


def test_a_deploy_asks_the_rule_with_all_that_it_was_given() -> None:
    private = {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}
    opened = read(base(TO_DNS, private), idle(), of_web(), web(), pool())

    def found(**given: Any) -> set[Danger]:
        return {each.danger for each in judge(Deploy(None, opened, **given)).refusals}

    assert Danger.PRIVATE_EGRESS in found()
    assert Danger.PRIVATE_EGRESS not in found(allowed=block("10.0.0.0/8"))
    assert Danger.BUSY_REACHES_WEB not in found()
    assert Danger.BUSY_REACHES_WEB in found(web_addresses=block("10.1.2.3"))
    nobody = Selector((Requirement("app", Operator.IN, frozenset({"nobody"})),))
    assert {row.reaches_web for row in judge(Deploy(None, opened, web=nobody)).rows} == {None}
    live = Live(opened, (("runners", {POOL_LABEL: "old"}),))
    assert "runners/old" in {row.pool for row in judge(Deploy(None, opened, live=live)).rows}


def test_what_a_release_drops_is_gone_and_what_others_have_stays() -> None:
    def of(release: str, body: Json) -> Json:
        return body | {"metadata": body["metadata"] | {"labels": {"app.kubernetes.io/instance": release}}}

    ours = [of("ci", each) for each in (base(), idle(), of_web(), web(), pool())]
    live = Live(read(*ours, of("ci", at_owner("42")), of("other", pool("arm"))))
    verdict = judge(Deploy(None, read(*ours), live=live))
    assert {each.danger for each in verdict.refusals} == {Danger.PEERS_CHANGE, Danger.ADMISSION_MISSING}
    assert "runners/arm" in {row.pool for row in verdict.rows}
    theirs = judge(Deploy(None, read(*ours), live=Live(read(*ours, of("other", at_owner("42"))))))
    assert Danger.BUSY_REACHES_WEB in {each.danger for each in theirs.refusals}


def test_a_pool_that_goes_without_its_finalizer_refuses_the_deploy() -> None:
    gone = judge(Deploy(sound(pool("arm")), sound(), live=Live(sound(pool("arm")))))
    assert Danger.POOL_WITHOUT_FINALIZER in {each.danger for each in gone.refusals}
    assert Danger.POOL_WITHOUT_FINALIZER not in {
        each.danger for each in judge(Deploy(sound(pool("arm")), sound())).refusals
    }


API = "10.96.0.1/32"
IS_HOOK = {"key": HOOK_OF_LABEL, "operator": "Exists"}
HAS_CONTAINERS = {"key": CONTAINERS_LABEL, "operator": "In", "values": ["kubernetes"]}


def of_hooks(*egress: Json) -> Json:
    """Return the policy of hook Pods."""
    rules = list(egress or (TO_DNS, TO_PUBLIC))
    return policy("hooks", [IS_HOOK], policyTypes=["Ingress", "Egress"], ingress=[], egress=rules)


def of_api_server(selected: Json = HAS_CONTAINERS) -> Json:
    """Return the policy that lets runner Pods with container jobs reach the API server."""
    made = policy(
        "api",
        [IS_RUNNER, selected],
        policyTypes=["Egress"],
        egress=[{"to": [{"ipBlock": {"cidr": API}}], "ports": [{"port": 6443}]}],
    )
    made["metadata"]["annotations"] = {"ostler.dev/api-server-addresses": API}
    return made


def with_containers(name: str = "images") -> Json:
    made = pool(name)
    made["spec"]["containers"] = {"mode": "kubernetes"}
    return made


def test_container_jobs_are_sound_with_their_two_policies() -> None:
    after = sound(with_containers(), of_hooks(), of_api_server())
    assert judged(None, after).refusals == ()
    verdict = judged(after, after)
    assert verdict.refusals == ()
    rows = {row.pool: row.policies for row in verdict.rows if row.state == "stamped"}
    assert rows["runners/images"] == ("api", "base")
    assert rows["runners/images (hook Pods)"] == ("hooks",)
    assert rows[f"runners/{ANY_WITH_CONTAINERS}"] == ("api", "base")
    assert rows["runners/linux"] == ("base",)


def test_switching_container_jobs_on_changes_nothing_for_busy_pods() -> None:
    after = read(base(), idle(), of_web(), web(), with_containers("linux"), of_hooks(), of_api_server())
    assert judged(sound(), after).refusals == ()


def test_hook_pods_without_a_policy_are_refused() -> None:
    found = judged(None, sound(with_containers(), of_api_server())).refusals
    assert {each.danger for each in found} == {Danger.NOT_RULED}
    assert {"runners/images (hook Pods)"} <= {name for each in found for name in each.subjects}
    assert "runners/images" not in {name for each in found for name in each.subjects}


def test_api_server_must_not_be_open_to_pods_without_container_jobs() -> None:
    found = judged(None, sound(of_hooks(), of_api_server(IS_RUNNER))).refusals
    assert Danger.PRIVATE_EGRESS in {each.danger for each in found}
    assert "runners/linux" in {name for each in found for name in each.subjects}


def test_hook_pods_must_not_reach_the_api_server() -> None:
    to_api = {"to": [{"ipBlock": {"cidr": API}}], "ports": [{"port": 6443}]}
    found = judged(None, sound(with_containers(), of_hooks(TO_DNS, TO_PUBLIC, to_api), of_api_server())).refusals
    assert {each.danger for each in found} == {Danger.PRIVATE_EGRESS}
    assert all("(hook Pods)" in name for each in found for name in each.subjects)


def test_a_rewritten_policy_of_hook_pods_is_refused() -> None:
    before = sound(with_containers(), of_hooks(), of_api_server())
    after = of_hooks()
    after["metadata"]["labels"] = {"version": "2"}
    found = judged(before, sound(with_containers(), after, of_api_server())).refusals
    assert {each.danger for each in found} == {Danger.POLICY_REWRITTEN}
