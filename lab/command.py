"""The `ostler-lab` command: the demo, chaos runs, programs of Compose's profile `lab`, and builds of Go programs.

It is separate from `ostler`, so that a production image contains no `lab` and no switch that sabotages a run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from ostler.errors import ConfigurationError, OstlerError

PROGRAMS = {
    "chaos": ("lab.chaos.__main__", "Break the parts of the system while jobs run, and judge the run."),
    "environment": ("lab.environment", "Print the values that Compose needs for its profile `lab`, with new keys."),
    "github": ("lab.github.__main__", "Serve the lab's GitHub."),
    "apiserver": ("lab.embedded", "Write keys and a kubeconfig, then serve the lab's API server."),
    "setup": ("lab.bootstrap", "Create the RunnerPool kind, a namespace, two pools and three accounts, once."),
    "node": ("lab.node.__main__", "Build a real node's programs and images; run a COMMAND where a real node can run."),
    "images": ("lab.node.build_images", "Build the images of a real node, and print their sizes."),
    "compose-check": ("lab.engine.check", "Build and start the compose file on a Docker engine of its own."),
    "kubelet": ("lab.kubelet.__main__", "Run the Pods of a namespace as a node."),
    "traffic": ("lab.traffic", "Send jobs and wait until each completed exactly once."),
}
"""Commands that parse their own arguments: the module whose `main` runs, and the line that `--help` shows."""

BUILT = {
    "control-plane": (
        "lab.control_plane_build",
        "Build kube-apiserver, kube-controller-manager and etcd (about five minutes, once).",
    ),
    "helm": ("lab.helm", "Build Helm 3 and Helm 4 for the tests of the chart, once."),
    "kubectl": ("lab.kubectl", "Build kubectl for tests and the demo, once."),
    "prometheus": ("lab.prometheus", "Build Prometheus and promtool for the tests of alerts and dashboards, once."),
    "toxiproxy": ("lab.toxiproxy", "Build toxiproxy for tests of dropped packets and of slow stores, once."),
}
"""Programs built from Go modules: the module whose `build` builds the program, and the line that `--help` shows."""

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(
    name="ostler-lab",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _describe() -> None:
    """Run the whole of Ostler on one machine, with the lab's own GitHub, cluster and node."""


@app.command()
def demo(
    jobs: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="number of jobs after which the demo ends with a verdict")
    ] = None,
    cluster: Annotated[
        str,
        typer.Option(
            help="`embedded`: the lab's API server; `real`: a kube-apiserver; `node`: that and a real kubelet (root)"
        ),
    ] = "embedded",
    seed: Annotated[int, typer.Option(help="seed of the lab's random numbers")] = 1,
    logs: Annotated[Path | None, typer.Option(help="keep the logs of every process in this new folder")] = None,
) -> None:
    """Run the whole system on this machine, and run jobs through it."""
    from lab.demo.run import run_demo

    raise typer.Exit(run_demo(jobs=jobs, cluster=cluster, seed=seed, logs=logs))


def _program(name: str, module: str) -> Callable[[typer.Context], None]:
    """Return a command that passes its arguments to the parser of a module."""

    def run(context: typer.Context) -> None:
        sys.argv = [f"ostler-lab {name}", *context.args]
        raise typer.Exit(import_module(module).main() or 0)

    return run


def _builder(name: str, module: str) -> Callable[[], None]:
    """Return a command that builds a program unless it is cached, and prints its path."""

    def run() -> None:
        from lab.processes import StartError

        try:
            path = import_module(module).build(typer.echo)
        except StartError as error:
            raise OstlerError(str(error)) from error
        typer.echo(f"{name}: {path}")

    return run


for _name, (_module, _line) in PROGRAMS.items():
    app.command(_name, help=_line, context_settings=_PASS_ON)(_program(_name, _module))
for _name, (_module, _line) in BUILT.items():
    app.command(_name, help=_line)(_builder(_name, _module))


def main() -> None:
    """Run the command. The exit status is 2 for wrong usage, 130 for Ctrl-C, and 1 for any other failure."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except OstlerError as error:
        sys.stderr.writelines(f"ostler-lab: {line}\n" for line in str(error).splitlines())
        sys.exit(2 if isinstance(error, ConfigurationError) else 1)
