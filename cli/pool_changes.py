"""`ostler pool pause|resume|scale|drain|detach`: changes of a RunnerPool object in the cluster, and of its runners.

`scale` and `drain` name the resource version that was read, so they fail if another client has changed the pool. The
command then reads the pool again. `pause` and `resume` patch only the field `paused` of the pool with this UID. The
owner of the pool's manifest (Helm or a GitOps controller) might revert a change. The manifest should therefore not set
the fields that these commands change.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import remote
from cli.cluster import in_cluster
from cli.output import Json, author, fail, print_json
from rules.changes import Via
from rules.pools.spec_writers import manager_of

if TYPE_CHECKING:
    from cli.cluster import InCluster
    from cli.remote import Api
    from k8s_adapters.calls.client import KubeClient
    from rules.pools.pool_spec import PoolSpec

MOST_PODS = 10_000
TRIES = 5
CHECK_EVERY = 2.0
"""Seconds between two checks of a draining pool."""
OUTAGE = 60.0
"""Seconds without an answer of the API server after which the command stops waiting for a drain."""

Name = Annotated[str, typer.Argument(help="name of the pool, as `ostler pool list` shows it")]


def pause(name: Name, as_json: Json = False) -> None:
    """Pause a pool. The reconciler then creates no Pods and retires no Pods that work. Warm Pods still serve jobs.

    With OSTLER_API_URL, the command asks the REST API, and a worker changes the pool.
    """
    _set_paused(name, paused=True, as_json=as_json)


def resume(name: Name, as_json: Json = False) -> None:
    """End the pause of a pool. With OSTLER_API_URL, the command asks the REST API, and a worker changes the pool."""
    _set_paused(name, paused=False, as_json=as_json)


def scale(
    name: Name,
    replicas: Annotated[int, typer.Argument(min=0, max=MOST_PODS, help="desired number of Pods")],
    as_json: Json = False,
) -> None:
    """Set the number of Pods of a pool. Surplus warm Pods are retired. The command refuses an autoscaled pool."""
    from k8s_adapters.pools.pools import scale_pool

    manager = manager_of(author().who, Via.SHELL)

    def change(kube: KubeClient, pool: PoolSpec) -> PoolSpec:
        _refuse_terminating(pool)
        if pool.autoscaled:
            fail(
                f"pool {name} is autoscaled, up to {pool.max_replicas} Pods: the autoscaler would set its replicas "
                "back within seconds. Change spec.autoscaling.minWarm or maxReplicas instead, or switch "
                "spec.autoscaling.enabled off first"
            )
        return pool if pool.replicas == replicas else scale_pool(kube, pool, replicas=replicas, manager=manager)

    with in_cluster(verb="patch") as cluster:
        before, after = _changed(cluster, name, change)
    _print(
        after,
        f"{name}: {before.replicas} → {after.replicas} replicas"
        if before.replicas != after.replicas
        else f"{name} has {after.replicas} replicas already",
        as_json=as_json,
    )
    if as_json:
        return
    if after.paused:
        typer.echo(
            f"{name} is paused: the reconciler creates and retires no Pod until `ostler pool resume {name}`", err=True
        )
    if after.problem is not None:
        typer.echo(
            f"the spec of {name} is invalid: {after.problem}; the reconciler creates and retires no Pod until you "
            "correct the spec",
            err=True,
        )


def detach(
    yes: Annotated[bool, typer.Option("--yes", help="confirm that Ostler does not run any more")] = False,
    settle: Annotated[
        int,
        typer.Option(
            min=0,
            max=600,
            help="seconds after which the command checks once more; a stopping worker "
            "might have created a runner meanwhile",
        ),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Detach all runner Pods from Ostler after its removal, so that nothing stays Terminating. Jobs continue.

    The command removes the StatefulSets of runners without their Pods, and the finalizer ostler.dev/exit of the Pods.
    The chart runs it after `helm uninstall`. While Ostler runs, it would create the runners again.
    """
    from cli.cluster import calling
    from k8s_adapters.runners.owners.detaching import Detached, detach_runners
    from ostler.settings import load_cluster

    if not yes:
        typer.echo(
            "ostler: detach removes the StatefulSets of all runners, and the finalizers of their Pods; jobs continue. "
            "A running Ostler would create the runners again. Confirm with --yes",
            err=True,
        )
        raise typer.Exit(2)
    namespaces = load_cluster().namespaces
    where = " and ".join(map(repr, namespaces))
    found = Detached()
    with calling(
        needs=f"list and delete on statefulsets.apps, and list, get and update on pods, in namespace {where}"
    ) as kube:
        for again in range(2 if settle else 1):
            if again:
                time.sleep(settle)
            for namespace in namespaces:
                found += detach_runners(kube, namespace=namespace)
    if as_json:
        print_json({"namespaces": namespaces, "stateful_sets": found.stateful_sets, "finalizers": found.finalizers})
    elif found:
        typer.echo(
            f"{found.stateful_sets} StatefulSets and {found.finalizers} finalizers of Pods are removed in {where}"
        )
    else:
        typer.echo(f"no runner in {where} has a StatefulSet or a finalizer of Ostler")


def drain(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="confirm the deletion of the pool")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="wait until the pool is deleted")] = True,
    as_json: Json = False,
) -> None:
    """Delete a pool after its jobs: it gets no new jobs, warm Pods are retired, and busy Pods finish.

    Ctrl-C ends the command, but not the drain.
    """
    from k8s_adapters.pools.pools import drain_pool

    def change(kube: KubeClient, pool: PoolSpec) -> PoolSpec:
        if pool.terminating:
            return pool
        if not yes:
            typer.echo(
                f"ostler: drain deletes RunnerPool {name} in namespace {pool.namespace}: it gets no new jobs, its warm "
                "Pods are retired, and it is deleted after its last job. Confirm with --yes",
                err=True,
            )
            raise typer.Exit(2)
        if not pool.has_finalizer:
            fail(
                f"pool {name} lacks the finalizer ostler.dev/drain, so the cluster might delete its busy Pods together "
                "with the pool. A worker on the queue `pools` adds the finalizer to every pool within seconds: check "
                "that one runs (`ostler doctor`), then try again"
            )
        drain_pool(kube, pool)
        return pool

    with in_cluster(verb="delete") as cluster:
        before, _ = _changed(cluster, name, change)
        if before.terminating:
            typer.echo(f"{name} has been draining since {before.deleted_at:%Y-%m-%d %H:%M:%S} UTC", err=True)
        gone = _watch(cluster, before, quiet=as_json) if wait else _left(cluster, before) is None
    if as_json:
        print_json({"name": name, "namespace": before.namespace, "gone": gone})
    elif gone:
        typer.echo(f"{name} is deleted")
    else:
        typer.echo(f"{name} is draining; `ostler pool list` shows the progress")


def _watch(cluster: InCluster, pool: PoolSpec, *, quiet: bool) -> bool:
    """Wait until the pool is deleted, and return True.

    Print each change of the progress on stderr unless `quiet`. Raises `Retryable` if the API server has not answered
    for `OUTAGE` seconds, and KeyboardInterrupt after Ctrl-C.
    """
    from ostler.errors import Retryable

    interrupted = []
    # A KeyboardInterrupt can get lost inside a call of a library. This handler only records it for the loop.
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.append(True))
    said = ""
    try:
        answered = time.monotonic()
        while True:
            try:
                left = _left(cluster, pool)
                answered = time.monotonic()
            except Retryable:
                if time.monotonic() - answered > OUTAGE:
                    raise
                left = f"{pool.name} is draining; the API server does not answer"
            if left is None:
                break
            if left != said and not quiet:
                typer.echo(left, err=True)
            said = left
            end = time.monotonic() + CHECK_EVERY
            while time.monotonic() < end and not interrupted:
                time.sleep(0.1)
            if interrupted:
                typer.echo(
                    f"{pool.name} continues to drain without this command; `ostler pool list` shows the progress",
                    err=True,
                )
                raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, before)
    return True


def _left(cluster: InCluster, pool: PoolSpec) -> str | None:
    """Return a description of the remaining Pods of a draining pool, or None if the pool is deleted."""
    from k8s_adapters.pools.pools import get_pool

    found = get_pool(cluster.kube, namespace=pool.namespace, name=pool.name)
    if found is None or found.uid != pool.uid:
        return None
    counts = {kind: found.status.get(kind, 0) for kind in ("warm", "reserved", "busy", "ending", "retiring")}
    told = ", ".join(f"{many} {kind}" for kind, many in counts.items() if many)
    return f"{pool.name} drains: {told or 'no Pods are known'}"


def _set_paused(name: str, *, paused: bool, as_json: bool) -> None:
    from k8s_adapters.pools.pools import pause_pool

    if (api := remote.chosen()) is not None:
        _ask_api(api, name, paused=paused, as_json=as_json)
        return
    manager = manager_of(author().who, Via.SHELL)

    def change(kube: KubeClient, pool: PoolSpec) -> PoolSpec:
        if pool.paused == paused:
            return pool
        if paused:
            _refuse_terminating(pool)
        return pause_pool(kube, pool, paused=paused, manager=manager)

    with in_cluster(verb="patch") as cluster:
        before, after = _changed(cluster, name, change)
    state = "paused" if paused else "not paused"
    already = " already" if before.paused == paused else ""
    _print(after, f"{name} is {state}{already}", as_json=as_json)


def _ask_api(api: Api, name: str, *, paused: bool, as_json: bool) -> None:
    asked = api.put(f"pools/{api.id_of('pools', 'name', name, deleted=False)}/paused", {"paused": paused})
    if asked is None:
        fail(f"there is no pool {name!r}, or its RunnerPool is gone")
    if as_json:
        print_json(asked)
    else:
        typer.echo(
            f"a worker {'pauses' if paused else 'resumes'} {asked['name']} within seconds; `ostler pool show {name}` "
            "shows the result"
        )


def _refuse_terminating(pool: PoolSpec) -> None:
    if pool.terminating:
        fail(f"pool {pool.name} is draining, and a drain cannot be cancelled; create it again after its deletion")


def _changed(
    cluster: InCluster, name: str, change: Callable[[KubeClient, PoolSpec], PoolSpec]
) -> tuple[PoolSpec, PoolSpec]:
    """Apply a change to a pool, and return the pool before and after it.

    If another client changes the pool between read and write, the change is retried.
    """
    from ostler.errors import Conflict

    for left in reversed(range(TRIES)):
        before = cluster.pool(name)
        try:
            return before, change(cluster.kube, before)
        except Conflict:
            if not left:
                raise
    raise AssertionError("unreachable")


def _print(pool: PoolSpec, words: str, *, as_json: bool) -> None:
    if as_json:
        print_json(shown(pool))
    else:
        typer.echo(words)


def shown(pool: PoolSpec) -> dict[str, Any]:
    """Return the JSON of a pool: its name and namespace, and the fields that show the effect of these commands."""
    return {
        "name": pool.name,
        "namespace": pool.namespace,
        "replicas": pool.replicas,
        "paused": pool.paused,
        "autoscaled": pool.autoscaled,
        "draining": pool.terminating,
    }
