"""Reasons for which no sweep may kill anything now, whatever its own witnesses say."""

from __future__ import annotations

from models.db import epochs
from models.upstream import gates
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW


def closed_gate(rt: Runtime) -> str | None:
    """Return which gate is closed, since when and why; None when all are open.

    Any of them: what is killed is killed on the word of both upstreams, and by asking both.
    """
    shut = rt.transaction(gates.shut)
    return "; ".join(map(str, shut)) or None


def earlier_state(rt: Runtime) -> str | None:
    """Return why these rows may be an earlier state than the cluster's, in which busy Pods look free."""
    return rt.transaction(epochs.doubt, now=NOW)
