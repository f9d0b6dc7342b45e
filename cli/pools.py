"""`ostler pool list` and `ostler pool show`: pools with their stored status, their jobs and the autoscaler's decision.

The numbers of Pods are those that the reconciler wrote into the status of the RunnerPool object. The commands read them
from Postgres, so they also work while the cluster does not answer. `pool_changes` has the commands that change a pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import remote
from cli.output import Json, Limit, age, fail, given_id, print_json, query
from cli.tables import Column, Form, Kind, Wide, listed, print_note, print_table, print_text, printed
from cli.timeline import print_checks, print_summary
from ostler.clock import utcnow
from rules.pools.pod_states import COUNTED_WITHIN

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

    from models.browse.health import Obstacle


_OTHERS = ("ending", "retiring", "unresponsive", "spent", "lost")
"""States of Pods that have no column of their own in the list."""

Seen = dict[str, Any]
"""A pool as `--json` prints it."""

app = typer.Typer(no_args_is_help=True, help="Show, convert, scale, pause, drain and detach pools.")


@app.command("list")
@listed
def list_(
    form: Form,
    why: Annotated[bool, typer.Option("--why", help="show the last decision of the autoscaler for each pool")] = False,
    versions: Annotated[
        bool,
        typer.Option(
            "--versions",
            help="show the image and the runner version of each pool, when GitHub refuses it, and the Pods of an older "
            "template",
        ),
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="also show pools whose RunnerPool was deleted")] = False,
    limit: Limit = 50,
) -> None:
    """List pools with the numbers of their Pods and jobs."""
    from models.browse.pools import PoolFilter, list_pools, pool_stories, told

    if versions:
        if why or everything:
            raise typer.BadParameter("--versions cannot be used with --why or --all")
        _print_versions(form)
        return
    now = utcnow()

    def body(db: Connection) -> tuple[list[Seen], Obstacle | None]:
        page = list_pools(db, PoolFilter(deleted=None if everything else False), limit=limit)
        return [told(story, now=now) for story in pool_stories(db, page.rows, now=now)], _obstacle(db, now=now)

    found, obstacle = query(body)
    general = "" if obstacle is None else str(obstacle)
    if printed(form, found, names=(each["name"] for each in found)):
        return
    if why:
        _print_decisions(found, wide=form is Form.WIDE)
        return
    if general:
        print_note(general)
    wrong = ["" if each["trouble"] == general else each["trouble"] for each in found]  # `general` is above the table
    oldest = COUNTED_WITHIN.total_seconds()
    if old := [each["name"] for each in found if each["status"] and each["status"]["age_seconds"] > oldest]:
        print_note(
            f"no reconcile has confirmed the status of {', '.join(old)} for {oldest:.0f} seconds "
            "or more: check that a worker serves the queue `pools`, and that the API server answers (`ostler doctor`)"
        )
    print_table(
        (
            Column("id", drop=11),
            Column("pool", Kind.NAME),
            Column("labels", Kind.TEXT, drop=12),
            Column("scaling", Kind.TEXT, drop=13),
            "replicas",
            Column("pods", drop=9),
            Column("starting", drop=4),
            "warm",
            Column("reserved", drop=8),
            "busy",
            Column("other", Kind.TEXT, drop=5),
            "queued",
            Column("held", drop=7),
            Column("oldest", drop=6),
            "state",
            Column("status age", drop=10),
            Column("what is wrong", Kind.TEXT, drop=None if any(wrong) else 14),
        ),
        (
            (
                each["id"],
                each["name"],
                ",".join(each["labels"]),
                _scaling(each),
                each["replicas"],
                *(_number(each, name) for name in ("replicas", "starting", "warm", "reserved", "busy")),
                _numbers(each, _OTHERS),
                each["counts"]["queued"],
                each["counts"]["held"],
                age(each["counts"]["oldest_queued_at"], now=now),
                each["state"],
                _status_age(each, now=now),
                trouble,
            )
            for each, trouble in zip(found, wrong, strict=True)
        ),
        empty="no pools",
        wide=form is Form.WIDE,
    )


@app.command("show")
def show(
    pool: Annotated[str, typer.Argument(metavar="NAME|ID", help="name or id of the pool")],
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Show one pool: what is in its way, its Pods, its jobs and its conditions.

    With OSTLER_API_URL, the command asks the REST API instead of Postgres.
    """
    api, now = remote.chosen(), utcnow()

    def body(db: Connection) -> Seen | None:
        from models.browse.diagnoses import told_pool

        number = pool_id(db, pool)
        return None if number is None else told_pool(db, number, now=now)

    found = query(body) if api is None else api.get(f"pools/{api.id_of('pools', 'name', pool, deleted=False)}")
    if found is None:
        fail(f"there is no pool {pool!r}; `ostler pool list --all` lists the pools")
    if as_json:
        print_json(found)
        return
    print_text(f"{found['name']} (id {found['id']}) in namespace {found['namespace']}: {found['state']}")
    if asked := found["pause_request"]:
        wish = "pause" if asked["paused"] else "resume"
        print_text(f"{asked['by']} asked {age(asked['at'], now=now)} ago to {wish} it; no worker has done it yet")
    print_summary(found["why"])
    print_text(f"Replicas: {found['replicas']}, {_scaling(found)}")
    print_text(f"Size: {found['vcpu']:g} vCPU, {found['memory_gib']:g} GiB")
    print_text(f"Image: {found['image']}")
    print_text(f"Labels: {', '.join(found['labels'])}")
    typer.echo()
    print_checks(found["why"]["checks"], wide=wide)
    typer.echo()
    print_table(
        ("condition", "status", "reason", "since", Column("message", Kind.TEXT)),
        (
            # The API names the time `since`, and the rows have the name of the RunnerPool object.
            (
                each["type"],
                each["status"],
                each["reason"],
                each.get("since", each.get("lastTransitionTime")),
                each["message"],
            )
            for each in found["conditions"]
        ),
        empty="no conditions",
        wide=wide,
    )


def _obstacle(db: Connection, *, now: datetime) -> Obstacle | None:
    from models.browse.health import obstacles

    return next((each for each in obstacles(db, now=now) if each.state), None)


def _number(pool: Seen, name: str) -> int | None:
    """Return a number of the pool's status, or None if no status is stored."""
    return None if pool["status"] is None else pool["status"][name]


def _numbers(pool: Seen, names: Sequence[str]) -> str:
    """Return those of the named numbers that are not 0."""
    return ", ".join(f"{number} {name}" for name in names if (number := _number(pool, name)))


def _status_age(pool: Seen, *, now: datetime) -> str | None:
    return None if pool["status"] is None else age(pool["status"]["at"], now=now)


def _scaling(pool: Seen) -> str:
    return f"+{pool['min_warm']} warm, at most {pool['max_replicas']}" if pool["autoscaled"] else "by hand"


def _print_decisions(pools: Sequence[Seen], *, wide: bool) -> None:
    now = utcnow()
    print_table(
        (
            Column("pool", Kind.NAME),
            "replicas",
            "decision",
            Column("why", Kind.TEXT),
            Column("scaled up", drop=1),
            Column("scaled down", drop=2),
        ),
        (
            (
                each["name"],
                each["replicas"],
                *_decision(each),
                age(each["scaled_up_at"], now=now),
                age(each["scaled_down_at"], now=now),
            )
            for each in pools
        ),
        empty="no pools",
        wide=wide,
    )


def _print_versions(form: Form) -> None:
    from models.browse.versions import pool_versions

    found = query(pool_versions)
    if printed(form, list(found), names=(each.name for each in found)):
        return
    print_table(
        (
            Column("pool", Kind.NAME),
            Column("image", Kind.TEXT),
            "runner",
            "refused from",
            "old Pods",
            Column("with a job", drop=2),
            Column("idle", drop=1),
            Column("warning", Kind.TEXT, drop=None if any(each.warning for each in found) else 3),
        ),
        (
            (
                each.name,
                each.image,
                each.runner,
                None if each.ends_at is None else f"{each.ends_at:%Y-%m-%d}",
                each.old_pods,
                each.with_job,
                each.replaced,
                each.warning,
            )
            for each in found
        ),
        empty="no pools",
        wide=form is Form.WIDE,
    )


def _decision(pool: Seen) -> tuple[str, str]:
    """Return the verdict and the reason of the autoscaler's last decision."""
    if not pool["autoscaled"]:
        return "", "autoscaling.enabled is false: `ostler pool scale` sets the replicas"
    if not pool["scaling"]:
        return "", "the autoscaler has not checked it yet"
    return pool["scaling"]["verdict"], pool["scaling"]["why"]


def pool_id(db: Connection, given: str | None) -> int | None:
    """Return the id of the pool with the name or id `given`, or None if `given` is None.

    Ends the command with a message if no pool or several pools have the name.
    """
    from models.browse.pools import pool_names

    if given is None or (number := given_id(given)) is not None:
        return None if given is None else number
    found = pool_names(db, given)
    if not found:
        fail(f"there is no pool {given!r}; `ostler pool list` lists the pools")
    if len(found) > 1:
        fail(f"pool {given!r} is in several namespaces; give one of the ids {', '.join(map(str, found))}")
    return found[0]
