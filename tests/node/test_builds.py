"""Pools whose jobs build images: a BuildKit daemon in a user namespace of the Pod, or a Docker daemon."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from lab.bootstrap import LabPool
from lab.manifests import Kinds
from lab.node.builder_images import (
    BUILDING_RUNNER,
    BUILDKIT,
    DIND,
    building_runner_image,
    buildkit_image,
    dind_image,
)
from lab.node.journal import NodeJournal
from lab.node.namespace import is_isolated
from lab.system import NODE, Options, System, read_log
from tests.fleet import Fleet
from tests.waiting import eventually

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]

NAMESPACE = "builds"
BUILDS, DOCKER = ("self-hosted", "linux", "builds"), ("self-hosted", "linux", "docker")
UNLISTED = ("self-hosted", "linux", "unlisted")
LAYER = """\
set -eu
mkdir context && cd context
tar cf root.tar --exclude=/usr/share --exclude=/usr/lib/python3* /bin /etc/passwd /lib /lib64 /usr 2>/dev/null || true
"""
CONTEXT = f"""{LAYER}
cat > Dockerfile <<'END'
FROM scratch AS base
ADD root.tar /
RUN id -u > /user && echo built > /made
FROM scratch
COPY --from=base /made /user /
END
"""
OWNERS = f"""{LAYER}
cat > Dockerfile <<'END'
FROM scratch AS base
ADD root.tar /
RUN mkdir /app /app/below; touch /file; stat -c '%u:%g %A %n' / /app /app/below /file > /owners
FROM scratch
COPY --from=base /owners /
END
buildx build --output type=tar,dest=image.tar .
tar xOf image.tar owners > owners
cat owners >&2
test "$(grep -c '^0:0 [^sS]* /' owners)" = 4
"""
BUILDX = f"{CONTEXT}buildx build --output type=docker,dest=image.tar . && test -s image.tar"
BUILDCTL = f"""{CONTEXT}
buildctl build --frontend dockerfile.v0 --local context=. --local dockerfile=. --output type=tar,dest=image.tar
tar xOf image.tar made | grep -x built
tar xOf image.tar user | grep -x 0
"""
DOCKER_RUN = f"""cd _work
{LAYER}
cat > Dockerfile <<'END'
FROM base
RUN id -u > /user && echo built > /made
CMD cat /made /user
END
docker import root.tar base
DOCKER_BUILDKIT=0 docker build --tag built .
test "$(docker run --rm built | tr '\\n' ' ')" = 'built 0 '
docker run --rm --volume "$PWD:/work" built sh -c 'echo written > /work/written'
grep -x written written
"""
ATTACKS: Mapping[str, str] = {
    "token of the poller": "cat /var/run/ostler-token/token",
    "token of another process": "cat /proc/*/root/var/run/ostler-token/token",
    "token of the API server": "cat /var/run/secrets/kubernetes.io/serviceaccount/token",
    "JIT config": "cat /var/run/ostler/jit",
    "root of the node": "mount --bind /proc/1/root /mnt && test -e /mnt/etc/hostname && test -e /mnt/lib/systemd",
    "device of the node": "mknod /tmp/disk b 254 0 && head -c1 /tmp/disk",
    "memory of the node": "head -c1 /dev/mem",
    "kernel parameter": "echo 1 > /proc/sys/vm/drop_caches",
    "restart of the node": ": >> /proc/sysrq-trigger",
    "user of the node": "read inside outside length < /proc/self/uid_map; test $inside = $outside",
}
"""Commands that would succeed with a right that no process of the Pod may have."""


class BuildFleet(Fleet):
    """A system with pools above `restricted`, and the journal of their namespace."""

    def __init__(self, system: System) -> None:
        super().__init__(system, namespace=NAMESPACE)
        self.journal = system.folder / "builds.jsonl"

    def events(self, event: str) -> list[Mapping[str, Any]]:
        """Return the events of one kind from the journal of the pools' namespace."""
        return [each for each in read_log(self.journal) if each["event"] == event]

    def status_of(self, script: str, labels: tuple[str, ...] = BUILDS) -> int:
        """Run a job with this script, and return the script's exit code."""
        [job] = self.send(labels=labels, script=script)
        self.wait_for(job, "completed", within=300)
        [status] = eventually(lambda: [each["status"] for each in self.events("script_ended") if each["job"] == job])
        return int(status)


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuildFleet]:
    """Yield a system with pools that build images, on one real node."""
    if not is_isolated():
        pytest.fail("these tests need namespaces of their own: run `make test-node`", pytrace=False)
    options = Options(
        pools=(),
        beats=1,
        images=[buildkit_image(say=print), dind_image(say=print), building_runner_image(say=print)],
        chart_values={
            "runners": {
                "allowedPodSecurity": "privileged",
                "elevatedNamespace": NAMESPACE,
                "elevatedPools": {BUILDS[-1]: "privileged", DOCKER[-1]: "privileged"},
            },
        },
        settings={
            "OSTLER_ELEVATED_NAMESPACE": NAMESPACE,
            "OSTLER_ALLOWED_POD_SECURITY": "privileged",
            "OSTLER_BUILDKIT_IMAGE": BUILDKIT,
            "OSTLER_DIND_IMAGE": DIND,
        },
    )
    with contextlib.ExitStack() as stack:
        system = stack.enter_context(System(tmp_path_factory.mktemp("system"), options, say=print, cluster=NODE))
        fleet = BuildFleet(system)
        stack.enter_context(contextlib.closing(fleet.kube))
        level = {"pod-security.kubernetes.io/enforce": "privileged"}
        Kinds(fleet.kube).apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": level}}
        )
        journal = NodeJournal(
            fleet.journal,
            pod_logs=[node.pod_logs for node in system.real_nodes],
            containerd_logs=[node.containerd.log for node in system.real_nodes],
            namespace=NAMESPACE,
            kubeconfig=system.kubeconfig,
        )
        journal.start()
        stack.callback(journal.stop)
        fleet.add_pool(pool(BUILDS, "buildkit"))
        fleet.add_pool(pool(DOCKER, "dind"))
        for labels in (BUILDS, DOCKER):
            fleet.wait_until_whole(labels[-1])
        yield fleet


def pool(labels: tuple[str, ...], mode: str) -> LabPool:
    """Return a pool with one Pod that builds images. Its name is its last label."""
    spec = {
        "image": BUILDING_RUNNER,
        "security": {"podSecurity": "privileged"},
        "containers": {"mode": mode, "vcpu": "200m", "memoryMib": 512, "cache": "2Gi"},
    }
    return LabPool(labels[-1], labels, 1, cpu="200m", memory="512Mi", spec=spec)


@pytest.mark.parametrize("script", [BUILDX, BUILDCTL], ids=["buildx", "buildctl"])
def test_job_builds_an_image_from_local_layers(builds: BuildFleet, script: str) -> None:
    assert builds.status_of(script) == 0


def test_files_of_a_build_belong_to_root_and_its_folders_give_no_group(builds: BuildFleet) -> None:
    assert builds.status_of(OWNERS) == 0


def test_job_builds_and_runs_an_image_with_docker(builds: BuildFleet) -> None:
    assert builds.status_of(DOCKER_RUN, DOCKER) == 0


def test_pool_that_the_chart_does_not_name_gets_no_pod(builds: BuildFleet) -> None:
    builds.add_pool(pool(UNLISTED, "dind"))

    builds.wait_until_degraded(UNLISTED[-1], "PodRefused")
    assert builds.pods(UNLISTED[-1]) == {}
    assert builds.status_of("true") == 0
    builds.delete_pool(UNLISTED[-1])


def test_pool_in_another_namespace_is_not_allowed(builds: BuildFleet) -> None:
    ordinary = Fleet(builds.system)
    with contextlib.closing(ordinary.kube):
        ordinary.add_pool(pool(UNLISTED, "buildkit"))

        ordinary.wait_until_degraded(UNLISTED[-1], "PodSecurityNotAllowed")
        assert ordinary.pods(UNLISTED[-1]) == {}
        ordinary.delete_pool(UNLISTED[-1])


def test_no_command_of_a_job_has_a_right_on_the_node(builds: BuildFleet) -> None:
    assert succeeded(builds.status_of(f"{attacks()}sh attacks.sh")) == "none"


def test_no_command_of_a_build_has_a_right_on_the_node(builds: BuildFleet) -> None:
    dockerfile = "FROM scratch AS base\nADD root.tar /\nCOPY attacks.sh /\nRUN sh attacks.sh; echo $? > /status\n"
    dockerfile += "FROM scratch\nCOPY --from=base /status /\n"
    script = f"""{LAYER}{attacks()}
cat > Dockerfile <<'END'
{dockerfile}END
buildx build --output type=tar,dest=image.tar . || exit 200
exit $(tar xOf image.tar status)
"""

    assert succeeded(builds.status_of(script)) == "none"


def test_build_has_the_network_of_its_pod_and_so_its_policies(builds: BuildFleet) -> None:
    script = f"""{LAYER}
cat > Dockerfile <<'END'
FROM scratch AS base
ADD root.tar /
RUN cat /proc/net/fib_trie > /addresses
FROM scratch
COPY --from=base /addresses /
END
buildx build --output type=tar,dest=image.tar .
tar xOf image.tar addresses > addresses
cmp addresses /proc/net/fib_trie
"""

    assert builds.status_of(script) == 0


def test_job_with_a_docker_daemon_has_rights_on_the_node(builds: BuildFleet) -> None:
    """The page about modes warns of this. If this test fails, the page must change."""
    script = f"cd _work\n{LAYER}docker import root.tar base\n"
    script += "docker run --rm --volume /proc/sys:/node base sh -c 'echo 1 > /node/vm/drop_caches'\n"

    assert builds.status_of(script, DOCKER) == 0


def test_build_cannot_ask_for_a_privileged_command(builds: BuildFleet) -> None:
    script = f"""{LAYER}
printf 'FROM scratch\\nADD root.tar /\\nRUN --security=insecure true\\n' > Dockerfile
buildx build --allow security.insecure --output type=cacheonly . 2> error && exit 9
grep -q 'security.insecure is not allowed' error
"""

    assert builds.status_of(script) == 0


def attacks() -> str:
    """Return commands that write `attacks.sh`. It exits with the number of the first attack that succeeds, or 0."""
    lines = [f"({command}) >/dev/null 2>&1 && exit {number}" for number, command in enumerate(ATTACKS.values(), 1)]
    return "cat > attacks.sh <<'END'\n" + "\n".join([*lines, "exit 0"]) + "\nEND\n"


def succeeded(status: int) -> str:
    """Return the name of the attack with this number, or the status if no attack has it."""
    return dict(enumerate(["none", *ATTACKS])).get(status, f"status {status}")
