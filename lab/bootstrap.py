"""Initial state of a lab: the RunnerPool kind, a namespace and pools in the cluster, and accounts at the lab's GitHub.

`ostler-lab setup` creates these objects once and ends. A pool that exists is not changed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cli.output import author
from k8s_adapters.calls.client import KubeClient, make_client
from k8s_adapters.pools.crd import apply_crd
from k8s_adapters.pools.pools import create_pool
from lab.levers import pull
from ostler.errors import Conflict
from rules.changes import Via
from rules.pools.spec_writers import manager_of

RUNNER_IMAGE = "ghcr.io/actions/actions-runner:2.328.0"
"""The image of the pools' Pods. The lab's kubelet does not pull it, and reads only its tag (`lab.kubelet.ailments`)."""


@dataclass(frozen=True, slots=True)
class LabAccount:
    """An account of the lab's GitHub, with its installation and repositories."""

    id: int
    login: str
    type: str
    installation_id: int
    repositories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LabPool:
    """A pool to create."""

    name: str
    labels: tuple[str, ...]
    replicas: int
    cpu: str = "2"
    memory: str = "4Gi"
    autoscaling: Mapping[str, object] | None = None
    """`spec.autoscaling`, or None for a fixed size. With autoscaling, `replicas` is only the initial number of Pods."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `spec`. They replace fields of the same name that are derived from this pool."""

    @property
    def persistent(self) -> bool:
        """Return whether the runners of the pool run one job after the other."""
        return "registration" in self.spec


ACCOUNTS = (
    LabAccount(1001, "acme", "Organization", 501, ("shop", "billing")),
    LabAccount(1002, "globex", "Organization", 502, ("reactor",)),
    LabAccount(1003, "marvin", "User", 503, ("dotfiles",)),
)
POOLS = (
    LabPool("small", ("self-hosted", "linux", "small"), 14),
    LabPool("large", ("self-hosted", "linux", "large"), 6, cpu="4", memory="8Gi"),
)

SETS_POOL = LabPool(
    "cached",
    ("self-hosted", "linux", "cached"),
    5,
    spec={
        "workload": "StatefulSet",
        "volumes": {"claims": [{"name": "cache", "mountPath": "/cache", "storage": "1Gi"}]},
    },
)
"""A pool whose runners are StatefulSets with volumes. Only a real control plane has the controller for them."""

_PERSISTENT: Mapping[str, Any] = {"lifecycle": "persistent", "registration": {"organization": ACCOUNTS[0].login}}
PERSISTENT_POOLS = (
    LabPool("static", ("self-hosted", "linux", "static"), 3, spec=_PERSISTENT),
    LabPool("licensed", ("self-hosted", "linux", "licensed"), 2, spec={**SETS_POOL.spec, **_PERSISTENT}),
)
"""Pools whose runners run one job after the other, with both workloads. Only the first account has them."""

NODE_POOLS = tuple(
    replace(pool, cpu="50m", memory="128Mi", replicas=replicas) for pool, replicas in zip(POOLS, (6, 3), strict=True)
)
"""The same pools with fewer and smaller Pods, for real containers on the two cores of a laptop."""


def on_real_node(pool: LabPool, *, github_url: str) -> LabPool:
    """Return a pool whose runners find the lab's GitHub from their containers.

    A pool with `podTemplate.spec.containers` of its own does not change.
    """
    env = [{"name": "LAB_GITHUB_URL", "value": github_url}]
    names = ("runner", "register") if pool.persistent else ("runner",)
    template: Mapping[str, Any] = pool.spec.get("podTemplate", {})
    pod = {"containers": [{"name": name, "env": env} for name in names], **template.get("spec", {})}
    return replace(pool, spec={**pool.spec, "podTemplate": {**template, "spec": pod}})


def put_pools_in_place(kube: KubeClient, *, namespace: str, pools: Sequence[LabPool]) -> None:
    """Install the RunnerPool kind, then create the namespace and each pool that does not exist.

    The table of changes shows the OS user as the author of the pools.
    """
    manager = manager_of(author().who, Via.SHELL)
    apply_crd(kube)
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    with contextlib.suppress(Conflict):
        kube.request("POST", "/api/v1/namespaces", body=body)
    for pool in pools:
        with contextlib.suppress(Conflict):
            create_pool(kube, namespace=namespace, name=pool.name, spec=spec_of(pool), manager=manager)


def spec_of(pool: LabPool) -> dict[str, object]:
    """Return the `spec` of a pool's object."""
    return {
        "image": RUNNER_IMAGE,
        "runnerLabels": list(pool.labels),
        "replicas": pool.replicas,
        "resources": {"cpu": pool.cpu, "memory": pool.memory},
        **({} if pool.autoscaling is None else {"autoscaling": dict(pool.autoscaling)}),
        **pool.spec,
    }


def add_accounts(github_url: str, accounts: Sequence[LabAccount]) -> None:
    """Install the App on the given accounts of the lab's GitHub."""
    for account in accounts:
        repositories = [
            {"id": account.id * 100 + number, "name": name} for number, name in enumerate(account.repositories)
        ]
        body = {
            "id": account.id,
            "login": account.login,
            "type": account.type,
            "installation_id": account.installation_id,
            "repositories": repositories,
        }
        pull(github_url, "POST", "/accounts", body)


def main() -> None:
    """Read the arguments, then create pools and accounts."""
    parser = argparse.ArgumentParser(prog="ostler-lab setup", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--github-url", required=True, help="address of the lab's GitHub (http://…)")
    arguments = parser.parse_args()
    kube = make_client(kubeconfig=str(arguments.kubeconfig))
    try:
        put_pools_in_place(kube, namespace=arguments.namespace, pools=POOLS)
    finally:
        kube.close()
    add_accounts(arguments.github_url, ACCOUNTS)
    pools = ", ".join(f"{pool.name} ({pool.replicas} Pods)" for pool in POOLS)
    sys.stdout.write(f"in {arguments.namespace}: {pools}; accounts: {', '.join(each.login for each in ACCOUNTS)}\n")


if __name__ == "__main__":
    main()
