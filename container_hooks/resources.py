"""Division of a hook Pod's CPU and memory among its containers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from container_hooks.options import Options

_LEAST_MILLICORES, _LEAST_MIB = 10, 16


@dataclass(frozen=True, slots=True)
class Share:
    """CPU and memory of one container."""

    millicores: int
    memory_mib: int


def divide(
    *, millicores: int, memory_mib: int, job: str, options: Mapping[str, Options]
) -> tuple[dict[str, Share], list[str]]:
    """Return the share of each container, and lines about options that could not be met.

    `options` has the options of each container. The containers other than `job` get what their options ask for. If
    they ask for nothing, half of the Pod is divided equally among all of them. `job` gets the rest, or less if its
    options say so. The sum never exceeds the resources of the Pod, because the budget of the account counts these.
    """
    others = [name for name in options if name != job]
    lines: list[str] = []
    cpu = _column(millicores, _LEAST_MILLICORES, others, {n: options[n].millicores for n in others}, "--cpus", lines)
    memory = _column(memory_mib, _LEAST_MIB, others, {n: options[n].memory_mib for n in others}, "--memory", lines)
    rest = Share(millicores - sum(cpu.values()), memory_mib - sum(memory.values()))
    own = options[job]
    for name, asked, left in (
        ("--cpus", own.millicores, rest.millicores),
        ("--memory", own.memory_mib, rest.memory_mib),
    ):
        if asked is not None and asked > left:
            lines.append(f"{name} of container {job} is above what the pool gives, and was reduced")
    shares = {name: Share(cpu[name], memory[name]) for name in others}
    shares[job] = Share(
        min(own.millicores or rest.millicores, rest.millicores), min(own.memory_mib or rest.memory_mib, rest.memory_mib)
    )
    return shares, lines


def _column(
    total: int, least: int, names: Sequence[str], asked: Mapping[str, int | None], option: str, lines: list[str]
) -> dict[str, int]:
    """Return the part of each container of one resource. Together they leave at least a quarter to the job."""
    share = max(total // (2 * len(names)), least) if names else 0
    wanted = {name: max(asked[name] or share, least) for name in names}
    most = total - max(total // 4, least)
    together = sum(wanted.values())
    if together <= most:
        return wanted
    lines.append(f"{option} of the services is above what the pool gives, and was reduced")
    return {name: max(value * most // together, 1) for name, value in wanted.items()}
