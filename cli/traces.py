"""`ostler traces`: exports the spans of finished jobs to an OpenTelemetry collector, as OTLP over HTTP in JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import query, time_of
from ostler.clock import utcnow
from ostler.errors import StoreUnreachable

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from models.browse.traces import Finished, Span

TIMEOUT = 10.0
BATCH = 200
"""Jobs whose spans are sent in one request."""

REFUSED = frozenset({400, 413, 422})
"""Statuses of a collector that refuses the spans themselves. It would refuse the same spans again."""


class SpansRefused(StoreUnreachable):
    """The collector refuses these spans, and would refuse them again."""


Read = tuple[Sequence["Finished"], Sequence["Span"]]


def traces(
    to: Annotated[
        str, typer.Option(metavar="ADDRESS", help="address of the collector, for example http://collector:4318")
    ],
    since: Annotated[
        str,
        typer.Option(metavar="AGE|TIME", help="begin of the span: an age such as 7d, `yesterday`, or an ISO 8601 time"),
    ] = "1h",
    every: Annotated[
        int | None,
        typer.Option(min=1, max=3600, metavar="SECONDS", help="keep exporting at this interval, until Ctrl-C"),
    ] = None,
) -> None:
    """Export the spans of jobs that ended since a time to an OpenTelemetry collector, and print their number.

    A job is exported 30 seconds after its end, or up to 5 minutes later if its claim is still live. A job that is
    exported twice has the same trace and span ids. With --every, spans that the collector refuses are left out.
    """
    if not to.startswith(("http://", "https://")):
        raise typer.BadParameter(f"--to: found {to!r}; expected an address such as http://collector:4318")
    at, after = time_of(since, "--since", now=utcnow()), 0
    total = 0
    while True:
        try:
            jobs, spans = query(partial(_read, since=at, after=after))
            if spans:
                send(f"{to.rstrip('/')}/v1/traces", body_of(spans))
            total += len(jobs)
        except StoreUnreachable as error:
            if every is None:
                raise
            refused = isinstance(error, SpansRefused)
            left_out = f"the spans of {len(jobs)} jobs are left out, from job {jobs[0].job_id}" if refused else None
            sys.stderr.write(f"ostler: {error}; {left_out or f'trying again in {every} s'}\n")
            if not refused:
                time.sleep(every)
                continue
        if jobs:
            at, after = jobs[-1].at, jobs[-1].event_id
        if len(jobs) == BATCH:
            continue
        if every is None:
            break
        time.sleep(every)
    typer.echo(f"exported {total} jobs")


def _read(db: Connection, *, since: datetime, after: int) -> Read:
    from models.browse.traces import SETTLED, finished, spans

    jobs = finished(db, since=since, after=after, until=utcnow() - SETTLED, limit=BATCH)
    return jobs, spans(db, [each.job_id for each in jobs])


def body_of(spans: Sequence[Span]) -> dict[str, Any]:
    """Return an ExportTraceServiceRequest of OTLP in JSON."""
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [_attribute("service.name", "ostler")]},
                "scopeSpans": [
                    {
                        "scope": {"name": "ostler", "version": version("ostler")},
                        "spans": [_span(each) for each in spans],
                    }
                ],
            }
        ]
    }


def _span(span: Span) -> dict[str, Any]:
    return {
        "traceId": span.trace,
        "spanId": span.id,
        **({} if span.parent is None else {"parentSpanId": span.parent}),
        "name": span.name,
        "kind": 1,  # internal
        "startTimeUnixNano": str(_nanoseconds(span.begin)),
        "endTimeUnixNano": str(_nanoseconds(span.end)),
        "attributes": [_attribute(name, value) for name, value in span.attributes.items()],
        "status": {"code": 2} if span.failed else {},
    }


def _nanoseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000) * 1000


def _attribute(name: str, value: str | int) -> dict[str, Any]:
    return {"key": name, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}


def send(url: str, body: object) -> None:
    """Send a request to the collector.

    Raises `StoreUnreachable` if the collector does not accept it: `SpansRefused` if it never will.
    """
    import urllib3

    from github_adapters.calls.http import connections
    from ostler import egress
    from ostler.reasons import endpoint, reason_of

    where = f"the collector at {endpoint(url)}"
    try:
        answer = connections(egress.proxy_for(url, os.environ), os.environ).request(
            "POST",
            url,
            body=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
            timeout=TIMEOUT,
            retries=urllib3.Retry(2, redirect=0, raise_on_redirect=False, raise_on_status=False),
        )
    except urllib3.exceptions.HTTPError as error:
        raise StoreUnreachable(f"{where} does not answer: {reason_of(error)}. Check --to") from None
    if not 200 <= answer.status < 300:  # noqa: PLR2004
        kind = SpansRefused if answer.status in REFUSED else StoreUnreachable
        raise kind(f"{where} answered {answer.status}. Check --to, and the log of the collector")
