"""Find the cluster of an operator's command, as kubectl does and in the same order for every command.

`--kubeconfig`, where the command has it, then `OSTLER_KUBECONFIG`, `KUBECONFIG` (one file, or several with `:` between
them), `~/.kube/config`, and at last the cluster that this Pod runs in. The first that is set is used, also when it is
wrong: another cluster than the one that was named must not be changed.

The processes (`web`, `worker`, `watch`) read `OSTLER_KUBECONFIG` alone: they must not serve a cluster by accident.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ostler.settings import load_cluster

if TYPE_CHECKING:
    from k8s_adapters.client import KubeClient

USUAL = "~/.kube/config"

ANSWER_WITHIN = 6.0
"""Seconds after which a command that waits for an answer of the API server says so and ends."""

Kubeconfig = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="kubeconfig; default: OSTLER_KUBECONFIG, KUBECONFIG, ~/.kube/config, or the cluster that this runs in",
    ),
]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A kubeconfig: its path (or paths, as in KUBECONFIG) and what named it. No path means the cluster of this Pod."""

    path: str | None
    named: str


def choose(given: str | None = None) -> Chosen:
    """Return the kubeconfig that a command uses; `given` is its own option."""
    if given:
        return Chosen(given, "--kubeconfig")
    if own := load_cluster().kubeconfig:
        return Chosen(own, "OSTLER_KUBECONFIG")
    if kubectls := os.environ.get("KUBECONFIG"):
        return Chosen(kubectls, "KUBECONFIG")
    usual = Path(USUAL).expanduser()
    return Chosen(str(usual), USUAL) if usual.exists() else Chosen(None, "the Pod's ServiceAccount")


def client_for(given: str | None = None, *, pool_size: int = 16) -> KubeClient:
    """Return a client for the operator's cluster, whose calls take `ANSWER_WITHIN` with all their attempts.

    Raises ConfigurationError when its credentials cannot be read.
    """
    from k8s_adapters.client import make_client
    from rules.upstream.retry import RetryPolicy

    chosen = choose(given)
    return make_client(
        kubeconfig=chosen.path,
        read_timeout=ANSWER_WITHIN,
        pool_size=pool_size,
        named=chosen.named,
        policy=RetryPolicy(base=0.5, deadline=ANSWER_WITHIN),
    )
