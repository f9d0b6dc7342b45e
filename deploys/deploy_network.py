"""Deploy rule of network policies: nothing changes for a stamped Pod (law L12), and every idle Pod can reach web.

A deploy could harm a stamped Pod even if the Pod's peers stay the same. A network plugin computes the rules of every
selected Pod again when a policy is written, and when a peer of a policy is created or deleted. In production,
connections broke at such moments. A deploy must therefore not write a policy that selects stamped Pods. A policy that
selects stamped Pods must not have peers that a deploy replaces. For this reason the chart has separate policies for
idle runner Pods and for all runner Pods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deploys import deploy_dangers as dangers
from deploys.addresses import Addresses
from deploys.deploys import Danger, Refusal
from deploys.manifests import (
    CONTAINERS_KUBERNETES,
    CONTAINERS_LABEL,
    HOOK_OF_LABEL,
    HOOK_POOL_LABEL,
    OWNER_LABEL,
    POOL_LABEL,
    Manifests,
    Pool,
    Workload,
    addresses_of,
)
from deploys.network_policies import Policy
from deploys.network_reach import Network, Pod
from deploys.selectors import Operator, Requirement, Selector

WEB = Selector((Requirement("app.kubernetes.io/component", Operator.IN, frozenset({"web"})),))
ANY_OTHER = "(any other)"
"""Name that stands for every pool outside the manifests. People also create pools by hand."""

ANY_WITH_CONTAINERS = "(any other with container jobs)"
"""Name that stands for every pool outside the manifests whose jobs may use containers."""

_NO_POOL = "NO_POOL"  # valid as a label value, but not as the name of an object


@dataclass(frozen=True, slots=True)
class Question:
    """Input of the network check.

    `before` contains the deployed objects, or is None if there is nothing to compare, as at a first installation.
    `after` contains the objects after the deploy. `namespaces` are the namespaces of the runner Pods. `web` selects
    web's Pods. `web_addresses` are addresses of web in addition to the addresses in the manifests. `allowed` are
    private addresses that jobs need. `seen` has the namespaces and the sets of labels of the existing runner Pods.
    """

    before: Manifests | None
    after: Manifests
    namespaces: frozenset[str]
    web: Selector = WEB
    web_addresses: Addresses = field(default_factory=Addresses)
    allowed: Addresses = field(default_factory=Addresses)
    seen: tuple[tuple[str, Mapping[str, str]], ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """Result for one kind of runner Pod.

    `state` is `stamped` or `idle`. `same` is true if nothing changes for these Pods, and false if something changes. It
    is None for idle Pods, and if there is nothing to compare. `reaches_web` is None if the manifests contain no Pods of
    web.
    """

    pool: str
    state: str
    policies: tuple[str, ...]
    same: bool | None
    reaches_web: bool | None


@dataclass(frozen=True, slots=True)
class NetworkVerdict:
    """Result of the network check: the refusals, and one row for each kind of runner Pod."""

    refusals: tuple[Refusal, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class _Runner:
    """Runner Pods or hook Pods of one pool with the same labels. Policies treat these Pods alike.

    `is_new` is true if such a Pod cannot exist before the deploy.
    """

    pool: str
    pod: Pod
    stamped: bool
    is_new: bool


def judge_network(question: Question) -> NetworkVerdict:
    """Return the verdict on the network policies of a deploy, for stamped and idle Pods of every pool."""
    before, after = question.before, question.after
    workloads = _distinct(before, after)
    web = [each for each in workloads if question.web.matches(each.pod.labels)]
    addresses = question.web_addresses.union(addresses_of(after, web))
    if before is not None:
        addresses = addresses.union(addresses_of(before, web))
    runners = _runners(question)
    pods = tuple(each.pod for each in runners)
    namespaces = {**(before.namespaces if before else {}), **after.namespaces}
    network = Network(after.policies, namespaces, tuple(each.pod for each in workloads))
    rolling = dangers.rolling_in(network, [*network.pods, *pods])
    found: list[tuple[str, Refusal]] = []
    rows: list[Row] = []
    for runner in runners:
        seen = dangers.observe(network, runner.pod)
        same: bool | None = None
        if runner.stamped:
            changed: list[Refusal] = []
            if before is not None and not runner.is_new:
                changed = dangers.changed(before, after, runner.pod, pods)
                same = not changed
            mine = [
                *changed,
                *dangers.not_ruled(seen),
                *dangers.open_ingress(seen),
                *dangers.private_egress(seen, _allowed(question, runner.pod)),
                *dangers.rolling_peers(seen, rolling),
                *dangers.reaching_web(seen, web, addresses),
            ]
            reaches_web = not seen.egress.policies or any(each.danger is Danger.BUSY_REACHES_WEB for each in mine)
        else:
            mine = [*dangers.missing_web(seen, web)]
            reaches_web = not mine
        found += [(runner.pool, each) for each in mine]
        names = sorted(p.name for p in after.policies if p.selects(runner.pod.namespace, runner.pod.labels))
        state = "stamped" if runner.stamped else "idle"
        rows.append(Row(runner.pool, state, tuple(names), same, reaches_web if web else None))
    return NetworkVerdict(_merged(found), _worst(rows))


def _distinct(before: Manifests | None, after: Manifests) -> list[Workload]:
    """Return the new workloads, and the old workloads that differ from every new workload.

    During a rollout, Pods of old and new workloads exist.
    """
    found = list(after.workloads)
    for each in before.workloads if before else ():
        if each not in found:
            pod = Pod(f"{each.pod.key} (before)", each.pod.namespace, each.pod.labels, each.pod.named_ports)
            found.append(Workload(pod, each.ports))
    return found


def _allowed(question: Question, pod: Pod) -> Addresses:
    """Return the private addresses that a Pod needs. A Pod with container jobs also needs the API server."""
    if CONTAINERS_LABEL not in pod.labels:
        return question.allowed
    return question.allowed.union(question.after.api_addresses)


def _has_containers(manifests: Manifests | None, namespaces: Collection[str]) -> bool:
    """Return whether a policy in one of the namespaces is made for container jobs."""
    keys = {
        requirement.key
        for policy in (manifests.policies if manifests else ())
        if policy.namespace in namespaces
        for requirement in policy.selector.requirements
    }
    return bool(keys & {CONTAINERS_LABEL, HOOK_OF_LABEL})


def _runners(question: Question) -> list[_Runner]:
    old = {(each.namespace, each.name): each for each in (question.before.pools if question.before else ())}
    new = {(each.namespace, each.name): each for each in question.after.pools}
    owners = _owners((*(question.before.policies if question.before else ()), *question.after.policies))
    known = question.before.runner_namespaces if question.before else frozenset()
    had_containers = question.before is None or _has_containers(question.before, question.namespaces)
    found: list[_Runner] = []
    for key in sorted({*old, *new}):
        one, two = old.get(key), new.get(key)
        # A new template might change the labels. Pods of the old and the new template both exist during a rollout.
        for pool in (one, two if one is None or two is None or one.labels != two.labels else None):
            if pool is not None:
                found += _kinds(pool, owners, is_new=one is None, had_containers=had_containers)
    for namespace in sorted(question.namespaces):
        is_new = bool(known) and namespace not in known
        others = [Pool(namespace, ANY_OTHER, {})]
        if _has_containers(question.after, {namespace}) or _has_containers(question.before, {namespace}):
            others.append(Pool(namespace, ANY_WITH_CONTAINERS, {CONTAINERS_LABEL: CONTAINERS_KUBERNETES}))
        for pool in others:
            found += _kinds(pool, owners, is_new=is_new, had_containers=had_containers)
    for namespace, given in question.seen:
        # Owners that no policy names are equivalent. One value for all of them avoids thousands of equal runners.
        labels = given if given.get(OWNER_LABEL, "1") in owners else {**given, OWNER_LABEL: "1"}
        told, stamped = f"{namespace}/{labels.get(POOL_LABEL)}", OWNER_LABEL in labels
        found.append(_Runner(told, Pod(_key(told, stamped=stamped), namespace, labels, {}), stamped, is_new=False))
    return _numbered(_unique(found))


def _unique(runners: Iterable[_Runner]) -> Iterable[_Runner]:
    """Return one runner of each namespace and set of labels: one that is not new, if there is one."""
    unique: dict[object, _Runner] = {}
    for each in runners:
        same = unique.setdefault((each.pod.namespace, frozenset(each.pod.labels.items())), each)
        if same.is_new and not each.is_new:
            unique[each.pod.namespace, frozenset(each.pod.labels.items())] = each
    return unique.values()


def _numbered(runners: Iterable[_Runner]) -> list[_Runner]:
    """Return the runners with unique keys. Otherwise Pods of one pool with different labels would have equal keys."""
    count: Counter[str] = Counter()
    found: list[_Runner] = []
    for each in runners:
        count[each.pod.key] += 1
        number = count[each.pod.key]
        key = each.pod.key if number == 1 else f"{each.pod.key} ({number})"
        found.append(replace(each, pod=replace(each.pod, key=key)))
    return found


def _kinds(pool: Pool, owners: Iterable[str], *, is_new: bool, had_containers: bool) -> Iterable[_Runner]:
    """Yield the kinds of Pods of a pool: idle runner Pods, stamped runner Pods and, with container jobs, hook Pods.

    `had_containers` says whether Pods with container jobs might exist before the deploy. A hook Pod executes a job for
    its whole life, so it counts as stamped.
    """
    told = f"{pool.namespace}/{pool.name}"
    name = _NO_POOL if pool.name in {ANY_OTHER, ANY_WITH_CONTAINERS} else pool.name
    if CONTAINERS_LABEL in pool.labels:
        is_new = is_new or not had_containers
        hooks = {HOOK_OF_LABEL: name, HOOK_POOL_LABEL: name, "app.kubernetes.io/managed-by": "ostler"}
        pod = Pod(_key(f"{told} (hook Pods)", stamped=True), pool.namespace, hooks, {})
        yield _Runner(f"{told} (hook Pods)", pod, stamped=True, is_new=is_new)
    labels = {**pool.labels, POOL_LABEL: name, "app.kubernetes.io/managed-by": "ostler"}
    labels.pop(OWNER_LABEL, None)
    pod = Pod(_key(told, stamped=False), pool.namespace, labels, {})
    yield _Runner(told, pod, stamped=False, is_new=is_new)
    for owner in owners:
        pod = Pod(_key(told, stamped=True), pool.namespace, {**labels, OWNER_LABEL: owner}, {})
        yield _Runner(told, pod, stamped=True, is_new=is_new)


def _key(pool: str, *, stamped: bool) -> str:
    return f"{'stamped' if stamped else 'idle'} Pods of pool {pool}"


def _owners(policies: Sequence[Policy]) -> list[str]:
    """Return the owners to check: the owner "1", which stands for any account, and each owner that a policy names."""
    named = {
        value
        for policy in policies
        for requirement in policy.selector.requirements
        if requirement.key == OWNER_LABEL
        for value in requirement.values
    }
    return sorted({"1", *named})


def _merged(found: Iterable[tuple[str, Refusal]]) -> tuple[Refusal, ...]:
    """Return each refusal once, with all its pools, in the order of `Danger`."""
    pools: dict[Refusal, list[str]] = {}
    for pool, refusal in found:
        mine = pools.setdefault(refusal, [])
        if pool not in mine:
            mine.append(pool)
    order = list(Danger)
    return tuple(
        Refusal(each.danger, tuple(pools[each]), each.reason, each.cure)
        for each in sorted(pools, key=lambda each: order.index(each.danger))
    )


def _worst(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return one row for each pool and state: the row of the owner with the most problems."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        known = found.setdefault((row.pool, row.state), row)
        if (row.same is False and known.same is not False) or (
            row.state == "stamped" and row.reaches_web and not known.reaches_web
        ):
            found[row.pool, row.state] = row
    return tuple(found.values())
