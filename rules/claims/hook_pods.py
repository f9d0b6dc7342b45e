"""Hook Pods of a runner Pod, as the watch saw them last. The records are only shown to people (law L6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

MOST = 50
"""Maximum number of hook Pods that a record keeps for one runner Pod. A job has one, and one for each Docker action."""

_LONGEST = {"name": 253, "phase": 20, "node": 253, "problem": 300}
"""Greatest length of each text, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookPod:
    """A hook Pod as it was seen last.

    `problem` says why a container does not start or how it failed, or is None. `gone` is True if the Pod was deleted.
    """

    name: str
    phase: str
    node: str | None
    problem: str | None
    created_at: datetime
    seen_at: datetime
    gone: bool = False

    def packed(self) -> dict[str, Any]:
        """Return the Pod in the form that `read` accepts, for a message and for a row."""
        return {
            "name": self.name,
            "phase": self.phase,
            "node": self.node,
            "problem": self.problem,
            "created_at": self.created_at.isoformat(),
            "seen_at": self.seen_at.isoformat(),
            "gone": self.gone,
        }

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self | None:
        """Return the packed Pod, or None if the form is unknown. Long texts are cut."""
        try:
            name, phase, node, problem = (
                None if given[key] is None else str(given[key])[:most] for key, most in _LONGEST.items()
            )
            return cls(
                name=name or "",
                phase=phase or "",
                node=node,
                problem=problem,
                created_at=datetime.fromisoformat(given["created_at"]),
                seen_at=datetime.fromisoformat(given["seen_at"]),
                gone=given["gone"] is True,
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    def describe(self) -> str:
        """Return the Pod in words."""
        where = "gone" if self.gone else f"{self.phase} on node {self.node}" if self.node else self.phase
        return f"{self.name} ({where}; {self.problem})" if self.problem else f"{self.name} ({where})"


def read_all(given: object) -> list[HookPod]:
    """Return the packed Pods of a list, in its order. Pods in an unknown format are left out."""
    return [pod for each in given if (pod := HookPod.read(each)) is not None] if isinstance(given, list) else []


def merged(before: Iterable[HookPod], seen: Iterable[HookPod]) -> list[HookPod]:
    """Return the newest record of each name, oldest Pod first. Only the `MOST` newest Pods are kept.

    A persistent runner uses the names of its hook Pods again for each job.
    """
    newest: dict[str, HookPod] = {}
    for pod in (*before, *seen):
        known = newest.get(pod.name)
        if known is None or (known.created_at, known.seen_at) < (pod.created_at, pod.seen_at):
            newest[pod.name] = pod
    return sorted(newest.values(), key=lambda pod: (pod.created_at, pod.name))[-MOST:]
