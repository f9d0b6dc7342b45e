"""Obstacles: reasons that stop every repair that kills, even if the evidence of a sweep is sufficient."""

from __future__ import annotations

from models.db import epochs
from models.upstream import gates
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW


def closed_gate(rt: Runtime) -> str | None:
    """Return which gates are tripped, since when and why, or None if all gates are ok.

    One tripped gate stops every repair that kills, because nearly every kill relies on the evidence of both upstreams
    or calls both upstreams.
    """
    shut = rt.transaction(gates.shut)
    return "; ".join(map(str, shut)) or None


def earlier_state(rt: Runtime) -> str | None:
    """Return why the rows might be older than the cluster, or None if the rows are trusted.

    If Postgres was restored to an earlier state, its rows might show a busy Pod as free.
    """
    return rt.transaction(epochs.doubt, now=NOW)
