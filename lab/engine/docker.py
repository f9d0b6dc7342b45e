"""Docker engine in namespaces of its own: Debian's dockerd, which ends with everything that it started.

The engine must run in the namespaces of `lab.node.namespace.run_isolated`. Its bridge, its iptables rules and its
containers exist there and nowhere else, so an engine of the machine itself is not touched.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.engine.uplink import Uplink
from lab.node import cgroups
from lab.node.namespace import cgroup_root, is_isolated
from lab.processes import Child, StartError

SOCKET = "unix:///run/docker.sock"
"""Address of the engine's API, the value of `DOCKER_HOST`."""

_NEEDED = {
    "dockerd": "docker.io",
    "docker": "docker.io",
    "docker-init": "docker.io",
    "ip": "iproute2",
    "iptables": "iptables",
    "mount": "mount",
    "nsenter": "util-linux",
    "slirp4netns": "slirp4netns",
}
_STARTS_WITHIN = 120.0
_LOADS_WITHIN = 900.0


def check_packages() -> None:
    """If Debian packages are missing, raise `StartError` with the command that installs these packages."""
    missing = {package for program, package in _NEEDED.items() if shutil.which(program) is None}
    if missing:
        raise StartError(
            f"a Docker engine needs Debian packages that are missing: apt-get install {' '.join(sorted(missing))}"
        )


def command_line(folder: Path, *, uplink: Uplink, group: str) -> list[str]:
    """Return the command that starts the engine with its data in `folder` and its containers in a control group.

    The driver of control groups is always cgroupfs, because a systemd of the machine cannot be reached from the
    namespaces.
    """
    return [
        "dockerd",
        f"--host={SOCKET}",
        f"--data-root={folder}",
        "--exec-root=/run/docker",
        "--pidfile=/run/docker.pid",
        f"--bip={uplink.bridge}",
        f"--default-address-pool=base={uplink.pool},size=24",
        f"--dns={uplink.resolver}",
        "--userland-proxy=false",
        "--exec-opt=native.cgroupdriver=cgroupfs",
        f"--cgroup-parent=/{group}",
    ]


class Engine:
    """An engine with its data and its log in a folder. It ends with the namespaces."""

    def __init__(self, folder: Path, uplink: Uplink) -> None:
        """Prepare the engine. Raises `StartError` outside the namespaces."""
        if not is_isolated():
            raise StartError("a Docker engine starts only in namespaces of its own: use `ostler-lab compose-check`")
        group = f"{cgroup_root()}/docker"
        cgroups.make(group)
        command = command_line(folder / "docker", uplink=uplink, group=group)
        self._child = Child("dockerd", command, log=folder / "dockerd.log")

    def start(self) -> None:
        """Start the engine and wait until it answers. Raises `StartError`."""
        self._child.start()
        self._child.wait_until(lambda: _docker("version").returncode == 0, timeout=_STARTS_WITHIN, every=0.5)

    def load(self, archive: Path) -> None:
        """Load the image of an archive. Raises `StartError` if the engine refuses it."""
        done = _docker("load", f"--input={archive}")
        if done.returncode != 0:
            raise StartError(f"docker load rejected {archive}: {done.stdout.strip()}\n{self._child.tail()}")


def _docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Docker's client and return the finished process with everything that it wrote."""
    return _run(["docker", f"--host={SOCKET}", *arguments])


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=_LOADS_WITHIN
    )
