"""The API server is reached directly, whatever proxy the environment names. A kubeconfig may name a proxy."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from k8s_adapters.calls.client import make_client
from tests.unit.github_adapters.upstream import Reply, Upstream
from tests.unit.lab.test_forward_proxy import forward_proxy


def kubeconfig(folder: Path, server: str, **more: str) -> str:
    content = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server, **more}}],
        "users": [{"name": "c", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(content))
    return str(path)


def ask(path: str) -> str:
    client = make_client(kubeconfig=path)
    try:
        return str(client.request("GET", "/version")["major"])
    finally:
        client.close()


@pytest.mark.parametrize("through", [False, True], ids=["environment", "kubeconfig"])
def test_api_server_is_reached_by_the_proxy_of_a_kubeconfig_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, through: bool
) -> None:
    log = tmp_path / "proxy.jsonl"
    log.touch()
    with Upstream() as server, forward_proxy("--log", str(log)) as proxy:
        server.answer = lambda _: Reply(body={"major": "1"})
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, proxy)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1" if through else "")
        monkeypatch.delenv("no_proxy", raising=False)

        assert ask(kubeconfig(tmp_path, server.url, **({"proxy-url": proxy} if through else {}))) == "1"

    assert bool(log.read_text()) is through
