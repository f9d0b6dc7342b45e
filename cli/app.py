"""Subcommands of `ostler`. A subcommand imports slow modules only when it runs, so that `--help` is fast."""

from __future__ import annotations

import importlib.metadata
import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cli import (
    accounts,
    alerts,
    certificates,
    changes,
    check_deploy,
    claims,
    debug,
    doctor,
    gates,
    grafana,
    hook,
    jobs,
    pods,
    pool_changes,
    pool_conversion,
    pools,
    report,
    restore,
    setup,
    stats,
    sweeps,
    tokens,
    top,
    traces,
    usage,
    verify_deploy,
)
from cli.healthy import Process, problem_of
from cli.kubeconfigs import Kubeconfig
from cli.output import speaking_to_postgres
from ostler import clock
from ostler.settings import Logs, Settings, expected, load, load_stores, unread_variables
from ostler.variables import CLOCK_OFFSET


class Commands(TyperGroup):
    """The subcommands, with the project's own words for a wrong value of an option or an argument."""

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand. The library reports a wrong value with the message of pydantic, which is replaced."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            problems = getattr(error.__cause__, "errors", None)
            if problems is not None:
                problem = problems()[0]
                error.message = f"found {problem['input']!r}; {expected(problem)}"
            raise


app = typer.Typer(
    name="ostler",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


PROCESSES = frozenset({"web", "worker", "beat", "watch", "flower"})


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"ostler {importlib.metadata.version('ostler')}")
        raise typer.Exit


@app.callback()
def _read_variables_of_no_setting(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version of Ostler"),
    ] = False,
) -> None:
    """Run warm CI runner Pods. Each queued GitHub Actions job runs in exactly one, by default in a fresh one."""
    offset = clock.offset_of(os.environ)
    if offset:
        clock.move(offset)
    if context.invoked_subcommand in PROCESSES:  # the processes log the warnings instead
        return
    if offset:
        typer.echo(f"ostler: warning: {CLOCK_OFFSET} moves the clock by {offset:g} s; it is only for tests", err=True)
    for each in unread_variables():
        typer.echo(f"ostler: warning: {each}", err=True)


LOOK, CHANGE, INSTALL, RUN = "Look", "Change", "Install and check", "Processes"
"""Panels of the help, one for each purpose of a reader."""

app.command(rich_help_panel=LOOK)(top.top)
app.command(rich_help_panel=LOOK)(stats.stats)
app.command(rich_help_panel=LOOK)(report.report)
app.command(rich_help_panel=LOOK)(usage.usage)
app.command(rich_help_panel=LOOK)(jobs.jobs)
app.add_typer(jobs.app, name="job", rich_help_panel=LOOK)
app.command(rich_help_panel=LOOK)(pods.pods)
app.command(rich_help_panel=LOOK)(pods.pod)
app.command(rich_help_panel=LOOK)(claims.claims)
app.command(rich_help_panel=LOOK)(sweeps.repairs)
app.command(rich_help_panel=LOOK)(changes.changes)
app.command(rich_help_panel=LOOK)(gates.gates)
app.command(rich_help_panel=LOOK)(doctor.doctor)
app.add_typer(pools.app, name="pool", rich_help_panel=CHANGE)
app.add_typer(accounts.app, name="account", rich_help_panel=CHANGE)
app.add_typer(sweeps.app, name="sweep", rich_help_panel=CHANGE)
app.add_typer(tokens.app, name="token", rich_help_panel=CHANGE)
app.command(rich_help_panel=CHANGE)(restore.restore)
app.add_typer(setup.app, name="setup", rich_help_panel=INSTALL)
app.add_typer(debug.app, name="debug", rich_help_panel=LOOK)
app.command("check-deploy", rich_help_panel=INSTALL)(check_deploy.check_deploy)
app.command("verify-deploy", rich_help_panel=INSTALL)(verify_deploy.verify_deploy)
app.command("hold-connection", hidden=True)(verify_deploy.hold_connection)
app.command(rich_help_panel=INSTALL)(certificates.certificates)
app.command(rich_help_panel=INSTALL)(alerts.alerts)
app.command(rich_help_panel=INSTALL)(grafana.grafana)
app.command(rich_help_panel=INSTALL)(traces.traces)
app.add_typer(hook.app, name="hook", rich_help_panel=RUN)
pools.app.command("history")(changes.history)
pools.app.command("pause")(pool_changes.pause)
pools.app.command("resume")(pool_changes.resume)
pools.app.command("scale")(pool_changes.scale)
pools.app.command("drain")(pool_changes.drain)
pools.app.command("detach")(pool_changes.detach)
pools.app.command("convert")(pool_conversion.convert)


def _start(process: str) -> Settings:
    settings = load()
    _begin_logs(process, settings)
    return settings


def _begin_logs(process: str, settings: Logs) -> None:
    from ostler import logging

    logging.configure(process=process, level=settings.log_level, style=settings.log_style)
    if offset := clock.offset_of(os.environ):
        logging.get_logger(__name__).warning(
            "clock.moved", by_seconds=offset, remedy=f"unset {CLOCK_OFFSET}, which is only for tests"
        )
    for each in unread_variables():
        logging.get_logger(__name__).warning(
            "settings.unknown_variable_ignored", variable=each.name, similar_to=each.near
        )


@app.command(rich_help_panel=RUN)
def web() -> None:
    """Serve GitHub's webhooks, the runner Pods' polls, the REST API and the dashboard."""
    settings = _start("web")
    from web.server import run

    run(settings)


@app.command(rich_help_panel=RUN)
def worker(
    queues: Annotated[
        str, typer.Option(help="queues to serve, comma-separated: dispatch, github, pools, retire, sweeps")
    ] = "dispatch,github,pools,retire,sweeps",
) -> None:
    """Run the Celery worker: claims, stamps, mints, pools and sweeps."""
    from ostler.errors import ConfigurationError
    from ostler.task_names import QUEUES

    chosen = tuple(name.strip() for name in queues.split(",") if name.strip())
    if unknown := [name for name in chosen if name not in QUEUES]:
        raise ConfigurationError(f"--queues: found {unknown[0]!r}; must be one of {', '.join(QUEUES)}")
    settings = _start("worker")
    from tasks.worker.processes import run_worker

    run_worker(settings, queues=chosen)


@app.command(rich_help_panel=RUN)
def beat() -> None:
    """Run beat, which sends the periodic tasks.

    Start two processes: one is active, and the other is its standby.
    """
    from ostler.settings import load_beat

    settings = load_beat()
    _begin_logs("beat", settings)
    from tasks.worker.beat import run_beat

    run_beat(settings)


@app.command(rich_help_panel=RUN)
def watch() -> None:
    """Run the watch, which wakes workers when a Pod or pool changes.

    Start two processes: one is active, and the other is its standby.
    """
    from watch.settings import load_watch

    settings = load_watch()
    _begin_logs("watch", settings)
    from watch.process import run_watch

    raise typer.Exit(run_watch(settings))


@app.command(rich_help_panel=RUN)
def flower() -> None:
    """Serve Flower, a read-only live view of workers and tasks."""
    from ostler.settings import load_flower

    settings = load_flower()
    _begin_logs("flower", settings)
    from tasks.worker.flower import run_flower

    run_flower(settings)


@app.command(rich_help_panel=RUN)
def healthy(process: Annotated[Process, typer.Argument(help="process that runs in this container")]) -> None:
    """Check the health of a process in this container.

    Exit status 0: the process is healthy. 1: the process has a problem, which stderr shows.
    """
    if (problem := problem_of(process)) is not None:
        typer.echo(f"ostler: {process}: {problem}", err=True)
        raise typer.Exit(1)


@app.command(rich_help_panel=INSTALL)
def migrate(
    check_settings: Annotated[
        bool, typer.Option("--check-settings", help="first check that every setting of web and worker is valid")
    ] = False,
) -> None:
    """Upgrade the database to the schema of this version."""
    from ostler import logging

    # Without the option, only the store settings are read, because a migration gets no secret except for Postgres.
    settings = load() if check_settings else load_stores()
    logging.configure(process="migrate")
    from models.db import migrate as migrations
    from models.db.engine import assert_isolation, make_engine

    engine = make_engine(settings.database_url, pool_size=1, application="ostler-migrate")
    with speaking_to_postgres(settings.database_url):
        with engine.connect() as db:
            assert_isolation(db)
        before = migrations.current(engine)
        migrations.upgrade(engine)
        typer.echo(f"database: {before or 'empty'} → {migrations.current(engine)}")


@app.command(rich_help_panel=INSTALL)
def crd(
    show: Annotated[
        bool, typer.Option("--print", help="print the definition as YAML without changing a cluster")
    ] = False,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Install or update the RunnerPool definition in the cluster. The command reads only the kubeconfig settings."""
    from k8s_adapters.pools.crd import apply_crd, crd_text

    if show:
        typer.echo(crd_text(), nl=False)
        return
    from ostler import logging

    logging.configure(process="crd")
    from cli.cluster import calling

    with calling(
        kubeconfig,
        needs="get, create and patch on customresourcedefinitions",
        absent="the server of the kubeconfig has no CustomResourceDefinitions; is it a Kubernetes API server?",
    ) as kube:
        apply_crd(kube)
    typer.echo("runnerpools.ostler.dev is served")


@app.command("generate-key", rich_help_panel=INSTALL)
def generate_key() -> None:
    """Print a new key for OSTLER_ENCRYPTION_KEYS.

    Put the new key first, and retain the old keys while claims are live.
    """
    from cryptography.fernet import Fernet

    typer.echo(Fernet.generate_key().decode())


@app.command("redis-users", rich_help_panel=INSTALL)
def redis_users(
    database: Annotated[int, typer.Option(min=0, help="database number in OSTLER_REDIS_URL")] = 0,
) -> None:
    """Print an ACL file for Redis: one user for web and worker, and one each for beat, watch and Flower.

    Passwords are read from OSTLER_REDIS_PASSWORD, OSTLER_REDIS_PASSWORD_BEAT, OSTLER_REDIS_PASSWORD_WATCH and
    OSTLER_REDIS_PASSWORD_FLOWER. The file contains only the SHA-256 digests of the passwords. The user `default` is not
    in the file, so set its password yourself.
    """
    from ostler.redis_users import acl_file, passwords_from

    typer.echo(acl_file(passwords_from(os.environ), database=database), nl=False)


_ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command("demo", hidden=True, context_settings=_ANYTHING)
@app.command("control-plane", hidden=True, context_settings=_ANYTHING)
def moved(context: typer.Context) -> None:
    """Fail with a message that names the new command, because this command moved to `ostler-lab`."""
    from ostler.errors import ConfigurationError

    raise ConfigurationError(f"{context.info_name} is a command of the lab: run `ostler-lab {context.info_name}`")
