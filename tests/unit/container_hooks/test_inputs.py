"""Inputs of the commands: the shapes of the runner, and one readable line for each mistake."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container_hooks.failures import HookFailed
from container_hooks.inputs import (
    LONGEST_INPUT,
    Command,
    Container,
    ContainerStep,
    Mount,
    PrepareJob,
    ScriptStep,
    is_inside,
    parse,
    paths_of,
    workspace_of,
)

WORK = "/home/runner/_work"


def packed(command: str, args: Any = None, **fields: Any) -> bytes:
    return json.dumps({"command": command, "responseFile": "/r.json", "state": {}, "args": args, **fields}).encode()


def test_prepare_job_of_the_runner_is_parsed() -> None:
    found = parse(
        packed(
            "prepare_job",
            {
                "container": {
                    "image": "node:22",
                    "workingDirectory": "/__w/shop/shop",
                    "createOptions": "--cpus 1",
                    "environmentVariables": {"NODE_ENV": "test"},
                    "userMountVolumes": [{"sourceVolumePath": "v", "targetVolumePath": "/v", "readOnly": False}],
                    "systemMountVolumes": [{"sourceVolumePath": WORK, "targetVolumePath": "/__w", "readOnly": False}],
                    "registry": {"username": "u", "password": "p", "serverUrl": "https://r"},
                    "portMappings": ["80:8080"],
                    "fieldOfANewerRunner": {"x": 1},
                },
                "services": [{"contextName": "redis", "image": "redis", "entrypoint": None, "entryPointArgs": []}],
            },
        )
    )

    assert found.command is Command.PREPARE_JOB
    assert isinstance(found.args, PrepareJob)
    assert found.args.container is not None
    assert found.args.container.registry is not None
    assert found.args.container.registry.server_url == "https://r"
    assert [each.context_name for each in found.args.services or ()] == ["redis"]


def test_steps_and_cleanup_of_the_runner_are_parsed() -> None:
    script = parse(
        packed("run_script_step", {"entryPoint": "bash", "entryPointArgs": ["-e", "x.sh"], "prependPath": "/a"})
    )
    step = parse(packed("run_container_step", {"image": "alpine", "entryPoint": "sh", "dockerfile": None}))
    cleanup = parse(packed("cleanup_job"))

    assert isinstance(script.args, ScriptStep)
    assert paths_of(script.args.prepend_path) == ["/a"]
    assert isinstance(step.args, ContainerStep)
    assert (cleanup.command, cleanup.args) == (Command.CLEANUP_JOB, None)
    assert parse(b'{"command": "cleanup_job"}').state == {}


CONTAINER = {"image": "node", "workingDirectory": "/__w/a/a"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not JSON"),
        (b"not json", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b'{"command": "prepare_job"', "is not JSON"),
        (b"[]", "the input of the hook is wrong"),
        (b'"prepare_job"', "the input of the hook is wrong"),
        (b"{}", "missing required field `command`"),
        (b'{"command": 1}', "Expected `str`, got `int` - at `$.command`"),
        (b'{"command": "x"}', "unknown command 'x'; the command must be one of prepare_job, run_"),
        (b'{"command": "x\\ny"}', "unknown command"),
        (b'{"command": "cleanup_job", "state": {"a": "' + b"x" * 70_000 + b'"}}', "has more than 65536 bytes"),
        (b'{"command": "prepare_job", "state": []}', "Expected `object | null`, got `array` - at `$.state`"),
        (packed("prepare_job"), "prepare_job: the input has no `args`"),
        (packed("run_script_step"), "run_script_step: the input has no `args`"),
        (packed("prepare_job", []), "prepare_job: the input of the hook is wrong"),
        (packed("prepare_job", {}), "the job has no container"),
        (packed("prepare_job", {"container": None, "services": []}), "the job has no container"),
        (packed("prepare_job", {"container": {}}), "the job has no container"),
        (packed("prepare_job", {"container": {"image": 1}}), "at `$.args.container.image`"),
        (packed("prepare_job", {"container": CONTAINER, "services": [{"image": "x"}]}), "contextName"),
        (packed("prepare_job", {"container": CONTAINER, "services": [{"contextName": "x"}]}), "service x has no image"),
        (packed("prepare_job", {"container": {**CONTAINER, "portMappings": "80"}}), "`$.args.container.portMappings`"),
        (packed("run_script_step", {}), "entryPoint"),
        (packed("run_script_step", {"entryPoint": "sh", "environmentVariables": {"A=B": "x"}}), "cannot be the name"),
        (packed("run_script_step", {"entryPoint": "sh", "environmentVariables": {"": "x"}}), "cannot be the name"),
        (packed("run_container_step", {"entryPoint": "sh"}), "the step has no image"),
        (
            packed("run_container_step", {"dockerfile": "Dockerfile"}),
            "use a pool with containers.mode dind",
        ),
    ],
)
def test_wrong_input_is_one_line(data: bytes, words: str) -> None:
    with pytest.raises(HookFailed) as caught:
        parse(data)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.code == 1


def test_too_long_an_input_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(HookFailed, match=f"at most {LONGEST_INPUT} are allowed"):
        parse(b"[" * (LONGEST_INPUT + 1))


def test_message_never_contains_a_value() -> None:
    data = packed("prepare_job", {"container": {"image": "x", "registry": {"password": ["hunter2"], "serverUrl": "r"}}})
    with pytest.raises(HookFailed) as caught:
        parse(data)
    assert "hunter2" not in str(caught.value)
    assert "password" in str(caught.value)


@given(st.binary(max_size=200) | st.recursive(st.none() | st.text(), st.lists).map(lambda x: json.dumps(x).encode()))
def test_no_input_breaks_the_parser(data: bytes) -> None:
    with contextlib.suppress(HookFailed):
        parse(data)


@pytest.mark.parametrize(
    ("folder", "source", "found"),
    [
        ("/__w/shop/shop", None, "shop/shop"),
        ("/__w/shop/shop/", None, "shop/shop"),
        ("/__w/../etc", None, None),
        ("/__w", None, None),
        (None, None, None),
        ("/github/workspace", f"{WORK}/shop/shop", "shop/shop"),
        ("/github/workspace", f"{WORK}/../../etc", None),
        ("/github/workspace", "/elsewhere", None),
    ],
)
def test_workspace_is_inside_of_the_work_folder(folder: str | None, source: str | None, found: str | None) -> None:
    mounts = None if source is None else [Mount(source, "/github/workspace")]
    assert workspace_of(Container(working_directory=folder, system_mount_volumes=mounts), work=WORK) == found


@pytest.mark.parametrize("path", ["", ".", "..", "../x", "/x", "a/../../b"])
def test_path_that_leaves_its_folder_is_not_inside(path: str) -> None:
    assert not is_inside(path)
