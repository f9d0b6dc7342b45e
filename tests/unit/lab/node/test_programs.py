from __future__ import annotations

from pathlib import Path

import pytest

from lab.node import programs
from lab.processes import StartError


def test_all_missing_packages_are_named_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(programs._NEEDED, "bridge", ("containernetworking-plugins", tmp_path / "bridge"))

    with pytest.raises(StartError) as raised:
        programs.build()

    message = str(raised.value)
    assert "apt-get install containernetworking-plugins iproute2 iptables" in message
    assert "mmdebstrap" in message
    assert "\n" not in message


def test_both_modules_pin_what_they_build() -> None:
    modules = (programs._kubernetes(), programs._containers())

    for module in modules:
        wanted = (module.module / "go.mod").read_text()
        assert all(f"\t{package}\n" in wanted for package in module.packages.values())


def test_kubelet_has_the_version_of_the_lab_s_api_server() -> None:
    lab = Path(programs.__file__).parents[1]
    lines = {
        path: next(line for line in (lab / path / "go.mod").read_text().splitlines() if "k8s.io/kubernetes v" in line)
        for path in ("controlplane", "node/kubernetes")
    }

    assert len(set(lines.values())) == 1
