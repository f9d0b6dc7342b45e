"""`ostler restore`: rebuild the claims that a restored Postgres lacks, then allow claims and sweeps again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from cli.kubeconfigs import choose
from cli.tables import Column, Kind, print_table

if TYPE_CHECKING:
    from tasks.restore.restoring import PodJudgement, Report

THREADS = 2


def restore(
    dry: Annotated[bool, typer.Option("--dry-run", help="show what would be done, without changing anything")] = False,
    anyway: Annotated[
        bool,
        typer.Option(
            "--anyway", help="restore even if the epochs do not show that Postgres was restored from a backup"
        ),
    ] = False,
    emptied: Annotated[
        bool,
        typer.Option(
            "--emptied", help="restore even if a namespace has lost all its runner Pods, or if the epoch is lost"
        ),
    ] = False,
) -> None:
    """Rebuild the claims that a restored Postgres lacks, from the Pods in the cluster and the runners at GitHub.

    The command needs the settings of a worker. It can be run again at any time. Exit status 1: nothing was changed,
    or claims and sweeps are still stopped; the message says which. Exit status 3: Postgres did not answer; run the
    command again.
    """
    from ostler import logging
    from ostler.settings import load

    settings = load().model_copy(update={"worker_threads": THREADS, "kubeconfig": choose().path})
    logging.configure(process="restore", level="WARNING", style="console")
    from tasks.restore.restoring import NotCompared, NotRestored
    from tasks.restore.restoring import restore as run
    from tasks.worker.runtime import Runtime

    try:
        report = run(Runtime(settings), dry=dry, anyway=anyway, emptied=emptied, say=typer.echo)
    except NotRestored as error:
        typer.echo(
            f"ostler: the restore is not complete, and all rows that it locked stay locked: {error}. Run `ostler "
            "restore` again.",
            err=True,
        )
        raise typer.Exit(1) from None
    except NotCompared as error:
        typer.echo(
            f"ostler: nothing was changed, because the epochs could not be compared: {error}. Run "
            "`ostler restore` again. If the comparison fails again, and you know that Postgres was restored from a "
            "backup, use --anyway.",
            err=True,
        )
        raise typer.Exit(1) from None
    _print(report, dry=dry)


def _print(report: Report, *, dry: bool) -> None:
    if not report.needed:
        typer.echo(f"Nothing to restore: {report.why}.")
        return
    acts = Counter(str(judgement.verdict.act) for judgement in report.judgements)
    told = [
        judgement
        for judgement in report.judgements
        if judgement.verdict.act != "leave" or judgement.verdict.drops is not None
    ]
    print_table(
        ("pod", "would" if dry else "did", Column("why", Kind.TEXT), Column("runner", Kind.NAME, drop=1), "account"),
        (_row(judgement) for judgement in told),
        empty="no Pod has a claim that Postgres does not know",
    )
    typer.echo("Pods: " + (_counted(acts) or "none"))
    typer.echo("Jobs: " + (_counted(report.jobs) or "none open"))
    if report.unasked:
        typer.echo(f"GitHub did not answer for {', '.join(report.unasked)}: their Pods are not deleted.")
    for judgement in report.undecided:
        typer.echo(
            f"Undecided: {judgement.pod.name}: {judgement.verdict.why}. The Pod is not deleted and runs until it ends."
        )
    if report.let_go:
        typer.echo("The restore is complete: claims and sweeps continue. `ostler doctor` shows the state.")


def _row(judgement: PodJudgement) -> tuple[str, str, str, str | None, int | None]:
    verdict = judgement.verdict
    runner = None if verdict.runner is None else verdict.runner.name
    return judgement.pod.name, verdict.act, verdict.why, runner, judgement.account_id


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
