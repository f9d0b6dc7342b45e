"""Polls stay inside the cluster, whatever proxy the environment of the container names."""

from __future__ import annotations

from pathlib import Path

from lab.processes import free_port
from tests.unit.poller.dispatch_stub import DispatchStub
from tests.unit.poller.pod import Pod, make_pod
from tests.unit.poller.test_poll import WORK


class ProxiedPod(Pod):
    """A Pod whose environment names a proxy that is down."""

    def environment(self, *, url: str) -> dict[str, str]:
        """Return the environment of the containers."""
        proxy = f"http://127.0.0.1:{free_port()}"
        names = ("http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY")
        return super().environment(url=url) | dict.fromkeys(names, proxy)


def test_poll_does_not_go_by_a_proxy(tmp_path: Path) -> None:
    pod = ProxiedPod(make_pod(tmp_path).root)
    with DispatchStub([WORK]) as dispatch:
        ended = pod.poll(url=dispatch.url)
    assert (ended.code, ended.message, len(dispatch.polls)) == (0, "4711", 1), ended.output
    assert not ended.slept
