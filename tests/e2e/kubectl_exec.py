"""`kubectl exec --namespace N deploy/NAME -- ostler …` without a kubelet, with the environment of that process.

The test's wrapper of kubectl runs it as `kubectl_exec.py FOLDER exec …`. The real kubectl gets all other commands.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Replace this process by the command. The exit status is 1 if kubectl would find no such process."""
    folder = Path(sys.argv[1])
    parser = argparse.ArgumentParser(prog="kubectl exec", allow_abbrev=False)
    parser.add_argument("exec", choices=["exec"])
    parser.add_argument("--namespace", "-n", required=True, choices=["ostler"])
    parser.add_argument("target")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args(sys.argv[2:])
    kind, _, name = arguments.target.partition("/")
    if kind not in {"deploy", "deployment"} or not (folder / f"{name}.json").exists():
        sys.exit(f"error: nothing runs as {arguments.target}")
    if arguments.command[0] != "ostler":
        sys.exit(f"error: {arguments.command[0]}: only ostler is played here")
    environment = json.loads((folder / f"{name}.json").read_text())
    os.execve(sys.executable, [sys.executable, "-m", "ostler", *arguments.command[1:]], environment)  # noqa: S606


if __name__ == "__main__":
    main()
