"""Report at the end of a chaos run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lab.chaos.run import Result

JUDGED = ("L1", "L2", "L3", "L4", "L5", "L7", "L8", "L9", "L11", "L14")
"""The laws that a run can see broken."""

MOST = 20
"""Upper bound on lines about one subject."""


def lines(result: Result) -> Iterator[str]:
    """Yield the lines of the summary. The last line is the verdict."""
    verdict = result.verdict
    yield ""
    took = f"{result.worked:.0f} s, at rest after {result.settled:.0f} s more"
    yield f"seed {result.plan.seed}: {verdict.jobs} jobs in {took}"
    yield f"  ended          {_counts(verdict.conclusions)}"
    yield f"  executions     {verdict.executions}; taken back by GitHub {verdict.requeued}"
    yield f"  struck         {_counts(result.struck)}"
    for upstream, counts in result.played.items():
        yield f"  {upstream:14} {_counts(counts)}"
    sent, lost = result.events.get("webhook_sent", 0), result.events.get("webhook_lost", 0)
    yield f"  webhooks       {sent} sent, {lost} lost"
    refused = result.refusals
    yield (
        f"  refused (503)  {refused.silent} while web or Postgres was away, {refused.frozen} of rows that a frozen "
        f"process held, {refused.contended} of rows that another held, {len(refused.unexplained)} unexplained"
    )
    yield f"  repairs        {_counts(result.repairs) or 'none'}"
    yield f"  sampled        the rows {result.samples} times, {result.pod_changes} changes of Pods"
    yield f"  unusual        {_counts(result.unusual) or 'nothing'}"
    yield "  stalled       by, found by, made longer by, how often, seconds p50 / p99 / most, p99 to hold in a fleet"
    for path in result.stalled:
        times = f"{path.p50:6.1f} {path.p99:6.1f} {path.most:6.1f}"
        over = "  OVER" if path.over else ""
        who = f"{path.cause:14} {path.found_by:15} {path.circumstance:15}"
        yield f"    {who} {path.many:5} {times}  < {path.bound:.0f}{over}"
        if over and path.longest:
            yield f"      longest: {path.longest} s"
    broken = {law: [each for each in result.broken if each.law == law] for law in result.laws}
    yield "  laws           " + "  ".join(f"{law} {'BROKEN' if law in broken else 'held'}" for law in JUDGED)
    for law in sorted(broken):
        yield from (f"✗ {each}" for each in broken[law][:MOST])
        if len(broken[law]) > MOST:
            yield f"✗ {law}: {len(broken[law]) - MOST} more"
    yield from (f"✗ {problem}" for problem in result.problems[:MOST])
    yield "✓ clean: every job exactly once, nothing left, no law broken" if result.ok else "✗ not clean"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {many}" for name, many in counts.items() if many)
