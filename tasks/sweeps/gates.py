"""`ostler.gates`: trips the gate of an upstream if most calls to it fail, and resets it when the upstream recovers.

While any gate is tripped, no sweep deletes a Pod or a runner, and the autoscaler changes no replicas. While the gate of
Kubernetes is tripped, the reconcilers retire no Pod either. While a gate is tripped, each run of this sweep makes one
cheap call to the upstream. Otherwise Ostler might make no call at all, and nothing would show that the upstream answers
again.
"""

from __future__ import annotations

import random
from functools import partial

import structlog

from k8s_adapters.cluster.probe import probe
from models.upstream import gates as rows
from models.upstream.gates import Evaluation
from models.upstream.reporter import report
from ostler import telemetry
from ostler.errors import UpstreamError
from ostler.reasons import meaning_of
from ostler.settings import Settings
from ostler.task_names import GATES
from ostler.upstreams import Upstream
from rules.upstream.gates import GateRule
from tasks.sweeps.frame.sweep import sweep
from tasks.sweeps.frame.tick import Tick
from tasks.worker.runtime import Runtime
from tasks.worker.transactions import NOW

log = structlog.get_logger(__name__)

_PAUSED_WORK = {
    Upstream.GITHUB: "deletions by sweeps, and all scaling by the autoscaler; dispatch continues",
    Upstream.KUBERNETES: "deletions by sweeps, retirements by reconcilers, and all scaling by the autoscaler; dispatch "
    "continues",
}

PROBE = 5.0
"""Deadline in seconds of a probe of GitHub."""


@sweep(GATES, quiet=True)
def gates(tick: Tick) -> None:
    """Evaluate the gate of each upstream from the counted results of recent calls to the upstream.

    A gate is evaluated at most once in half the sweep's period, even if the sweep runs more often.
    """
    if tick.dry:
        return
    rt = tick.rt
    for shut in rt.transaction(rows.shut):
        ask(rt, shut.upstream)
    report(rt.engine)
    rule = rule_of(rt.settings)
    for upstream in Upstream:
        tick.part(upstream, partial(evaluate, rt, upstream, rule))
    tick.part("old counts", lambda: rt.transaction(rows.delete_old, now=NOW))


def ask(rt: Runtime, upstream: Upstream) -> None:
    """Make a probe call to an upstream. The client of the upstream counts the result of the call."""
    try:
        match upstream:
            case Upstream.GITHUB:
                rt.github.probe(deadline_seconds=PROBE)
            case Upstream.KUBERNETES:
                probe(rt.kube, namespace=rt.settings.namespace)
    except UpstreamError as error:
        log.info("gate.probe_failed", upstream=upstream, error=meaning_of(error))


def evaluate(rt: Runtime, upstream: Upstream, rule: GateRule) -> None:
    """Evaluate one gate. Log the gate if it is tripped, or if it recovers now."""
    settings = rt.settings
    roll = random.random()  # noqa: S311  the values only have to differ
    evaluation = rt.transaction(
        rows.evaluate,
        upstream,
        rule=rule,
        window=settings.timings.gate_window,
        apart=settings.timings.gates_every / 2,
        roll=roll,
        now=NOW,
    )
    if evaluation is not None:
        log_evaluation(evaluation)


def log_evaluation(evaluation: Evaluation) -> None:
    """Log each evaluation of a tripped gate, so that people notice it, and log the recovery of a gate."""
    facts = {
        "upstream": evaluation.upstream,
        "calls": evaluation.counts.calls,
        "failed_calls": evaluation.counts.errors,
        "closed_since": None if evaluation.since is None else evaluation.since.isoformat(),
    }
    if evaluation.after.closed and not evaluation.before.closed:
        telemetry.GATE_CHANGES.labels(evaluation.upstream, "closed").inc()
        log.warning("gate.closed", **facts, paused_work=_PAUSED_WORK[Upstream(evaluation.upstream)])
    elif evaluation.after.closed:
        log.warning(
            "gate.stays_closed",
            **facts,
            healthy_checks=evaluation.after.healthy_checks,
            healthy_checks_needed=evaluation.after.needs,
        )
    elif evaluation.before.closed:
        telemetry.GATE_CHANGES.labels(evaluation.upstream, "opened").inc()
        log.warning("gate.opened", **facts)


def rule_of(settings: Settings) -> GateRule:
    """Return the thresholds for the trip and the recovery of a gate, from the settings."""
    return GateRule(
        least_errors=settings.timings.gate_least_errors,
        closes_at=settings.timings.gate_closes_at,
        opens_at=settings.timings.gate_opens_at,
        healthy_checks=settings.timings.gate_healthy_checks,
        extra_checks=settings.timings.gate_extra_checks,
    )
