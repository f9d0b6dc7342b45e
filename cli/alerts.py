"""`ostler alerts`: prints the alerting rules for Prometheus."""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated

import typer


def alerts(
    runbooks: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="address before the page in the runbook_url of each alert"),
    ] = "",
) -> None:
    """Print the alerting rules as a file for Prometheus: name it in rule_files of prometheus.yml.

    The chart has the same rules as a PrometheusRule (metrics.rules).
    """
    if runbooks and not (runbooks.startswith(("http://", "https://")) and runbooks.endswith("/")):
        raise typer.BadParameter(
            f"--runbooks: found {runbooks!r}; expected an address such as https://git.example.com/ostler/blob/main/"
        )
    rules = files("cli").joinpath("alerts.yaml").read_text(encoding="utf-8")
    typer.echo(rules.replace("runbook_url: ", f"runbook_url: {runbooks}"), nl=False)
