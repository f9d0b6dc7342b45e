"""Every command finds the cluster like kubectl, and names a wrong file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cli.kubeconfigs import choose, client_for
from ostler.errors import ConfigurationError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a kubeconfig, and an environment without one."""
    for name in ("OSTLER_KUBECONFIG", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def write(path: Path, server: str, *, context: bool = True) -> Path:
    name = path.name
    content = {
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": {"token": "t"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump({**content, **({"current-context": name} if context else {})}))
    return path


def server_of(given: str | None = None) -> str:
    client = client_for(given)
    client.close()
    return client.server


def test_kubeconfig_is_chosen_in_the_order_of_option_variable_kubectl_home(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home / ".kube" / "config", "https://home:1")
    assert (server_of(), choose().named) == ("home:1", "~/.kube/config")
    monkeypatch.setenv("KUBECONFIG", str(write(home / "kubectls", "https://kubectls:2")))
    assert (server_of(), choose().named) == ("kubectls:2", "KUBECONFIG")
    monkeypatch.setenv("OSTLER_KUBECONFIG", str(write(home / "own", "https://own:3")))
    assert (server_of(), choose().named) == ("own:3", "OSTLER_KUBECONFIG")
    assert server_of(str(write(home / "given", "https://given:4"))) == "given:4"


def test_kubeconfig_list_uses_the_first_context_as_kubectl_does(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = write(home / "silent", "https://silent:1", context=False)
    first, last = write(home / "first", "https://first:2"), write(home / "last", "https://last:3")
    monkeypatch.setenv("KUBECONFIG", f"{home / 'absent'}:{silent}:{first}:{last}")
    assert server_of() == "first:2"


def test_first_named_kubeconfig_is_used_even_when_it_is_wrong(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / ".kube" / "config", "https://home:1")
    monkeypatch.setenv("KUBECONFIG", "/nope")
    with pytest.raises(ConfigurationError, match="KUBECONFIG: /nope does not exist; name an existing kubeconfig"):
        client_for()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"127.0.0.1 localhost\n::1 localhost\n", "the parts of a kubeconfig"),
        (b"", "empty"),
        (b"[1, 2]", "the parts of a kubeconfig"),
        (b"a: [", "not YAML (line"),
        (b"\xff\xfe\x00\x01", "not text"),
        (b"current-context: x\nclusters: []\ncontexts: []\nusers: []\n", "context"),
        (b"clusters: 7\n", "the parts of a kubeconfig"),
    ],
)
def test_garbage_kubeconfig_is_one_line_without_class_name(home: Path, content: bytes, why: str) -> None:
    (home / "garbage").write_bytes(content)
    with pytest.raises(ConfigurationError) as error:
        client_for(str(home / "garbage"))
    line = str(error.value)
    assert line.startswith(f"--kubeconfig: {home / 'garbage'} is not a usable kubeconfig: ")
    assert why in line
    assert "\n" not in line
    assert "Error" not in line
    assert "Exception" not in line


@pytest.mark.parametrize("server", ["hello", "ftp://x", "https://"])
def test_kubeconfig_whose_server_is_no_url_is_refused(home: Path, server: str) -> None:
    with pytest.raises(ConfigurationError, match="must be https://HOST:PORT"):
        client_for(str(write(home / "odd", server)))


@pytest.mark.usefixtures("home")
def test_no_kubeconfig_at_all_names_the_variable() -> None:
    with pytest.raises(ConfigurationError, match=r"^OSTLER_KUBECONFIG: no kubeconfig is set"):
        client_for()
