"""`python -m benchmarks SUBJECT… | all | report`: run benchmarks, write their results, and render the report."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

from benchmarks.commits import ROOT, refusal, tree
from benchmarks.frame import RESULTS, Recorder
from benchmarks.report import NODE, SUBJECTS, render
from lab.node.cluster import prepare
from lab.node.namespace import is_isolated, run_isolated

DOCUMENT = ROOT / "docs" / "performance.md"


def main() -> None:
    """Run the subjects that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("what", nargs="+", choices=[*SUBJECTS, "all", "report"])
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: test that the benchmark runs, measure nothing"
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="folder of the JSON files. Default: a new folder with --quick, else benchmarks/results/; only the latter "
        "needs a commit of main without changes, and rewrites docs/performance.md",
    )
    arguments = parser.parse_args()
    named = [name for name in arguments.what if name not in {"all", "report"}]
    names = [name for name in SUBJECTS if name != NODE] if "all" in arguments.what else named
    folder = arguments.results or (Path(tempfile.mkdtemp(prefix="ostler-bench-")) if arguments.quick else RESULTS)
    published = folder.resolve() == RESULTS
    if published and names:
        _require_publishable()
    if NODE in names and not is_isolated():
        prepare(print)
        sys.exit(run_isolated([sys.executable, "-m", "benchmarks", *sys.argv[1:]]))
    for name in names:
        recorder = Recorder(name, quick=arguments.quick)
        importlib.import_module(f"benchmarks.{name}").run(recorder)
        if published and tree() != recorder.tree:
            sys.exit(f"{name}: the tree changed during the measurement, so its result is not written: measure again")
        recorder.say(f"written to {recorder.write(folder)}")
    if "report" in arguments.what or published:
        DOCUMENT.write_text(render(RESULTS))


def _require_publishable() -> None:
    """End the process with one line if figures of this tree must not be published."""
    try:
        why = refusal(tree())
    except RuntimeError as error:
        why = str(error)
    if why:
        sys.exit(f"make bench: {why}")


if __name__ == "__main__":
    main()
