"""Prometheus and promtool, for the tests of the alerts and of the dashboards.

They are built from a Go module once per machine, which takes about three minutes. `lab/prometheus/go.mod` pins them.
The module contains no files of the web interface. The build leaves out service discovery, which would need the clients
of many cloud providers.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import httpx

from lab.go_build import GoPrograms, Say, quiet
from lab.processes import Child, free_port
from ostler.errors import OstlerError

_PROGRAMS = GoPrograms(
    name="prometheus",
    what="Prometheus",
    module=Path(__file__).with_name("prometheus"),
    packages={
        "promtool": "github.com/prometheus/prometheus/cmd/promtool",
        "prometheus": "github.com/prometheus/prometheus/cmd/prometheus",
    },
    takes="about three minutes",
    tags="remove_all_sd",
)
_TIMEOUT = 120.0  # seconds for one call of promtool on a busy machine


class PromtoolRefused(OstlerError):
    """A check or a test of promtool failed. The message is promtool's own."""


def build(say: Say = quiet) -> Path:
    """Return the folder of the programs. Build them first if they are not cached. Raises `StartError`."""
    return _PROGRAMS.had(say)


def promtool(*arguments: str) -> str:
    """Run promtool and return its output. Raises `PromtoolRefused` if it finds an error."""
    done = subprocess.run(
        [str(build() / "promtool"), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT,
    )
    if done.returncode != 0:
        raise PromtoolRefused(f"{done.stdout.strip()}\n{done.stderr.strip()}".strip())
    return done.stdout


class Prometheus:
    """One Prometheus server that scrapes fixed addresses every second; a context manager."""

    def __init__(self, folder: Path, targets: Iterable[str]) -> None:
        """Prepare the server. `targets` are addresses in the form `host:port`."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [{"job_name": "ostler", "static_configs": [{"targets": list(targets)}]}],
        }
        (file := folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML too
        self._api = f"http://127.0.0.1:{(port := free_port())}"
        self._child = Child(
            "prometheus",
            [
                str(build() / "prometheus"),
                f"--config.file={file}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            log=folder / "prometheus.log",
        )

    def __enter__(self) -> Self:
        self._child.start()
        self._child.wait_until(self._answers, timeout=60)
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop(timeout=10)

    def query(self, expression: str) -> list[Mapping[str, Any]]:
        """Return the series of an instant query. Raises `PromtoolRefused` if Prometheus refuses the expression."""
        answer = httpx.get(f"{self._api}/api/v1/query", params={"query": expression}, timeout=30).json()
        if answer["status"] != "success":
            raise PromtoolRefused(f"{expression}: {answer.get('error')}")
        return list(answer["data"]["result"])

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self._api}/-/ready", timeout=2).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False
