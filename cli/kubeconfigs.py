"""Choice of the cluster of an operator's command, in the same order for every command.

The order is: the option `--kubeconfig` if the command has it, `OSTLER_KUBECONFIG`, `KUBECONFIG` (one file, or several
separated by `:`), `~/.kube/config`, and the cluster of the Pod that runs the command. The command uses the first place
that is set, even if its content is wrong. If the command tried the next place instead, it could change a cluster that
the operator did not name.

The processes (`web`, `worker`, `watch`) read only `OSTLER_KUBECONFIG`, so that no process serves a cluster by accident.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ostler.settings import load_cluster

if TYPE_CHECKING:
    from k8s_adapters.calls.client import KubeClient

USUAL = "~/.kube/config"

ANSWER_WITHIN = 6.0
"""Seconds after which a command no longer waits for an answer of the API server, and ends with a message."""

Kubeconfig = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="kubeconfig; default: OSTLER_KUBECONFIG, KUBECONFIG, ~/.kube/config, or the cluster of this Pod",
    ),
]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The chosen kubeconfig.

    `path` is the path of one file or, as in KUBECONFIG, of several files. It is None for the cluster of this Pod.
    `named` is the source of the choice, for messages: an option, a variable, a file, or the Pod's ServiceAccount.
    """

    path: str | None
    named: str


def choose(given: str | None = None) -> Chosen:
    """Return the kubeconfig that a command uses. `given` is the value of its option, or None."""
    if given:
        return Chosen(given, "--kubeconfig")
    if own := load_cluster().kubeconfig:
        return Chosen(own, "OSTLER_KUBECONFIG")
    if kubectls := os.environ.get("KUBECONFIG"):
        return Chosen(kubectls, "KUBECONFIG")
    usual = Path(USUAL).expanduser()
    return Chosen(str(usual), USUAL) if usual.exists() else Chosen(None, "the Pod's ServiceAccount")


def client_for(given: str | None = None, *, pool_size: int = 16) -> KubeClient:
    """Return a client of the operator's cluster. `ANSWER_WITHIN` is the deadline of a call with all its attempts.

    `given` is the value of the command's option, or None. Raises `ConfigurationError` if the credentials cannot be
    read.
    """
    from k8s_adapters.calls.client import make_client
    from rules.upstream.retry import RetryPolicy

    chosen = choose(given)
    return make_client(
        kubeconfig=chosen.path,
        read_timeout=ANSWER_WITHIN,
        pool_size=pool_size,
        named=chosen.named,
        policy=RetryPolicy(base=0.5, deadline=ANSWER_WITHIN),
    )
