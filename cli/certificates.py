"""`ostler certificates`: create the certificate of the runners' polls, if it does not exist.

The chart runs the command in a Job if it is rendered without a cluster. A person needs it only to replace a
certificate (docs/operations/gitops.md).
"""

from __future__ import annotations

from typing import Annotated

import typer

from cli.kubeconfigs import Kubeconfig
from ostler.clock import utcnow


def certificates(
    namespace: Annotated[str, typer.Option(help="namespace of the release")],
    ca_secret: Annotated[str, typer.Option(help="Secret with the CA")],
    tls_secret: Annotated[str, typer.Option(help="Secret with the certificate of web")],
    host: Annotated[list[str], typer.Option(help="DNS name of web; repeat the option for each name")],
    runners: Annotated[list[str], typer.Option(help="namespace of runner Pods; repeat the option for each namespace")],
    kubeconfig: Kubeconfig = None,
) -> None:
    """Create the CA, the certificate of web and the CA bundle of runner Pods. What exists is not changed."""
    from cli.cluster import calling
    from k8s_adapters.cluster.polls_certificates import Wanted, ensure
    from ostler import logging

    logging.configure(process="certificates")
    with calling(
        kubeconfig,
        needs=f"get, create and patch on the Secrets {ca_secret} and {tls_secret}, and on the ConfigMap with the CA",
        absent="the server of the kubeconfig has no Secrets; is it a Kubernetes API server?",
    ) as kube:
        made = ensure(kube, Wanted(namespace, ca_secret, tls_secret, host, runners), now=utcnow())
    typer.echo(f"created: {', '.join(made)}" if made else "nothing is missing, and nothing was changed")
