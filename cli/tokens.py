"""`ostler token create`, `list` and `revoke`: tokens of the REST API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from cli.output import BIGGEST_ID, Json, age, author, fail, print_json, query
from cli.tables import Column, Form, Kind, listed, print_table, printed
from ostler.clock import utcnow
from rules.token_scopes import TokenScope

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from models.api_tokens import ListedToken

LONGEST_NAME = 100
LONGEST_DAYS = 3650
DAYS = 90
"""Default lifetime of a token in days, so that a forgotten token does not stay valid."""

LINK_LASTS = timedelta(minutes=5)

app = typer.Typer(no_args_is_help=True, help="Create, list, link and revoke tokens of the REST API.")


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="owner or purpose of the token; shown in lists and logs")],
    scope: Annotated[
        list[TokenScope] | None, typer.Option(help="`read` (the default) or `write`; can be given twice")
    ] = None,
    account: Annotated[
        list[str] | None,
        typer.Option(metavar="LOGIN", help="limit the token to this account; can be given more than once"),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=LONGEST_DAYS, help="days until the token expires")] = DAYS,
    forever: Annotated[bool, typer.Option("--forever", help="the token never expires")] = False,
    as_json: Json = False,
) -> None:
    """Create a token and print it. It cannot be shown again, because only its digest is stored."""
    from models import api_tokens

    _check_name(name)
    by = author()
    scopes = set(scope or [TokenScope.READ])
    if account and scopes != {TokenScope.READ}:
        raise typer.BadParameter(
            "a token with --account can only read, because each write concerns the whole fleet; omit --account",
            param_hint="--scope",
        )
    accounts = _ids_of(account) if account else None
    expires_at = None if forever else by.at + timedelta(days=days)
    token_id, token = query(
        lambda db: api_tokens.create(db, name=name, scopes=scopes, expires_at=expires_at, by=by, accounts=accounts)
    )
    _warn_of_same(name, [row for row in query(api_tokens.list_tokens) if row.id != token_id])
    if as_json:
        print_json(
            {
                "id": token_id,
                "name": name,
                "scopes": sorted(scopes),
                "accounts": sorted(account or []),
                "expires_at": expires_at,
                "token": token.reveal(),
            }
        )
        return
    typer.echo(token.reveal())
    typer.echo(
        f"token {token_id}, {' and '.join(sorted(scopes))}{_of(account)}, {_until(expires_at)}; it is not shown again",
        err=True,
    )


def _check_name(name: str) -> None:
    if re.fullmatch(rf"[\x20-\x7e]{{1,{LONGEST_NAME}}}", name) is None or not name.strip():
        raise typer.BadParameter(f"a name has 1 to {LONGEST_NAME} printable ASCII characters", param_hint="NAME")


def _warn_of_same(name: str, others: Sequence[ListedToken]) -> None:
    if same := ", ".join(str(row.id) for row in others if row.name == name and row.revoked_at is None):
        typer.echo(f"warning: token {same} has the same name; `ostler token revoke` revokes it", err=True)


@app.command("list")
@listed
def list_(form: Form) -> None:
    """List tokens, including expired and revoked ones."""
    from models import api_tokens

    rows = query(api_tokens.list_tokens)
    if printed(form, list(rows), names=(row.id for row in rows)):
        return
    now = utcnow()
    print_table(
        (
            "id",
            Column("name", Kind.NAME),
            "scopes",
            Column("accounts", Kind.NAME),
            Column("made", drop=2),
            Column("last used", drop=1),
            "state",
        ),
        (
            (
                row.id,
                row.name,
                ",".join(row.scopes),
                ",".join(row.accounts) or "all",
                age(row.created_at, now=now),
                age(row.last_used_at, now=now),
                _state(row.revoked_at, row.expires_at, now=now),
            )
            for row in rows
        ),
        empty="no tokens; `ostler token create NAME` creates one",
        wide=form is Form.WIDE,
    )


@app.command("link")
def link(
    token_id: Annotated[int, typer.Argument(min=1, max=BIGGEST_ID, metavar="ID")],
    url: Annotated[str, typer.Option(help="address of the dashboard in a browser")] = "http://localhost:8080",
) -> None:
    """Print a link that logs in to the dashboard with a token, once, within 5 minutes.

    The link does not show the token. An earlier link of the token ends.
    """
    from models import api_tokens

    now = utcnow()
    code = query(lambda db: api_tokens.make_link(db, token_id, until=now + LINK_LASTS, now=now))
    if code is None:
        fail(f"no valid token has the id {token_id}; `ostler token list` lists the tokens")
    typer.echo(f"{url.rstrip('/')}/ui/login?link={code.reveal()}")


@app.command("revoke")
def revoke(
    token_id: Annotated[int, typer.Argument(min=1, max=BIGGEST_ID, metavar="ID")], as_json: Json = False
) -> None:
    """Revoke a token. The REST API then refuses the token at once."""
    from models import api_tokens

    by = author()

    def body(db: Connection) -> ListedToken | None:
        if not api_tokens.revoke(db, token_id, by=by):
            return None
        return next(row for row in api_tokens.list_tokens(db) if row.id == token_id)

    revoked = query(body)
    if revoked is None:
        fail(f"there is no token {token_id}; `ostler token list` lists the tokens")
    if as_json:
        print_json(revoked)
        return
    typer.echo(f"token {token_id} is revoked")


def _ids_of(given: Sequence[str]) -> list[int]:
    """Return the ids of accounts, given by login or id. Ends the command with a message if a login is unknown."""
    from cli.accounts import account_id

    return query(lambda db: [found for each in given if (found := account_id(db, each)) is not None])


def _of(logins: Sequence[str] | None) -> str:
    return f" of {', '.join(sorted(logins))}" if logins else ""


def _state(revoked_at: datetime | None, expires_at: datetime | None, *, now: datetime) -> str:
    if revoked_at is not None:
        return "revoked"
    return "expired" if expires_at is not None and expires_at <= now else _until(expires_at)


def _until(expires_at: datetime | None) -> str:
    return "no expiry" if expires_at is None else f"until {expires_at:%Y-%m-%d %H:%M} UTC"
