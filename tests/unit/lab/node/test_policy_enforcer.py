from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.node.policies import enforcer
from lab.node.policies.enforcer import PolicyEnforcer
from lab.node.policies.ruleset import NO_TABLE, Mode, PodNetwork
from lab.processes import StartError
from ostler.errors import Retryable


class Api:
    """An API server with one Pod and the policies that a test sets."""

    def __init__(self) -> None:
        self.policies: list[dict[str, Any]] = []
        self.down = False

    def request(self, _method: str, path: str) -> dict[str, Any]:
        """Return a list."""
        if self.down:
            raise Retryable("the API server is down")
        pod = {"metadata": {"namespace": "a", "name": "p", "uid": "u"}, "spec": {"containers": []}}
        pod["status"] = {"podIP": "10.200.1.2"}
        lists = {"networkpolicies": self.policies, "namespaces": [{"metadata": {"name": "a"}}], "pods": [pod]}
        return {"items": lists[path.rpartition("/")[2]]}

    def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return the rule sets that are applied. Nothing of the machine is changed."""
    found: list[str] = []
    monkeypatch.setattr(enforcer, "apply_rules", found.append)
    monkeypatch.setattr(enforcer, "EVERY", 0.01)
    monkeypatch.setattr(enforcer, "_SYSCTLS", tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: name)
    return found


def an_enforcer(monkeypatch: pytest.MonkeyPatch, api: Api) -> PolicyEnforcer:
    monkeypatch.setattr(enforcer, "make_client", lambda **_: api)
    networks = [PodNetwork(bridge="cni1", addresses="10.200.1.0/24")]
    return PolicyEnforcer(kubeconfig=Path("unused"), networks=networks, mode=Mode.CUT)


def test_rules_are_applied_once_for_each_change(monkeypatch: pytest.MonkeyPatch, applied: list[str]) -> None:
    api = Api()
    with an_enforcer(monkeypatch, api) as running:
        running.wait_for_pass()
        assert len(applied) == 1
        api.policies = [{"metadata": {"namespace": "a", "name": "deny"}, "spec": {"podSelector": {}}}]
        running.wait_for_pass()
        running.wait_for_pass()
    assert len(applied) == 3
    assert "jump ingress-u" not in applied[0]
    assert "jump ingress-u" in applied[1]
    assert applied[2] == NO_TABLE


def test_rules_stay_while_the_api_server_is_down(monkeypatch: pytest.MonkeyPatch, applied: list[str]) -> None:
    api = Api()
    with an_enforcer(monkeypatch, api) as running:
        api.down = True
        with pytest.raises(StartError):
            running.wait_for_pass(within=0.2)
        assert len(applied) == 1
        api.down = False
        running.wait_for_pass()
        assert running.failure is None


def test_missing_nft_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartError, match=r"^the policy enforcer needs the program nft: apt-get install nftables$"):
        an_enforcer(monkeypatch, Api()).start()
