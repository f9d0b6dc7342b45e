"""`ostler-lab compose-check`: build and start the compose file on a Docker engine.

By default the profile `lab` is active. With `--cluster=node` it is not active. Then the check fills in a copy of
`.env.example`, uses a cluster with a real node, and starts Ostler as `compose/README.md` says.

The compose file is used unchanged. Its images are built as the file says, over stand-ins for the base images. The check
passes if every job completed exactly once, and every container ended with 0 or runs and passes its health check. With
`--cluster=node`, Compose must also refuse an untouched `.env.example` with one line that has a remedy. The engine runs
in namespaces of its own and leaves nothing behind, also after a SIGKILL.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lab.control_plane_build import ControlPlaneUnavailable
from lab.engine import first_run
from lab.engine.bases import base_images
from lab.engine.docker import SOCKET, Engine, check_packages
from lab.engine.project import LAB, Container, Project
from lab.engine.scratch import scratch_folder
from lab.engine.uplink import start_uplink
from lab.engine.values import (
    NOFILE,
    environment_of_compose,
    limit_of_web,
    may_raise_limits,
    nofile_limit,
    variables,
    write_env_file,
)
from lab.go_build import GoPrograms, Say
from lab.node.cluster import prepare
from lab.node.namespace import CannotIsolate, is_isolated, run_isolated
from lab.processes import StartError
from lab.system import NODE

_TRAFFIC = "lab-traffic"
_BUILDS_WITHIN = 3600.0
_STARTS_WITHIN = 900.0
_JOBS_WITHIN = 900.0
"""Seconds for all jobs; `lab-traffic` itself ends earlier if no job completes for a while."""
_HEALTHY_WITHIN = 300.0
"""Seconds after the last job within which each service must have passed its health check."""
_LOOKED_EVERY = 2.0
_SAID_EVERY = 10.0  # seconds between two progress lines
_KILLED = 128  # a larger exit status is this number plus the number of a signal
_SHOWN = 40  # lines of the log of each service that failed

_COMPOSE = GoPrograms(
    name="compose-check",
    what="Docker Compose",
    module=Path(__file__).with_name("compose"),
    packages={"docker-compose": "github.com/docker/compose/v2/cmd"},
    takes="about three minutes",
)


def main() -> int:
    """Read the arguments and run the check. Returns the exit status: 0 only if the check passes."""
    parser = argparse.ArgumentParser(prog="ostler-lab compose-check", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20, help="number of jobs (default: 20)")
    parser.add_argument(
        "--cluster", choices=(LAB, NODE), default=LAB, help="the lab's API server, or a real node (default: lab)"
    )
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    began = time.monotonic()

    def say(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:6.1f} s  {line}\n")
        sys.stdout.flush()

    try:
        _check_root()
        check_packages()
        compose = _COMPOSE.had(say) / "docker-compose"
        archives = base_images(os.environ, say)
        if is_isolated() and arguments.folder is not None:
            check = _check_first_run if arguments.cluster == NODE else _check
            return check(compose, archives, folder=arguments.folder, jobs=arguments.jobs, say=say)
        if arguments.cluster == NODE:
            prepare(say)
        return _check_isolated(jobs=arguments.jobs, cluster=arguments.cluster, say=say)
    except (CannotIsolate, ControlPlaneUnavailable, StartError) as error:
        sys.stderr.write(f"ostler-lab compose-check: {error}\n")
        return 1


def _check_root() -> None:
    if os.geteuid() != 0:
        raise StartError("a Docker engine needs root: run the command with sudo")


def _check_isolated(*, jobs: int, cluster: str, say: Say) -> int:
    """Run this command again in namespaces of its own, and return its exit status."""
    with scratch_folder() as folder:
        again = [
            sys.executable,
            "-m",
            "lab",
            "compose-check",
            f"--jobs={jobs}",
            f"--cluster={cluster}",
            f"--folder={folder}",
        ]
        status = run_isolated(again)
        say("removing the engine's data")
    if status > _KILLED:
        say(f"FAILED: the check was killed by signal {status - _KILLED}")
    return status


def _check(compose: Path, archives: Sequence[Path], *, folder: Path, jobs: int, say: Say) -> int:
    _start_engine(archives, folder=folder, say=say)
    project = _project(compose, folder=folder, jobs=jobs, say=say)
    project.run("build", within=_BUILDS_WITHIN)
    say("the images are built")
    try:
        project.run("up", "--detach", within=_STARTS_WITHIN)
    except StartError as error:
        say(f"FAILED: {error}")
        return _report(project, ["not every service started"], say)
    say("all services are started; waiting for the jobs")
    wrong = _wait_for_jobs(project, say)
    _wait_for_health(project)
    return _report(project, wrong, say)


def _check_first_run(compose: Path, archives: Sequence[Path], *, folder: Path, jobs: int, say: Say) -> int:
    """Check the first steps without the profile `lab`: the values, the start and jobs."""
    environment = environment_of_compose(os.environ, home=folder, host=SOCKET)
    log, values = folder / "compose.log", folder / ".env"
    untouched = Project(compose, values=first_run.EXAMPLE, environment=environment, log=log, profile="")
    wrong = [problem for problem in [first_run.untouched_problem(untouched)] if problem is not None]
    _start_engine(archives, folder=folder, say=say)
    with first_run.world(folder / "system", say) as (system, settings):
        kubeconfig = folder / "kubeconfig"
        first_run.write_kubeconfig(kubeconfig, administrator=system.kubeconfig)
        first_run.fill_in(values, settings, first_run.values_of(kubeconfig) | limit_of_web(_nofile(say)))
        project = Project(compose, values=values, environment=environment, log=log, profile="")
        try:
            wrong += first_run.run(project, system, jobs=jobs, say=say)
        except StartError as error:
            wrong.append(str(error))
        return _report(project, wrong, say, sent_by="")


def _start_engine(archives: Sequence[Path], *, folder: Path, say: Say) -> None:
    uplink = start_uplink(folder / "slirp4netns.log")
    engine = Engine(folder, uplink)
    engine.start()
    say("the Docker engine runs")
    for archive in archives:
        engine.load(archive)
    say(f"{len(archives)} base images are loaded")


def _nofile(say: Say) -> int:
    """Return the limit of open files of web that this machine allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    nofile = nofile_limit(hard=hard, may_raise=may_raise_limits(Path("/proc/self/status").read_text()))
    if nofile != NOFILE:
        say(f"WEB_NOFILE is {nofile}, the hard limit of this process")
    return nofile


def _project(compose: Path, *, folder: Path, jobs: int, say: Say) -> Project:
    values = variables(jobs=jobs, nofile=_nofile(say))
    write_env_file(folder / "lab.env", values)
    environment = environment_of_compose(os.environ, home=folder, host=SOCKET)
    return Project(compose, values=folder / "lab.env", environment=environment, log=folder / "compose.log")


def _wait_for_jobs(project: Project, say: Say) -> list[str]:
    """Wait until the service that sends the jobs has ended. Return a problem if it runs too long."""
    end, said_at, said = time.monotonic() + _JOBS_WITHIN, 0.0, ""
    while time.monotonic() < end:
        over = any(each.service == _TRAFFIC and each.state == "exited" for each in project.containers())
        line = project.last_line(_TRAFFIC)
        if line != said and (over or time.monotonic() - said_at > _SAID_EVERY):
            said_at, said = time.monotonic(), line
            say(line)
        if over:
            return []
        time.sleep(_LOOKED_EVERY)
    return [f"the service {_TRAFFIC} has not ended after {_JOBS_WITHIN:.0f} s, so some jobs are not over"]


def _wait_for_health(project: Project) -> None:
    """Wait until every container has had its first health check, for `_HEALTHY_WITHIN` seconds at most."""
    end = time.monotonic() + _HEALTHY_WITHIN
    while any(each.health == "starting" for each in project.containers()) and time.monotonic() < end:
        time.sleep(_LOOKED_EVERY)


def _report(project: Project, wrong: Sequence[str], say: Say, *, sent_by: str = _TRAFFIC) -> int:
    """Print the state of every container, and the logs of those that failed. Returns the exit status.

    `sent_by` is the service that sends the jobs, or empty if no service does.
    """
    containers = project.containers()
    for each in containers:
        say(f"{each.name:28} {each.status}")
    failed = failures(containers, wrong, sent_by=sent_by)
    for line in failed:
        say(f"FAILED: {line}")
    if failed:
        services = sorted({each.service for each in to_blame(containers)}) or [sent_by or "web"]
        sys.stdout.write(project.logs(services, lines=_SHOWN))
        return 1
    say("passed")
    return 0


def failures(containers: Sequence[Container], wrong: Sequence[str], *, sent_by: str = _TRAFFIC) -> list[str]:
    """Return one line for each problem: those in `wrong`, those of the containers, and a missing sender of jobs."""
    found = [*wrong, *(str(each.problem) for each in to_blame(containers))]
    if not found and sent_by and not any(each.service == sent_by for each in containers):
        found.append(f"no job was sent: the service {sent_by} has no container")
    return found


def to_blame(containers: Sequence[Container]) -> list[Container]:
    """Return the containers with a problem.

    Containers that only wait are returned only if no other container has a problem.
    """
    bad = [each for each in containers if each.problem is not None]
    return [each for each in bad if each.state != "created" and each.health != "starting"] or bad


if __name__ == "__main__":
    sys.exit(main())
