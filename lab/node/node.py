"""Real node: one containerd and one kubelet, whose Pods are real containers.

All of it runs in namespaces of its own (`lab.node.namespace`), beside the control plane that it belongs to.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from k8s_adapters.client import make_client
from lab.control_plane_access import ClusterAccess, write_kubeconfig
from lab.go_build import Say, quiet
from lab.node.images import PAUSE
from lab.node.namespace import NODE_ADDRESS, cgroup_root
from lab.node.programs import CNI_FOLDER, NodePrograms
from lab.processes import Child, StartError
from ostler.errors import UpstreamError

_READY_WITHIN = 120.0
_KUBELET_PORT = 10250


@dataclass(frozen=True, kw_only=True)
class NodeAddresses:
    """The addresses of a node that no other machine sees: its own, and the network of its Pods."""

    node: str
    pods: str
    """A network like `10.200.1.0/24`. Its first address is the node's side of the bridge."""
    bridge: str


FIRST = NodeAddresses(node=NODE_ADDRESS, pods="10.200.1.0/24", bridge="cni1")


class Node:
    """A containerd and a kubelet; `start` returns when the API server says that the node is Ready."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        access: ClusterAccess,
        token: str,
        client_ca: Path,
        programs: NodePrograms,
        addresses: NodeAddresses = FIRST,
    ) -> None:
        self.name = name
        self.folder = folder
        self.addresses = addresses
        self._access = access
        self._token = token
        self._client_ca = client_ca
        self._programs = programs
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
        self._write_configuration()
        self.containerd.start()
        self.containerd.wait_until(self._containerd_answers, timeout=60)
        for image in images:
            self.load(image)
        say(f"{self.name}: containerd runs and has {len(images)} images ({time.monotonic() - began:.1f} s)")
        self.kubelet.start()
        self.kubelet.wait_until(self._is_ready, timeout=_READY_WITHIN, every=0.2)
        say(f"{self.name}: the node is Ready ({time.monotonic() - began:.1f} s)")

    def stop(self) -> None:
        """Stop the kubelet and containerd. The containers end with the namespaces that this node runs in."""
        self.kubelet.stop(timeout=10)
        self.containerd.stop(timeout=10)

    def load(self, archive: Path) -> None:
        """Import an image archive into containerd. Raises `StartError`."""
        done = self.ctr("images", "import", "--no-unpack=false", str(archive))
        if done.returncode != 0:
            raise StartError(f"containerd did not take {archive}: {done.stderr.strip()}")

    def ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run containerd's own command line in the namespace of Kubernetes' containers."""
        command = [str(self._programs.containers / "ctr"), "-a", str(self.socket), "-n", "k8s.io", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    def _containerd_answers(self) -> bool:
        return self.socket.exists() and self.ctr("version").returncode == 0

    def _is_ready(self) -> bool:
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
        (self.folder / "kubelet.json").write_text(json.dumps(self._kubelet_configuration(), indent=1))
        write_kubeconfig(
            self.folder / "kubeconfig", url=self._access.url, ca_file=self._access.ca_file, token=self._token
        )

    def _containerd_configuration(self) -> str:
        runtime = "plugins.'io.containerd.cri.v1.runtime'"
        return f"""\
version = 3
root = '{self.folder / "containerd"}'
state = '{self.folder / "containerd-state"}'
disabled_plugins = ['io.containerd.nri.v1.nri']

[grpc]
address = '{self.socket}'

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

    def _kubelet_configuration(self) -> dict[str, object]:
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
            "cgroupRoot": f"/{cgroup_root()}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "maxPods": 200,
            "resolvConf": "",
            "syncFrequency": "10s",
            "nodeStatusUpdateFrequency": "5s",
            "registerNode": True,
        }


def may_lower_oom_score() -> bool:
    """Return whether this process may lower an OOM score, which takes a capability that containers often lack."""
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
