"""Choice of the Kubernetes Event that best explains the end of a Pod.

Another component wrote the text. It is shown to people, and no decision depends on it (law L6).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

LONGEST_WORD = 100
"""Most characters of a reason or component name. The rest is cut off."""
LONGEST_NOTE = 200
"""Most characters of a message. The rest is cut off."""

_ORDER = (
    "Preempted",  # the scheduler, for another Pod
    "Preempting",  # the kubelet, for a critical Pod
    "Evicted",  # the kubelet, or Karpenter
    "Descheduled",  # the descheduler's action; its reason is the name of a strategy
    "ScaleDown",  # the cluster autoscaler
    "TaintManagerEviction",
    "NodeControllerEviction",
    "DeadlineExceeded",  # the kubelet
    "NodeNotReady",  # the node controller; the Pod might continue to run
    "ExceededGracePeriod",  # the kubelet, after the client that requested the deletion
    "Killing",  # the kubelet, after the client that requested the deletion
)
_NAMES_NOBODY = frozenset({"NodeNotReady", "ExceededGracePeriod", "Killing"})
_UNDONE = "Cancelling deletion"
"""First words of the taint manager's Event that cancels an eviction. It has the same reason as the eviction."""


@dataclass(frozen=True, slots=True)
class PodEvent:
    """One Event about a Pod. `action` and `at` are None if the writer of the Event did not set them."""

    reason: str
    component: str
    note: str
    action: str | None = None
    at: datetime | None = None

    @property
    def kind(self) -> str:
        """Return the action if it is more specific than the reason, else the reason."""
        return self.action if self.action == "Descheduled" else self.reason

    @property
    def names_somebody(self) -> bool:
        """Return whether the Event's component requested the end of the Pod.

        Other components only execute or observe it.
        """
        return self.kind not in _NAMES_NOBODY


def choose(events: Iterable[PodEvent]) -> PodEvent | None:
    """Return the latest Event of the kind that best explains the end of the Pod, or None if no Event explains it."""
    found = [each for each in events if each.kind in _ORDER and not each.note.startswith(_UNDONE)]
    if not found:
        return None
    first = min(_ORDER.index(each.kind) for each in found)
    alike = [each for each in found if _ORDER.index(each.kind) == first]
    return max(alike, key=lambda each: 0.0 if each.at is None else each.at.timestamp())


def one_line(text: str, *, longest: int) -> str:
    """Return foreign text as one line of at most `longest` characters, without control and format characters."""
    shown = (" " if each.isspace() or unicodedata.category(each).startswith("C") else each for each in text)
    line = " ".join("".join(shown).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
