"""The lab's kubelet on a real control plane. The test provides a dispatch endpoint and a GitHub."""

import base64
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from k8s_adapters.calls.client import MERGE_PATCH, KubeClient
from lab.control_plane import ClusterAccess
from lab.faults import Fault, FaultProxy
from ostler.errors import Gone
from tests.integration.lab_stubs import LabStubs

AUDIENCE = "ostler-dispatch"
NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
HEALTHY = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}


@dataclass(frozen=True)
class Lab:
    """A namespace, its kubelet and the peers of its Pods."""

    admin: KubeClient
    namespace: str
    kubeconfig: Path
    stubs: LabStubs
    folder: Path
    kubelets: "list[subprocess.Popen[str]]" = field(default_factory=list)

    @property
    def node(self) -> str:
        """Return the name of its Node."""
        return f"lab-node-{self.namespace}"

    def read_node(self) -> dict[str, Any]:
        """Return the Node."""
        return self.admin.request("GET", f"/api/v1/nodes/{self.node}")

    def conditions(self) -> dict[str, str]:
        """Return the conditions of the Node."""
        return {each["type"]: each["status"] for each in self.read_node()["status"].get("conditions") or ()}

    def renewed_at(self) -> str:
        """Return the time at which the Node's Lease was renewed."""
        return str(self.admin.request("GET", f"{NODE_LEASES}/{self.node}")["spec"]["renewTime"])

    def kubelet(
        self, *, real: int, kubeconfig: Path | None = None, github: str | None = None, every: float = 10
    ) -> "subprocess.Popen[str]":
        """Start a kubelet, and return it when it is ready."""
        command = [sys.executable, "-m", "lab.kubelet", "--kubeconfig", str(kubeconfig or self.kubeconfig)]
        command += ["--namespace", self.namespace, "--node", self.node, "--github-url", github or self.stubs.url]
        command += [
            "--renew-every",
            str(every),
            "--real",
            str(real),
            "--log",
            str(self.folder / "log"),
            "--work",
            str(self.folder / "work"),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.kubelets.append(process)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["ready"] is True
        return process

    def create(self, name: str, *, image: str = "runner:1", scripts: str | None = None) -> str:
        """Create a runner Pod and return its UID. `scripts`: the ConfigMap with its scripts."""
        environment = [{"name": "OSTLER_DISPATCH_URL", "value": self.stubs.dispatch_url}]
        token = {"serviceAccountToken": {"audience": AUDIENCE, "expirationSeconds": 3600, "path": "token"}}
        spec: dict[str, Any] = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [
                {"name": "poller", "image": image, "env": environment},
                {"name": "runner", "image": image},
            ],
            "volumes": [{"name": "token", "projected": {"sources": [token]}}],
        }
        if scripts is not None:
            spec["volumes"].append({"name": "scripts", "configMap": {"name": scripts}})
            for container in spec["containers"]:
                container["command"] = ["/bin/sh", "/scripts/poll.sh"]
                container["volumeMounts"] = [{"name": "scripts", "mountPath": "/scripts"}]
        body = {"metadata": {"name": name}, "spec": spec}
        return str(
            self.admin.request("POST", f"/api/v1/namespaces/{self.namespace}/pods", body=body)["metadata"]["uid"]
        )

    def get(self, name: str) -> dict[str, Any] | None:
        """Return a Pod, or None if it is gone."""
        try:
            return self.admin.request("GET", f"/api/v1/namespaces/{self.namespace}/pods/{name}")
        except Gone:
            return None

    def delete(self, name: str) -> None:
        """Delete a Pod with its own grace period."""
        self.admin.request("DELETE", f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    def phase(self, name: str) -> str:
        """Return a Pod's phase, or `gone`."""
        pod = self.get(name)
        return str(pod["status"]["phase"]) if pod else "gone"

    def container(self, name: str, container: str) -> dict[str, Any]:
        """Return the status of one container, or an empty mapping."""
        found = ((self.get(name) or {}).get("status") or {}).get("containerStatuses") or []
        return next((each for each in found if each["name"] == container), {})

    def journal(self, *, pod: str | None = None) -> list[dict[str, Any]]:
        """Return the journal of the kubelet, or its entries about one Pod."""
        text = (self.folder / "log").read_text()
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]  # the last may be half written
        return [line for line in lines if pod is None or line.get("pod") == pod]

    def events(self, pod: str) -> list[str]:
        """Return the names of the events of a Pod."""
        return [line["event"] for line in self.journal(pod=pod)]

    def has_started(self, pod: str) -> bool:
        """Return whether a Pod's poller runs or has run."""
        return "poller_started" in self.events(pod)


@pytest.fixture
def lab(admin: KubeClient, control_plane: ClusterAccess, namespace: str, tmp_path: Path) -> Iterator[Lab]:
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
    with LabStubs() as stubs:
        made = Lab(admin, namespace, control_plane.kubeconfig, stubs, tmp_path)
        _until(lambda: _exists(admin, account))
        yield made
        for kubelet in made.kubelets:  # what a failed test has left
            _stop(kubelet)
        with suppress(Gone):
            admin.request("DELETE", f"/api/v1/nodes/{made.node}")


@pytest.fixture(params=["processes", "simulated"])
def kubelet(request: pytest.FixtureRequest, lab: Lab) -> Iterator[str]:
    """A kubelet that runs every Pod in this mode."""
    process = lab.kubelet(real=100 if request.param == "processes" else 0, every=1)
    yield request.param
    assert _stop(process) == 0


def test_a_pod_runs_a_job_from_its_binding_to_its_end(lab: Lab, kubelet: str) -> None:
    uid = lab.create("one")
    _until(lambda: bool(lab.container("one", "poller").get("state", {}).get("running")))
    assert lab.container("one", "runner")["ready"] is False
    lab.stubs.world.give("jit-7")

    _until(lambda: "pod_ended" in lab.events("one"))  # written once the status is reported

    assert lab.phase("one") == "Succeeded"
    ended = lab.container("one", "poller")["state"]["terminated"]
    assert (ended["exitCode"], ended["message"]) == (0, "claim-jit-7")
    assert lab.container("one", "runner")["state"]["terminated"]["exitCode"] == 0
    assert lab.stubs.world.finished == {"s7": "success"}
    assert [what for what, _ in lab.stubs.world.calls if what not in {"connected", "heartbeat"}] == [
        "started",
        "finished",
        "deleted",
    ]
    assert lab.events("one") == [
        "pod_bound",
        "poller_started",
        "jit_received",
        "poller_exited",
        "runner_started",
        "job_started",
        "job_finished",
        "pod_ended",
    ]
    received = next(line for line in lab.journal() if line["event"] == "jit_received")
    assert received["uid"] == uid
    assert received["claim"] == "claim-jit-7"
    assert received["runner_name"] == "runner-jit-7"
    assert received["simulated"] is (kubelet == "simulated")
    assert [line["seq"] for line in lab.journal()] == list(range(1, len(lab.journal()) + 1))


def test_an_executing_runner_is_ready_and_beats(lab: Lab, kubelet: str) -> None:
    lab.stubs.world.job_seconds = 3600
    lab.create("busy")
    lab.stubs.world.give("jit-1")

    _until(lambda: bool(lab.container("busy", "runner").get("ready")))
    lab.stubs.world.wait_for(lambda: ("heartbeat", "s1") in lab.stubs.world.calls)
    lab.stubs.world.ensure_removed = True
    _until(lambda: lab.phase("busy") == "Succeeded")

    assert lab.container("busy", "runner")["ready"] is False
    assert kubelet in {"processes", "simulated"}


@pytest.mark.parametrize(
    ("tag", "code"), [("too-old", 7), ("crashes", 1), ("crashes-134", 134)], ids=["too-old", "crashes", "crashes-134"]
)
def test_a_runner_that_fails_before_its_job_ends_with_the_code_of_its_ailment(
    lab: Lab, kubelet: str, tag: str, code: int
) -> None:
    lab.create("bad", image=f"registry.example.com:5000/ci/runner:{tag}")
    lab.stubs.world.give("jit-1")

    _until(lambda: "pod_ended" in lab.events("bad"))

    assert lab.container("bad", "poller")["state"]["terminated"]["exitCode"] == 0
    assert lab.container("bad", "runner")["state"]["terminated"]["exitCode"] == code
    assert lab.events("bad") == ["pod_bound", "poller_started", "jit_received", "poller_exited", "pod_ended"]
    assert kubelet in {"processes", "simulated"}


@pytest.mark.parametrize(
    ("tag", "poller", "runner", "reason"),
    [
        ("no-client", 21, 0, "Error"),
        ("no-runner", 22, 22, "Error"),
        ("wrong-user", 23, 23, "Error"),
        ("no-shell", 128, 128, "StartError"),
    ],
    ids=["client", "runner", "user", "shell"],
)
def test_a_pod_whose_image_is_unusable_ends_before_its_first_poll(
    lab: Lab, kubelet: str, tag: str, poller: int, runner: int, reason: str
) -> None:
    lab.create("bare", image=f"runner:{tag}")

    _until(lambda: "pod_ended" in lab.events("bare"))

    assert lab.phase("bare") == "Failed"
    ended = [lab.container("bare", name)["state"]["terminated"] for name in ("poller", "runner")]
    assert [each["exitCode"] for each in ended] == [poller, runner]
    assert ended[0]["reason"] == reason
    assert lab.stubs.world.tokens == []
    assert kubelet in {"processes", "simulated"}


def test_a_pod_starts_with_the_scripts_of_its_config_map(lab: Lab) -> None:
    """The Pod starts when the ConfigMap exists. A script there replaces the script of the image."""
    lab.kubelet(real=1)
    lab.create("mounted", scripts="scripts-1")
    _until(lambda: "pod_bound" in lab.events("mounted"))
    time.sleep(1)
    assert "poller_started" not in lab.events("mounted")

    own = "printf said >$OSTLER_TERMINATION_LOG; exit 22"
    data = {"poll.sh": own, "run.sh": "exit 3", "job-started.sh": ""}
    path = f"/api/v1/namespaces/{lab.namespace}/configmaps"
    lab.admin.request("POST", path, body={"metadata": {"name": "scripts-1"}, "data": data})

    _until(lambda: "pod_ended" in lab.events("mounted"))
    ended = [lab.container("mounted", name)["state"]["terminated"] for name in ("poller", "runner")]
    assert [each["exitCode"] for each in ended] == [22, 3]
    assert ended[0]["message"] == "said"


def test_a_runner_that_updates_itself_starts_twice_with_one_config(lab: Lab, kubelet: str) -> None:
    lab.create("behind", image="runner:updates-1")
    lab.stubs.world.give("jit-3")

    _until(lambda: "pod_ended" in lab.events("behind"))

    starts = [call for call in lab.stubs.world.calls if call[0] in {"updates", "connected"}]
    assert starts == [("updates", "jit-3"), ("connected", "jit-3")]
    assert lab.stubs.world.finished == {"s3": "success"}
    assert kubelet in {"processes", "simulated"}


def test_a_runner_without_egress_stays_until_its_pod_is_deleted(lab: Lab, kubelet: str) -> None:
    lab.create("cut-off", image="runner:no-egress")
    lab.stubs.world.give("jit-4")
    _until(lambda: bool(lab.container("cut-off", "poller").get("state", {}).get("terminated")))

    assert lab.container("cut-off", "runner")["state"].get("running") is not None
    assert lab.stubs.world.calls == []
    lab.delete("cut-off")
    _until(lambda: lab.get("cut-off") is None)
    assert kubelet in {"processes", "simulated"}


def test_the_token_is_bound_to_the_pod_and_appears_in_no_log(lab: Lab, kubelet: str) -> None:
    uid = lab.create("one")
    lab.stubs.world.wait_for(lambda: bool(lab.stubs.world.tokens))

    token = lab.stubs.world.tokens[0]
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    assert claims["aud"] == [AUDIENCE]
    assert claims["kubernetes.io"]["pod"] == {"name": "one", "uid": uid}
    assert claims["kubernetes.io"]["node"]["name"] == lab.node
    assert claims["exp"] - claims["iat"] == 3600
    assert lab.stubs.world.accepts == {"text/plain" if kubelet == "processes" else "application/json"}

    lab.stubs.world.give("jit-987654")
    _until(lambda: lab.phase("one") in {"Succeeded", "Failed"})
    logs = [(lab.folder / "log").read_text(), *(path.read_text() for path in (lab.folder / "work").rglob("*.log"))]
    assert not any(token in text for text in logs)
    assert not any(re.search("(?<!-)jit-987654", text) for text in logs)
    assert not list((lab.folder / "work").rglob("token"))


def test_a_pod_that_is_replaced_ends_without_a_runner(lab: Lab, kubelet: str) -> None:
    lab.stubs.world.refuse = 410
    lab.create("old")

    _until(lambda: "pod_ended" in lab.events("old"))

    assert lab.phase("old") == "Failed"
    ended = lab.container("old", "poller")["state"]["terminated"]
    assert (ended["exitCode"], ended["message"]) == (10, "replaced: status 410")
    assert lab.container("old", "runner")["state"]["terminated"]["exitCode"] == 0
    assert lab.events("old") == ["pod_bound", "poller_started", "poller_exited", "pod_ended"]
    assert kubelet in {"processes", "simulated"}


def test_a_deleted_warm_pod_goes(lab: Lab, kubelet: str) -> None:
    lab.create("warm")
    lab.stubs.world.wait_for(lambda: bool(lab.stubs.world.tokens))
    _until(lambda: lab.phase("warm") == "Running")

    lab.delete("warm")

    _until(lambda: lab.get("warm") is None)
    _until(lambda: lab.events("warm")[-1] == "pod_deleted")
    last = lab.journal(pod="warm")[-1]
    assert (last["event"], last["phase"], last["job"]) == ("pod_deleted", "Running", None)
    assert kubelet in {"processes", "simulated"}


def test_a_deleted_pod_that_never_started_gets_a_terminal_phase(lab: Lab) -> None:
    lab.kubelet(real=1)
    lab.create("waits", scripts="no-such-scripts")
    path = f"/api/v1/namespaces/{lab.namespace}/pods/waits"
    body = {"metadata": {"finalizers": ["test.ostler.dev/held"]}}
    lab.admin.request("PATCH", path, body=body, content_type=MERGE_PATCH)
    _until(lambda: (lab.get("waits") or {})["spec"].get("nodeName"))
    assert (lab.get("waits") or {})["status"]["phase"] == "Pending"
    lab.delete("waits")
    _until(lambda: (lab.get("waits") or {})["status"]["phase"] == "Failed")
    lab.admin.request("PATCH", path, body={"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)
    _until(lambda: lab.get("waits") is None)


def test_a_deleted_busy_pod_abandons_its_job_and_says_so(lab: Lab, kubelet: str) -> None:
    lab.stubs.world.job_seconds = 3600
    lab.create("busy")
    lab.stubs.world.give("jit-5")
    lab.stubs.world.wait_for(lambda: ("started", "s5") in lab.stubs.world.calls)
    _until(lambda: "job_started" in lab.events("busy"))

    lab.delete("busy")

    _until(lambda: lab.get("busy") is None)
    _until(lambda: lab.events("busy")[-1] == "pod_deleted")
    last = lab.journal(pod="busy")[-1]
    assert (last["event"], last["phase"], last["job"]) == ("pod_deleted", "Running", 5)
    assert lab.stubs.world.finished == {}
    assert kubelet in {"processes", "simulated"}


def test_a_spent_pod_that_is_deleted_had_no_job(lab: Lab, kubelet: str) -> None:
    lab.create("spent")
    lab.stubs.world.give("jit-2")
    _until(lambda: lab.phase("spent") == "Succeeded")

    lab.delete("spent")

    _until(lambda: lab.get("spent") is None)
    _until(lambda: lab.events("spent")[-1] == "pod_deleted")
    assert (lab.journal(pod="spent")[-1]["phase"], lab.journal(pod="spent")[-1]["job"]) == ("Succeeded", None)
    assert kubelet in {"processes", "simulated"}


def test_real_pods_are_those_that_execute_jobs(lab: Lab) -> None:
    """A real Pod without a job makes room for another."""
    process = lab.kubelet(real=1)
    lab.create("idle")
    _until(lambda: "poller_started" in lab.events("idle"))
    lab.delete("idle")
    _until(lambda: lab.get("idle") is None)
    for name in ("second", "third"):
        lab.create(name)
        _until(partial(lab.has_started, name))
    assert _stop(process) == 0

    started = {line["pod"]: line["simulated"] for line in lab.journal() if line["event"] == "poller_started"}
    assert started == {"idle": False, "second": False, "third": True}


def test_many_pods_at_once_each_run_their_job_at_few_calls(lab: Lab, control_plane: ClusterAccess) -> None:
    count = 40
    with FaultProxy(control_plane.url, ca_file=control_plane.ca_file) as proxy:
        process = lab.kubelet(real=2, kubeconfig=_private(proxy, lab))
        before = proxy.counts["forwarded"]
        lab.stubs.world.give(*(f"jit-{number}" for number in range(count)))
        names = [f"pod-{number}" for number in range(count)]
        for name in names:
            lab.create(name)
        _until(lambda: _ended(lab, "pod_ended") == set(names))
        calls = proxy.counts["forwarded"] - before
        assert _stop(process) == 0

    assert len(lab.stubs.world.finished) == count
    assert {lab.phase(name) for name in names} == {"Succeeded"}
    assert calls / count <= 6


def test_a_faulty_api_server_delays_pods_and_loses_none(lab: Lab, control_plane: ClusterAccess) -> None:
    with FaultProxy(control_plane.url, ca_file=control_plane.ca_file, seed=3) as proxy:
        process = lab.kubelet(real=1, kubeconfig=_private(proxy, lab))
        for kind in ("status", "reset_before", "reset_after"):
            proxy.add(Fault(kind=kind, method_regex="POST|PATCH", path_regex=".*/pods/.*|.*/token", probability=0.2))
        proxy.add(Fault(kind="status", status=410, path_regex=".*watch=1.*", times=1))
        lab.stubs.world.give(*(f"jit-{number}" for number in range(8)))
        names = [f"pod-{number}" for number in range(8)]
        for name in names:
            lab.create(name)
        _until(lambda: {lab.phase(name) for name in names} == {"Succeeded"})
        assert sum(proxy.counts[kind] for kind in ("status", "reset_before", "reset_after")) > 0
        assert _stop(process) == 0

    assert len(lab.stubs.world.finished) == 8


@pytest.mark.parametrize("real", [0, 1], ids=["simulated", "processes"])
def test_a_lost_answer_of_github_does_not_lose_the_job(lab: Lab, real: int) -> None:
    with FaultProxy(lab.stubs.url) as github:
        for what in ("started", "finished"):
            github.add(Fault(kind="reset_after", path_regex=f".*/{what}", times=1))
        github.add(Fault(kind="status", status=502, path_regex=".*/message.*", times=2))
        process = lab.kubelet(real=real, github=github.url)
        lab.create("one")
        lab.stubs.world.give("jit-4")
        _until(lambda: "pod_ended" in lab.events("one"))
        assert lab.phase("one") == "Succeeded"
        assert github.counts["reset_after"] == 2
        assert _stop(process) == 0

    assert lab.journal(pod="one")[-2]["conclusion"] == "success"


def test_a_pod_that_ran_under_an_earlier_kubelet_is_lost(lab: Lab) -> None:
    first = lab.kubelet(real=0)
    lab.create("orphan")
    _until(lambda: lab.phase("orphan") == "Running")
    assert _stop(first) == 0

    second = lab.kubelet(real=0)
    _until(lambda: lab.phase("orphan") == "Failed")
    assert _stop(second) == 0

    ended = lab.container("orphan", "runner")["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (255, "Unknown")


def test_the_node_is_ready_and_its_lease_is_renewed(lab: Lab, kubelet: str) -> None:
    assert lab.conditions() == HEALTHY
    first = lab.renewed_at()
    _until(lambda: lab.renewed_at() > first)
    lease = lab.admin.request("GET", f"{NODE_LEASES}/{lab.node}")
    assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseDurationSeconds"]) == (lab.node, 40)
    assert [owner["uid"] for owner in lease["metadata"]["ownerReferences"]] == [lab.read_node()["metadata"]["uid"]]
    assert kubelet in {"processes", "simulated"}


def test_a_node_that_vanished_is_registered_again_and_its_pods_run_on(lab: Lab) -> None:
    process = lab.kubelet(real=0, every=0.2)
    lab.create("warm")
    _until(lambda: lab.phase("warm") == "Running")
    before = lab.read_node()["metadata"]["uid"]

    lab.admin.request("DELETE", f"/api/v1/nodes/{lab.node}")

    _until(lambda: _exists(lab.admin, f"/api/v1/nodes/{lab.node}") and lab.conditions() == HEALTHY)
    after = lab.read_node()["metadata"]["uid"]
    assert after != before
    _until(lambda: _exists(lab.admin, f"{NODE_LEASES}/{lab.node}"))  # the collector may take that of the one before
    assert (lab.phase("warm"), process.poll()) == ("Running", None)


def test_a_node_that_was_taken_for_lost_is_ready_again_once_its_kubelet_beats(lab: Lab) -> None:
    lab.kubelet(real=0, every=0.2)
    lost = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": ""}
    path = f"/api/v1/nodes/{lab.node}/status"

    lab.admin.request("PATCH", path, body={"status": {"conditions": [lost]}}, content_type=MERGE_PATCH)

    _until(lambda: lab.conditions() == HEALTHY)


def _private(proxy: FaultProxy, lab: Lab) -> Path:
    """A kubeconfig through the proxy, from a separate copy."""
    source = lab.folder / "kubeconfig"
    source.write_text(lab.kubeconfig.read_text())
    return proxy.kubeconfig(source)


def _ended(lab: Lab, event: str) -> set[str]:
    return {line["pod"] for line in lab.journal() if line["event"] == event}


def _exists(admin: KubeClient, path: str) -> bool:
    try:
        admin.request("GET", path)
    except Gone:
        return False
    return True


def _until(reached: Callable[[], bool], *, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it never came to pass"
        time.sleep(0.05)


def _stop(process: "subprocess.Popen[str]") -> int:
    with process:
        process.terminate()
        return process.wait(timeout=90)
