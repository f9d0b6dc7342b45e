"""Real node: one containerd and one kubelet, whose Pods are real containers.

All of it runs in namespaces of its own (`lab.node.namespace`), beside the control plane that it belongs to. Several
nodes share these namespaces. Each has an address, a bridge, a control group and a folder of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from k8s_adapters.calls.client import make_client
from lab.control_plane_access import ClusterAccess, write_kubeconfig
from lab.go_build import Say, quiet
from lab.node import cgroups
from lab.node.images import PAUSE
from lab.node.namespace import INTERFACE, address_of_node, cgroup_root
from lab.node.programs import CNI_FOLDER, NodePrograms
from lab.node.services import DOMAIN
from lab.processes import Child, StartError
from ostler.errors import UpstreamError

_READY_WITHIN = 120.0
_KUBELET_PORT = 10250
_EVICTS_BELOW = "1%"
_SHIM_ANSWERS_WITHIN = 60
"""Seconds that a restarted containerd waits for a shim.

If a shim does not answer in time, containerd kills its running container. Its default, 5 seconds, is too short for a
busy machine.
"""


@dataclass(frozen=True, kw_only=True)
class NodeAddresses:
    """The addresses of a node that no other machine sees: its own, and the network of its Pods."""

    node: str
    pods: str
    """A network like `10.200.1.0/24`. Its first address is the node's side of the bridge."""
    bridge: str

    @classmethod
    def numbered(cls, number: int) -> NodeAddresses:
        """Return the addresses of node `number`, which counts from 1."""
        return cls(node=address_of_node(number), pods=f"10.200.{number}.0/24", bridge=f"cni{number}")


class Node:
    """A containerd and a kubelet. `start` returns when the API server reports that the node is Ready."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        access: ClusterAccess,
        token: str,
        client_ca: Path,
        programs: NodePrograms,
        addresses: NodeAddresses,
        dns: str = "",
    ) -> None:
        """Prepare a node without starting it. `dns` is the address of the DNS server of its Pods, or empty."""
        self.name = name
        self.folder = folder
        self.addresses = addresses
        self._access = access
        self._token = token
        self._client_ca = client_ca
        self._dns = dns
        self._programs = programs
        self._killed: set[Child] = set()
        self._cgroup = f"{cgroup_root()}/{name}"
        path = f"{programs.containers}:{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        environment = {**os.environ, "PATH": path}
        self.containerd = Child(
            f"{name}-containerd",
            [str(programs.containers / "containerd"), "--config", str(folder / "containerd.toml")],
            log=folder / "containerd.log",
            env=environment,
        )
        self.kubelet = Child(
            f"{name}-kubelet",
            [
                str(programs.kubernetes / "kubelet"),
                f"--config={folder / 'kubelet.json'}",
                f"--kubeconfig={folder / 'kubeconfig'}",
                f"--root-dir={folder / 'kubelet'}",
                f"--cert-dir={folder / 'certs'}",
                f"--hostname-override={name}",
                f"--node-ip={addresses.node}",
                "--v=2",
            ],
            log=folder / "kubelet.log",
            env=environment,
        )

    @property
    def socket(self) -> Path:
        """Containerd's socket."""
        return self.folder / "containerd.sock"

    @property
    def pod_logs(self) -> Path:
        """The folder of the containers' logs, as CRI lays it out: `<namespace>_<pod>_<uid>/<container>/<n>.log`."""
        return self.folder / "pod-logs"

    def start(self, images: Sequence[Path], say: Say = quiet) -> None:
        """Start containerd with the images, then the kubelet, and wait until the node is Ready. Raises `StartError`."""
        began = time.monotonic()
        cgroups.make(self._cgroup)
        self._add_address()
        self._write_configuration()
        self.start_containerd()
        for image in images:
            self.load(image)
        say(f"{self.name}: containerd runs and has {len(images)} images ({time.monotonic() - began:.1f} s)")
        self.start_kubelet()
        say(f"{self.name}: the node is Ready ({time.monotonic() - began:.1f} s)")

    def start_containerd(self) -> None:
        """Start containerd and wait until it answers. containerd finds the containers that still run.

        Raises `StartError`.
        """
        self._killed.discard(self.containerd)
        self.containerd.start()
        self.containerd.wait_until(self._containerd_answers, timeout=60)

    def start_kubelet(self) -> None:
        """Start the kubelet and wait until the node is Ready. Raises `StartError`."""
        self._killed.discard(self.kubelet)
        self.kubelet.start()
        self.kubelet.wait_until(self.is_ready, timeout=_READY_WITHIN, every=0.2)

    def stop(self) -> None:
        """Stop the kubelet and containerd. The containers end with the namespaces that this node runs in."""
        self.kubelet.stop(timeout=10)
        self.containerd.stop(timeout=10)

    def kill(self) -> None:
        """Kill the kubelet and containerd with SIGKILL. The containers and their shims continue."""
        self.kill_kubelet()
        self.kill_containerd()

    def kill_kubelet(self) -> None:
        """Kill the kubelet with SIGKILL."""
        self._killed.add(self.kubelet)
        self.kubelet.kill()

    def kill_containerd(self) -> None:
        """Kill containerd with SIGKILL. The containers and their shims continue."""
        self._killed.add(self.containerd)
        self.containerd.kill()

    def kill_containers(self) -> int:
        """Kill every process of the Pods and every shim with SIGKILL, as a power failure would; return their number.

        Call it after `kill`, because a running kubelet or containerd would see the ends.
        """
        victims = cgroups.members(self._cgroup) | self._shims()
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(victims)

    def revive(self) -> None:
        """Start containerd and the kubelet again after `kill`, and wait until the node is Ready. Raises `StartError`.

        If `kill_containers` was called too, no process of the containers continues.
        """
        self.start_containerd()
        self.start_kubelet()

    def restart_kubelet(self, *, evicts_below: str = _EVICTS_BELOW) -> None:
        """Restart the kubelet, which evicts Pods while less than `evicts_below` of its disk is free ("1%").

        If less than `evicts_below` is free now, the node gets DiskPressure. Raises `StartError`.
        """
        self.kill_kubelet()
        self._write_kubelet_configuration(evicts_below)
        self._killed.discard(self.kubelet)
        self.kubelet.start()

    def running(self) -> bool:
        """Return True if containerd and the kubelet run. A program that was killed on purpose counts as running."""
        return all(child.running() or child in self._killed for child in (self.containerd, self.kubelet))

    def _shims(self) -> set[int]:
        """Return the ids of the shims of this node: containerd's address is among their arguments."""
        found = set()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # the process ended in between
                arguments = (process / "cmdline").read_bytes().split(b"\0")
                if b"containerd-shim" in arguments[0] and str(self.socket).encode() in arguments:
                    found.add(int(process.name))
        return found

    def _add_address(self) -> None:
        command = ["ip", "address", "replace", f"{self.addresses.node}/24", "dev", INTERFACE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise StartError(f"{self.name}: the address {self.addresses.node} was not added: {done.stderr.strip()}")

    def load(self, archive: Path) -> None:
        """Import an image archive into containerd. Raises `StartError`."""
        done = self.ctr("images", "import", "--no-unpack=false", str(archive))
        if done.returncode != 0:
            raise StartError(f"{self.name}: containerd did not import {archive}: {done.stderr.strip()}")

    def tag(self, image: str, name: str) -> None:
        """Give an image of this node a further name, which Pods can use. Raises `StartError`."""
        done = self.ctr("images", "tag", "--force", image, name)
        if done.returncode != 0:
            raise StartError(f"{self.name}: containerd did not tag {image} as {name}: {done.stderr.strip()}")

    def ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run containerd's own command line in the namespace of Kubernetes' containers."""
        command = [str(self._programs.containers / "ctr"), "-a", str(self.socket), "-n", "k8s.io", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    def _containerd_answers(self) -> bool:
        return self.socket.exists() and self.ctr("version").returncode == 0

    def is_ready(self) -> bool:
        """Return True if the API server says that the node is Ready, and False if it is not or does not answer."""
        kube = make_client(kubeconfig=str(self._access.kubeconfig))
        try:
            found = kube.request("GET", f"/api/v1/nodes/{self.name}")
        except UpstreamError:
            return False
        finally:
            kube.close()
        conditions = found.get("status", {}).get("conditions", ())
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _write_configuration(self) -> None:
        for name in ("cni", "kubelet", "certs", "pod-logs", "ipam"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "containerd.toml").write_text(self._containerd_configuration())
        (self.folder / "cni" / "10-bridge.conflist").write_text(json.dumps(self._network(), indent=1))
        self._write_kubelet_configuration(_EVICTS_BELOW)
        write_kubeconfig(
            self.folder / "kubeconfig", url=self._access.url, ca_file=self._access.ca_file, token=self._token
        )

    def _write_kubelet_configuration(self, evicts_below: str) -> None:
        content = self._kubelet_configuration(evicts_below)
        (self.folder / "kubelet.json").write_text(json.dumps(content, indent=1))

    def _containerd_configuration(self) -> str:
        runtime = "plugins.'io.containerd.cri.v1.runtime'"
        return f"""\
version = 3
root = '{self.folder / "containerd"}'
state = '/run/{self.name}-containerd'
disabled_plugins = ['io.containerd.nri.v1.nri']

[grpc]
address = '{self.socket}'

[timeouts]
'io.containerd.timeout.shim.load' = '{_SHIM_ANSWERS_WITHIN}s'

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{PAUSE}'

[{runtime}]
restrict_oom_score_adj = {str(not may_lower_oom_score()).lower()}

[{runtime}.cni]
bin_dirs = ['{CNI_FOLDER}']
conf_dir = '{self.folder / "cni"}'

[{runtime}.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'

[{runtime}.containerd.runtimes.runc.options]
BinaryName = '{self._programs.containers / "runc"}'
"""

    def _network(self) -> dict[str, object]:
        return {
            "cniVersion": "0.4.0",
            "name": self.addresses.bridge,
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": self.addresses.bridge,
                    "isGateway": True,
                    "ipMasq": False,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(self.folder / "ipam"),
                        "ranges": [[{"subnet": self.addresses.pods}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }

    def _kubelet_configuration(self, evicts_below: str) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.addresses.node,
            "port": _KUBELET_PORT,
            "healthzPort": 0,
            "readOnlyPort": 0,
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "podLogsDir": str(self.pod_logs),
            "volumePluginDir": str(self.folder / "volume-plugins"),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._client_ca)},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "evictionHard": {
                "memory.available": "50Mi",
                "nodefs.available": evicts_below,
                "imagefs.available": _EVICTS_BELOW,
            },
            "imageGCHighThresholdPercent": 100,  # a deleted image cannot be pulled again
            "evictionPressureTransitionPeriod": "10s",
            "maxPods": 200,
            "resolvConf": "",
            **({"clusterDNS": [self._dns], "clusterDomain": DOMAIN} if self._dns else {}),
            "syncFrequency": "10s",
            "nodeStatusUpdateFrequency": "5s",
            "registerNode": True,
        }


def may_lower_oom_score() -> bool:
    """Return whether this process may lower an OOM score. That needs a capability that containers often lack."""
    file = os.open("/proc/self/oom_score_adj", os.O_RDWR)
    try:
        now = int(os.read(file, 16))
        os.pwrite(file, str(now - 1).encode(), 0)
        os.pwrite(file, str(now).encode(), 0)
    except PermissionError:
        return False
    finally:
        os.close(file)
    return True
