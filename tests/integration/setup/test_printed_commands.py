"""The commands of the installation page that need a person at a browser, as the page prints them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from k8s_adapters.calls.client import KubeClient
from lab.control_plane import ClusterAccess
from ostler.errors import Conflict
from tests.e2e.shell import Block, blocks_of
from tests.integration.setup.test_github import page_of

PAGE = Path(__file__).parents[3] / "docs" / "operations" / "cluster.md"

pytestmark = pytest.mark.timeout(120)


def setup_block() -> Block:
    (found,) = [block for block in blocks_of(PAGE.read_text()) if block.text.startswith("ostler setup github")]
    return found


@pytest.mark.cluster
@pytest.mark.parametrize("variable", [None, "KUBECONFIG", "OSTLER_KUBECONFIG"])
def test_setup_github_as_printed_opens_its_page_with_the_kubeconfig_of_kubectl(
    admin: KubeClient, control_plane: ClusterAccess, tmp_path: Path, variable: str | None
) -> None:
    with contextlib.suppress(Conflict):  # the page creates it in the step before
        admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": "ostler"}})
    kubeconfig = tmp_path / ".kube" / "config" if variable is None else tmp_path / "elsewhere"
    kubeconfig.parent.mkdir(exist_ok=True)
    kubeconfig.write_bytes(control_plane.kubeconfig.read_bytes())
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OSTLER_", "KUBE"))}
    folder = Path(sys.executable).parent
    with subprocess.Popen(
        ["bash", "-ec", f"exec {setup_block().text}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env=clean
        | {"HOME": str(tmp_path), "PATH": f"{folder}:{clean['PATH']}", "PYTHONUNBUFFERED": "1", "BROWSER": "true"}
        | {"WEBHOOK_HOST": "ostler.example.com"}
        | ({} if variable is None else {variable: str(kubeconfig)}),
    ) as process:
        killer = threading.Timer(60, process.kill)
        killer.start()
        try:
            with urllib.request.urlopen(page_of(process), timeout=10) as answer:  # noqa: S310  our own page
                page = answer.read().decode()
        finally:
            killer.cancel()
            process.kill()
    assert "https://github.com/organizations/YOUR-ORG/settings/apps/new" in page
    assert "https://ostler.example.com/webhooks/github" in page
