"""`ostler hook`: the container hooks of a runner Pod."""

from __future__ import annotations

import os

import typer

app = typer.Typer(help="Execute container jobs for the runner of a Pod.", no_args_is_help=True)


@app.command()
def serve() -> None:
    """Serve the commands of container jobs at a Unix socket. This is the sidecar `hooks` of a runner Pod."""
    from container_hooks.sidecar import run_sidecar
    from ostler import logging

    logging.configure(process="hooks", level=os.environ.get("OSTLER_LOG_LEVEL") or "INFO")
    run_sidecar(os.environ)
