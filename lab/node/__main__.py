"""`ostler-lab node`: build the parts of a real node, or run a command where a real node can run."""

from __future__ import annotations

import argparse
import sys

from lab.control_plane_build import ControlPlaneUnavailable
from lab.node.cluster import prepare
from lab.node.namespace import CannotIsolate, run_isolated
from lab.node.programs import check_packages
from lab.processes import StartError


def main() -> int:
    """Read the arguments, build what is missing, and run the command. Returns the command's exit status."""
    parser = argparse.ArgumentParser(
        prog="ostler-lab node",
        description="Build kubelet, scheduler, containerd, runc and the images of a real node, once. With a COMMAND, "
        "run it as root in namespaces of its own (processes, mounts, network), where a real node can run.",
        epilog="example: ostler-lab node bash",
    )
    parser.add_argument(
        "--can-run", action="store_true", help="only check whether this machine can run a node; exit status 1 if not"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="a program and its arguments")
    arguments = parser.parse_args()
    try:
        if arguments.can_run:
            check_packages()
            return run_isolated(["true"])
        prepare(_say)
        return run_isolated(arguments.command) if arguments.command else 0
    except (CannotIsolate, ControlPlaneUnavailable, StartError) as error:
        sys.stderr.write(f"ostler-lab node: {error}\n")
        return 1


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
