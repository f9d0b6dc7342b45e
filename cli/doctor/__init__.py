"""`ostler doctor`: check the installation, and print cause and cure of each problem.

Exit status 1: a check failed, or no check had a result. With `--strict`, also if a check has another outcome than ok.

A check is a function in the module of its family that takes a `Context` and returns a `Verdict`. `checks.py` lists all
checks. They run concurrently, each with a deadline. A check that cannot run has the outcome `unknown` and does not
affect the others.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cli.output import Json, print_json
from cli.tables import Column, Kind, Wide, print_table
from ostler.errors import ConfigurationError

FAMILIES = ("postgres", "settings", "redis", "cluster", "github", "fleet")

Only = Annotated[str | None, typer.Option(help=f"families of checks to run, comma-separated: {', '.join(FAMILIES)}")]
Strict = Annotated[bool, typer.Option("--strict", help="exit status 1 for warnings too, not only for failures")]


def doctor(as_json: Json = False, wide: Wide = False, only: Only = None, strict: Strict = False) -> None:
    """Check the installation, and print cause and cure of each problem. Run it with the settings of a worker."""
    from cli.doctor.checks import CHECKS
    from cli.doctor.context import Context
    from cli.doctor.runner import is_bad, run

    wanted = FAMILIES if only is None else tuple(part.strip() for part in only.split(",") if part.strip())
    if strange := [family for family in wanted if family not in FAMILIES]:
        raise ConfigurationError(f"--only: found {strange[0]!r}; must be one of {', '.join(FAMILIES)}")
    findings = run([check for check in CHECKS if check.family in wanted], Context())
    if as_json:
        print_json([asdict(each) for each in findings])
    else:
        print_table(
            ("check", "", Column("cause", Kind.TEXT), Column("cure", Kind.TEXT)),
            ((each.name, each.outcome, each.cause, each.cure) for each in findings),
            empty="no checks",
            wide=wide,
        )
    if is_bad(findings, strict=strict):
        raise typer.Exit(1)
