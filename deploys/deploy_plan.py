"""Verdict on a whole deploy: the objects before and after the deploy, and the reasons to refuse it that they show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deploys.addresses import Addresses
from deploys.deploy_admission import judge_admission
from deploys.deploy_changes import Action, Change, Left, changes_of, judge_changes, judge_namespaces
from deploys.deploy_network import WEB, Question, Row, judge_network
from deploys.deploy_polls import judge_polls
from deploys.deploy_secrets import note_secrets
from deploys.deploys import AT_REST, Danger, Refusal
from deploys.manifests import Manifests, Object, read_manifests
from deploys.selectors import Selector

DEFAULT_RUNNERS = "ostler-runners"


@dataclass(frozen=True, slots=True)
class Live:
    """State of the cluster.

    `manifests` has the objects of all kinds that the checks read. `listed` are the namespaces whose runner Pods were
    listed. `runner_pods` has their sets of labels, each with its namespace. If several runner Pods of a namespace have
    equal labels, `runner_pods` has one entry for them.
    """

    manifests: Manifests
    runner_pods: tuple[tuple[str, Mapping[str, str]], ...] = ()
    listed: frozenset[str] = frozenset()

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the number of different sets of labels of runner Pods in each namespace of `listed`."""
        found = Counter(namespace for namespace, _ in self.runner_pods)
        return {name: found[name] for name in self.listed}


@dataclass(frozen=True, slots=True)
class Deploy:
    """Input of the checks of a deploy.

    `old` contains the deployed manifests. `old` is None at a first installation, or if the checks must find the
    deployed objects in `live`. `new` contains the new manifests. `live` is the state of the cluster, or None if the
    cluster was not read. `runners` are namespaces of runner Pods in addition to the namespaces in the objects. `web`
    selects web's Pods, and `web_addresses` are further addresses of web. `allowed` are private addresses that jobs
    need.
    """

    old: Manifests | None
    new: Manifests
    live: Live | None = None
    runners: frozenset[str] = frozenset()
    web: Selector = WEB
    web_addresses: Addresses = field(default_factory=Addresses)
    allowed: Addresses = field(default_factory=Addresses)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of the checks. If `refusals` is empty, the checks found no danger.

    `notes` name the parts that were not checked, and the pools whose Pods an admission policy will refuse. `namespaces`
    are the namespaces of runner Pods that were checked. They include each namespace that the deploy leaves, if the
    namespace contains pools or might contain runner Pods.
    """

    refusals: tuple[Refusal, ...]
    changes: tuple[Change, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    namespaces: frozenset[str]


def judge(deploy: Deploy) -> Verdict:
    """Return the verdict on a deploy, without the checks that need the live API server.

    Raises `Malformed` if a selector of an admission policy or of its binding is malformed.
    """
    live = deploy.live
    old = deploy.old if deploy.old is not None or live is None else _of_release(live.manifests, deploy.new)
    changes = changes_of(old.objects if old else {}, deploy.new.objects)
    before = old if live is None else live.manifests
    after = _after(before, deploy.old, deploy.new, changes, live=live is not None)
    left = _left(deploy)
    empty = {each.namespace for each in left if each.is_empty}
    named = ((deploy.runners | (before.runner_namespaces if before else frozenset())) - empty) | after.runner_namespaces
    namespaces = named or frozenset({DEFAULT_RUNNERS})
    network = judge_network(
        Question(
            before=before if live is None or _has_release(before, deploy.new) or live.runner_pods else None,
            after=after,
            namespaces=namespaces,
            web=deploy.web,
            web_addresses=deploy.web_addresses,
            allowed=deploy.allowed,
            seen=live.runner_pods if live else (),
        )
    )
    rests = _rests(deploy, namespaces)
    refusals = (
        *(each for each in network.refusals if not (rests and each.danger in AT_REST)),
        *judge_polls(before, after),
        *judge_namespaces(left),
        *judge_changes(changes, live=live.manifests.objects if live else None, namespaces=namespaces),
        *judge_admission(after, namespaces),
    )
    order = list(Danger)
    return Verdict(
        refusals=tuple(sorted(refusals, key=lambda each: order.index(each.danger))),
        changes=changes,
        rows=network.rows,
        notes=(
            *_notes(deploy, after, network.rows, changes),
            *([_RESTS] if any(each.danger in AT_REST for each in network.refusals) and rests else []),
        ),
        namespaces=namespaces,
    )


_RESTS = (
    "the deploy changes the network policies of stamped Pods. This is accepted, because no runner Pod exists and every "
    "pool is paused: resume the pools after the deploy"
)


def _rests(deploy: Deploy, namespaces: frozenset[str]) -> bool:
    """Return whether no runner Pod exists, and no pool creates one during the deploy.

    A policy may then change, because no Pod is stamped (law L12).
    """
    live = deploy.live
    if live is None or live.runner_pods or not namespaces <= live.listed:
        return False
    paused = {(each.namespace, each.name): each.paused for each in live.manifests.pools}
    paused |= {(each.namespace, each.name): each.paused for each in deploy.new.pools if each.paused is not None}
    paused |= {key: None for each in deploy.new.pools if (key := (each.namespace, each.name)) not in paused}
    return all(paused.values())


def _of_release(live: Manifests, *given: Manifests) -> Manifests:
    """Return the live objects of the release in `given`.

    A live object that is also in `given` belongs to the release. Any other object belongs to the release if its label
    or Helm's annotation names the release. Another namespace can have a release of the same name. The objects of that
    release are left out, because Helm's annotation names a namespace in which `given` has no object.
    """
    keys = {key for each in given for key in each.objects}
    names = {name for each in given for one in each.objects.values() if (name := _release(one)) is not None}
    places = {None, *(key[1] for key in keys)}
    bodies = [
        each.body
        for key, each in live.objects.items()
        if key in keys or (_release(each) in names and _release_namespace(each) in places)
    ]
    return read_manifests(bodies, namespace="default")


def _left(deploy: Deploy) -> tuple[Left, ...]:
    """Return the namespaces that a process of the release reads before the deploy, and no process reads after it.

    The manifests in `old` might be older than the cluster, so the live objects of the release count too. The result is
    empty if no process in the new manifests names a namespace. In that case, the processes belong to another release.
    """
    live, new = deploy.live, deploy.new
    before = () if deploy.old is None else (deploy.old,)
    if live is not None:
        before = (*before, _of_release(live.manifests, new, *before))
    names = {name for each in before for name in each.read_namespaces} if new.read_namespaces else set()
    pools = live.manifests.pools if live is not None else ()
    return tuple(
        Left(
            namespace=name,
            pools=tuple(sorted(each.name for each in pools if each.namespace == name)),
            pods=live.counts.get(name) if live is not None else None,
        )
        for name in sorted(names - new.read_namespaces)
    )


def _has_release(before: Manifests | None, new: Manifests) -> bool:
    """Return whether a new object already exists in `before`. Otherwise there is nothing to compare."""
    return before is not None and any(key in before.objects for key in new.objects)


def _release(given: Object) -> str | None:
    metadata: Mapping[str, Any] = given.body.get("metadata") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return labels.get("app.kubernetes.io/instance") or annotations.get("meta.helm.sh/release-name")


def _release_namespace(given: Object) -> str | None:
    annotations: Mapping[str, str] = (given.body.get("metadata") or {}).get("annotations") or {}
    return annotations.get("meta.helm.sh/release-namespace")


def _after(
    before: Manifests | None, old: Manifests | None, new: Manifests, changes: Iterable[Change], *, live: bool
) -> Manifests:
    """Return the objects after the deploy: those of `new`, and those of `before` that the deploy does not delete.

    `old` contains the deployed manifests that the caller gave. `live` is true if `before` was read from the cluster.
    """
    stays = before.objects if before is not None else {}
    if live:
        gone = {each.key for each in changes if each.action is not Action.KEPT}
        staying = [each.body for key, each in stays.items() if key not in gone and key not in new.objects]
    else:  # the cluster was not read, so only the objects of `old` that Helm keeps remain
        staying = [stays[each.key].body for each in changes if each.action is Action.KEPT]
    ours = old.objects if old is not None else {}
    over = [_over(stays.get(key) if live else None, ours.get(key), each) for key, each in new.objects.items()]
    return read_manifests([*staying, *over], namespace="default")


def _over(live: Object | None, old: Object | None, new: Object) -> Mapping[str, Any]:
    """Return a new object as it will be in the cluster.

    Labels and annotations that other clients added to the live object stay on the object.
    """
    metadata = {**new.body["metadata"], "namespace": new.key[1]}
    if live is None:
        return {**new.body, "metadata": metadata}
    for name in ("labels", "annotations"):
        ours = (old.body["metadata"].get(name) or {}) if old is not None else {}
        theirs = {k: v for k, v in (live.body["metadata"].get(name) or {}).items() if k not in ours}
        metadata[name] = {**theirs, **(new.body["metadata"].get(name) or {})}
    # The checks read the addresses of a load balancer from the status.
    return {**new.body, "metadata": metadata, "status": live.body.get("status") or {}}


def _notes(deploy: Deploy, after: Manifests, rows: Iterable[Row], changes: Iterable[Change]) -> tuple[str, ...]:
    found: list[str] = []
    if any(each.reaches_web is None for each in rows):
        found.append("these manifests contain no Pods of web: access to web was not checked")
    if after.not_evaluated:
        found.append(f"not evaluated, although they also control traffic: {', '.join(after.not_evaluated)}")
    found.extend(note_secrets(after))
    if deploy.live is None:
        found.append(
            "the cluster was not read (use --live): its policies, runner Pods, finalizers and admission policies were "
            "not checked"
        )
        if any(each.key[0].startswith("RunnerPool.") and each.action is not Action.KEPT for each in changes):
            found.append("pools are deleted or renamed: use --live to check whether they drain first")
    return tuple(found)
