"""`ostler pods` and `ostler pod NAME`: list runner Pods, and explain one Pod, its end and its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from cli import remote
from cli.output import Failed, Json, Limit, Since, Sort, age, fail, print_json, print_more, query, since_of
from cli.pools import pool_id
from cli.tables import Column, Form, Kind, Wide, listed, plain, print_table, print_text, printed
from cli.timeline import print_checks, print_summary, print_timeline
from ostler.clock import utcnow
from ostler.settings import Timed, read

if TYPE_CHECKING:
    from sqlalchemy import Connection


SHOWN = 10
"""Number of jobs of a persistent runner that are shown. `--json` shows more."""


@listed
def pods(
    form: Form,
    pool: Annotated[str | None, typer.Option(help="name or id")] = None,
    everything: Annotated[bool, typer.Option("--all", help="also show Pods that are gone")] = False,
    failed: Failed = False,
    since: Since = None,
    sort: Sort = "newest",
    limit: Limit = 50,
) -> None:
    """List runner Pods with their live claims.

    For a starting Pod, the list says why it does not poll yet. With --failed, the list has Pods that are gone too, and
    says how each Pod ended. A Pod failed if its node is gone, if a container ended with an error, or if the Pod ended
    before its job or was deleted by another client. With OSTLER_API_URL, the command asks the REST API.
    """
    api, now = remote.chosen(), utcnow()
    filters = {
        "gone": None if everything or failed else False,
        "failed": failed or None,
        "since": since_of(since, now=now),
    }
    if api is None:
        rows, more = query(lambda db: _listed(db, {**filters, "pool_id": pool_id(db, pool)}, sort=sort, limit=limit))
    else:
        rows, more = api.items(
            "pods", limit=limit, sort=sort, **filters, pool_id=api.id_of("pools", "name", pool, deleted=False)
        )
    if printed(form, rows, names=(row["name"] for row in rows)):
        return
    print_table(
        (
            Column("pod", Kind.NAME),
            Column("pool", Kind.NAME, drop=2),
            "state",
            Column("job", drop=1),
            "age",
            Column("first poll after", drop=3),
            Column("last poll", drop=5),
            Column("why it starts", Kind.TEXT, drop=None if any(row["reason"] for row in rows) else 6),
            Column("end", Kind.TEXT, drop=None if failed else 4),
        ),
        (
            (
                row["name"],
                row["pool"],
                row["state"],
                row["job_id"],
                age(row["created_at"], now=now),
                None if row["first_polled_at"] is None else age(row["created_at"], now=row["first_polled_at"]),
                None if row["polled_at"] is None else age(row["polled_at"], now=now),
                row["reason"],
                row.get("end"),
            )
            for row in rows
        ),
        empty="no Pods",
        wide=form is Form.WIDE,
    )
    print_more(len(rows), more=more)


def _listed(db: Connection, filters: dict[str, Any], *, sort: str, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Return a page of Pods, and whether more Pods exist."""
    from models.browse.page import Order
    from models.browse.pods import PodFilter, list_pods, shown

    page = list_pods(db, PodFilter(**filters), order=Order(sort), limit=limit)
    return shown(db, page.rows), page.next_id is not None


def pod(
    pod: Annotated[
        str, typer.Argument(metavar="NAME|UID", help="name or UID of the Pod; the latest Pod of a name is shown")
    ],
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Explain one runner Pod: how it ended, which jobs it had, and why.

    With OSTLER_API_URL, the command asks the REST API instead of Postgres.
    """
    api = remote.chosen()
    found = query(lambda db: _told(db, pod)) if api is None else api.get(f"pods/{quote(pod, safe='')}")
    if found is None:
        fail(f"there is no Pod {pod!r}; `ostler claims --all` lists the Pods that had a job, and old Pods are pruned")
    if as_json:
        print_json(found)
        return
    print_text(f"{found['name']} (uid {found['uid'] or 'not known yet'}), pool {found['pool']}")
    print_summary(found["why"])
    print_text(f"Jobs: {', '.join(_jobs(found)) or 'none'}")
    typer.echo()
    print_checks(found["why"]["checks"], wide=wide)
    typer.echo()
    print_timeline(found["timeline"], wide=wide)


def _told(db: Connection, pod: str) -> dict[str, Any] | None:
    from models.browse.diagnoses import told_pod

    return told_pod(db, pod, timings=read(Timed).timings, now=utcnow())


def _jobs(pod: Mapping[str, Any]) -> list[str]:
    """Return the jobs of a Pod: those of its claims, and the newest that its runner executed instead or in addition."""
    claims = [each for each in pod["claims"] if each["job_id"] is not None]
    claimed = {each["job_id"] for each in claims}
    jobs = [f"{each['job_id']} (claim {each['id']})" for each in claims]
    others = [
        f"{each['job_id']} ({'runs' if each['ended_at'] is None else 'ended'}, runner {plain(each['runner_name'])})"
        for each in pod["executions"]
        if each["job_id"] not in claimed
    ]
    earlier = [f"and {len(others) - SHOWN} more"] if len(others) > SHOWN else []
    return [*jobs, *others[:SHOWN], *earlier]
