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


_LEAST_COPYING, _MOST_COPYING_MIB = Share(100, 32), 128


def divide(
    *, millicores: int, memory_mib: int, job: str, options: Mapping[str, Options]
) -> tuple[dict[str, Share], list[str]]:
    """Return the share of each container, and log lines about options that could not be met.

    `options` has the options of each container. A container other than `job` gets what its options ask for. Without
    such an option it gets half of the Pod, divided by the number of these containers. If these containers together
    would get more than three quarters of the Pod, their shares are reduced. `job` gets the rest, or less if its options
    ask for less. The sum never exceeds the resources of the Pod, because the budget of the account counts only the
    resources of the Pod.
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
            lines.append(f"{name} of container {job} is more than the hook Pod has left, and was reduced")
    shares = {name: Share(cpu[name], memory[name]) for name in others}
    shares[job] = Share(
        min(own.millicores or rest.millicores, rest.millicores), min(own.memory_mib or rest.memory_mib, rest.memory_mib)
    )
    return shares, lines


def apart(share: Share) -> tuple[Share, Share]:
    """Divide the share of a step among its program and a container that copies files, which gets an eighth.

    Return both shares. Their sum is the whole share.
    """
    cpu = min(max(share.millicores // 8, _LEAST_COPYING.millicores), share.millicores // 2)
    memory = min(max(share.memory_mib // 8, _LEAST_COPYING.memory_mib), _MOST_COPYING_MIB, share.memory_mib // 2)
    return Share(share.millicores - cpu, share.memory_mib - memory), Share(cpu, memory)


def _column(
    total: int, least: int, names: Sequence[str], asked: Mapping[str, int | None], option: str, lines: list[str]
) -> dict[str, int]:
    """Return how much of one resource each container gets. At least a quarter of the total remains for the job."""
    share = max(total // (2 * len(names)), least) if names else 0
    wanted = {name: max(asked[name] or share, least) for name in names}
    most = total - max(total // 4, least)
    together = sum(wanted.values())
    if together <= most:
        return wanted
    lines.append(f"{option} of the services is more than three quarters of the hook Pod, and was reduced")
    return {name: max(value * most // together, 1) for name, value in wanted.items()}
