"""`ostler account list`, `show`, `set`, `allow` and `hold`: budgets, weights and access of accounts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli import remote
from cli.output import Json, Limit, age, author, fail, given_id, print_json, print_more, query
from cli.stats import print_waits, shown
from cli.tables import Column, Form, Kind, Wide, listed, print_table, print_text, printed
from cli.timeline import print_checks, print_summary
from ostler.clock import utcnow
from ostler.reasons import endpoint, reason_of
from ostler.settings import Timed, load_stores, read
from rules.claims.fairness import Budget
from rules.routing.access import Access

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from models.browse.accounts import AccountStory
    from models.browse.waits import Waits

MOST_COUNT = 1_000_000
MOST_VCPU = 10_000_000
MOST_MEMORY_GIB = 100_000_000
MOST_WEIGHT = 1000
LEAST_WEIGHT = 0.001

app = typer.Typer(no_args_is_help=True, help="Show and change budgets, weights and access of accounts.")


@app.command("list")
@listed
def list_(
    form: Form,
    login: Annotated[str | None, typer.Option(help="show only the account with this login")] = None,
    limit: Limit = 50,
) -> None:
    """List accounts: who holds Pods, who waits, and what for.

    The column Pods has the used part of the budget. Queued jobs without a hold, and the age of the oldest of them, show
    who waits. The last column says who holds an account, or what its oldest job waits for and which account holds the
    Pods, for the 20 accounts that wait longest. `ostler account show LOGIN` says more about one account.
    """
    from models.browse.accounts import AccountFilter, Accounts, list_accounts, told
    from models.browse.diagnoses import waits_for

    now = utcnow()

    def body(db: Connection) -> tuple[Accounts, Mapping[int, str]]:
        page = list_accounts(db, AccountFilter(login=login), limit=limit)
        if form is Form.NAME:
            return page, {}
        return page, waits_for(db, (each.waiting for each in page.stories), timings=read(Timed).timings, now=now)

    found, reasons = query(body)
    rows = [told(story) | {"waits_for": reasons.get(story.account.id)} for story in found.stories]
    if printed(form, rows, names=(row["id"] for row in rows)):
        return
    print_table(
        (
            "id",
            Column("login", Kind.NAME),
            "access",
            Column("weight", drop=1),
            "Pods",
            Column("ending", drop=2),
            Column("vCPU", drop=4),
            Column("GiB", drop=3),
            "queued",
            "held",
            "oldest",
            Column("waits for", Kind.TEXT, drop=None if reasons else 5),
        ),
        (
            (
                row["id"],
                row["login"],
                row["access"],
                f"{row['weight']:g}",
                *(f"{row['usage'][name]:g}/{row['budget'][name]:g}" for name in ("count",)),
                row["ending_pods"],
                *(f"{row['usage'][name]:g}/{row['budget'][name]:g}" for name in ("vcpu", "memory_gib")),
                row["jobs"]["queued"],
                row["jobs"]["held"],
                age(row["jobs"]["oldest_queued_at"], now=now),
                row["waits_for"],
            )
            for row in rows
        ),
        empty="no accounts",
        wide=form is Form.WIDE,
    )
    print_more(len(rows), more=found.next_id is not None)


@app.command("show")
def show(
    account: Annotated[str, typer.Argument(metavar="LOGIN|ID", help="login or id")],
    as_json: Json = False,
    wide: Wide = False,
) -> None:
    """Show one account: what its jobs wait for, and their waits in the last day.

    With OSTLER_API_URL, the command asks the REST API, which does not have the waits.
    """
    api, now = remote.chosen(), utcnow()

    def body(db: Connection) -> tuple[dict[str, Any] | None, Sequence[Waits]]:
        from models.browse.diagnoses import told_account
        from models.browse.waits import By, waits

        number = account_id(db, account)
        row = None if number is None else told_account(db, number, timings=read(Timed).timings, now=now)
        if row is None:
            return None, ()
        only, since = frozenset({row["id"]}), now - timedelta(days=1)
        return row, waits(db, since=since, until=now, by=By.REPOSITORY, now=now, accounts=only)

    day: Sequence[Waits] | None = None
    if api is None:
        row, day = query(body)
    else:
        row = api.get(f"accounts/{api.id_of('accounts', 'login', account)}")
    if row is None:
        fail(f"there is no account {account!r}; `ostler account list` lists the accounts")
    if as_json:
        print_json(row if day is None else {**row, "waits_of_last_day": [shown(each) for each in day]})
        return
    print_text(f"{row['login']} (id {row['id']}): {row['access']}, weight {row['weight']:g}")
    print_summary(row["why"])
    typer.echo()
    print_checks(row["why"]["checks"], wide=wide)
    if day is not None:
        typer.echo()
        print_waits("repository", day, empty="no job of the account began in the last day")


@app.command("set")
def set_(
    account: Annotated[str, typer.Argument(help="login or id")],
    count: Annotated[
        int | None,
        typer.Option("--count", "--jobs", min=0, max=MOST_COUNT, help="maximum number of Pods in use at once"),
    ] = None,
    vcpu: Annotated[
        float | None, typer.Option(min=0, max=MOST_VCPU, help="maximum number of vCPU in use at once")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(min=0, max=MOST_MEMORY_GIB, help="maximum memory in use at once, in GiB")
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(
            min=LEAST_WEIGHT, max=MOST_WEIGHT, help="share relative to other accounts; a larger weight gets more"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Change the budget or the weight of an account. Omitted values do not change.

    A lower budget does not end running jobs.
    """
    from models.browse.accounts import account_story, told
    from models.routing.accounts import set_budget, set_weight
    from models.routing.usage import pools_with_work

    if (count, vcpu, memory, weight) == (None, None, None, None):
        raise typer.BadParameter("give at least one of --count, --vcpu, --memory and --weight")
    if any(value is not None and not math.isfinite(value) for value in (vcpu, memory, weight)):
        raise typer.BadParameter("--vcpu, --memory and --weight must be finite numbers")
    by = author()

    def body(db: Connection) -> tuple[AccountStory | None, AccountStory | None, list[int]]:
        found = account_id(db, account)
        now = None if found is None else account_story(db, found, lock=True)
        if found is None or now is None:
            return None, None, []
        row = now.account
        set_budget(
            db,
            found,
            Budget(
                count=row.budget_count if count is None else count,
                vcpu_millicores=row.budget_vcpu if vcpu is None else round(vcpu * 1000),
                memory_mib=row.budget_memory if memory is None else round(memory * 1024),
            ),
            by=by,
        )
        if weight is not None:
            set_weight(db, found, weight, by=by)
        return now, account_story(db, found), pools_with_work(db, [found])

    before, story, pools = query(body)
    if before is None or story is None:
        fail(f"there is no account {account!r}; `ostler account list` lists the accounts")
    wake(pools)
    row = story.account
    if as_json:
        print_json(told(story))
        return
    values = (
        _changed(old / size, new / size, unit)
        for old, new, size, unit in (
            (before.account.budget_count, row.budget_count, 1, "{} Pods"),
            (before.account.budget_vcpu, row.budget_vcpu, 1000, "{} vCPU"),
            (before.account.budget_memory, row.budget_memory, 1024, "{} GiB"),
            (before.account.weight, row.weight, 1, "weight {}"),
        )
    )
    typer.echo(f"{row.login}: {', '.join(values)}")


def _changed(old: float, new: float, unit: str) -> str:
    """Return a value with its unit, and the old value if it has changed."""
    return unit.format(f"{new:g}" if old == new else f"{old:g} → {new:g}")


Account = Annotated[str, typer.Argument(help="login or id")]


@app.command("allow")
def allow(account: Account, as_json: Json = False) -> None:
    """Allow an account. Its jobs with the hold `unknown_account` continue at once, within its budget."""
    story = _set_access(account, Access.ALLOWED)
    if as_json:
        print_json(_told(story))
        return
    row = story.account
    typer.echo(
        f"{row.login} ({row.id}) is allowed: at most {row.budget_count} Pods, {row.budget_vcpu / 1000:g} vCPU, "
        f"{row.budget_memory / 1024:g} GiB; `ostler account set {row.login}` changes that"
    )


@app.command("hold")
def hold(account: Account, as_json: Json = False) -> None:
    """Hold an account. It gets no further Pods, and its queued jobs wait. Running jobs go on.

    Persistent runners are not affected, because GitHub gives jobs to them. `ostler account allow` ends the hold.
    """
    story = _set_access(account, Access.HELD)
    if as_json:
        print_json(_told(story))
        return
    typer.echo(
        f"{story.account.login} ({story.account.id}) is held: {story.usage.count} of its Pods are in use, and "
        f"{story.jobs.queued + story.jobs.held} of its jobs are queued"
    )


def _set_access(account: str, access: Access) -> AccountStory:
    """Allow or hold an account, wake the sweep `rematch`, and return the account."""
    from models.browse.accounts import account_story
    from models.routing.accounts import set_access

    by = author()

    def body(db: Connection) -> AccountStory | None:
        found = account_id(db, account)
        if found is None or not set_access(db, found, access, by=by):
            return None
        return account_story(db, found)

    story = query(body)
    if story is None:
        fail(
            f"there is no account {account!r}; an account exists after its first webhook, and `ostler account "
            "list` lists all accounts"
        )
    wake([])  # held jobs are in no pool's queue, so no pool is woken; `rematch` changes the holds in pages
    return story


def _told(story: AccountStory) -> dict[str, Any]:
    from models.browse.accounts import told

    return told(story)


def wake(pools: Sequence[int], *, release: int | None = None) -> None:
    """Wake the matcher for `pools`, and wake the sweep `rematch`, so that a change takes effect at once.

    If `release` is given, the release of this claim is continued at once. Its row is committed already.

    If Redis is not configured or does not answer, the command prints a note. The sweeps then apply the change within a
    minute (law L6).
    """
    import redis
    from kombu.exceptions import KombuError, OperationalError

    from ostler.task_names import RELEASE, REMATCH
    from ostler.wakes import Waker

    redis_url = load_stores().redis_url
    if redis_url is None:
        typer.echo("OSTLER_REDIS_URL is not set, so no worker was woken: jobs get the change within a minute", err=True)
        return
    waker = Waker(redis_url)
    try:
        for pool in pools:
            waker.wake(pool)
        waker.send(REMATCH)
        if release is not None:
            waker.send(RELEASE, claim_id=release)
    except (redis.RedisError, KombuError, OperationalError, OSError) as error:
        where, why = endpoint(redis_url.reveal()), reason_of(error)
        typer.echo(
            f"Redis at {where} does not answer ({why}), so no worker was woken: jobs get the change within a minute",
            err=True,
        )
    finally:
        waker.close()


def account_id(db: Connection, given: str | None) -> int | None:
    """Return the id of the account with the login or id `given`, or None if `given` is None.

    An id is returned without a check. Ends the command with a message if no account or several accounts have the login.
    """
    from models.browse.accounts import AccountFilter, list_accounts

    if given is None or (number := given_id(given)) is not None:
        return None if given is None else number
    found = [story.account for story in list_accounts(db, AccountFilter(login=given), limit=2).stories]
    if not found:
        fail(f"there is no account {given!r}; `ostler account list` lists the accounts")
    if len(found) > 1:
        fail(
            f"several accounts have the login {given!r}; give one of the ids {', '.join(str(row.id) for row in found)}"
        )
    only: int = found[0].id
    return only
