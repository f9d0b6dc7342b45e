"""Objects that disappear with a deploy, those that must not, and the text of an admission policy."""

from __future__ import annotations

from typing import Any

import pytest

from deploys.deploy_admission import judge_admission
from deploys.deploy_changes import DRAIN_FINALIZER, Action, changes_of, judge_changes
from deploys.deploy_plan import Deploy, Live, Verdict, judge
from deploys.deploys import Danger
from deploys.manifests import POOL_LABEL, Manifests, read_manifests, title_of
from deploys.selectors import Malformed

RUNNERS = frozenset({"runners"})
KEPT = {"helm.sh/resource-policy": "keep"}
HOOK = {"helm.sh/hook": "pre-upgrade"}


def thing(kind: str, name: str, *, group: str = "v1", spec: Any = None, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": group, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec or {}}


def pool(name: str, label: str = "linux", image: str = "r:1", **metadata: Any) -> dict[str, Any]:
    spec = {"image": image, "runnerLabels": [label]}
    return thing("RunnerPool", name, group="ostler.dev/v1alpha1", spec=spec, namespace="runners", **metadata)


def moved(name: str, namespace: str) -> dict[str, Any]:
    return pool(name) | {"metadata": {"name": name, "namespace": namespace}}


def read(*bodies: dict[str, Any]) -> Manifests:
    return read_manifests(bodies, namespace="ostler")


def changes(old: Manifests, new: Manifests) -> list[tuple[str, str, str | None]]:
    return [
        (each.action, title_of(each.key), title_of(each.to) if each.to else None)
        for each in changes_of(old.objects, new.objects)
    ]


def dangers(old: Manifests, new: Manifests, live: Manifests | None = None) -> list[Danger]:
    found = changes_of(old.objects, new.objects)
    return [e.danger for e in judge_changes(found, live=live.objects if live else None, namespaces=RUNNERS)]


def test_what_goes_is_told_apart_from_what_is_renamed_kept_or_a_hook() -> None:
    old = read(
        pool("a"),
        pool("b", label="windows"),
        thing("ConfigMap", "stays"),
        thing("Secret", "gone"),
        thing("Job", "hook", annotations=HOOK),
        thing("Namespace", "runners", annotations=KEPT),
    )
    new = read(pool("a2", image="r:2"), thing("ConfigMap", "stays"), thing("Secret", "new", spec={"other": 1}))
    assert changes(old, new) == [
        (Action.KEPT, "Namespace runners", None),
        (Action.RENAMED, "RunnerPool runners/a", "RunnerPool runners/a2"),
        (Action.DELETED, "RunnerPool runners/b", None),
        (Action.DELETED, "Secret ostler/gone", None),
    ]


def test_a_pool_may_go_when_its_live_object_has_the_finalizer() -> None:
    old, new = read(pool("a"), pool("b", label="windows")), read(pool("a"))
    assert dangers(old, new) == []  # nobody asked the cluster
    assert dangers(old, new, old) == [Danger.POOL_WITHOUT_FINALIZER]
    assert dangers(old, new, read(pool("b", finalizers=["other"]))) == [Danger.POOL_WITHOUT_FINALIZER]
    assert dangers(old, new, read(pool("b", finalizers=["other", DRAIN_FINALIZER]))) == []
    assert dangers(old, new, read(pool("a"))) == []  # it is gone already


def test_a_pool_that_moves_to_another_namespace_is_renamed_too() -> None:
    new = read(moved("a", "elsewhere"))
    assert dangers(read(pool("a")), new, read(pool("a"))) == [Danger.POOL_WITHOUT_FINALIZER]


def test_only_the_runners_namespace_must_stay() -> None:
    old = read(thing("Namespace", "runners"), thing("Namespace", "others"))
    assert dangers(old, read()) == [Danger.NAMESPACE_DELETED]


def guard(*, spec: dict[str, Any] | None = None, binding: dict[str, Any] | None = None) -> Manifests:
    """Return an admission policy that guards, except for the given changes."""
    group = "admissionregistration.k8s.io/v1"
    rules = {"resourceRules": [{"operations": ["DELETE"], "resources": ["pods"]}]}
    expression = "!(request.userInfo.username.endsWith('generic-garbage-collector') && 'ostler.dev/pool' in labels)"
    policy = {"matchConstraints": rules, "validations": [{"expression": expression}], **(spec or {})}
    bound = {"policyName": "guard", "validationActions": ["Deny"], **(binding or {})}
    return read(
        thing("ValidatingAdmissionPolicy", "guard", group=group, spec=policy),
        thing("ValidatingAdmissionPolicyBinding", "any", group=group, spec=bound),
    )


def of(namespace: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}


_CREATIONS = [{"operations": ["CREATE"], "resources": ["pods"]}]
_ALL = [{"operations": ["*"], "resources": ["*"]}]


@pytest.mark.parametrize(
    ("manifests", "refused"),
    [
        (guard(), False),
        (guard(binding={"matchResources": of("runners")}), False),
        (guard(binding={"matchResources": of("others")}), True),
        (guard(binding={"validationActions": ["Audit"]}), True),
        (guard(binding={"policyName": "other"}), True),
        (guard(spec={"failurePolicy": "Ignore"}), True),
        (guard(spec={"validations": [{"expression": "true"}]}), True),
        (guard(spec={"matchConstraints": {"resourceRules": _CREATIONS}}), True),
        (guard(spec={"matchConstraints": {"resourceRules": _ALL}}), False),
        (guard(spec={"matchConstraints": {"resourceRules": _ALL, **of("others")}}), True),
        (
            guard(
                binding={
                    "matchResources": {
                        "objectSelector": {
                            "matchExpressions": [{"key": "ostler.dev/runner-pool-owner", "operator": "DoesNotExist"}]
                        }
                    }
                }
            ),
            True,
        ),
        (read(), True),
    ],
)
def test_an_admission_policy_guards_or_it_is_missing(manifests: Manifests, *, refused: bool) -> None:
    assert bool(list(judge_admission(manifests, RUNNERS))) is refused


def test_what_the_cluster_was_not_asked_and_what_is_not_evaluated_is_noted() -> None:
    theirs = thing("CiliumNetworkPolicy", "theirs", group="cilium.io/v2")
    verdict = judge(Deploy(read(pool("a")), read(theirs), runners=RUNNERS))
    notes = "\n".join(verdict.notes)
    assert "CiliumNetworkPolicy ostler/theirs" in notes
    assert "use --live to check" in notes
    assert "no Pods of web" in notes


def test_what_helm_keeps_is_in_force_after_the_deploy() -> None:
    """After the uninstall, the kept policy still protects the Pods that are busy then."""
    rule = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    base = thing("NetworkPolicy", "base", group="networking.k8s.io/v1", spec=rule, namespace="runners")

    def found(old: Manifests) -> set[Danger]:
        return {each.danger for each in judge(Deploy(old, read(pool("a")), runners=RUNNERS)).refusals}

    without_guard = {Danger.ADMISSION_MISSING}
    assert found(read(base, pool("a"))) == {Danger.NOT_RULED, Danger.PEERS_CHANGE} | without_guard
    base["metadata"]["annotations"] = KEPT
    assert found(read(base, pool("a"))) == without_guard


SILENT = pool("a")
PAUSED, RESUMED = (SILENT | {"spec": SILENT["spec"] | {"paused": each}} for each in (True, False))


@pytest.mark.parametrize(
    ("live_pools", "new_pools", "pods", "listed", "refused"),
    [
        ([PAUSED], [SILENT], [], ["runners"], False),
        ([], [], [], ["runners"], False),
        ([SILENT], [SILENT], [], ["runners"], True),
        ([PAUSED], [RESUMED], [], ["runners"], True),
        ([PAUSED], [SILENT, pool("new")], [], ["runners"], True),
        ([PAUSED], [SILENT], ["runners"], ["runners"], True),
        ([PAUSED], [SILENT], [], [], True),
    ],
    ids=["at rest", "no pool", "not paused", "resumed", "another pool", "with a Pod", "not listed"],
)
def test_policy_may_change_only_if_no_pod_exists_and_every_pool_is_paused(
    live_pools: list[Any], new_pools: list[Any], pods: list[str], listed: list[str], *, refused: bool
) -> None:
    def base(port: int) -> dict[str, Any]:
        rules = [{"to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}], "ports": [{"port": port}]}]
        rule = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "egress": rules}
        return thing("NetworkPolicy", "base", group="networking.k8s.io/v1", spec=rule, namespace="runners")

    live = Live(read(base(443), *live_pools), tuple((each, {POOL_LABEL: "a"}) for each in pods), frozenset(listed))
    verdict = judge(Deploy(None, read(base(80), *new_pools), live=live, runners=RUNNERS))

    assert (Danger.PEERS_CHANGE in {each.danger for each in verdict.refusals}) is refused
    assert any("no runner Pod exists" in each for each in verdict.notes) is not refused


def test_a_pool_with_other_labels_is_no_renamed_one() -> None:
    assert changes(read(pool("a")), read(pool("b", label="windows"))) == [
        (Action.DELETED, "RunnerPool runners/a", None)
    ]
    bare = pool("c")
    del bare["spec"]
    assert changes(read(pool("a")), read(bare)) == [(Action.DELETED, "RunnerPool runners/a", None)]


def test_one_object_is_the_heir_of_one_only() -> None:
    old, new = read(pool("a"), pool("b")), read(pool("c"))
    assert changes(old, new) == [
        (Action.RENAMED, "RunnerPool runners/a", "RunnerPool runners/c"),
        (Action.DELETED, "RunnerPool runners/b", None),
    ]
    other_kind = read(thing("Secret", "b", spec={"same": 1}))
    assert changes(read(thing("ConfigMap", "a", spec={"same": 1})), other_kind) == [
        (Action.DELETED, "ConfigMap ostler/a", None)
    ]


def test_the_definition_of_pools_must_stay() -> None:
    definition = thing("CustomResourceDefinition", "runnerpools.ostler.dev", group="apiextensions.k8s.io/v1")
    assert dangers(read(definition), read()) == [Danger.DEFINITION_DELETED]
    kept = thing(
        "CustomResourceDefinition", "runnerpools.ostler.dev", group="apiextensions.k8s.io/v1", annotations=KEPT
    )
    assert dangers(read(kept), read()) == []
    assert dangers(read(thing("Namespace", "runners", annotations=KEPT)), read()) == []


def test_a_refusal_names_its_object_and_what_becomes_of_it() -> None:
    old, new = read(pool("a")), read()
    (found,) = judge_changes(changes_of(old.objects, new.objects), live=old.objects, namespaces=RUNNERS)
    assert found.subjects == ("RunnerPool runners/a",)
    assert "is deleted" in found.reason
    assert DRAIN_FINALIZER in found.reason


def test_only_what_guards_pods_from_the_collector_is_a_guard() -> None:
    others = [{"operations": ["DELETE"], "resources": ["secrets"]}]
    assert list(judge_admission(guard(spec={"matchConstraints": {"resourceRules": others}}), RUNNERS))
    anything = [{"operations": ["DELETE"], "resources": ["*/*"]}]
    assert not list(judge_admission(guard(spec={"matchConstraints": {"resourceRules": anything}}), RUNNERS))
    for half in ("'generic-garbage-collector'", "'ostler.dev/pool'"):
        assert list(judge_admission(guard(spec={"validations": [{"expression": half}]}), RUNNERS))


def test_a_guard_is_wanted_for_every_namespace_and_the_missing_ones_are_named() -> None:
    manifests = guard(binding={"matchResources": of("runners")})
    (found,) = judge_admission(manifests, frozenset({"runners", "z", "a"}))
    assert found.subjects == ("a", "z")
    assert "in a, z." in found.reason
    (none,) = judge_admission(read(), RUNNERS)
    assert none.reason.startswith("No ValidatingAdmissionPolicy prevents")
    assert none.subjects == ("runners",)


def test_a_binding_without_actions_denies_nothing() -> None:
    group = "admissionregistration.k8s.io/v1"
    bare = thing("ValidatingAdmissionPolicyBinding", "bare", group=group, spec={"policyName": "guard"})
    assert list(judge_admission(read(bare), RUNNERS))


def worker(*namespaces: str) -> dict[str, Any]:
    """Return a Deployment whose process reads these namespaces of runner Pods."""
    names = ("OSTLER_NAMESPACE", "OSTLER_ELEVATED_NAMESPACE")
    env = [{"name": name, "value": value} for name, value in zip(names, namespaces, strict=False)]
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "w", "image": "i", "env": env}]}}
    return thing("Deployment", "worker", group="apps/v1", spec={"template": pod, "selector": {}})


@pytest.mark.parametrize(
    ("pods", "listed", "refused"),
    [
        ([], [], True),
        (["runners", "runners-elevated"], ["runners", "runners-elevated"], True),
        (["runners"], ["runners"], True),
        (["runners"], ["runners", "runners-elevated"], False),
    ],
    ids=["no cluster", "with Pods", "not listed", "empty"],
)
def test_namespace_is_left_only_if_its_list_has_no_runner_pod(
    pods: list[str], listed: list[str], refused: bool
) -> None:
    old, new = read(worker("runners", "runners-elevated")), read(worker("runners"))
    live = Live(old, tuple((name, {POOL_LABEL: "a"}) for name in pods), frozenset(listed)) if listed else None
    verdict = judge(Deploy(old=old, new=new, live=live))

    found = [each for each in verdict.refusals if each.danger is Danger.NAMESPACE_LEFT]
    assert [name for each in found for name in each.subjects] == ["runners-elevated"] * refused


BOTH = frozenset({"runners", "runners-elevated"})


def left_by(verdict: Verdict) -> list[str]:
    """Return the reasons why a namespace of runner Pods must not be left, with their cures."""
    return [f"{each.reason} {each.cure}" for each in verdict.refusals if each.danger is Danger.NAMESPACE_LEFT]


def test_left_namespace_without_pools_and_pods_is_no_namespace_of_runners() -> None:
    old, new = read(worker("runners", "runners-elevated")), read(worker("runners"))
    live = Live(old, (), BOTH)

    for before in (None, old):
        verdict = judge(Deploy(old=before, new=new, live=live))
        assert verdict.namespaces == RUNNERS
        assert {name for each in verdict.refusals for name in each.subjects if "elevated" in name} == set()
    assert judge(Deploy(old=old, new=new, live=live, runners=BOTH)).namespaces == RUNNERS
    renamed = read(worker("runners", "other"))
    assert judge(Deploy(old=old, new=renamed, live=live)).namespaces == {"runners", "other"}


def test_left_namespace_is_checked_if_the_deploy_adds_a_pool_there() -> None:
    old = read(worker("runners", "runners-elevated"))
    new = read(worker("runners"), moved("a", "runners-elevated"))

    assert judge(Deploy(old=old, new=new, live=Live(old, (), BOTH))).namespaces == BOTH


@pytest.mark.parametrize("by_deploy", [False, True], ids=["pool by hand", "pool of the release"])
def test_left_namespace_with_a_pool_without_pods_is_refused(*, by_deploy: bool) -> None:
    """A pool at zero replicas can get a Pod at any time, and nothing would remove its finalizer after the deploy."""
    processes, scaled = worker("runners", "runners-elevated"), moved("a", "runners-elevated")
    scaled["metadata"]["finalizers"] = [DRAIN_FINALIZER]
    both = read(processes, scaled)
    old = both if by_deploy else read(processes)

    verdict = judge(Deploy(old=old, new=read(worker("runners")), live=Live(both, (), BOTH)))

    (told,) = left_by(verdict)
    assert "it contains 1 pool (a)." in told
    assert "`ostler pool drain NAME`" in told
    assert verdict.namespaces == BOTH


@pytest.mark.parametrize("pods", [0, 1])
def test_namespace_that_only_live_processes_read_is_left_too(pods: int) -> None:
    """The tree OLD might be older than the cluster."""
    both, new = read(worker("runners", "runners-elevated")), read(worker("runners"))
    live = Live(both, (("runners-elevated", {POOL_LABEL: "a"}),) * pods, BOTH)

    for old in (None, new):
        verdict = judge(Deploy(old=old, new=new, live=live))
        assert len(left_by(verdict)) == pods
        assert verdict.namespaces == (BOTH if pods else RUNNERS)


def test_processes_of_another_release_leave_no_namespace() -> None:
    theirs = worker("theirs")
    theirs["metadata"] = {"name": "others", "labels": {"app.kubernetes.io/instance": "other"}}
    live = Live(read(worker("runners"), theirs), (("theirs", {POOL_LABEL: "a"}),), frozenset({"runners", "theirs"}))

    for old in (None, read(worker("runners"))):
        verdict = judge(Deploy(old=old, new=read(worker("runners")), live=live))
        assert left_by(verdict) == []
        assert verdict.namespaces == {"runners", "theirs"}


@pytest.mark.parametrize(
    ("pools", "pods", "said"),
    [
        ((), 1, "it contains 1 runner Pod."),
        ((), 300, "it contains 300 runner Pods."),
        (("b", "a"), 0, "it contains 2 pools (a, b)."),
        (("a",), 2, "it contains 1 pool (a) and 2 runner Pods."),
    ],
)
def test_refusal_of_a_left_namespace_counts_its_pools_and_pods(pools: tuple[str, ...], pods: int, said: str) -> None:
    old = read(worker("runners", "runners-elevated"), *(moved(name, "runners-elevated") for name in pools))
    live = Live(old, (("runners-elevated", {POOL_LABEL: "a"}),) * pods, BOTH)

    (told,) = left_by(judge(Deploy(old=old, new=read(worker("runners")), live=live)))
    assert said in told


def test_refusal_of_a_left_namespace_names_the_option_that_lists_its_pods() -> None:
    old, new = read(worker("runners", "runners-elevated")), read(worker("runners"))

    (told,) = left_by(judge(Deploy(old=old, new=new)))
    assert "its Pods were not listed" in told
    assert "--live" in told


def test_release_of_pools_alone_leaves_no_namespace() -> None:
    new = read(moved("b", "other"))
    found = judge(Deploy(old=read(pool("a")), new=new, live=Live(read(pool("a")), (("runners", {}),))))

    assert Danger.NAMESPACE_LEFT not in {each.danger for each in found.refusals}


def labelled(name: str, release: str | None, *, by: str = "labels", image: str = "r:1") -> dict[str, Any]:
    key = "app.kubernetes.io/instance" if by == "labels" else "meta.helm.sh/release-name"
    return pool(name, label=name, image=image, **({by: {key: release}} if release else {}))


@pytest.mark.parametrize("by", ["labels", "annotations"])
def test_what_of_a_cluster_is_of_the_release_goes_with_it(by: str) -> None:
    live = Live(
        read(labelled("a", "ci", by=by), labelled("b", "ci", by=by), labelled("c", "other", by=by), labelled("d", None))
    )
    verdict = judge(Deploy(old=None, new=read(labelled("a", "ci", by=by)), live=live))
    assert [title_of(each.key) for each in verdict.changes] == ["RunnerPool runners/b"]
    assert {row.pool for row in verdict.rows} >= {"runners/a", "runners/b", "runners/c", "runners/d"}
    assert verdict.namespaces == RUNNERS


def test_release_of_the_same_name_in_another_namespace_is_another_release() -> None:
    def installed(name: str, namespace: str) -> dict[str, Any]:
        helm = {"meta.helm.sh/release-name": "ci", "meta.helm.sh/release-namespace": namespace}
        return thing("ConfigMap", name, namespace=namespace, annotations=helm)

    live = Live(read(installed("a", "ostler"), installed("gone", "ostler"), installed("b", "other")))
    verdict = judge(Deploy(old=None, new=read(installed("a", "ostler")), live=live))

    assert [title_of(each.key) for each in verdict.changes] == ["ConfigMap ostler/gone"]


def test_a_release_without_a_name_takes_nothing_with_it() -> None:
    live = Live(read(labelled("a", None), labelled("b", None)))
    assert judge(Deploy(old=None, new=read(labelled("c", None)), live=live)).changes == ()


def compared(verdict: Verdict) -> set[bool | None]:
    return {row.same for row in verdict.rows if row.state == "stamped"}


def test_a_first_installation_into_a_cluster_has_nothing_to_compare_with() -> None:
    live = read(labelled("b", "other"))
    new = read(labelled("a", "ci"))
    assert compared(judge(Deploy(old=None, new=new, live=Live(live)))) == {None}
    assert compared(judge(Deploy(old=None, new=new, live=Live(live, (("runners", {POOL_LABEL: "b"}),))))) != {None}
    assert compared(judge(Deploy(old=None, new=new, live=Live(new)))) != {None}


def test_what_others_wrote_on_a_live_object_stays_and_what_was_ours_goes() -> None:
    def policy(labels: dict[str, str], annotations: dict[str, str]) -> dict[str, Any]:
        spec = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
        return thing(
            "NetworkPolicy",
            "base",
            group="networking.k8s.io/v1",
            spec=spec,
            namespace="runners",
            labels=labels,
            annotations=annotations,
        )

    old, new = (read(pool("a"), policy(*each)) for each in (({"ours": "1"}, {}), ({"ours": "2"}, {"new": "1"})))
    same = read(pool("a"), policy({"ours": "1", "theirs": "x"}, {"theirs": "y"}))
    kept = judge(Deploy(old=old, new=old, live=Live(same)))
    assert Danger.POLICY_REWRITTEN not in {each.danger for each in kept.refusals}
    changed = judge(Deploy(old=old, new=new, live=Live(same)))
    assert Danger.POLICY_REWRITTEN in {each.danger for each in changed.refusals}
    gone = judge(Deploy(old=old, new=read(pool("a"), policy({}, {})), live=Live(same)))
    assert Danger.POLICY_REWRITTEN in {each.danger for each in gone.refusals}


def test_an_address_that_a_live_load_balancer_has_stays() -> None:
    labels = {"app.kubernetes.io/component": "web"}
    web = thing("Deployment", "web", spec={"template": {"metadata": {"labels": labels}, "spec": {"containers": []}}})
    service = thing("Service", "web", spec={"selector": labels})
    live = service | {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}}
    everywhere = [{"to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}]
    spec = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "egress": everywhere}
    policy = thing("NetworkPolicy", "base", group="networking.k8s.io/v1", spec=spec, namespace="runners")
    new = read(web, service, policy, pool("a"))
    asked = Deploy(old=new, new=new, live=Live(read(web, live, policy, pool("a"))))
    assert Danger.BUSY_REACHES_WEB in {each.danger for each in judge(asked).refusals}
    assert Danger.BUSY_REACHES_WEB not in {each.danger for each in judge(Deploy(old=new, new=new)).refusals}


def test_notes_of_a_verdict_name_what_was_not_checked() -> None:
    other = thing("CiliumNetworkPolicy", "c", group="cilium.io/v2")
    notes = judge(Deploy(old=read(pool("a")), new=read(other))).notes
    assert [note.partition(" ")[0] for note in notes] == ["these", "not", "the", "pools"]
    assert notes[1].endswith(": CiliumNetworkPolicy ostler/c")
    asked = judge(Deploy(old=read(pool("a")), new=read(other), live=Live(read(pool("a"))))).notes
    assert [note.partition(" ")[0] for note in asked] == ["these", "not"]
    kept = judge(Deploy(old=read(pool("a", annotations=KEPT)), new=read())).notes
    assert [note.partition(" ")[0] for note in kept] == ["these", "the"]


def test_the_runners_are_where_the_caller_and_the_objects_say() -> None:
    assert judge(Deploy(old=None, new=read())).namespaces == {"ostler-runners"}
    assert judge(Deploy(old=None, new=read(pool("a")))).namespaces == RUNNERS
    assert judge(Deploy(old=None, new=read(), runners=frozenset({"mine"}))).namespaces == {"mine"}
    assert judge(Deploy(old=None, new=read(pool("a")), runners=frozenset({"mine"}))).namespaces == {"runners", "mine"}
    assert judge(Deploy(old=read(pool("a")), new=read(moved("b", "more")))).namespaces == {"runners", "more"}


def test_the_worst_danger_is_told_first() -> None:
    old = read(pool("a"), thing("Namespace", "runners"))
    found = [each.danger for each in judge(Deploy(old=old, new=read(pool("a")))).refusals]
    assert found == sorted(found, key=list(Danger).index)
    assert {Danger.NOT_RULED, Danger.NAMESPACE_DELETED, Danger.ADMISSION_MISSING} <= set(found)


def test_what_was_there_before_or_comes_by_a_hook_is_no_heir() -> None:
    one, two = thing("ConfigMap", "a", spec={"same": 1}), thing("ConfigMap", "b", spec={"same": 1})
    hook = thing("ConfigMap", "c", spec={"same": 1}, annotations=HOOK)
    assert changes(read(one, two), read(two, hook)) == [(Action.DELETED, "ConfigMap ostler/a", None)]


def test_what_is_kept_hides_nothing_that_goes() -> None:
    old = read(thing("ConfigMap", "a", annotations=KEPT), thing("Namespace", "runners"))
    assert dangers(old, read()) == [Danger.NAMESPACE_DELETED]


@pytest.mark.parametrize("field", ["namespaceSelector", "objectSelector"])
def test_a_selector_that_is_malformed_is_named(field: str) -> None:
    with pytest.raises(Malformed, match=rf"^ValidatingAdmissionPolicyBinding .*: spec\.matchResources\.{field}: "):
        list(judge_admission(guard(binding={"matchResources": {field: {"matchLabels": ["a"]}}}), RUNNERS))
