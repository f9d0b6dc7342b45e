"""Addresses and credentials of a running demo, and a shell environment for the operator's commands."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from sqlalchemy import Engine

from lab.node.namespace import first_process, is_isolated
from lab.system import System
from models.browse import api_tokens
from models.db.engine import transaction
from ostler.clock import utcnow
from rules.token_scopes import TokenScope


def show_where(system: System, engine: Engine, console: Console) -> None:
    """Print the addresses that can be opened while the demo runs. All of them end with the demo."""
    _, token = transaction(
        engine, lambda db: api_tokens.create(db, name="demo", scopes=list(TokenScope), expires_at=None, now=utcnow())
    )
    user, password = system.flower_login
    for what, *lines in (
        ("API", f"{system.web_url}/api/docs", f"token {token.reveal()}"),
        ("Flower", system.flower_url, f"user {user}, password {password}"),
        ("health", f"{system.private_url}/readyz", f"{system.private_url}/metrics"),
        ("GitHub", f"{system.github_url}/_lab/stats   (the lab's own)"),
        ("shell", *_shell(system)),
    ):
        for title, line in zip([what, *[""] * len(lines)], lines, strict=False):
            console.print(f"         [bold]{title:7}[/bold] {escape(line)}", highlight=False, soft_wrap=True)


def _shell(system: System) -> list[str]:
    """Return how a shell gets to the operator's commands; a real node's run has a network of its own."""
    commands = f". {write_shell(system)}; {_program()} jobs"
    if not is_isolated():
        return [commands]
    return [
        f"sudo nsenter -t {first_process()} -m -n -p   (enters the node's machine; the addresses above work there)",
        commands,
    ]


def write_shell(system: System) -> Path:
    """Write the environment of the operator's commands to a file that a shell can source. Return its path."""
    path = system.folder / "env"
    path.touch(mode=0o600)
    settings = system.operator_settings().items()
    path.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings))
    return path


def _program() -> str:
    """Return the path of the `ostler` command as a person types it in this folder."""
    program = Path(sys.executable).with_name("ostler")
    here = Path.cwd()
    return shlex.quote(str(program.relative_to(here) if program.is_relative_to(here) else program))
