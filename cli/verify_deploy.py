"""`ostler verify-deploy`: hold a connection from a stamped Pod during a rollout of web.

The test needs a cluster with a real network plugin.

The Pod is a probe. Network policies treat the Pod as a stamped runner Pod, but Ostler does not treat it as a runner
Pod. The probe reports its result in its termination message, so it needs neither permissions nor a network path to
Ostler.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.cluster import calling
from cli.holding import hold, parse_target, reaches
from cli.kubeconfigs import Kubeconfig
from cli.output import Json, fail, print_json
from ostler.errors import ConfigurationError

if TYPE_CHECKING:
    from k8s_adapters.calls.client import KubeClient
    from k8s_adapters.cluster.rolling import Rolling

_WEB = "app.kubernetes.io/component=web"
_FOLDER = "/run/ostler"
_MARK = f"{_FOLDER}/connected"
_MESSAGE = "/dev/termination-log"
_STARTS_WITHIN = 180.0  # seconds until the probe connects, including the pull of its image
_LATE = 60.0  # seconds to wait for the end of the Pod after the end of the test


def hold_connection(
    to: Annotated[str, typer.Option()],
    seconds: Annotated[float, typer.Option()],
    not_to: Annotated[list[str] | None, typer.Option()] = None,
    every: Annotated[float, typer.Option()] = 2.0,
    mark: Annotated[Path, typer.Option()] = Path(_MARK),
    report: Annotated[Path, typer.Option()] = Path(_MESSAGE),
) -> None:
    """Hold a connection and write a report. This command runs in the Pod of `ostler verify-deploy`."""
    found = hold(parse_target(to), seconds=seconds, every=every, connected=mark.touch)
    found.reached = [each for each in not_to or () if reaches(each)]
    report.write_text(json.dumps(asdict(found)))


def verify_deploy(
    seconds: Annotated[float, typer.Option("--for", min=1, max=3600, help="seconds to hold the connection open")] = 180,
    to: Annotated[str, typer.Option(help="URL of a server outside the cluster")] = "https://github.com/",
    roll: Annotated[
        bool, typer.Option("--roll", help="restart web during the test; without it, deploy during the test yourself")
    ] = False,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="namespace of the control plane")] = "ostler",
    runners: Annotated[
        str, typer.Option("--runners-namespace", help="namespace of the runner Pods")
    ] = "ostler-runners",
    image: Annotated[str | None, typer.Option(help="image of Ostler for the probe; default: the image of web")] = None,
    kubeconfig: Kubeconfig = None,
    as_json: Json = False,
) -> None:
    """Hold a connection from a stamped Pod during a rollout of web, and report every break of the connection."""
    try:
        parse_target(to)
    except ValueError as error:
        raise ConfigurationError(f"--to: {error}") from None
    needs = (
        f"list on pods, get on services and list and patch on deployments in {namespace!r}, and get, list, create and "
        f"delete on pods in {runners!r}"
    )
    absent = f"there is no Ostler in namespace {namespace!r}, or no namespace {runners!r}; -n and --runners-namespace "
    with calling(kubeconfig, needs=needs, absent=f"{absent}name others") as client:
        web = _web(client, namespace)
        found = _verify(client, web, runners=runners, image=image or web.image, to=to, seconds=seconds, roll=roll)
    wrong = problems(found)
    if as_json:
        print_json({**found, "held": not wrong, "problems": wrong})
    else:
        typer.echo(
            f"{found['answers']} answers over {seconds:.0f} s, {found['broken']} breaks, "
            f"{found['closed']} connections closed by the server, longest wait {found['longest']} s"
        )
        for each in found["breaks"]:
            typer.echo(f"  at {each['at']} s: {each['how']}")
        for each in wrong:
            typer.echo(f"FAILED: {each}")
        if not wrong:
            typer.echo("passed: the connection was held")
    if wrong:
        raise typer.Exit(1)


def problems(found: dict[str, Any]) -> list[str]:
    """Return the problems of a report, each with its cure.

    A test that could not have found a break is also a problem. An example is a test without a rollout of web.
    """
    wrong: list[str] = []
    if not found["connected"]:
        wrong.append("there was no connection; name an address with --to that stamped Pods can reach")
    if found["broken"]:
        wrong.append(
            f"the connection broke {found['broken']} times; `ostler check-deploy` shows what a deploy changes for "
            "stamped Pods. If nothing changes, the cause is the network plugin: check the plugin's logs of that time"
        )
    if found["reached"]:
        wrong.append(
            f"a stamped Pod reached {', '.join(found['reached'])}: the network plugin does not enforce the policies, "
            "so this test proves nothing; install a network plugin that does"
        )
    if not found["rolled"]:
        wrong.append(
            "web did not roll, so this test proves nothing; use --roll, deploy during the test, or hold longer"
        )
    return wrong


def _web(client: KubeClient, namespace: str) -> Rolling:
    from k8s_adapters.cluster.rolling import find_deployments

    found = find_deployments(client, namespace=namespace, selector=_WEB)
    if len(found) != 1:
        there = f"namespace {namespace!r} has {len(found)} Deployments with the label {_WEB} instead of one"
        fail(
            f"there is no Ostler in namespace {namespace!r}; give its namespace with -n"
            if not found
            else f"{there}; give another namespace with -n"
        )
    return found[0]


def _verify(
    client: KubeClient, web: Rolling, *, runners: str, image: str, to: str, seconds: float, roll: bool
) -> dict[str, Any]:
    """Run the test, and return the probe's report. The key `rolled` is True if web was rolled out during the test."""
    from k8s_adapters.cluster.probe_pods import create_probe, delete_probe
    from k8s_adapters.cluster.rolling import address_of, ended_with, left_of, restart

    arguments = ["hold-connection", "--to", to, "--seconds", str(seconds)]
    if (address := address_of(client, web)) is not None:
        arguments += ["--not-to", address]
    pod = create_probe(client, namespace=runners, purpose="verify", labels=_stamp(), spec=_spec(image, arguments))
    try:
        _wait(client, pod)
        if roll:
            restart(client, web)
        ends = time.monotonic() + seconds + _LATE
        over, message = False, ""
        while not over and time.monotonic() < ends:
            time.sleep(0.5)
            _, over, message = ended_with(client, pod)
        rolled = bool(web.pods) and left_of(client, web) == 0
    finally:
        delete_probe(client, pod)
    try:
        return {**json.loads(message), "rolled": rolled}
    except ValueError:
        fail(
            f"the probe Pod {pod['metadata']['name']} ended without a report and was deleted; see the events of "
            f"the Pod in namespace {pod['metadata']['namespace']}, and run the command again"
        )


def _wait(client: KubeClient, pod: Any) -> None:
    from k8s_adapters.cluster.rolling import ended_with

    sys.stderr.write(f"waiting for the probe {pod['metadata']['name']}\n")
    deadline = time.monotonic() + _STARTS_WITHIN
    while time.monotonic() < deadline:
        ready, over, _ = ended_with(client, pod)
        if ready or over:
            return
        time.sleep(0.5)
    fail(
        f"the probe Pod {pod['metadata']['name']} did not connect within {_STARTS_WITHIN:.0f} s; see the events of the "
        f"Pod in namespace {pod['metadata']['namespace']}, and check the address of --to"
    )


def _stamp() -> dict[str, str]:
    from k8s_adapters.names import OWNER_LABEL

    return {OWNER_LABEL: "0"}  # no account has this id


def _spec(image: str, arguments: list[str]) -> dict[str, Any]:
    from k8s_adapters.cluster.probe_pods import restricted

    container = {
        "name": "probe",
        "image": image,
        "args": arguments,
        "readinessProbe": {"exec": {"command": ["test", "-f", _MARK]}, "periodSeconds": 1},
        "volumeMounts": [{"name": "mark", "mountPath": _FOLDER}],
    }
    return {
        "containers": [restricted(container)],
        "volumes": [{"name": "mark", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}],
    }
