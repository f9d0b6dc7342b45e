"""Project of Compose on a Docker engine: its commands, and the state of its containers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.processes import StartError

FILE = Path(__file__).parents[2] / "compose" / "compose.yaml"
NAME = "ostler-lab"
LAB = "lab"
"""The profile that adds the lab's GitHub, a cluster and traffic."""
_WITHIN = 300.0  # seconds for a command that builds and starts nothing


@dataclass(frozen=True, slots=True)
class Container:
    """A container as `docker compose ps` lists it. `health` is empty for a service without a health check."""

    name: str
    service: str
    state: str
    health: str
    code: int
    status: str

    @property
    def problem(self) -> str | None:
        """One line about the problem of the container, or None. A health check without a result is a problem too."""
        if self.state == "exited":
            return f"{self.name} ended with {self.code}" if self.code != 0 else None
        if self.state != "running":
            return f"{self.name} is {self.state}"
        return f"{self.name} is {self.health}" if self.health not in {"", "healthy"} else None


def parse(listed: str) -> list[Container]:
    """Return the containers in the output of `docker compose ps --all --format=json`, sorted by name."""
    found = [json.loads(line) for line in listed.splitlines() if line.startswith("{")]
    return sorted((_container(each) for each in found), key=lambda each: each.name)


def _container(found: Mapping[str, Any]) -> Container:
    return Container(
        name=found["Name"],
        service=found["Service"],
        state=found["State"],
        health=found.get("Health") or "",
        code=found.get("ExitCode") or 0,
        status=found.get("Status") or found["State"],
    )


class Project:
    """The compose file on an engine, with the profile `lab` or without a profile."""

    def __init__(
        self, compose: Path, *, values: Path, environment: Mapping[str, str], log: Path, profile: str = LAB
    ) -> None:
        self._command = command_line(compose, values, profile=profile)
        self._environment = dict(environment)
        self._log = log

    def run(self, *arguments: str, within: float) -> None:
        """Run a command that takes `within` seconds at most. Raises `StartError` with the last lines of its output."""
        with self._log.open("ab") as log:
            try:
                done = subprocess.run(
                    [*self._command, *arguments],
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    check=False,
                    timeout=within,
                )
            except subprocess.TimeoutExpired:
                raise StartError(
                    f"docker compose {arguments[0]} did not end within {within:.0f} s:\n{self._tail()}"
                ) from None
        if done.returncode != 0:
            raise StartError(f"docker compose {arguments[0]} failed with {done.returncode}:\n{self._tail()}")

    def try_config(self) -> tuple[int, str]:
        """Let Compose read the file and its values. Return its exit status and what it wrote to stderr."""
        done = subprocess.run(
            [*self._command, "config", "--quiet"],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_WITHIN,
        )
        return done.returncode, done.stderr

    def containers(self) -> list[Container]:
        """Return every container of the project."""
        return parse(self._read("ps", "--all", "--format=json"))

    def logs(self, services: Sequence[str], *, lines: int) -> str:
        """Return the last lines of the logs of these services."""
        return self._read("logs", "--no-color", f"--tail={lines}", *services) if services else ""

    def last_line(self, service: str) -> str:
        """Return the last line that a service has written so far, or an empty string."""
        return self._read("logs", "--no-color", "--no-log-prefix", "--tail=1", service).strip()

    def _read(self, *arguments: str) -> str:
        return subprocess.run(
            [*self._command, *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_WITHIN,
        ).stdout

    def _tail(self, lines: int = 40) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])


def command_line(compose: Path, values: Path, *, profile: str = LAB) -> list[str]:
    """Return the start of every command of Compose for the project. `values` is its env file.

    `profile` is the profile that is active, or empty.
    """
    return [
        str(compose),
        "--ansi=never",
        "--progress=plain",
        f"--file={FILE}",
        f"--project-name={NAME}",
        f"--env-file={values}",
        *([f"--profile={profile}"] if profile else []),
    ]
