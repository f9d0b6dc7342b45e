"""Rights of a job in a runner Pod, and the messages of commands that are refused.

The table in `docs/operations/rights-of-jobs.md` quotes these messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.node.job_images import SUDO, sudo_image
from tests.fleet import Fleet
from tests.node.plain_pods import PlainPods, container, states

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

NODE = 0
PAGE = Path(__file__).parents[2] / "docs" / "operations" / "rights-of-jobs.md"
ALLOWED: Mapping[str, str] = {
    "port": "python3 -c 'import socket; socket.create_server((\"\", 80))'",
    "trace": "python3 -c 'import ctypes; assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0'",
}
REFUSED: Mapping[str, tuple[str, str]] = {
    "sudo": ("sudo true", 'sudo: The "no new privileges" flag is set, which prevents sudo from running as root.'),
    "apt": (
        "apt-get install -y make",
        "E: Could not open lock file /var/lib/dpkg/lock-frontend - open (13: Permission denied)",
    ),
    "folder": ("mkdir /opt/tool", "mkdir: cannot create directory"),
    "ping": ("ping -c1 -W1 127.0.0.1", "/usr/bin/ping: Operation not permitted"),
    "mount": ("mount -t tmpfs none /mnt", "mount: /mnt: must be superuser to use mount."),
    "namespace": ("unshare --user true", "unshare: unshare failed: Operation not permitted"),
    "chroot": ("chroot / true", "chroot: cannot change root directory to '/': Operation not permitted"),
    "sysctl": ("sysctl -w vm.max_map_count=262144", 'sysctl: permission denied on key "vm.max_map_count"'),
    "network": ("ip link add dummy0 type dummy", "RTNETLINK answers: Operation not permitted"),
    "setcap": (
        "touch /tmp/x && setcap cap_net_raw=ep /tmp/x",
        "unable to set CAP_SETFCAP effective capability: Operation not permitted",
    ),
}
WITH_SUDO: Mapping[str, str] = {
    "root": 'test "$(sudo id -u)" = 0',
    "folder": "sudo mkdir /opt/tool",
    "package": "sudo dpkg --configure -a",
    "owner": "sudo touch /tmp/x && sudo chown 33:33 /tmp/x",
}
NOT_WITH_SUDO: Mapping[str, str] = {
    "mount": "sudo mount -t tmpfs none /mnt",
    "sysctl": "sudo sysctl -w vm.max_map_count=262144",
    "network": "sudo ip link add dummy0 type dummy",
    "trace": "sudo nsenter --target 1 --mount true",
}
PROGRAM = """\
import json, subprocess, sys
def run(command):
    ran = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return [ran.returncode, ran.stdout.strip()[:200]]
found = {name: run(command) for name, command in json.loads(sys.argv[1]).items()}
open("/dev/termination-log", "w").write(json.dumps(found))
"""


@pytest.fixture(scope="module")
def pods(fleet: Fleet) -> PlainPods:
    node = fleet.system.real_nodes[NODE]
    node.load(sudo_image(say=print))
    return PlainPods(fleet.kube, node.name)


def run(
    pods: PlainPods, name: str, commands: Mapping[str, str], pod: Any, security: Any, **spec: Any
) -> dict[str, tuple[int, str]]:
    """Run commands in a Pod with these security contexts. Return exit code and output of each."""
    given = json.dumps(dict(commands))
    main = container("python3", "-c", PROGRAM, given, image=SUDO, securityContext=security)
    pods.create(name, main, securityContext=pod, **spec)
    [state] = states(pods.wait_until_over(name))
    return {key: (code, output) for key, (code, output) in json.loads(state["terminated"]["message"]).items()}


def test_default_pool_refuses_root_and_the_page_quotes_each_message(fleet: Fleet, pods: PlainPods) -> None:
    pod = next(iter(fleet.pods().values()))["spec"]
    runner = next(each for each in pod["containers"] if each["name"] == "runner")
    commands = {**ALLOWED, **{name: command for name, (command, _) in REFUSED.items()}}

    found = run(pods, "rights", commands, pod["securityContext"], runner["securityContext"])

    assert {name: found[name] for name in ALLOWED if found[name][0] != 0} == {}
    assert {name: found[name] for name in REFUSED if found[name][0] == 0} == {}
    assert {name: found[name][1] for name, (_, text) in REFUSED.items() if text not in found[name][1]} == {}
    page = PAGE.read_text()
    assert [text for _, text in REFUSED.values() if text not in page] == []


@pytest.mark.parametrize("spec", [{}, {"hostUsers": False}], ids=["user-of-the-node", "user-namespace"])
def test_pool_with_privilege_escalation_has_sudo_and_no_right_on_the_node(
    fleet: Fleet, pods: PlainPods, spec: dict[str, Any]
) -> None:
    pod = next(iter(fleet.pods().values()))["spec"]["securityContext"]
    commands = {**WITH_SUDO, **{f"not-{name}": command for name, command in NOT_WITH_SUDO.items()}}
    commands["users"] = "cat /proc/self/uid_map"

    name = f"sudo-{len(spec)}"
    found = run(pods, name, commands, pod, {"allowPrivilegeEscalation": True}, **spec)

    assert {each: found[each] for each in WITH_SUDO if found[each][0] != 0} == {}
    assert {each: found[f"not-{each}"] for each in NOT_WITH_SUDO if found[f"not-{each}"][0] == 0} == {}
    first, outside, _ = found["users"][1].split()
    assert (first, outside == "0") == ("0", not spec)
