"""`ostler doctor`: check the installation, and print cause and cure of each problem.

Exit status 1: a check failed, or no check had a result. With `--strict`, also if a check has another outcome than ok.

A check is a function in the module of its family that takes a `Context` and returns a `Verdict`. `checks.py` lists all
checks. They run concurrently, each with a deadline. A check that cannot run has the outcome `unknown` and does not
affect the others.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli.output import Json, print_json
from cli.tables import Column, Kind, Wide, plain, print_table, wrap
from ostler.errors import ConfigurationError

if TYPE_CHECKING:
    from cli.doctor.findings import Finding

FAMILIES = ("postgres", "settings", "redis", "cluster", "github", "fleet")

_MARGIN = 9
"""Width of the column with the outcome."""

Only = Annotated[str | None, typer.Option(help=f"families of checks to run, comma-separated: {', '.join(FAMILIES)}")]
Strict = Annotated[bool, typer.Option("--strict", help="exit status 1 if a check has another outcome than ok")]


def doctor(as_json: Json = False, wide: Wide = False, only: Only = None, strict: Strict = False) -> None:
    """Check the installation and the running fleet, and print cause and cure of each problem.

    Run it with the settings of a worker. `--wide` shows every check. Exit status 1: a check failed, or no check had a
    result; with --strict, also a warning or an unknown result.
    """
    from cli.doctor.checks import CHECKS
    from cli.doctor.context import Context
    from cli.doctor.runner import is_bad, run

    wanted = FAMILIES if only is None else tuple(part.strip() for part in only.split(",") if part.strip())
    if strange := [family for family in wanted if family not in FAMILIES]:
        raise ConfigurationError(f"--only: found {strange[0]!r}; must be one of {', '.join(FAMILIES)}")
    findings = run([check for check in CHECKS if check.family in wanted], Context())
    if as_json:
        print_json(findings)
    elif not wide:
        _print_problems(findings)
    else:
        print_table(
            ("check", "", Column("cause", Kind.TEXT), Column("cure", Kind.TEXT)),
            ((each.name, each.outcome, each.cause, each.cure) for each in findings),
            empty="no checks",
            wide=True,
        )
    if is_bad(findings, strict=strict):
        raise typer.Exit(1)


def _print_problems(findings: Sequence[Finding]) -> None:
    """Print each problem with its cause and its cure, the worst first. Then print the healthy checks and the counts."""
    from cli.doctor.findings import Outcome

    for outcome in (Outcome.FAILED, Outcome.WARNING, Outcome.UNKNOWN):
        for each in (found for found in findings if found.outcome is outcome):
            _print_beside(outcome, f"{each.name}: {each.cause}")
            _print_beside("", "" if each.cure is None else f"→ {each.cure}")
    _print_beside(Outcome.OK, ", ".join(each.name for each in findings if each.outcome is Outcome.OK))
    counts = Counter(each.outcome for each in findings)
    typer.echo(", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome) + "; --wide shows each check")


def _print_beside(title: str, text: str) -> None:
    """Print a text, unless it is empty, beside a title in the margin of its first line."""
    lines = wrap(plain(text), shutil.get_terminal_size().columns - _MARGIN) if text else ()
    for number, words in enumerate(lines):
        typer.echo(f"{title if number == 0 else '':<{_MARGIN}}{words}")
