"""Refusals of a deploy: one record for each reason, with the cure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Danger(StrEnum):
    """Harm that a deploy would do to busy or idle Pods."""

    NOT_RULED = "not-ruled"
    PEERS_CHANGE = "peers-change"
    POLICY_REWRITTEN = "policy-rewritten"
    ROLLING_PEER = "rolling-peer"
    BUSY_REACHES_WEB = "busy-reaches-web"
    IDLE_MISSES_WEB = "idle-misses-web"
    IDLE_STRANDS = "idle-strands"
    OPEN_INGRESS = "open-ingress"
    PRIVATE_EGRESS = "private-egress"
    NAMESPACE_DELETED = "namespace-deleted"
    NAMESPACE_LEFT = "namespace-left"
    DEFINITION_DELETED = "definition-deleted"
    POOL_WITHOUT_FINALIZER = "pool-without-finalizer"
    ADMISSION_MISSING = "admission-missing"
    ADMISSION_OFF = "admission-off"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason to refuse a deploy.

    `subjects` are the names of the affected pools or objects. `reason` and `cure` are sentences.
    """

    danger: Danger
    subjects: tuple[str, ...]
    reason: str
    cure: str


WAIT_FOR_JOBS = (
    "If the change is necessary: scale every pool to 0, wait until no runner Pod is left, pause the pools, and check "
    "again with --live. Then deploy, resume the pools and scale them back."
)
"""Last sentences of each cure for a change of a policy that selects stamped Pods."""

AT_REST = frozenset({Danger.PEERS_CHANGE, Danger.POLICY_REWRITTEN})
"""Dangers that need a runner Pod. Without one, and with every pool paused, the check accepts the deploy."""
