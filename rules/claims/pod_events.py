"""Choice of the Kubernetes Event that best explains the end of a Pod.

The text of an Event comes from another component. Ostler shows the text to people, and no decision depends on the text
(law L6).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

LONGEST_WORD = 100
"""Maximum number of characters of a reason or component name. Further characters are cut off."""
LONGEST_NOTE = 200
"""Maximum number of characters of a message. Further characters are cut off."""

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
"""First words of the taint manager's Event about a cancelled eviction.

The Event about the eviction has the same reason.
"""


@dataclass(frozen=True, slots=True)
class PodEvent:
    """One Event about a Pod. `action` and `at` are None if the component that wrote the Event did not set them."""

    reason: str
    component: str
    note: str
    action: str | None = None
    at: datetime | None = None

    @property
    def kind(self) -> str:
        """Return the action if the action is more specific than the reason, else the reason."""
        return self.action if self.action == "Descheduled" else self.reason

    @property
    def names_somebody(self) -> bool:
        """Return True if the Event comes from the component that requested the end of the Pod.

        Return False if the component only executes or observes the end.
        """
        return self.kind not in _NAMES_NOBODY


def choose(events: Iterable[PodEvent]) -> PodEvent | None:
    """Return the Event that best explains the end of the Pod, or None if no Event explains it.

    The order of kinds is `_ORDER`. If there are several Events of the best kind, the latest Event is returned.
    """
    found = [each for each in events if each.kind in _ORDER and not each.note.startswith(_UNDONE)]
    if not found:
        return None
    first = min(_ORDER.index(each.kind) for each in found)
    alike = [each for each in found if _ORDER.index(each.kind) == first]
    return max(alike, key=lambda each: 0.0 if each.at is None else each.at.timestamp())


def one_line(text: str, *, longest: int) -> str:
    """Return a text of another component as one line of at most `longest` characters.

    Control and format characters are replaced by spaces.
    """
    shown = (" " if each.isspace() or unicodedata.category(each).startswith("C") else each for each in text)
    line = " ".join("".join(shown).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
