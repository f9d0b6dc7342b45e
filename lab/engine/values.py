"""Values for the compose file: the variables of a run with new secrets, and the environment of Compose."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from resource import RLIM_INFINITY

from lab.environment import environment

NOFILE = 65536
"""Default of `WEB_NOFILE` in the compose file: the limit of open files of web."""

PASSED_ON = (
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "PIP_DEFAULT_TIMEOUT",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
"""Variables that an image build takes from the caller: the compose file lists them as build arguments without value."""

_CAP_SYS_RESOURCE = 24


def variables(*, jobs: int, nofile: int) -> dict[str, str]:
    """Return the values of the compose file's variables, with new keys. `nofile` is the limit of open files of web."""
    return {**environment(), "LAB_JOBS": str(jobs), **limit_of_web(nofile)}


def limit_of_web(nofile: int) -> dict[str, str]:
    """Return the variable of web's limit of open files, or nothing if the limit is the default."""
    return {} if nofile == NOFILE else {"WEB_NOFILE": str(nofile)}


def write_env_file(path: Path, values: Mapping[str, str]) -> None:
    """Write a file for `docker compose --env-file` that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))


def nofile_limit(*, hard: int, may_raise: bool) -> int:
    """Return the default limit of open files, or the hard limit if that is lower and the engine cannot raise it."""
    if may_raise or hard == RLIM_INFINITY:
        return NOFILE
    return min(NOFILE, hard)


def may_raise_limits(status: str) -> bool:
    """Return whether a process may raise its hard limits, from its `/proc/PID/status`."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_SYS_RESOURCE & 1)
    return False


def environment_of_compose(caller: Mapping[str, str], *, home: Path, host: str) -> dict[str, str]:
    """Return the environment that Compose runs in.

    A variable of the environment overrides the env file. The environment therefore has only two kinds of variables of
    the caller: PATH, and the variables in `PASSED_ON`, which an image build needs.
    """
    passed = {name: caller[name] for name in PASSED_ON if caller.get(name)}
    own = {"HOME": str(home), "DOCKER_CONFIG": str(home / ".docker"), "DOCKER_HOST": host, "DOCKER_BUILDKIT": "1"}
    return {"PATH": caller.get("PATH", "/usr/bin:/bin"), **own, **passed}
