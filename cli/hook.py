"""`ostler hook`: the container hooks of a runner Pod."""

from __future__ import annotations

import os
import sys

import typer

app = typer.Typer()


@app.callback(invoke_without_command=True)
def hook(context: typer.Context) -> None:
    """Execute one command of a container job. The runner writes the command as JSON to standard input.

    The exit status is that of the step, or 1 if the command fails.
    """
    if context.invoked_subcommand is not None:
        return
    from container_hooks.standalone import run_once
    from ostler import logging

    logging.configure(process="hooks", level=os.environ.get("OSTLER_LOG_LEVEL") or "WARNING")
    raise typer.Exit(run_once(os.environ, given=sys.stdin.buffer, shown=sys.stdout.buffer))


@app.command()
def serve() -> None:
    """Serve the commands of container jobs at a Unix socket. This is the sidecar `hooks` of a runner Pod."""
    from container_hooks.sidecar import run_sidecar
    from ostler import logging

    logging.configure(process="hooks", level=os.environ.get("OSTLER_LOG_LEVEL") or "INFO")
    run_sidecar(os.environ)
