"""`ostler top`: live screen of the whole fleet in the terminal."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from cli.output import Json, print_json, query, speaking_to_postgres
from cli.screen import Fleet, Sort, no_answer, read, render, render_job, waiting_job
from cli.stats import shown
from cli.tables import plain
from ostler import settings
from ostler.clock import utcnow
from ostler.errors import StoreUnreachable

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from models.browse.fleet import AccountLine
    from ostler.secrets import Secret

MOST_JOBS = 200
"""Number of queued jobs that the key `j` opens, one after the other."""

_CTRL_C = b"\x03"
_LOCAL_FLAGS = 3
"""Index of the local flags in the result of `termios.tcgetattr`."""


def top(
    once: Annotated[bool, typer.Option("--once", help="print the screen once, also on a terminal")] = False,
    every: Annotated[
        float, typer.Option(min=0.5, max=60, metavar="SECONDS", help="seconds between two updates of the screen")
    ] = 2,
    as_json: Json = False,
) -> None:
    """Show the fleet live: pools, accounts, claims and repairs.

    The keys are s (next order of the rows), j (explain the queued job that came first, then the next one), f (back to
    the fleet) and q (quit).

    For a pool, `oldest` is the age of the oldest queued job without a hold whose account has budget for one more Pod of
    the pool. Waits are those of the last hour. If the output is not a terminal, the screen is printed once.
    """
    console = Console(highlight=False)
    if as_json:
        print_json(_plain(query(lambda db: read(db, now=utcnow()))))
    elif once or not (sys.stdout.isatty() and console.is_interactive):
        fleet = query(lambda db: read(db, now=utcnow()))
        console.print(Group(*render(fleet, width=console.width)))
    else:
        _show_live(console, every=every)


def _show_live(console: Console, *, every: float) -> None:
    from models.db.engine import make_engine

    url = settings.load_stores().database_url
    engine = make_engine(url, pool_size=1, application="ostler-cli")
    orders, order, opened = list(Sort), 0, 0
    try:
        with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
            keys = b""
            while b"q" not in keys:
                if _CTRL_C in keys:
                    raise KeyboardInterrupt
                order = (order + keys.count(b"s")) % len(orders)
                opened = 0 if b"f" in keys else min(opened + keys.count(b"j"), MOST_JOBS)
                live.update(_picture(engine, url, console, orders[order], opened=opened), refresh=True)
                keys = pressed(every)
    finally:
        engine.dispose()


def _picture(engine: Engine, url: Secret, console: Console, sort: Sort, *, opened: int) -> RenderableType:
    """Return the screen, or a line if Postgres does not answer. Raises `ConfigurationError` if it refuses the login.

    `opened` is the place of the job on the screen, the first one is 1. It is 0 for the fleet.
    """
    from sqlalchemy.exc import SQLAlchemyError

    now = utcnow()
    try:
        with speaking_to_postgres(url), engine.connect() as db:
            if opened:
                story = waiting_job(db, opened - 1, timings=settings.read(settings.Timed).timings, now=now)
                hint = f"queued job {opened}   j: next job   f: fleet   q: quit"
                return Group(*render_job(story, width=console.width, now=now, hint=hint))
            fleet = read(db, now=now)
    except (StoreUnreachable, SQLAlchemyError) as error:
        problem = str(error) if isinstance(error, StoreUnreachable) else no_answer(error)
        return Group(Text(f"{utcnow():%H:%M:%S} UTC   q: quit", "bold"), Text(plain(problem), "red"))
    hint = f"ordered by {sort}   s: next order   j: jobs   q: quit"
    return Group(*render(fleet, width=console.width, height=console.height, sort=sort, hint=hint))


@contextmanager
def _keys() -> Iterator[Callable[[float], bytes]]:
    """Yield a function that waits for keys for up to the given number of seconds, and returns them.

    If the terminal is gone, the function returns `q`. If stdin is no terminal, the function only waits.
    """
    if not sys.stdin.isatty():
        yield _only_wait
        return
    import termios
    import tty

    stdin = sys.stdin.fileno()

    def pressed(seconds: float) -> bytes:
        ready, _, _ = select.select([stdin], [], [], seconds)
        return (os.read(stdin, 64) or b"q") if ready else b""

    before = termios.tcgetattr(stdin)
    try:
        tty.setcbreak(stdin)
        mode = termios.tcgetattr(stdin)
        # Ctrl-C is a key here. As a signal it was without effect in about one run of fifteen, and the cause is unknown.
        mode[_LOCAL_FLAGS] &= ~termios.ISIG
        termios.tcsetattr(stdin, termios.TCSADRAIN, mode)
        yield pressed
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _only_wait(seconds: float) -> bytes:
    time.sleep(seconds)
    return b""


def _plain(fleet: Fleet) -> dict[str, Any]:
    """Return the fleet as `--json` prints it."""
    return {
        "at": fleet.now,
        "problems": list(fleet.problems),
        "pools": fleet.pools,
        "accounts": [_account(each, fleet) for each in fleet.accounts],
        "claims": [{"purpose": row.purpose, "state": row.state, "count": row.claims} for row in fleet.claims],
        "repairs_of_last_hour": [
            {"sweep": row.sweep, "outcome": row.outcome, "count": row.repairs} for row in fleet.repairs
        ],
    }


def _account(line: AccountLine, fleet: Fleet) -> dict[str, Any]:
    from models.browse.accounts import amount

    waits = fleet.waits.get(line.login)
    return {
        "id": line.id,
        "login": line.login,
        "access": line.access,
        "weight": line.weight,
        "budget": amount(line.budget_count, line.budget_vcpu, line.budget_memory),
        "usage": amount(line.used_count, line.used_vcpu, line.used_memory),
        "queued": line.queued,
        "held": line.held,
        "running": line.running,
        "oldest_queued_at": line.oldest_queued_at,
        "waits_of_last_hour": None if waits is None else shown(waits),
    }
