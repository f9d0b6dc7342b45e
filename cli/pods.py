"""`ostler pod`: explain one runner Pod, its end and its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from cli.output import Json, age, fail, object_of, print_json, query
from cli.timeline import moment, print_timeline
from ostler.clock import utcnow
from rules.claims.pod_ends import describe

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from models.browse.pods import PodStory


SHOWN = 10
"""Number of jobs of a persistent runner that are shown. `--json` shows more."""


def pod(
    pod: Annotated[
        str, typer.Argument(metavar="NAME|UID", help="name or UID of the Pod; the latest Pod of a name is shown")
    ],
    as_json: Json = False,
) -> None:
    """Explain one runner Pod: how it ended, which jobs it had, and why."""
    from models.browse.pods import pod_story
    from models.claims.pod_ends import end_of

    def body(db: Connection) -> PodStory | None:
        return pod_story(db, pod)

    story = query(body)
    if story is None:
        fail(f"there is no Pod {pod!r}; `ostler claims --all` lists the Pods that had a job, and old Pods are pruned")
    found, end = story.pod, describe(end_of(story.pod), pod="it")
    if as_json:
        print_json(
            {
                **object_of(found),
                "end": end,
                "claims": list(story.claims),
                "events": list(story.events),
                "executions": list(story.executions),
            }
        )
        return
    console = Console(highlight=False)
    now = utcnow()
    console.print(f"[bold]{escape(found.name)}[/] (uid {found.uid or 'not known yet'}), pool {escape(found.pool)}")
    console.print(f"created {age(found.created_at, now=now)} ago, last poll {age(found.polled_at, now=now)} ago")
    console.print(f"\n{escape(_sentence(end))}")
    console.print(f"Jobs: {', '.join(_jobs(story)) or 'none'}\n")
    moments = [moment(f"claim {event.claim_id}", event) for event in story.events]
    for at, what in (
        (found.created_at, "created"),
        (found.first_polled_at, "first poll"),
        (found.poller_ended_at, "poller ended"),
        (found.deletion_at, "deletion requested"),
        (found.over_at, "over"),
        (found.node_gone_at, "node gone"),
        (found.gone_at, "gone"),
    ):
        if at is not None:
            moments.append((at, "pod", None, what, None, None, None))
    print_timeline(moments, empty="no events are recorded for it")


def _jobs(story: PodStory) -> list[str]:
    """Return the jobs of a Pod: those of its claims, and the newest that its runner executed instead or in addition."""
    claimed = {claim.job_id for claim in story.claims}
    jobs = [f"{claim.job_id} (claim {claim.id})" for claim in story.claims if claim.job_id is not None]
    others = [
        f"{each.job_id} ({'runs' if each.ended_at is None else 'ended'}, runner {escape(each.runner_name)})"
        for each in story.executions
        if each.job_id not in claimed
    ]
    earlier = [f"and {len(others) - SHOWN} more"] if len(others) > SHOWN else []
    return [*jobs, *others[:SHOWN], *earlier]


def _sentence(end: str | None) -> str:
    return "No component has seen the Pod end." if end is None else f"{end[0].upper()}{end[1:]}."
