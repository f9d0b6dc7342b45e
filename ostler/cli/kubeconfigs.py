"""Which cluster an operator's command asks, where no setting of Ostler's need be there: as kubectl finds it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from k8s_adapters.client import KubeClient

Kubeconfig = Annotated[
    str | None,
    typer.Option(
        envvar=["OSTLER_KUBECONFIG", "KUBECONFIG"],
        help="default: ~/.kube/config, or the cluster that this runs in",
    ),
]


def client_for(kubeconfig: str | None) -> KubeClient:
    """Return a client for the operator's cluster. Raises ConfigurationError when there are no credentials."""
    from k8s_adapters.client import make_client  # noqa: PLC0415

    usual = Path("~/.kube/config").expanduser()
    if not kubeconfig and usual.exists():
        kubeconfig = str(usual)
    return make_client(kubeconfig=kubeconfig or None)
