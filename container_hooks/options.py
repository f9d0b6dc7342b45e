"""Options of a container: the text in `options:` of a workflow, in the syntax of `docker create`.

Options that a Pod can express are parsed. Other options are ignored, and the log names them. Times are in seconds.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from container_hooks.failures import HookFailed

_SHORT = {"-u": "--user", "-e": "--env", "-p": "--publish", "-m": "--memory", "-c": "--cpu-shares", "-h": "--hostname"}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([bkmg]?)b?", re.IGNORECASE)
_BYTES = {"": 1, "b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_MIB = 1024**2
_FLAGS = frozenset({"--init", "--privileged", "--rm", "--read-only", "--no-healthcheck", "-d", "-i", "-t", "-it", "-P"})
_HIGHEST_ID = 2**31 - 1
_HEALTH = frozenset(
    {"--health-cmd", "--health-interval", "--health-timeout", "--health-retries", "--health-start-period"}
)


@dataclass(frozen=True, kw_only=True)
class Health:
    """Health check of a container. The defaults are those of Docker."""

    command: str
    interval: float = 30.0
    timeout: float = 30.0
    retries: int = 3
    start_period: float = 0.0

    @property
    def patience(self) -> float:
        """Return the seconds after the start of the container in which the check must succeed."""
        return self.start_period + self.retries * (self.interval + self.timeout)


@dataclass(kw_only=True)
class Options:
    """The options that a Pod can express. `ignored` has the names of the other options."""

    user: int | None = None
    group: int | None = None
    environment: dict[str, str] = field(default_factory=dict)
    ports: list[str] = field(default_factory=list)
    entrypoint: str | None = None
    millicores: int | None = None
    memory_mib: int | None = None
    health: Health | None = None
    ignored: list[str] = field(default_factory=list)


def parse_options(text: str | None, *, of: str) -> Options:
    """Return the options of a container. `of` names the container in messages.

    Raises `HookFailed` if the text cannot be split into words, or if the value of a known option is wrong.
    """
    found, health = Options(), dict[str, str]()
    try:
        words = shlex.split(text or "")
    except ValueError as error:
        raise HookFailed(f"the options of {of} cannot be split into words: a quote is not closed") from error
    for name, value in _pairs(words):
        if name in _HEALTH:
            health[name] = _required(name, value, of)
        elif name not in _SETTERS:
            found.ignored.append(name)
        else:
            _SETTERS[name](found, _required(name, value, of), of)
    found.health = _health(health, of)
    if found.health is None:  # the check of the image, which they would change, does not exist in a Pod
        found.ignored += [name for name in health if name != "--health-cmd"]
    return found


def _pairs(words: list[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each option with its value.

    A word that does not begin with `-` is the value of the option before it, unless this option is a flag.
    """
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not name.startswith("--") and len(name) > len("-u") and name[:2] in _SHORT:
            name, value, equals = name[:2], name[2:] + equals + value, "="
        name = _SHORT.get(name, name)
        if equals:
            yield name, value
        elif rest and not rest[0].startswith("-") and name not in _FLAGS:
            yield name, rest.pop(0)
        else:
            yield name, None


def _required(name: str, value: str | None, of: str) -> str:
    if value is None:
        raise HookFailed(f"the options of {of}: {name} needs a value")
    return value


def _user(found: Options, value: str, of: str) -> None:
    user, _, group = value.partition(":")
    numbers = [each for each in (user, group) if each]
    if not user or not all(each.isascii() and each.isdigit() and int(each) <= _HIGHEST_ID for each in numbers):
        raise HookFailed(f"the options of {of}: --user {value}: use numbers, for example --user 1001")
    if int(user) == 0:
        raise HookFailed(f"the options of {of}: --user {value}: containers must not run as root in this runner")
    found.user, found.group = int(user), int(group) if group else None


def _environment(found: Options, value: str, of: str) -> None:
    name, equals, content = value.partition("=")
    if not name:
        raise HookFailed(f"the options of {of}: --env needs NAME=VALUE")
    if equals:
        found.environment[name] = content
    else:
        found.ignored.append(f"--env {name}")


def _cpus(found: Options, value: str, of: str) -> None:
    try:
        cpus = float(value)
    except ValueError:
        cpus = math.nan
    if not 0.01 <= cpus <= 1024:  # noqa: PLR2004 - 0.01 is Docker's minimum; NaN is refused too
        raise HookFailed(f"the options of {of}: --cpus {value}: use a number of CPUs, for example --cpus 1.5")
    found.millicores = int(cpus * 1000)


def _memory(found: Options, value: str, of: str) -> None:
    match = _MEMORY.fullmatch(value.strip())
    if match is None:
        raise HookFailed(f"the options of {of}: --memory {value}: use bytes with a unit, for example --memory 512m")
    found.memory_mib = max(int(float(match[1]) * _BYTES[match[2].lower()]) // _MIB, 6)


def _entrypoint(found: Options, value: str, _of: str) -> None:
    found.entrypoint = value or None


def _publish(found: Options, value: str, _of: str) -> None:
    found.ports.append(value)


_SETTERS = {
    "--user": _user,
    "--env": _environment,
    "--publish": _publish,
    "--expose": _publish,
    "--entrypoint": _entrypoint,
    "--cpus": _cpus,
    "--memory": _memory,
}


def _health(given: dict[str, str], of: str) -> Health | None:
    command = given.get("--health-cmd", "")
    if not command or command == "none":
        return None
    times = {
        field: duration(given[name], f"the options of {of}: {name}")
        for name, field in (
            ("--health-interval", "interval"),
            ("--health-timeout", "timeout"),
            ("--health-start-period", "start_period"),
        )
        if name in given
    }
    retries = given.get("--health-retries", "3")
    if not (retries.isascii() and retries.isdigit()):
        raise HookFailed(f"the options of {of}: --health-retries {retries}: use a whole number")
    return Health(command=command, retries=max(int(retries[:6]), 1), **times)


def duration(text: str, where: str) -> float:
    """Return the seconds of a duration of Docker, such as `10s` or `1m30s`. Raises `HookFailed`."""
    if text == "0":
        return 0.0
    if not text or _DURATION.sub("", text):
        raise HookFailed(f"{where} {text}: use a duration with a unit, for example 10s")
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))
