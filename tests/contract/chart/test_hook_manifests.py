"""Bodies of the commands of container jobs, created with a runner's real token under the chart's policies."""

from __future__ import annotations

import pytest

from container_hooks.cluster import create_docker_secret, create_env_secret, create_step_pod, delete
from container_hooks.containers import plan_job, plan_program, plan_step
from container_hooks.inputs import Container, ContainerStep, Mount, PrepareJob, Registry, Service
from container_hooks.local_files import LocalFiles
from container_hooks.manifests import job_pod, program_pod, secret_values, step_pod
from container_hooks.permissions import missing_rights
from container_hooks.ports import HookSettings, World
from container_hooks.resources import Share, divide
from k8s_adapters.calls.execs import ExecClient
from ostler.errors import Forbidden
from tests.contract.chart.test_hook_rights import Stage, stage

__all__ = ["stage"]

pytestmark = pytest.mark.timeout(300)


class Silent:
    """A log that discards everything."""

    def line(self, text: str) -> None:
        """Drop the line."""

    def raw(self, data: bytes) -> None:
        """Drop the bytes."""


@pytest.fixture
def world(stage: Stage) -> World:
    one = stage.one
    return World(
        client=one.client,
        namespace=stage.cast.runners,
        pod=one.pod.name,
        uid=one.pod.uid,
        pool=one.pool.name,
        files=LocalFiles(),
        exec=ExecClient(one.client, stage.cast.runners),
        log=Silent(),
        settings=HookSettings(vcpu_millicores=1500, memory_mib=128),
    )


def test_policies_accept_the_pods_and_secrets_of_a_job(world: World) -> None:
    plans = plan_job(
        PrepareJob(
            Container(image="node:22", user_mount_volumes=[Mount("cache", "/cache")], port_mappings=["80:8080"]),
            [
                Service(
                    context_name="db",
                    image="postgres:17",
                    create_options='--user 70 --health-cmd "pg_isready" --cpus 0.2',
                    environment_variables={"POSTGRES_PASSWORD": "x"},
                )
            ],
        )
    )
    shares, _ = divide(millicores=1500, memory_mib=128, job="job", options={each.name: each.options for each in plans})
    login = create_docker_secret(world, Registry(server_url="r", username="u", password="p"), nonce="n")
    environment = create_env_secret(world, secret_values(plans), nonce="n")
    body = job_pod(plans, shares=shares, env_secret=environment.name, pull_secrets=[login.name])
    step = plan_step(ContainerStep(image="alpine", entry_point="sh"))

    made = [
        login,
        environment,
        create_step_pod(world, body, nonce="n"),
        create_step_pod(world, step_pod(step, share=shares["job"], pull_secrets=[login.name]), nonce="n"),
    ]

    assert len({each.uid for each in made}) == 4
    for each in made:
        delete(world, each)


def test_policies_accept_the_pod_of_a_program_of_an_image(world: World) -> None:
    plan = plan_program(
        ContainerStep(image="action:1", create_options="--user 70", environment_variables={"INPUT_WHO-TO-GREET": "x"})
    )
    environment = create_env_secret(world, secret_values([plan]), nonce="n")
    body = program_pod(
        plan,
        copier="node:22",
        folder="/github/workspace",
        share=Share(1500, 128),
        env_secret=environment.name,
        pull_secrets=[environment.name],
    )

    made = create_step_pod(world, body, nonce="n")

    for each in (made, environment):
        delete(world, each)


def test_policies_refuse_the_pod_of_a_program_that_is_larger_than_a_hook_pod(world: World) -> None:
    plan = plan_program(ContainerStep(image="action:1"))
    for share, refused in ((Share(1501, 128), "CPU"), (Share(1500, 129), "memory")):
        body = program_pod(plan, copier="node:22", folder="/", share=share, env_secret="s", pull_secrets=[])
        with pytest.raises(Forbidden) as error:
            create_step_pod(world, body, nonce="n")
        assert f"the limits of {refused} are above the size of a hook Pod" in str(error.value.words)


def test_runner_has_every_permission_that_the_commands_need(world: World) -> None:
    assert missing_rights(world) == []
