"""The pages about actions-runner-controller as they are written: each `sh` block, in order, in one bash.

helm, kubectl and the API server are real, and Ostler runs beside the lab's GitHub and kubelet. A chart and resource
definitions of this test have the names of those of actions-runner-controller. Its controller is not there, so the test
removes the runners that the controller would remove.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab import helm, kubectl
from lab.control_plane import ControlPlane, ControlPlaneUnavailable
from lab.system import Options, System, read_log
from lab.verdict import judge
from ostler.errors import Gone
from tests.e2e.shell import Block, Shell, blocks_of
from tests.e2e.test_cluster_docs import BLOCK_WITHIN, SOONER, programs
from tests.fleet import Fleet
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.cluster]

PAGES = Path(__file__).parents[2] / "docs" / "operations"
OLD = "arc-runners"
NEW = "ostler-runners"
SCALE_SETS = ("actions.github.com", ("AutoscalingRunnerSet", "EphemeralRunner"))
OLDER = (
    "actions.summerwind.dev",
    ("HorizontalRunnerAutoscaler", "Runner", "RunnerDeployment", "RunnerReplicaSet", "RunnerSet"),
)
"""API groups of actions-runner-controller, and their kinds. Each kind has the version v1alpha1."""
CHART = {
    "Chart.yaml": "apiVersion: v2\nname: gha-runner-scale-set\nversion: 0.12.1\n",
    "values.yaml": "{}\n",
    "templates/scale-set.yaml": """\
apiVersion: actions.github.com/v1alpha1
kind: AutoscalingRunnerSet
metadata:
  name: {{ .Release.Name }}
spec: {{ omit .Values "githubConfigSecret" "global" | toJson }}
""",
}
"""Files of a chart with the name of the one for scale sets. Its object has the values without the credentials."""


@dataclass(frozen=True)
class Generation:
    """One page, and the objects of actions-runner-controller that it is about."""

    page: str
    limited: tuple[str, str]
    """API group and resource of the object that has the limits of the runners."""
    limits: tuple[str, str]
    """Names of its limits."""
    runner: str
    """Kind of a runner."""
    runner_labels: Mapping[str, str]
    runs_on: tuple[str, ...]
    """Labels in a workflow that does not change."""

    @property
    def text(self) -> str:
        """Return the page."""
        return (PAGES / self.page).read_text()

    @property
    def examples(self) -> tuple[list[Any], list[Any]]:
        """Return the input of the example on the page, and its pools."""
        given, shown = re.findall(r"```yaml\n(.*?)```", self.text, re.DOTALL)
        return list(yaml.safe_load_all(given)), list(yaml.safe_load_all(shown))

    def path(self, resource: str, name: str = "") -> str:
        """Return the path of old objects, or of one."""
        return f"/apis/{self.limited[0]}/v1alpha1/namespaces/{OLD}/{resource}{'/' if name else ''}{name}"


OF_SCALE_SETS = Generation(
    page="migrating-from-scale-sets.md",
    limited=("actions.github.com", "autoscalingrunnersets"),
    limits=("minRunners", "maxRunners"),
    runner="EphemeralRunner",
    runner_labels={"actions.github.com/scale-set-name": "builds"},
    runs_on=("builds",),
)
OF_DEPLOYMENTS = Generation(
    page="migrating-from-runner-deployments.md",
    limited=("actions.summerwind.dev", "horizontalrunnerautoscalers"),
    limits=("minReplicas", "maxReplicas"),
    runner="Runner",
    runner_labels={"runner-deployment-name": "builds"},
    runs_on=("self-hosted", "builds"),
)


@dataclass
class Move:
    """The runners `builds` and their pool, with the acts and checks of the test between the blocks of the page."""

    of: Generation
    fleet: Fleet
    shell: Shell
    folder: Path
    running: int = 0
    """Id of a job that runs while a block does."""

    def follow(self, block: Block) -> None:
        """Prepare a block, run it, and check its effect."""
        before, after = STEPS.get((block.heading, block.number), (None, None))
        if before is not None:
            before(self)
        said = self.shell.run(block.text, timeout=BLOCK_WITHIN)
        # Neither is an error to kubectl: a selector or a field with a slip in it would do nothing, and say so here.
        assert "unknown field" not in said
        assert "No resources found" not in said
        if after is not None:
            after(self)

    # What actions-runner-controller, the workflows and the reader do.

    def begin(self) -> None:
        """Create the old objects of the example."""
        given, _ = self.of.examples
        if self.of is OF_SCALE_SETS:
            (values,) = given
            helm.upgrade_install(
                self.folder / "chart", values, kubeconfig=self.fleet.system.kubeconfig, namespace=OLD, release="builds"
            )
            return
        for item in given:
            self.fleet.kube.request("POST", self.of.path(f"{item['kind'].lower()}s"), body=item)

    def add_an_old_runner(self) -> None:
        """Create an old runner that leaves soon, as after its job."""
        resource = f"{self.of.runner.lower()}s"
        kind = {"apiVersion": f"{self.of.limited[0]}/v1alpha1", "kind": self.of.runner}
        body = {**kind, "metadata": {"name": "old", "labels": dict(self.of.runner_labels)}}
        self.fleet.kube.request("POST", self.of.path(resource), body=body)

        def leave() -> None:
            with contextlib.closing(self.fleet.system.kube()) as kube:
                kube.request("DELETE", self.of.path(resource, "old"))

        threading.Timer(2, leave).start()

    def begin_a_long_job(self) -> None:
        """Start a job that runs until the next block has begun."""
        (self.running,) = self.fleet.send(labels=self.of.runs_on, duration_seconds=6)
        self.fleet.wait_for(self.running, "in_progress")

    def move_again(self) -> None:
        """Follow the part about the move again, after the way back."""
        for block in blocks_of(self.of.text):
            if block.heading == "Move the labels":
                self.follow(block)

    # What the page promises.

    def see_the_pools(self) -> None:
        """Check that the command made the pools of the example."""
        text = (self.folder / "pools.yaml").read_text()
        assert "artificial" not in text
        made, shown = (
            {each["metadata"]["name"]: each for each in pools}
            for pools in (yaml.safe_load_all(text), self.of.examples[1])
        )
        assert made == shown

    def see_the_trial(self) -> None:
        """Check that the pool has a label of its own, and runs a job."""
        assert self.fleet.pool("builds")["spec"]["runnerLabels"] == ["builds-on-ostler"]
        self.see_a_job("builds-on-ostler")

    def see_the_labels(self) -> None:
        """Check that the pool is the one of the example, and that a workflow runs unchanged."""
        spec = self.fleet.pool("builds")["spec"]
        shown = self.of.examples[1][0]["spec"]
        assert {name: spec[name] for name in ("autoscaling", "runnerLabels")} == {
            "autoscaling": spec["autoscaling"] | shown["autoscaling"],
            "runnerLabels": shown["runnerLabels"],
        }
        self.see_a_job(*self.of.runs_on)

    def see_a_job(self, *labels: str) -> None:
        """Check that a job with these labels runs in the pool."""
        (job,) = self.fleet.send(labels=labels, duration_seconds=0.3)
        assert self.fleet.wait_for(job, "completed")["conclusion"] == "success"
        assert self.fleet.pod_of(job).startswith("builds-")

    def see_limits(self, *numbers: int) -> None:
        """Check the limits of the old runners, and that none of them is left."""
        spec = self.fleet.kube.request("GET", self.of.path(self.of.limited[1], "builds"))["spec"]
        assert tuple(spec[name] for name in self.of.limits) == numbers
        assert self.fleet.kube.request("GET", self.of.path(f"{self.of.runner.lower()}s"))["items"] == []

    def see_the_way_back(self) -> None:
        """Check that the old limits are back, and that the pool ended after its running job."""
        self.see_limits(2, 40)
        with pytest.raises(Gone):
            self.fleet.pool("builds")
        assert self.fleet.wait_for(self.running, "completed")["conclusion"] == "success"

    def see_the_end(self) -> None:
        """Check that the old object is gone, and that the workflow runs."""
        with pytest.raises(Gone):
            self.fleet.kube.request("GET", self.of.path(self.of.limited[1], "builds"))
        self.see_a_job(*self.of.runs_on)


Act = Callable[[Move], None] | None
STEPS: Mapping[tuple[str, int], tuple[Act, Act]] = {
    ("Convert", 1): (None, Move.see_the_pools),
    ("Try the pool", 1): (None, Move.see_the_trial),
    ("Move the labels", 1): (None, Move.see_the_labels),
    ("Move the labels", 2): (Move.add_an_old_runner, lambda move: move.see_limits(0, 0)),
    ("Go back", 1): (Move.begin_a_long_job, Move.see_the_way_back),
    ("Remove the old runners", 1): (Move.move_again, Move.see_the_end),
}


def definition(group: str, kind: str) -> dict[str, Any]:
    """Return the definition of a kind whose objects may have any fields."""
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": [version]},
    }


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a reader types, with the chart of a scale set."""
    folder = tmp_path_factory.mktemp("move")
    for name, text in CHART.items():
        file = folder / "chart" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@pytest.fixture
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A system without pools, on a cluster of its own that knows the kinds of actions-runner-controller."""
    where = tmp_path_factory.mktemp("system")
    options = Options(pools=(), beats=1, real_pods=0, own_identities=False, settings=SOONER)
    try:
        with (
            ControlPlane.start(where / "control-plane") as control_plane,
            System(where / "system", options, say=print, namespace=NEW, control_plane=control_plane) as system,
        ):
            system.lab("PUT", "/accounts/acme/groups/2", {"name": "builders"})
            fleet = Fleet(system)
            with contextlib.closing(fleet.kube):
                fleet.kube.request("POST", "/api/v1/namespaces", body={"metadata": {"name": OLD}})
                for group, kinds in (SCALE_SETS, OLDER):
                    for kind in kinds:
                        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
                        fleet.kube.request("POST", path, body=definition(group, kind))
                eventually(lambda: are_served(fleet), "the API server does not serve the old kinds")
                yield fleet
    except ControlPlaneUnavailable as error:
        pytest.fail(str(error), pytrace=False)


def are_served(fleet: Fleet) -> bool:
    """Return whether the API server serves the old kinds."""
    try:
        return all(
            len(fleet.kube.request("GET", f"/apis/{group}/v1alpha1")["resources"]) == len(kinds)
            for group, kinds in (SCALE_SETS, OLDER)
        )
    except Gone:
        return False


@pytest.mark.parametrize("of", [OF_SCALE_SETS, OF_DEPLOYMENTS], ids=lambda each: each.page)
def test_the_page_moves_runners_forth_and_back_and_removes_them(of: Generation, fleet: Fleet, folder: Path) -> None:
    kubectl.build()
    environment = {
        "PATH": f"{programs(folder / 'bin', folder)}:/usr/bin:/bin",
        "HOME": str(folder),
        "LC_ALL": "C.UTF-8",
        "TMPDIR": os.environ.get("TMPDIR", "/tmp"),  # noqa: S108
        "KUBECONFIG": str(fleet.system.kubeconfig),
    }
    blocks = blocks_of(of.text)
    assert {(each.heading, each.number) for each in blocks} >= set(STEPS)
    assert len(re.findall(r"^ *```sh$", of.text, re.MULTILINE)) == len(blocks)
    assert not [each.heading for each in blocks if each.reason is not None]
    with Shell(folder, environment) as shell:
        move = Move(of, fleet, shell, folder)
        move.begin()
        for block in blocks:
            move.follow(block)
    verdict = judge(read_log(fleet.system.github_log), read_log(fleet.system.kubelet_log))
    assert verdict.problems == ()
