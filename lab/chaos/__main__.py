"""`ostler-lab chaos`: a chaos run. The exit status is 0 only for a clean verdict."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lab.chaos.fleets import run_fleets
from lab.chaos.plan import make_plan
from lab.chaos.report import lines
from lab.chaos.run import Scene, run_chaos
from lab.chaos.tenant import run_tenant
from lab.control_plane import ControlPlaneUnavailable
from lab.control_plane_build import binaries
from lab.node.cluster import prepare
from lab.node.namespace import CannotIsolate, is_isolated, run_isolated
from lab.processes import StartError
from lab.system import CLUSTERS, NODE


def main() -> int:
    """Read the arguments, run, and return the exit status."""
    arguments = _arguments()
    if arguments.plan:
        plan = make_plan(seed=arguments.seed, jobs=arguments.jobs, real_nodes=arguments.cluster == NODE)
        sys.stdout.write("".join(f"{line}\n" for line in plan.lines()))
        return 0
    began = time.monotonic()

    def say(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:6.1f} s  {line}\n")
        sys.stdout.flush()

    if arguments.cluster == NODE and not is_isolated():
        return _run_isolated(say)
    return _run_here(arguments, say)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ostler-lab chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000, help="number of jobs to send (default: 2000)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same plan of faults")
    parser.add_argument(
        "--scenario",
        choices=("faults", "tenant", "fleets"),
        default="faults",
        help="faults: break the parts of the system (default); tenant: a malicious account beside honest ones; "
        "fleets: six bad pools beside two healthy ones",
    )
    parser.add_argument(
        "--honest",
        type=int,
        default=60,
        help="number of jobs of each honest account in the scenario tenant (default: 60)",
    )
    parser.add_argument("--cluster", choices=(*CLUSTERS, NODE), default="real")
    parser.add_argument("--logs", type=Path, help="keep the logs of every process in this new folder")
    parser.add_argument("--plan", action="store_true", help="print the plan of the seed and exit")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error(f"argument --jobs: {arguments.jobs} jobs prove nothing; give 1 or more")
    if arguments.cluster == NODE and arguments.scenario != "faults":
        parser.error(
            f"argument --cluster: the scenario {arguments.scenario} needs more Pods than a real node has; "
            f"use {' or '.join(CLUSTERS)}"
        )
    return arguments


def _run_isolated(say: Callable[[str], None]) -> int:
    """Build everything that needs the network, then run this command again in namespaces of its own."""
    try:
        prepare(say)
        return run_isolated([sys.executable, "-m", "lab.chaos", *sys.argv[1:]])
    except (CannotIsolate, ControlPlaneUnavailable, StartError) as error:
        say(f"given up: {error}")
        return 1


def _run_here(arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    folder = arguments.logs or Path(tempfile.mkdtemp(prefix="ostler-chaos-"))
    try:
        if arguments.cluster == "real":
            binaries(say)
        ok, slow, report = _play(arguments, folder, say)
    except (ControlPlaneUnavailable, StartError, RuntimeError) as error:
        say(f"given up: {error}")
        ok = slow = False
    except KeyboardInterrupt:
        say("stopped; nothing is left running")
        ok = slow = False
    else:
        sys.stdout.write("".join(f"{line}\n" for line in report))
    if ok and not slow and arguments.logs is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        sys.stdout.write(f"the logs of this run are in {folder}\n")
    return 0 if ok else 1


def _play(arguments: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> tuple[bool, bool, list[str]]:
    """Run the scenario. Return whether the result is clean, whether a stall was too long, and the lines of its report.

    The logs of a run with a stall that was too long are kept, because they show its cause.
    """
    jobs, seed, cluster = arguments.jobs, arguments.seed, arguments.cluster
    if arguments.scenario == "tenant":
        attacked = run_tenant(folder, jobs=jobs, honest=arguments.honest, seed=seed, cluster=cluster, say=say)
        return attacked.ok, False, list(attacked.lines())
    if arguments.scenario == "fleets":
        endured = run_fleets(folder, jobs=jobs, seed=seed, cluster=cluster, say=say)
        return endured.ok, False, list(endured.lines())
    plan = make_plan(seed=seed, jobs=jobs, real_nodes=cluster == NODE)
    struck = run_chaos(folder, plan, Scene(cluster=cluster), say=say)
    return struck.ok, any(path.over for path in struck.stalled), list(lines(struck))


if __name__ == "__main__":
    sys.exit(main())
