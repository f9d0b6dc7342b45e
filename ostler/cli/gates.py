"""`ostler gates`: which upstreams can be trusted with a repair now."""

from __future__ import annotations

from ostler.cli.output import Json, age, print_json, print_table, query
from ostler.clock import utcnow


def gates(as_json: Json = False) -> None:
    """List the gates of GitHub and Kubernetes: a closed one stops reaping and demand growth, never dispatch."""
    from models import gates as rows  # noqa: PLC0415

    now = utcnow()
    found = query(rows.read)
    if as_json:
        print_json(list(found))
        return
    print_table(
        ("upstream", "gate", "since", "why", "good looks", "looked at", "calls", "errors"),
        (
            (row.upstream, "open" if row.open else "CLOSED", age(row.closed_at or row.opened_at, now=now), row.why,
             "" if row.open else f"{row.good_looks} of {row.needs}", age(row.looked_at, now=now), row.calls, row.errors)
            for row in found
        ),
        empty="no gates",
    )  # fmt: skip
