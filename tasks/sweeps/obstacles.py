"""Reasons for which no sweep may kill anything now, whatever its own witnesses say."""

from __future__ import annotations

from models.db import epochs
from models.db.engine import transaction
from models.upstream import gates
from ostler.clock import utcnow
from tasks.worker.runtime import Runtime


def closed_gate(rt: Runtime) -> str | None:
    """Return which gate is closed, since when and why; None when all are open.

    Any of them: what is killed is killed on the word of both upstreams, and by asking both.
    """
    shut = transaction(rt.engine, gates.shut)
    return "; ".join(map(str, shut)) or None


def earlier_state(rt: Runtime) -> str | None:
    """Return why these rows may be an earlier state than the cluster's, in which busy Pods look free."""
    return transaction(rt.engine, lambda db: epochs.doubt(db, now=utcnow()))
