"""The example of the page about actions-runner-controller: the command prints the shown pools, which are accepted."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.output import OPEN
from k8s_adapters.calls.client import KubeClient, make_client
from k8s_adapters.pools.pools import create_pool
from lab.control_plane import ClusterAccess
from tests.integration.cli.test_operator import run_command

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "migrating-from-runner-deployments.md"
GIVEN, SHOWN = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def api(real_control_plane: ClusterAccess) -> Iterator[KubeClient]:
    client = make_client(kubeconfig=str(real_control_plane.kubeconfig))
    yield client
    client.close()


@pytest.fixture
def own(api: KubeClient) -> Iterator[str]:
    """A namespace of this test."""
    name = f"test-{secrets.token_hex(6)}"
    api.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    yield name
    api.request("DELETE", f"/api/v1/namespaces/{name}")


def made(file: Path) -> list[dict[str, Any]]:
    done = run_command({}, "pool", "convert", str(file))
    assert done.returncode == OPEN, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_the_command_makes_the_pools_that_the_page_shows(tmp_path: Path) -> None:
    file = tmp_path / "arc.yaml"
    file.write_text(GIVEN)
    assert made(file) == list(yaml.safe_load_all(SHOWN))


def test_a_list_of_kubectl_is_read_like_its_objects(tmp_path: Path) -> None:
    file = tmp_path / "arc.yaml"
    file.write_text(yaml.safe_dump({"kind": "List", "items": list(yaml.safe_load_all(GIVEN))}))
    assert made(file) == list(yaml.safe_load_all(SHOWN))


def test_the_api_server_accepts_the_pools(api: KubeClient, own: str, tmp_path: Path) -> None:
    file = tmp_path / "arc.yaml"
    file.write_text(GIVEN)
    for pool in made(file):
        seen = create_pool(api, namespace=own, name=pool["metadata"]["name"], spec=pool["spec"])
        assert seen.problem is None


def test_a_field_that_ostler_refuses_is_named_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "arc.yaml"
    runner = {"organization": "acme", "volumes": [{"name": "host", "hostPath": {"path": "/"}}]}
    item = {"kind": "RunnerDeployment", "metadata": {"name": "a"}, "spec": {"template": {"spec": runner}}}
    file.write_text(yaml.safe_dump(item))
    done = run_command({}, "pool", "convert", str(file))
    refusal = r"! RunnerPool: Ostler refuses this pool: .*hostPath"
    assert re.search(refusal, done.stderr)
    assert re.search(rf"^# {refusal}", done.stdout, re.MULTILINE)


def test_decisions_are_comments_above_their_pool_and_stay_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "arc.yaml"
    broken = {"organization": "acme", "a\nspec: {}\n": 1}
    items = [
        {"kind": "RunnerDeployment", "metadata": {"name": name}, "spec": {"template": {"spec": runner}}}
        for name, runner in (("one", {"organization": "acme"}), ("two", broken))
    ]
    file.write_text(yaml.safe_dump_all(items))
    done = run_command({}, "pool", "convert", str(file))
    assert done.returncode == OPEN
    asked = re.findall(r"^ *(! .*)$", done.stderr, re.MULTILINE)
    assert re.findall(r"^# (! .*)$", done.stdout, re.MULTILINE) == asked
    assert [each["metadata"]["name"] for each in yaml.safe_load_all(done.stdout)] == ["one", "two"]
    assert "! a spec: {} : it has no counterpart" in done.stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "contains no objects"),
        ("kind: Deployment", "there is no object of the kinds RunnerDeployment"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_a_file_without_runner_objects_is_a_mistake_with_a_cure(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "arc.yaml"
    file.write_text(text)
    done = run_command({}, "pool", "convert", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "kubectl get" in done.stderr


def test_the_command_names_objects_of_which_it_makes_no_pool(tmp_path: Path) -> None:
    file = tmp_path / "arc.yaml"
    owned = {
        "kind": "RunnerReplicaSet",
        "metadata": {"name": "builds-x7k2p", "ownerReferences": [{"kind": "RunnerDeployment", "name": "builds"}]},
    }
    file.write_text(yaml.safe_dump({"kind": "List", "items": [*yaml.safe_load_all(GIVEN), owned]}))
    done = run_command({}, "pool", "convert", str(file))
    assert list(yaml.safe_load_all(done.stdout)) == list(yaml.safe_load_all(SHOWN))
    assert "  RunnerReplicaSet builds-x7k2p: no pool, because RunnerDeployment builds owns it\n" in done.stderr
