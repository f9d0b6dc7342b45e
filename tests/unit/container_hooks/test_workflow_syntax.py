"""Each row of the table of workflow keys in docs/operations/container-jobs.md is true, and no row lacks a test."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from container_hooks.commands import error_line
from container_hooks.failures import HookFailed
from k8s_adapters.calls.client import Json
from tests.unit.container_hooks.api import ended
from tests.unit.container_hooks.worlds import JOB_POD, Stage, container

PAGE = Path(__file__).resolve().parents[3] / "docs" / "operations" / "container-jobs.md"
_ROW = re.compile(r"^\| (?P<key>.+?) \| (?P<result>works|ignored|refused) \| (?P<detail>.+) \|$")
_QUOTED = re.compile(r'"([^"]+)"')
LOGIN = {"username": "u", "password": "p", "serverUrl": "https://registry.example"}
OTHER_OPTIONS = """
    --add-host --annotation --attach --blkio-weight --blkio-weight-device --cap-add --cap-drop --cgroup-parent
    --cgroupns --cidfile --cpu-count --cpu-percent --cpu-period --cpu-quota --cpu-rt-period --cpu-rt-runtime
    --cpu-shares --cpuset-cpus --cpuset-mems --device --device-cgroup-rule --device-read-bps --device-read-iops
    --device-write-bps --device-write-iops --dns --dns-option --dns-search --domainname --env-file --gpus
    --group-add --health-start-interval --hostname --init --interactive --io-maxbandwidth --io-maxiops --ip
    --ip6 --ipc --isolation --label --label-file --link --link-local-ip --log-driver --log-opt --mac-address
    --memory-reservation --memory-swap --memory-swappiness --mount --name --network --network-alias
    --no-healthcheck --oom-kill-disable --oom-score-adj --pid --pids-limit --platform --privileged --publish-all
    --pull --quiet --read-only --restart --rm --runtime --security-opt --shm-size --stop-signal --stop-timeout
    --storage-opt --sysctl --tmpfs --tty --ulimit --use-api-socket --userns --uts --volume --volume-driver
    --volumes-from --workdir
""".split()  # noqa: SIM905 - one option a line would be eighty lines
"""Options of `docker create`, whose syntax `options:` has, that the table has no row of their own for."""

Check = Callable[[Stage], None]
CHECKS: dict[str, Check] = {}


def rows() -> dict[str, re.Match[str]]:
    """Return the rows of the table by their keys."""
    section = PAGE.read_text().split("## Keys of a workflow")[1].split("\n## ")[0]
    found = [_ROW.match(line) for line in section.splitlines()]
    assert sum(line.startswith("| ") for line in section.splitlines()) == sum(map(bool, found)) + 2, (
        "a row is malformed"
    )
    return {row["key"]: row for row in found if row is not None}


def row(key: str) -> Callable[[Check], Check]:
    """Register the check of a row."""

    def register(check: Check) -> Check:
        CHECKS[key] = check
        return check

    return register


def prepare(stage: Stage, *services: Json, **fields: Any) -> Json:
    """Prepare a job with a container and services, and return the body of its Pod, or nothing after a failure."""
    named = [{"contextName": "db", "image": "postgres", **each} for each in services]
    run(stage, "prepare_job", {"container": container(**fields), "services": named})
    return stage.api.objects.get(("pods", JOB_POD), {})


def run(stage: Stage, command: str, arguments: Json) -> None:
    """Run a command. A mistake in its input becomes a line of the log, as in the sidecar."""
    try:
        stage.run(command, arguments, state={"workspace": "shop/shop"})
    except HookFailed as error:
        stage.log.line(error_line(str(error)))


def containers(stage: Stage, *services: Json, **fields: Any) -> list[Json]:
    """Prepare a job, and return the containers of its Pod, or none after a failure."""
    found: list[Json] = prepare(stage, *services, **fields).get("spec", {}).get("containers", [])
    return found


def action(stage: Stage, **fields: Any) -> str:
    """Run a step in a container of its own, and return its output."""
    assert stage.run("prepare_job", {"container": container()}) == 0
    given = {"image": "alpine:3", "entryPoint": "sh", "entryPointArgs": ["-c", '"echo $A"'], **fields}
    run(stage, "run_container_step", {"workingDirectory": "/github/workspace", **given})
    return stage.log.output.decode()


def both(stage: Stage, key: str, value: object) -> list[Json]:
    """Prepare a job whose container and service have the same key. Return both containers of its Pod."""
    return containers(stage, {key: value}, **{key: value})


@row("`container.image`, `services.ID.image`")
def _(stage: Stage) -> None:
    images = [each["image"] for each in containers(stage, {"image": "ghcr.io/acme/db:1"}, image="node:22")]
    assert images == ["node:22", "ghcr.io/acme/db:1"]


@row("`container.image` that is empty")
def _(stage: Stage) -> None:
    prepare(stage, image="")


@row("`services.ID.image` that is empty")
def _(stage: Stage) -> None:
    prepare(stage, {"image": ""})


@row("`credentials`")
def _(stage: Stage) -> None:
    body = prepare(stage, {"registry": LOGIN}, registry={**LOGIN, "username": "other"})
    assert len(body["spec"]["imagePullSecrets"]) == 2


@row("`env`")
def _(stage: Stage) -> None:
    for each in both(stage, "environmentVariables", {"A": "1"}):
        assert "A" in {variable["name"] for variable in each["env"]}


@row("`env` with `HOME`")
def _(stage: Stage) -> None:
    for each in both(stage, "environmentVariables", {"HOME": "/root"}):
        assert "HOME" not in {variable["name"] for variable in each["env"]}


@row("`env` with a name that Kubernetes does not accept")
def _(stage: Stage) -> None:
    both(stage, "environmentVariables", {"1 A": "x"})


@row("`ports`")
def _(stage: Stage) -> None:
    for each in both(stage, "portMappings", ["80", "8080:81", "53/udp"]):
        assert [port["containerPort"] for port in each["ports"]] == [80, 81, 53]


@row("`ports` with a range")
def _(stage: Stage) -> None:
    both(stage, "portMappings", ["8000-8010"])


@row("the same port of two services")
def _(stage: Stage) -> None:
    stage.api.statuses = [ended("postgres", exitCode=1, message="port 5432 is in use")]
    prepare(stage, {"portMappings": ["5432"]}, {"contextName": "db2", "portMappings": ["5432"], "image": "other"})


@row("`volumes`")
def _(stage: Stage) -> None:
    for each in both(stage, "userMountVolumes", [{"sourceVolumePath": "cache", "targetVolumePath": "/cache"}]):
        assert "/cache" in {mount["mountPath"] for mount in each["volumeMounts"]}


@row("`volumes` at a path that is taken")
def _(stage: Stage) -> None:
    both(stage, "userMountVolumes", [{"sourceVolumePath": "x", "targetVolumePath": "/var/run/docker.sock"}])


@row("`services.ID.command`, `services.ID.entrypoint`")
def _(stage: Stage) -> None:
    found = containers(stage, {"entryPoint": "etcd", "entryPointArgs": ["--name", "a"]})[1]
    assert (found["command"], found["args"]) == (["etcd"], ["--name", "a"])


@row("ID of a service")
def _(stage: Stage) -> None:
    assert prepare(stage, {})["spec"]["hostAliases"] == [{"ip": "127.0.0.1", "hostnames": ["db"]}]


@row("ID of a service with `_` or a capital")
def _(stage: Stage) -> None:
    assert "hostAliases" not in prepare(stage, {"contextName": "my_DB"})["spec"]


@row("`options: --cpus`, `--memory`")
def _(stage: Stage) -> None:
    for each in both(stage, "createOptions", "--cpus 0.25 --memory 256m"):
        assert each["resources"]["limits"] == {"cpu": "250m", "memory": "256Mi"}


@row("`options: --cpus`, `--memory` above the hook Pod")
def _(stage: Stage) -> None:
    found = both(stage, "createOptions", "--cpus 100")
    assert sum(int(each["resources"]["limits"]["cpu"].removesuffix("m")) for each in found) <= 1000


@row("`options: --user` with a number")
def _(stage: Stage) -> None:
    for each in both(stage, "createOptions", "--user 1000:2000"):
        assert (each["securityContext"]["runAsUser"], each["securityContext"]["runAsGroup"]) == (1000, 2000)


@row("`options: --user` with a name")
def _(stage: Stage) -> None:
    both(stage, "createOptions", "--user postgres")


@row("`options: --user 0`")
def _(stage: Stage) -> None:
    both(stage, "createOptions", "--user 0")


@row("`options: --env NAME=VALUE`")
def _(stage: Stage) -> None:
    for each in both(stage, "createOptions", "--env A=1"):
        assert "A" in {variable["name"] for variable in each["env"]}


@row("`options: --env NAME`")
def _(stage: Stage) -> None:
    both(stage, "createOptions", "--env NAME")


@row("`options: --publish`, `--expose`")
def _(stage: Stage) -> None:
    for each in both(stage, "createOptions", "--publish 80:8080 --expose 9000"):
        assert [port["containerPort"] for port in each["ports"]] == [8080, 9000]


@row("`services.ID.options: --entrypoint`")
def _(stage: Stage) -> None:
    assert containers(stage, {"createOptions": "--entrypoint etcd"})[1]["command"] == ["etcd"]


@row("`container.options: --entrypoint`")
def _(stage: Stage) -> None:
    assert containers(stage, createOptions="--entrypoint /run.sh")[0]["command"] == ["tail"]


@row(
    "`options: --health-cmd`, with `--health-interval`, `--health-timeout`, `--health-retries` and "
    "`--health-start-period`"
)
def _(stage: Stage) -> None:
    text = "--health-cmd true --health-interval 2s --health-timeout 3s --health-retries 4 --health-start-period 5s"
    for each in both(stage, "createOptions", text):
        probe = each["readinessProbe"]
        assert (probe["periodSeconds"], probe["timeoutSeconds"], probe["failureThreshold"]) == (2, 3, 4)


@row("`options: --health-interval` and others without `--health-cmd`")
def _(stage: Stage) -> None:
    both(stage, "createOptions", "--health-interval 2s")


@row("`options:` whose value is wrong")
def _(stage: Stage) -> None:
    both(stage, "createOptions", "--memory much")


@row("every other option of `docker create`")
def _(stage: Stage) -> None:
    both(stage, "createOptions", " ".join(f"{each}=x" for each in OTHER_OPTIONS))
    for name in ("container job", "service db"):
        [line] = [each for each in stage.log.lines if each.startswith(f"Ignored options of {name}")]
        assert re.findall(r"--[\w-]+", line) == OTHER_OPTIONS


@row("`steps[*].uses: docker://IMAGE` with `with.entrypoint`, `with.args` and `env`")
def _(stage: Stage) -> None:
    assert action(stage, environmentVariables={"A": "1"}) == "1\n"


@row("`steps[*].uses: docker://IMAGE` without `with.entrypoint`")
def _(stage: Stage) -> None:
    stage.api.program = lambda _pod: (b"from the log\n", {"exitCode": 0})
    assert action(stage, entryPoint=None) == "from the log\n"


@row("an action with a Dockerfile")
def _(stage: Stage) -> None:
    action(stage, dockerfile="Dockerfile")


def test_no_row_lacks_a_test() -> None:
    assert rows().keys() == CHECKS.keys()


@pytest.mark.parametrize("key", CHECKS)
def test_row_of_the_table_is_true(tmp_path: Path, key: str) -> None:
    stage, found = Stage(tmp_path), rows()[key]

    CHECKS[key](stage)

    lines = [each for each in stage.log.lines if not each.startswith(("Created", "Copied", "Waiting", "Deleted"))]
    said = _QUOTED.findall(found["detail"])
    match found["result"]:
        case "works":
            assert stage.log.errors == []
            assert not any(each.startswith("Ignored") for each in lines)
            assert len(lines) >= len(said)
        case "ignored":
            assert stage.log.errors == []
            assert said
        case _:
            assert said
            assert len(stage.log.errors) == 1
    for text in said:
        assert any(text in each for each in lines), lines
