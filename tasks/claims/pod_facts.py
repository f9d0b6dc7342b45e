"""Facts of Pods, in the form that their rows store."""

from __future__ import annotations

from k8s_adapters.pods import PodSeen
from models.pools.pod_rows import PodFacts
from rules.claims.stamps import INITIAL


def pod_facts(pod: PodSeen) -> PodFacts:
    """Return the fields of a Pod that its row stores."""
    return PodFacts(
        name=pod.name,
        namespace=pod.namespace,
        uid=pod.uid,
        attempt_id=pod.attempt or "",
        template_hash=pod.digest or "",
        stamp_value=pod.stamp or INITIAL,
        created_at=pod.created_at,
        over=pod.is_over,
        terminal=pod.is_terminal,
        poller_exit_code=pod.poller_exit_code,
        runner_exit_code=pod.runner_exit_code,
        exit_reason=pod.exit_reason,
        held=pod.exit_held,
        ours=pod.is_ours,
    )
