"""First run of the compose file without the profile `lab`, with the kubeconfig of a real node.

The steps are those of `compose/README.md`. The lab provides GitHub and the cluster, and fills in the copy of
`.env.example`.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from cli.setup.store import KEYS, EnvFile
from lab.bootstrap import LabPool, on_real_node, put_pools_in_place
from lab.engine.project import FILE, Project
from lab.environment import environment
from lab.go_build import Say
from lab.node.namespace import NODE_ADDRESS
from lab.processes import StartError
from lab.system import NODE, Options, System
from ostler.secrets import Secret

EXAMPLE = FILE.with_name(".env.example")
LABELS = ("self-hosted", "linux", "small")
_POOL = LabPool("small", LABELS, 2, cpu="50m", memory="128Mi")
_USER = 10001
"""User of the image, who reads the kubeconfig."""
_UP_WITHIN = 3600.0
_COMMAND_WITHIN = 120.0
_JOBS_WITHIN = 600.0
_LOOKED_EVERY = 1.0


@contextlib.contextmanager
def world(folder: Path, say: Say) -> Iterator[tuple[System, Mapping[str, str]]]:
    """Run a cluster with one real node, and GitHub, which sends its webhooks to port 8080 of this host.

    Yield the system and the settings for an installation of Ostler.
    """
    options = Options(pools=(), webhook_url=f"http://{NODE_ADDRESS}:8080/webhooks/github")
    system = System(folder, options, say=say, cluster=NODE)
    with contextlib.ExitStack() as stack:
        stack.callback(system.stop)
        yield system, system.start_without_ostler()


def fill_in(file: Path, settings: Mapping[str, str], values: Mapping[str, str]) -> None:
    """Copy `.env.example` to `file` and give its variables their values.

    `settings` are the settings of an installation of Ostler. The App's secrets are taken from `settings`, and are
    written in the same way as `ostler setup github --env-file` writes them. `values` are the values of the other
    variables. Raises `StartError` if the example does not contain one of these variables.
    """
    file.touch(mode=0o600)
    file.write_text(EXAMPLE.read_text())
    app = {name: Secret(settings[name]) for name in KEYS}
    EnvFile(file, replace=False).write(app, api_url=settings["OSTLER_GITHUB_API_URL"])
    left = dict(values)
    lines = []
    for line in file.read_text().splitlines():
        name = line.partition("=")[0]
        lines.append(f"{name}={left.pop(name)}" if name in left else line)
    if left:
        raise StartError(f"compose/{EXAMPLE.name} has no line for {', '.join(sorted(left))}: add one for each variable")
    file.write_text("".join(f"{line}\n" for line in lines))


def values_of(kubeconfig: Path) -> dict[str, str]:
    """Return new values for all variables that an operator fills in by hand. `kubeconfig` is a file of this host."""
    fresh = environment()
    by_hand = [name for name in fresh if name.startswith(("POSTGRES_", "REDIS_"))]
    by_hand += ["OSTLER_ENCRYPTION_KEYS", "OSTLER_FLOWER_BASIC_AUTH"]
    return {
        **{name: fresh[name] for name in by_hand},
        "KUBECONFIG_FILE": str(kubeconfig),
        "OSTLER_DISPATCH_URL": f"http://{NODE_ADDRESS}:8081/runners/v1/dispatch",
        "OSTLER_NEW_ACCOUNTS": "serve",
    }


def write_kubeconfig(file: Path, *, administrator: Path) -> None:
    """Write an administrator's kubeconfig for containers: one file that the user of the image can read."""
    found = yaml.safe_load(administrator.read_text())
    cluster = found["clusters"][0]["cluster"]
    authority = Path(cluster.pop("certificate-authority")).read_bytes()
    cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    cluster["server"] = cluster["server"].replace("127.0.0.1", NODE_ADDRESS)
    cluster["tls-server-name"] = "localhost"  # the API server's certificate does not have the node's address
    file.touch(mode=0o400)
    file.write_text(yaml.safe_dump(found))
    os.chown(file, _USER, _USER)


def untouched_problem(project: Project) -> str | None:
    """Return what is wrong with Compose's answer to an example without values, or None.

    `project` has the untouched example as its env file.
    """
    status, said = project.try_config()
    lines = said.strip().splitlines()
    if status == 0 or len(lines) != 1 or not re.search(r"required variable \w+ is missing a value: \S", said):
        return (
            f"docker compose config ended with status {status} for an untouched {EXAMPLE.name} and printed {lines!r}; "
            "expected one line that names the missing variable and a remedy"
        )
    return None


def run(project: Project, system: System, *, jobs: int, say: Say) -> list[str]:
    """Start Ostler as the README says, send jobs, and wait for them. Return everything that is wrong, one line each."""
    with contextlib.closing(system.kube()) as kube:
        kube.request("POST", "/api/v1/namespaces", body={"metadata": {"name": system.namespace}})
        project.run("up", "--build", "--detach", "--wait", within=_UP_WITHIN)
        say("every service is healthy")
        project.run("exec", "-T", "web", "ostler", "crd", within=_COMMAND_WITHIN)
        pools = [on_real_node(_POOL, github_url=system.github_url)]
        put_pools_in_place(kube, namespace=system.namespace, pools=pools)
    body = {"repository": "acme/shop", "labels": list(LABELS), "count": jobs, "duration_seconds": 1}
    sent = set(system.lab("POST", "/jobs", body)["ids"])
    say(f"{jobs} jobs are queued")
    end = time.monotonic() + _JOBS_WITHIN
    while time.monotonic() < end:
        found = [each for each in system.lab("GET", "/jobs")["jobs"] if each["id"] in sent]
        if all(each["status"] == "completed" for each in found):
            break
        time.sleep(_LOOKED_EVERY)
    good = sum(each["conclusion"] == "success" and each["executions"] == 1 for each in found)
    say(f"{good} of {jobs} jobs completed exactly once")
    return [] if good == jobs else [f"{jobs - good} of {jobs} jobs did not complete exactly once"]
