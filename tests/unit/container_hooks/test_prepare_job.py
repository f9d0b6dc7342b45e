"""Command `prepare_job`: the Pod, the copied files and the response."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from container_hooks.failures import HookFailed
from tests.unit.container_hooks.api import ended, status, waiting
from tests.unit.container_hooks.worlds import JOB_POD, UID, Stage, container

SERVICES: list[dict[str, Any]] = [
    {
        "contextName": "db",
        "image": "registry.example/library/postgres:17",
        "createOptions": '--health-cmd "pg_isready -U shop" --health-interval 10s --health-retries 5',
        "environmentVariables": {"POSTGRES_PASSWORD": "secret-words"},
        "portMappings": ["5432:5432"],
    },
    {"contextName": "cache", "image": "redis", "entryPointArgs": [], "portMappings": ["6379/tcp"]},
]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_response_has_the_fields_that_the_runner_reads(stage: Stage) -> None:
    assert stage.run("prepare_job", {"container": container(portMappings=["80:8080"]), "services": SERVICES}) == 0

    assert stage.log.errors == []
    assert json.loads(stage.response_file.read_text()) == {
        "state": {"jobPod": JOB_POD, "workspace": "shop/shop"},
        "context": {
            "container": {"image": "node:22", "ports": {"8080": "8080"}},
            "services": [
                {"image": "registry.example/library/postgres:17", "ports": {"5432": "5432"}},
                {"image": "redis", "ports": {"6379": "6379"}},
            ],
        },
        "isAlpine": False,
    }


def test_work_folder_and_externals_are_in_the_container(stage: Stage) -> None:
    for name in ("-rf", ".hidden", "..odd", "a b"):
        (stage.work / name).write_text(name)

    assert stage.run("prepare_job", {"container": container()}) == 0

    assert stage.inside("/__w/shop/shop/README.md").read_text() == "read me\n"
    assert stage.inside("/__e/node20/bin/node").stat().st_size == 3000
    assert stage.inside("/github/workflow/event.json").read_text() == "{}"
    assert stage.inside("/github/home").is_dir()
    assert all(stage.inside(f"/__w/{name}").read_text() == name for name in ("-rf", ".hidden", "..odd", "a b"))
    assert not stage.inside("/__w/.ostler-copy").exists()


def test_pod_has_one_container_per_service_and_belongs_to_the_runner_pod(stage: Stage) -> None:
    stage.run("prepare_job", {"container": container(), "services": SERVICES})

    pod = stage.api.objects["pods", JOB_POD]
    assert [each["name"] for each in pod["spec"]["containers"]] == ["job", "postgres", "redis"]
    assert [each["uid"] for each in pod["metadata"]["ownerReferences"]] == [UID]
    assert pod["metadata"]["labels"]["ostler.dev/hook-of"] == "pool-0000000a"
    assert "ostler.dev/pool" not in pod["metadata"]["labels"]
    assert pod["spec"]["hostAliases"] == [{"ip": "127.0.0.1", "hostnames": ["db", "cache"]}]


def test_passwords_of_services_are_in_a_secret_and_not_in_the_pod(stage: Stage) -> None:
    stage.run("prepare_job", {"container": container(), "services": SERVICES})

    assert "secret-words" not in json.dumps(stage.api.objects["pods", JOB_POD])
    variables = stage.api.objects["pods", JOB_POD]["spec"]["containers"][1]["env"]
    source = {"secretKeyRef": {"name": "pool-0000000a-secret-0", "key": "postgres.POSTGRES_PASSWORD"}}
    assert {"name": "POSTGRES_PASSWORD", "valueFrom": source} in variables


def test_registry_login_becomes_a_pull_secret_once_per_login(stage: Stage) -> None:
    login = {"username": "u", "password": "p", "serverUrl": "https://registry.example"}
    services = [{**each, "registry": login} for each in SERVICES]

    stage.run("prepare_job", {"container": container(registry=login), "services": services})

    assert stage.api.objects["pods", JOB_POD]["spec"]["imagePullSecrets"] == [{"name": "pool-0000000a-secret-0"}]
    assert stage.api.names("secrets") == ["pool-0000000a-secret-0", "pool-0000000a-secret-1"]
    assert stage.api.objects["secrets", "pool-0000000a-secret-0"]["type"] == "kubernetes.io/dockerconfigjson"


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        ([waiting("job", "InvalidImageName", "bad")], "image node:22 of container job cannot be pulled"),
        ([waiting("job", "ImagePullBackOff", "not found\nreally")] * 200, "ImagePullBackOff: not found really"),
        (
            [waiting("job", "CreateContainerConfigError", "no user")],
            "cannot start (CreateContainerConfigError: no user",
        ),
        ([ended("redis", exitCode=1, reason="Error")], "container redis ended with exit code 1"),
        ([ended("redis", exitCode=1, message="x" * 2000 + " no such user\n")], "x no such user); check its image"),
        ([ended("redis", exitCode=137, reason="OOMKilled")], "used more memory than its limit of"),
        ([{"phase": "Failed", "reason": "Evicted", "message": "disk"}], "(Evicted: disk)"),
        ([{"phase": "Pending"}] * 400, "was not ready within 600 seconds: container job is not started yet"),
        (
            [{"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]}] * 400,
            "no node can run the Pod (0/3 nodes)",
        ),
    ],
)
def test_pod_that_cannot_start_is_one_line_and_leaves_nothing(
    stage: Stage, statuses: list[dict[str, object]], words: str
) -> None:
    stage.api.statuses = statuses

    assert stage.run("prepare_job", {"container": container(), "services": SERVICES}) == 1

    (line,) = stage.log.errors
    assert words in line
    assert stage.api.objects == {}


def test_service_that_stays_unhealthy_fails_after_its_own_time(stage: Stage) -> None:
    ready: dict[str, Any] = {"name": "job", "ready": True, "state": {"running": {}}}
    others: list[dict[str, Any]] = [
        {"name": name, "ready": name == "redis", "state": {"running": {}}} for name in ("postgres", "redis")
    ]
    stage.api.statuses = [{"phase": "Running", "containerStatuses": [ready, *others]}] * 400

    assert stage.run("prepare_job", {"container": container(), "services": SERVICES}) == 1

    (line,) = stage.log.errors
    assert "container postgres did not become healthy within 200 seconds" in line
    assert stage.api.clock.now - 1000 < 300


def test_pull_that_succeeds_later_is_no_failure(stage: Stage) -> None:
    stage.api.statuses = [waiting("job", "ErrImagePull", "timeout")] * 3
    assert stage.run("prepare_job", {"container": container()}) == 0


def test_quota_refusal_names_the_quota(stage: Stage) -> None:
    stage.api._create = lambda *_: status(403, "Forbidden", "pods x is forbidden: exceeded quota: pods, used: 10")  # type: ignore[method-assign]

    assert stage.run("prepare_job", {"container": container()}) == 1

    (line,) = stage.log.errors
    assert "the quota of the namespace is used up (exceeded quota: pods, used: 10)" in line


def test_denied_permission_names_the_missing_rights(stage: Stage) -> None:
    stage.api.denied = {"POST pods", "create pods", "create pods/exec"}

    assert stage.run("prepare_job", {"container": container()}) == 1

    (line,) = stage.log.errors
    assert line.endswith("(missing: create pods, create pods/exec pool-0000000a-workflow)")
    assert stage.api.objects == {}


def test_leftover_of_an_earlier_command_is_replaced(stage: Stage) -> None:
    old = stage.api.put("pods", JOB_POD, owner=UID)

    assert stage.run("prepare_job", {"container": container()}) == 0

    assert stage.api.objects["pods", JOB_POD]["metadata"]["uid"] != old


def test_pod_of_another_owner_is_not_touched(stage: Stage) -> None:
    stage.api.put("pods", JOB_POD, owner="someone-else")

    assert stage.run("prepare_job", {"container": container()}) == 1

    assert "belongs to another owner" in stage.log.errors[0]
    assert stage.api.names() == [JOB_POD]


def test_lost_connection_during_a_copy_starts_the_copy_again(stage: Stage) -> None:
    (stage.work / "shop" / "shop" / "large").write_bytes(bytes(2_000_000))
    stage.exec.cut_after = {0: 600_000}

    assert stage.run("prepare_job", {"container": container()}) == 0

    assert any("the connection was lost, and the call is repeated" in line for line in stage.log.lines)
    assert stage.inside("/__w/shop/shop/large").stat().st_size == 2_000_000


def test_fifth_lost_connection_fails_the_job_and_leaves_nothing(stage: Stage) -> None:
    stage.exec.faults = dict.fromkeys(range(5), "lost before")

    assert stage.run("prepare_job", {"container": container()}) == 1

    assert "the connection was lost before the exit code arrived" in stage.log.errors[0]
    assert stage.api.objects == {}


def test_copy_that_is_not_complete_fails_the_job(stage: Stage) -> None:
    stage.exec.faults = {0: "file missing"}

    assert stage.run("prepare_job", {"container": container()}) == 1

    assert "files with" in stage.log.errors[0]
    assert "arrived; run the job again" in stage.log.errors[0]
    assert stage.api.objects == {}


def test_failed_tar_fails_the_job(stage: Stage) -> None:
    stage.exec.faults = {1: 127}

    assert stage.run("prepare_job", {"container": container()}) == 1

    assert "must contain sh, tar, find and stat" in stage.log.errors[0]


def test_missing_container_is_refused_before_anything_is_created(stage: Stage) -> None:
    with pytest.raises(HookFailed, match="the job has no container"):
        stage.run("prepare_job", {"services": SERVICES})
    assert stage.api.calls == []


def test_job_has_the_limit_of_disk_space_of_its_pool(stage: Stage) -> None:
    stage.settings = {"disk_mib": 500}
    services = [{"contextName": "db", "image": "postgres:17"}]

    assert stage.run("prepare_job", {"container": container(), "services": services}) == 0

    job, db = (each["resources"] for each in stage.api.objects["pods", JOB_POD]["spec"]["containers"])
    assert (job["requests"]["ephemeral-storage"], job["limits"]["ephemeral-storage"]) == ("0", "500Mi")
    assert "ephemeral-storage" not in db["limits"]


def test_bug_is_one_line_for_the_job_and_a_stack_for_the_operator(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.exec.faults = {0: KeyError("password-of-the-job")}

    assert stage.run("prepare_job", {"container": container()}) == 1

    assert "failed because of a bug in Ostler (KeyError in" in stage.log.errors[0]
    logged = capsys.readouterr().out
    assert "hooks.command_broken" in logged
    assert "in prepare_job" in logged
    assert "password-of-the-job" not in logged + "".join(stage.log.lines)
