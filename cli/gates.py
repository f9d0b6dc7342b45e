"""`ostler gates`: list the gates of GitHub and Kubernetes."""

from __future__ import annotations

from cli.output import age, query
from cli.tables import Column, Form, Kind, listed, print_table, print_text, printed
from ostler.clock import utcnow
from rules.upstream.gates import CallCounts, what_now


@listed
def gates(form: Form) -> None:
    """List the gates of GitHub and Kubernetes, and what to do while one is tripped.

    While a gate is tripped, sweeps delete no Pod or runner, and the autoscaler changes no pool. Jobs are still
    dispatched.
    """
    from models.browse.fleet import account_lines
    from models.upstream import gates as rows

    now = utcnow()
    found, lines = query(lambda db: (rows.read(db), account_lines(db)))
    if printed(form, list(found), names=(row.upstream for row in found)):
        return
    print_table(
        (
            "upstream",
            "gate",
            "since",
            Column("why", Kind.TEXT),
            Column("good checks", drop=1),
            Column("checked", drop=2),
            "calls",
            "errors",
        ),
        (
            (
                row.upstream,
                row.state if row.open else row.state.upper(),
                age(row.closed_at or row.opened_at, now=now),
                row.why,
                "" if row.open else f"{row.healthy_checks} of {row.needs}",
                age(row.checked_at, now=now),
                row.calls,
                row.errors,
            )
            for row in found
        ),
        empty="no gates",
        wide=form is Form.WIDE,
    )
    for line in what_now(
        tripped=[row.upstream for row in found if not row.open],
        failing=[(row.upstream, CallCounts(row.calls, row.errors)) for row in found],
        held=sum(each.held for each in lines),
    ):
        print_text(line)
