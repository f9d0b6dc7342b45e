"""`python -m benchmarks.steps`: statements, transactions, Redis commands, messages and API calls per job, by step.

The whole system runs on the embedded cluster and gets jobs at a fixed rate. The counts do not depend on the speed of
the machine, so they show the effect of a change on a machine that other programs use. With `--tree`, the processes of
another version of Ostler are counted. With `--details`, the table lists each kind of statement, command and call.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

from benchmarks.cost import LABELS
from benchmarks.whole import OURS, used
from lab.bootstrap import ACCOUNTS, LabPool
from lab.system import Options, System

COUNTER = Path(__file__).parent / "load" / "counter"
KINDS = ("runs", "statements", "transactions", "Redis commands", "messages", "Kubernetes calls", "GitHub calls", "CPU")
WARM_UP = 8.0
"""Seconds of jobs before the count begins."""

Counts = Counter[tuple[str, str, str, str]]
"""Numbers by process, step, kind and detail."""


def main() -> None:
    """Start a system, send it jobs, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.add_argument("--rate", type=float, default=10, help="jobs per second")
    parser.add_argument("--seconds", type=float, default=20, help="length of the count")
    parser.add_argument("--pods", type=int, default=60, help="Pods of the pool")
    parser.add_argument("--tree", type=Path, help="folder of another version of Ostler, whose processes are started")
    parser.add_argument("--details", action="store_true", help="list every kind of statement, command and call")
    parser.add_argument("--plain", action="store_true", help="measure the CPU of each process, without the counters")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ostler-bench-"))
    counted = folder / "counts"
    counted.mkdir()
    counter = {} if given.plain else {"PYTHONPATH": str(COUNTER), "BENCH_COUNTS": str(counted)}
    options = Options(
        pools=(LabPool("bench", LABELS, given.pods, cpu="1", memory="1Gi"),),
        real_pods=0,
        beats=1,
        own_identities=False,
        settings={
            "OSTLER_DEFAULT_BUDGET_COUNT": "1000",
            "OSTLER_DEFAULT_BUDGET_VCPU": "10000",
            "OSTLER_DEFAULT_BUDGET_MEMORY_GIB": "10000",
            "OSTLER_LOG_LEVEL": "WARNING",
        },
        environment=counter,
        tree=given.tree,
    )
    with System(folder, options, say=lambda _: None, cluster="embedded") as system:
        system.wait_for_warm_pods(given.pods, timeout=180)
        send(system, rate=given.rate, seconds=WARM_UP)
        before, spent, done = read(counted), used(system), completed(system)
        send(system, rate=given.rate, seconds=given.seconds)
        time.sleep(1)
        jobs = completed(system) - done
        cpu = {name: found - spent.get(name, 0.0) for name, found in used(system).items()}
        after = read(counted)
    if not jobs:
        raise SystemExit(f"no job was completed in {given.seconds:.0f} s: see the logs in {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{jobs} jobs")
    print_cpu(cpu, jobs=jobs)
    if not given.plain:
        after.subtract(before)
        print_table(after, jobs=jobs, details=given.details)


def send(system: System, *, rate: float, seconds: float) -> None:
    """Send jobs at a fixed rate for a number of seconds."""
    repositories = [f"{account.login}/{name}" for account in ACCOUNTS for name in account.repositories]
    began = time.monotonic()
    for number in range(round(rate * seconds)):
        if (left := began + number / rate - time.monotonic()) > 0:
            time.sleep(left)
        repository = repositories[number % len(repositories)]
        system.lab("POST", "/jobs", [{"repository": repository, "labels": list(LABELS), "duration_seconds": 0.5}])


def completed(system: System) -> int:
    """Return the number of jobs that are completed at the lab's GitHub."""
    return int(system.lab("GET", "/stats")["jobs"].get("completed", 0))


def read(folder: Path) -> Counts:
    """Return the counts that the processes have written."""
    found: Counts = Counter()
    for path in folder.glob("*.json"):
        body = json.loads(path.read_text())
        process = next((name for name in OURS if name in body["argv"]), "")
        for step, kind, detail, number in body["counts"]:
            found[process, step, kind, detail] += number
    return found


def print_cpu(cpu: Mapping[str, float], *, jobs: int) -> None:
    """Print the CPU of a job by process, in milliseconds."""
    per_job = {name: found / jobs * 1000 for name, found in cpu.items()}
    ours = sum(per_job.get(name, 0.0) for name in OURS)
    each = ", ".join(f"{name} {per_job[name]:.1f}" for name in sorted(per_job, key=lambda name: -per_job[name]))
    print(f"CPU of a job in all of Ostler's processes: {ours:.1f} ms ({each})")


def print_table(counts: Counts, *, jobs: int, details: bool) -> None:
    """Print the counts per job, by process and step."""
    rows: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for (process, step, kind, _), number in counts.items():
        if process:
            rows[process, step][kind] += number
            rows["all", ""][kind] += number
    print(f"{'process':8}{'step':22}" + "".join(f"{kind:>18}" for kind in KINDS))
    for process, step in sorted(rows, key=lambda row: (row[0] == "all", row)):
        print(f"{process:8}{step:22}" + "".join(f"{rows[process, step][kind] / jobs:18.2f}" for kind in KINDS))
    if details:
        for (process, step, kind, detail), number in sorted(counts.items(), key=lambda row: (row[0][:3], -row[1])):
            if number / jobs >= 0.02 and kind not in {"CPU", "runs"}:  # noqa: PLR2004  less is no cost of a job
                print(f"{process:8}{step:22}{kind:18}{number / jobs:8.2f}  {detail}")


if __name__ == "__main__":
    main()
