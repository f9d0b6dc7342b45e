"""The lab's GitHub behind a real forward proxy, which the adapter finds by its environment only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from github_adapters.client import GitHub
from ostler.errors import Retryable
from rules.routing.scopes import Scope
from tests.contract.github.conftest import APP_ID, ORG_INSTALLATION, Lab
from tests.unit.lab.test_forward_proxy import forward_proxy

NAME = "api.github.invalid"


def test_runner_is_minted_when_only_the_proxy_reaches_github(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mint() -> str:
        client = GitHub(api_url=f"http://{NAME}", app_id=APP_ID, private_key=lab.private_key)
        try:
            return client.mint(
                installation_id=ORG_INSTALLATION,
                scope=Scope.organization("acme"),
                name="behind-a-proxy",
                labels=["linux"],
                runner_group_id=1,
                deadline_seconds=10,
            ).runner_name
        finally:
            client.close()

    with pytest.raises(Retryable, match="the host name cannot be resolved"):
        mint()

    log = tmp_path / "proxy.jsonl"
    github = lab.url.removeprefix("http://")
    with forward_proxy("--map", f"{NAME}:80={github}", "--allow", f"{NAME}:80", "--log", str(log)) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        assert mint() == "behind-a-proxy"

    paths = [json.loads(line)["target"].removeprefix(f"http://{NAME}") for line in log.read_text().splitlines()]
    assert paths == [
        f"/app/installations/{ORG_INSTALLATION}/access_tokens",
        "/orgs/acme/actions/runners/generate-jitconfig",
    ]
