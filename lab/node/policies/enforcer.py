"""Enforcer of NetworkPolicies: a thread that keeps the node's nftables rules equal to the cluster's policies.

It lists Pods, Namespaces and NetworkPolicies every `EVERY` seconds, and applies the rule set when its text has changed.
It works in the network namespace that it runs in, which is shared by all nodes of a cluster (`lab.node.cluster`).
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from k8s_adapters.calls.client import KubeClient, make_client
from lab.node.policies.decisions import decide, read_namespaces, read_pods
from lab.node.policies.ruleset import NO_TABLE, Mode, PodNetwork, write_rules
from lab.processes import StartError
from ostler.errors import UpstreamError

EVERY = 0.2
"""Seconds between two lists."""

_SYSCTLS = Path("/proc/sys/net/bridge")
_STARTS_WITHIN = 30.0


class PolicyEnforcer:
    """Enforces the policies of a cluster in this network namespace until `stop`.

    Start it before the Pods open connections: connection tracking does not know who opened an older connection.
    """

    def __init__(self, *, kubeconfig: Path, networks: Sequence[PodNetwork], mode: Mode) -> None:
        self._kubeconfig = kubeconfig
        self._networks = networks
        self.mode = mode
        self._applied = ""
        self._passes = 0
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="policy-enforcer", daemon=True)
        self.failure: BaseException | None = None
        """The error that ended the thread before it was stopped. The last rules then stay in force."""

    def start(self) -> None:
        """Start the thread, and wait until the first rules are in force. Raises `StartError`."""
        if shutil.which("nft") is None:
            raise StartError("the policy enforcer needs the program nft: apt-get install nftables")
        if not _SYSCTLS.exists():
            raise StartError(
                f"the policy enforcer needs the kernel module br_netfilter, but {_SYSCTLS} does not exist: "
                "run modprobe br_netfilter on the machine"
            )
        for name in ("bridge-nf-call-iptables", "bridge-nf-call-ip6tables"):
            (_SYSCTLS / name).write_text("1")
        self._thread.start()
        self.wait_for_pass()

    def stop(self) -> None:
        """End the thread and remove the rules."""
        self._stopping.set()
        self._thread.join(_STARTS_WITHIN)
        apply_rules(NO_TABLE)

    def wait_for_pass(self, *, within: float = _STARTS_WITHIN) -> None:
        """Wait until a list that began after this call is enforced.

        Raises `StartError` if the thread ended or if `within` seconds pass.
        """
        deadline = time.monotonic() + within
        with self._changed:
            wanted = self._passes + 2  # the pass that is under way might have listed before this call
            while self._passes < wanted:
                left = deadline - time.monotonic()
                if self.failure is not None or left <= 0:
                    cause = self.failure or f"no list of the cluster was enforced within {within:.0f} s"
                    raise StartError(f"the policy enforcer did not apply the current policies: {cause}")
                self._changed.wait(left)

    def _run(self) -> None:
        try:
            with closing(make_client(kubeconfig=str(self._kubeconfig))) as kube:
                while not self._stopping.wait(EVERY):
                    self._pass(kube)
        except BaseException as error:
            self.failure = error
            raise
        finally:
            with self._changed:
                self._changed.notify_all()

    def _pass(self, kube: KubeClient) -> None:
        try:
            policies = _list(kube, "/apis/networking.k8s.io/v1/networkpolicies")
            namespaces = read_namespaces(_list(kube, "/api/v1/namespaces"))
            pods = read_pods(_list(kube, "/api/v1/pods"))
        except UpstreamError:  # the rules stay, and the next pass lists again
            return
        rules = write_rules(decide(policies, pods, namespaces), pods, networks=self._networks, mode=self.mode)
        if rules != self._applied:
            apply_rules(rules)
            self._applied = rules
        with self._changed:
            self._passes += 1
            self._changed.notify_all()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def apply_rules(rules: str) -> None:
    """Apply a rule set in one transaction. Raises `StartError` with the first line of nft's message."""
    done = subprocess.run(["nft", "-f", "-"], input=rules, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode != 0:
        raise StartError(f"nft rejected the rules: {done.stderr.strip().partition(chr(10))[0]}")


def _list(kube: KubeClient, path: str) -> list[Any]:
    found: list[Any] = kube.request("GET", path)["items"]
    return found
