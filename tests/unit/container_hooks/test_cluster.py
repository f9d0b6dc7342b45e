"""Idempotence: the table of creates and deletes whose answers are lost, refused or overtaken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from container_hooks.cluster import (
    Made,
    Taken,
    create_docker_secret,
    create_env_secret,
    create_job_pod,
    create_step_pod,
    delete,
    delete_named,
)
from container_hooks.failures import HookFailed
from container_hooks.inputs import Registry
from container_hooks.ports import World
from k8s_adapters.calls.client import Json
from ostler.errors import Conflict, Retryable
from tests.unit.container_hooks.worlds import JOB_POD, POD, UID, Stage

BODY: Json = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "job"}]}}
LOGIN = Registry(server_url="r", username="u", password="p")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@dataclass(frozen=True)
class Kind:
    """One of the four creates, with the name that it uses first."""

    create: Callable[[World], Made]
    kind: str
    name: str


KINDS = {
    "job": Kind(lambda world: create_job_pod(world, BODY, nonce="n"), "pods", JOB_POD),
    "step": Kind(lambda world: create_step_pod(world, BODY, nonce="n"), "pods", f"{POD}-step-0"),
    "docker": Kind(lambda world: create_docker_secret(world, LOGIN, nonce="n"), "secrets", f"{POD}-secret-0"),
    "env": Kind(lambda world: create_env_secret(world, {"a.B": "c"}, nonce="n"), "secrets", f"{POD}-secret-0"),
}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@each_kind
def test_create_with_a_lost_answer_returns_the_object_that_exists(stage: Stage, kind: Kind) -> None:
    stage.api.fail("POST", kind.kind, "lost")

    made = kind.create(stage.world())

    assert stage.api.names(kind.kind) == [kind.name]
    assert made.uid == stage.api.objects[kind.kind, kind.name]["metadata"]["uid"]


@each_kind
def test_create_that_lost_every_answer_is_found_by_reading_back(stage: Stage, kind: Kind) -> None:
    stage.api.fail("POST", kind.kind, "lost", 503, 503, 503)
    assert kind.create(stage.world()).name == kind.name
    assert stage.api.names(kind.kind) == [kind.name]


@each_kind
def test_create_that_was_never_applied_stays_an_error(stage: Stage, kind: Kind) -> None:
    stage.api.fail("POST", kind.kind, 503, 503, 503, 503)
    with pytest.raises(Retryable):
        kind.create(stage.world())
    assert stage.api.names(kind.kind) == []


@each_kind
def test_object_of_another_owner_is_never_accepted(stage: Stage, kind: Kind) -> None:
    world = stage.world()
    kind.create(world)
    found = stage.api.objects[kind.kind, kind.name]
    found["metadata"]["ownerReferences"][0]["uid"] = "the-runner-before"
    before = found["metadata"]["uid"]
    world.ledger.secrets.clear()

    if kind.name == JOB_POD:
        with pytest.raises(Taken):
            kind.create(world)
    else:
        assert kind.create(world).name != kind.name
    assert stage.api.objects[kind.kind, kind.name]["metadata"]["uid"] == before


@pytest.mark.parametrize("name", ["step", "docker", "env"])
def test_object_with_another_digest_is_never_accepted(stage: Stage, name: str) -> None:
    kind = KINDS[name]
    stage.api.put(kind.kind, kind.name, owner=UID, digest="other")
    assert kind.create(stage.world()).name == f"{kind.name[:-1]}1"


def test_secret_with_our_digest_and_other_data_is_never_accepted(stage: Stage) -> None:
    world = stage.world()
    kind = KINDS["env"]
    kind.create(world)
    stage.api.objects[kind.kind, kind.name]["data"]["a.B"] = "Zm9yZ2Vk"
    world.ledger.secrets.clear()
    assert kind.create(world).name == f"{POD}-secret-1"


def test_secret_of_another_type_is_never_accepted(stage: Stage) -> None:
    world = stage.world()
    kind = KINDS["docker"]
    kind.create(world)
    stage.api.objects[kind.kind, kind.name]["type"] = "Opaque"
    world.ledger.secrets.clear()
    assert kind.create(world).name == f"{POD}-secret-1"


def test_terminating_namesake_of_the_job_pod_is_waited_for(stage: Stage) -> None:
    world = stage.world()
    first = create_job_pod(world, BODY, nonce="n")
    stage.api.lingers = 3
    delete(world, first)

    second = create_job_pod(world, BODY, nonce="n")

    assert second.uid != first.uid
    assert stage.api.names() == [JOB_POD]


def test_namesake_that_stays_terminating_is_a_conflict(stage: Stage) -> None:
    stage.settings["terminating_within"] = 5.0
    stage.api.put("pods", JOB_POD, owner=UID, terminating=True)
    with pytest.raises(Conflict, match="still terminating after 5 s"):
        create_job_pod(stage.world(), BODY, nonce="n")


def test_step_does_not_wait_for_a_terminating_namesake(stage: Stage) -> None:
    stage.api.put("pods", f"{POD}-step-0", owner=UID, terminating=True)
    assert create_step_pod(stage.world(), BODY, nonce="n").name == f"{POD}-step-1"
    assert stage.api.clock.slept == []


def test_terminating_object_of_ours_is_never_accepted(stage: Stage) -> None:
    """The digest and the owner are right, but the object disappears soon."""
    world = stage.world()
    create_step_pod(world, BODY, nonce="n")
    stage.api.objects["pods", f"{POD}-step-0"]["metadata"]["deletionTimestamp"] = "now"
    assert create_step_pod(world, BODY, nonce="n").name == f"{POD}-step-1"


def test_namesake_that_vanished_between_two_calls_is_created_again(stage: Stage) -> None:
    stage.api.put("pods", JOB_POD, owner=UID)
    stage.api.before("GET", "pods", lambda: stage.api.objects.pop(("pods", JOB_POD)))
    assert create_job_pod(stage.world(), BODY, nonce="n").name == JOB_POD


def test_conflict_with_the_quota_is_tried_again(stage: Stage) -> None:
    """The API server answers 409 as well if two creates update the same quota."""
    stage.api.fail("POST", "pods", 409)
    assert create_job_pod(stage.world(), BODY, nonce="n").name == JOB_POD


def test_namesake_that_always_vanishes_ends_after_four_rounds(stage: Stage) -> None:
    stage.api.fail("POST", "pods", 409, 409, 409, 409)
    with pytest.raises(Retryable, match="was created and deleted 4 times"):
        create_job_pod(stage.world(), BODY, nonce="n")


def test_leftover_of_ours_is_deleted_with_its_uid_and_replaced(stage: Stage) -> None:
    old = stage.api.put("pods", JOB_POD, owner=UID)
    assert create_job_pod(stage.world(), BODY, nonce="n").uid != old


def test_leftover_that_was_replaced_meanwhile_is_not_deleted(stage: Stage) -> None:
    stage.api.put("pods", JOB_POD, owner=UID)
    stage.api.before("DELETE", "pods", lambda: stage.api.put("pods", JOB_POD, owner="someone-else"))
    with pytest.raises(Taken, match="another owner"):
        create_job_pod(stage.world(), BODY, nonce="n")
    assert stage.api.names() == [JOB_POD]


def test_leftovers_of_steps_do_not_run_beside_the_next_step(stage: Stage) -> None:
    """Each of these Pods was left behind by a sidecar that was killed. One belongs to another runner Pod."""
    stage.api.put("pods", f"{POD}-step-0", owner=UID)
    stage.api.put("pods", f"{POD}-step-1", owner="someone-else")
    stage.api.put("pods", f"{POD}-step-2", owner=UID)

    made = create_step_pod(stage.world(), BODY, nonce="n")

    assert made.name == f"{POD}-step-3"
    assert stage.api.names() == [f"{POD}-step-1", f"{POD}-step-3"]


def test_two_commands_with_equal_bodies_have_different_digests(stage: Stage) -> None:
    world = stage.world()
    first = create_step_pod(world, BODY, nonce="one")
    assert create_step_pod(world, BODY, nonce="two").name != first.name


def test_all_names_of_secrets_in_use_is_one_line(stage: Stage) -> None:
    for n in range(8):
        stage.api.put("secrets", f"{POD}-secret-{n}", owner=UID)
    with pytest.raises(HookFailed, match="all 8 names of Secrets are in use"):
        KINDS["env"].create(stage.world())


@pytest.mark.parametrize("kind", ["pods", "secrets"])
def test_delete_of_a_missing_object_succeeds(stage: Stage, kind: str) -> None:
    delete(stage.world(), Made(kind, "x", "uid-1"))
    assert delete_named(stage.world(), kind, "x") is False


@pytest.mark.parametrize("kind", ["pods", "secrets"])
def test_delete_with_a_lost_answer_succeeds(stage: Stage, kind: str) -> None:
    uid = stage.api.put(kind, "x", owner=UID)
    stage.api.fail("DELETE", kind, "lost")
    delete(stage.world(), Made(kind, "x", uid))
    assert stage.api.names(kind) == []


@pytest.mark.parametrize("kind", ["pods", "secrets"])
def test_delete_spares_the_successor(stage: Stage, kind: str) -> None:
    stage.api.put(kind, "x", owner=UID)
    delete(stage.world(), Made(kind, "x", "the-uid-before"))
    assert stage.api.names(kind) == ["x"]


def test_repeated_delete_spares_a_successor_that_came_between(stage: Stage) -> None:
    uid = stage.api.put("pods", "x", owner=UID)
    stage.api.fail("DELETE", "pods", "lost")
    stage.api.before("DELETE", "pods", lambda: None)
    stage.api.before("DELETE", "pods", lambda: stage.api.put("pods", "x", owner=UID))
    delete(stage.world(), Made("pods", "x", uid))
    assert stage.api.names() == ["x"]


def test_delete_that_is_refused_with_the_right_uid_stays_an_error(stage: Stage) -> None:
    uid = stage.api.put("pods", "x", owner=UID)
    stage.api.fail("DELETE", "pods", 409)
    with pytest.raises(Conflict):
        delete(stage.world(), Made("pods", "x", uid))


def test_hook_pods_name_the_size_of_the_sidecar_and_secrets_none(stage: Stage) -> None:
    stage.settings |= {"vcpu_millicores": 1500, "memory_mib": 128}
    for kind in KINDS.values():
        made = kind.create(stage.world())
        annotation = stage.api.objects[kind.kind, made.name]["metadata"]["annotations"]["ostler.dev/spec-digest"]
        assert annotation.startswith("1500m-128Mi.") is (kind.kind == "pods"), kind
