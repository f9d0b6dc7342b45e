"""Isolated part of the machine: run a command in namespaces of its own, and leave nothing behind when it ends.

The command gets its own processes, mounts, network and host name. It sees the machine's files, so it needs no image.
`/run` and `/var/lib/kubelet` are private. Its network has a loopback and one address that a node can call its own.

The kernel cleans up. When the first process of the process namespace ends, the kernel kills every other
process in it: containers, their shims, the API server. Mounts, bridges and interfaces disappear with the namespaces.
This also holds when the starter is killed with SIGKILL. Control groups are the exception (`lab.node.cgroups`).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.node.cgroups import own_root
from lab.processes import die_with_parent
from ostler.errors import OstlerError

INTERFACE = "node0"
"""The network interface that has the addresses of the nodes."""


def address_of_node(number: int) -> str:
    """Return the address of node `number`, which counts from 1. No other machine sees it."""
    return f"10.199.0.{number}"


STARTER_NETWORK = Path("/run/starter-network")
"""Network namespace of the starter, for `nsenter --net`. Programs that need the machine's network run there."""

NODE_ADDRESS = address_of_node(1)
"""The address of the first node. Pods also reach the programs beside the node at this address."""

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18
_ENTERED = "OSTLER_LAB_ISOLATED"
_CGROUP = "OSTLER_LAB_CGROUP"
_KUBELET_STATE = Path("/var/lib/kubelet")
"""Folder in which every kubelet puts the socket of its device plugins, whatever its root folder is."""
_LIBC = ctypes.CDLL(None, use_errno=True)


class CannotIsolate(OstlerError):
    """Namespaces cannot be created; the message is one line with the cause and the cure."""


def is_isolated() -> bool:
    """Return whether this process already runs in namespaces that `run_isolated` created."""
    return _ENTERED in os.environ


def first_process() -> int:
    """Return the id of the first process of these namespaces, as seen from outside. `nsenter` needs it."""
    return int(os.environ[_ENTERED])


def cgroup_root() -> str:
    """Return the name of the control group that everything on the node belongs to (`lab.node.cgroups`)."""
    return os.environ[_CGROUP]


def run_isolated(command: Sequence[str]) -> int:
    """Run a command in new namespaces and return its exit status as a shell counts it (128 + signal).

    SIGINT and SIGTERM are passed on to the command. Raises `CannotIsolate` for a user other than root.
    """
    if os.geteuid() != 0:
        raise CannotIsolate(
            "a real node needs root: run the command with sudo, or use CLUSTER=real or CLUSTER=embedded"
        )
    with own_root() as cgroup:
        return _run_isolated(command, cgroup)


def _run_isolated(command: Sequence[str], cgroup: str) -> int:
    """Fork twice: the first child enters the namespaces, its child is process 1 there, and the caller stays outside."""
    starter = os.getpid()

    def enter() -> int:
        _call("unshare", _CLONE_NEWNS | _CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET)
        return _fork_and_wait(lambda: _first_process(command, cgroup, starter))

    return _fork_and_wait(enter)


def _fork_and_wait(body: Callable[[], int]) -> int:
    """Run `body` in a child that dies with this process, pass signals on to it, and return its exit status."""
    child = os.fork()
    if child == 0:
        die_with_parent()
        status = 1
        try:
            status = body()
        except CannotIsolate as error:
            sys.stderr.write(f"ostler-lab: {error}\n")
        except Exception:  # noqa: BLE001  an error must not run the caller's code a second time, in this child
            traceback.print_exc()
        finally:
            os._exit(status)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _frame: os.kill(child, received))
    _, status = os.waitpid(child, 0)
    return _exit_status(status)


def _first_process(command: Sequence[str], cgroup: str, starter: int) -> int:
    """Run as process 1: prepare mounts and network, start the command, and reap every orphan until the command ends."""
    seen_from_outside = str(Path("/proc/self").readlink())  # this /proc is still that of the starter
    try:
        _prepare_mounts(Path(f"/proc/{starter}/ns/net"))
        _prepare_network()
    except (OSError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", None) or error
        sys.stderr.write(f"ostler-lab: the node's namespaces cannot be prepared: {detail}\n")
        return 1
    process = subprocess.Popen(list(command), env={**os.environ, _ENTERED: seen_from_outside, _CGROUP: cgroup})
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _frame: process.send_signal(received))
    while True:
        pid, status = os.wait()  # orphans too: shims whose containerd was killed become children of process 1
        if pid == process.pid:
            return _exit_status(status)


def _prepare_mounts(starter_network: Path) -> None:
    _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    _KUBELET_STATE.mkdir(parents=True, exist_ok=True)
    for where in (b"/run", bytes(_KUBELET_STATE)):
        _call("mount", b"tmpfs", where, b"tmpfs", 0, None)
    STARTER_NETWORK.touch()
    _call("mount", bytes(starter_network), bytes(STARTER_NETWORK), None, _MS_BIND, None)
    _call("mount", b"proc", b"/proc", b"proc", 0, None)  # last: `starter_network` is a path in the old /proc
    Path("/run/lock").mkdir(exist_ok=True)


def _prepare_network() -> None:
    for arguments in (
        ("link", "set", "lo", "up"),
        ("link", "add", INTERFACE, "type", "veth", "peer", "name", f"{INTERFACE}-end"),
        ("link", "set", f"{INTERFACE}-end", "up"),
        ("address", "add", f"{NODE_ADDRESS}/24", "dev", INTERFACE),
        ("link", "set", INTERFACE, "up"),
        ("route", "add", "default", "via", NODE_ADDRESS, "dev", INTERFACE),
    ):
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _call(name: str, *arguments: object) -> None:
    """Call a function of libc. Raises `CannotIsolate` with the kernel's reason if it fails."""
    if getattr(_LIBC, name)(*arguments) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise CannotIsolate(
            f"{name} failed ({reason}): a real node needs all capabilities of root except SYS_RESOURCE; run it "
            "on a machine or in a container that grants them"
        )


def _exit_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
