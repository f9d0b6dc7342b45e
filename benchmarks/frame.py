"""Result files of benchmarks: figures with their samples, the machine, the commit, and the load of other processes.

A figure is measured in rounds. A round has observations, for example one per request, or a single number. It also
records the load average and the CPU use of processes outside the benchmark, so that a disturbed run is visible.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from benchmarks.commits import ROOT, tree
from benchmarks.proc import cpu_of, descendants, machine_cpu

RESULTS = ROOT / "benchmarks" / "results"
NOTES = ROOT / "benchmarks" / "notes"
KEPT = 1000
"""Maximum number of stored observations per round. A longer sorted list is reduced to evenly spaced observations."""
PACKAGES = (
    "celery",
    "kombu",
    "redis",
    "sqlalchemy",
    "psycopg2-binary",
    "starlette",
    "uvicorn",
    "uvloop",
    "kubernetes",
)

Unit = Literal["ms", "s", "/s", "MiB", "cores", "calls", "rows", "statements", "ratio", "kB", "MB", "%"]
Statistic = Literal["p50", "p95", "p99", "max", "median"]


@dataclass(frozen=True, slots=True)
class Target:
    """Target of a figure, such as `p99 < 50` in its unit."""

    statistic: Statistic
    sign: Literal["<", "≤", "≥", "="]
    value: float

    def met(self, found: float) -> bool:
        """Return whether a value meets the target."""
        return {
            "<": found < self.value,
            "≤": found <= self.value,
            "≥": found >= self.value,
            "=": found == self.value,
        }[self.sign]


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement.

    `values` are sorted and reduced to `KEPT` observations; `count` is the number of all observations. `load` is the
    1-minute load average before and after. `others` is the number of cores that processes outside the benchmark used.
    """

    values: Sequence[float]
    count: int
    seconds: float
    load: tuple[float, float]
    others: float


@dataclass(slots=True)
class Figure:
    """One figure. `bounds` names the figures of the same run to compare it with."""

    name: str
    unit: Unit
    targets: Sequence[Target] = ()
    bounds: Sequence[str] = ()
    is_bound: bool = False
    note: str = ""
    rounds: list[Round] = field(default_factory=list)

    @property
    def is_distribution(self) -> bool:
        """Return whether a round has many observations."""
        return any(each.count > 1 for each in self.rounds)

    def value(self, statistic: Statistic) -> float:
        """Return the median of a statistic over all rounds."""
        return statistics.median(_statistic(each.values, statistic) for each in self.rounds)


@dataclass(slots=True)
class Window:
    """Period of a measurement, with the load of the machine. `Recorder.window` fills it."""

    seconds: float = 0.0
    load: tuple[float, float] = (0.0, 0.0)
    others: float = 0.0


class Recorder:
    """Collector of the figures of one subject. `quick` selects tiny sizes that test the code but measure nothing."""

    def __init__(self, subject: str, *, quick: bool) -> None:
        self.subject = subject
        self.quick = quick
        self.figures: dict[str, Figure] = {}
        self.lab: dict[str, str] = {}
        self.tree = tree()
        self._began = datetime.now(UTC)
        self._load = os.getloadavg()[0]

    def size(self, normal: int, quick: int) -> int:
        """Return `quick` if the run has tiny sizes, or the normal size otherwise."""
        return quick if self.quick else normal

    @contextmanager
    def window(self) -> Iterator[Window]:
        """Record the load of the machine during the measurement inside the block."""
        window = Window()
        load, began = os.getloadavg()[0], time.monotonic()
        busy, ours = machine_cpu(), _ours()
        yield window
        window.seconds = time.monotonic() - began
        window.load = (round(load, 2), round(os.getloadavg()[0], 2))
        used = (machine_cpu() - busy) - (_ours() - ours)
        window.others = round(max(used, 0.0) / max(window.seconds, 0.01), 2)

    def add(
        self,
        name: str,
        unit: Unit,
        values: Iterable[float] | float,
        window: Window,
        *,
        targets: Sequence[Target] = (),
        bounds: Sequence[str] = (),
        is_bound: bool = False,
        note: str = "",
    ) -> Figure:
        """Add one round to a figure. The first call for a figure creates it.

        Raises ValueError without any observation.
        """
        figure = self.figures.setdefault(name, Figure(name, unit, targets, bounds, is_bound, note))
        found = [float(values)] if isinstance(values, int | float) else sorted(values)
        if not found:
            raise ValueError(f"{name}: nothing was measured in this round; see the logs of the benchmark")
        kept = _thin(found)
        figure.rounds.append(
            Round([float(f"{v:.4g}") for v in kept], len(found), round(window.seconds, 1), window.load, window.others)
        )
        return figure

    def say(self, line: str) -> None:
        """Print the progress."""
        seconds = (datetime.now(UTC) - self._began).total_seconds()
        print(f"{seconds:6.1f} s  {self.subject}: {line}", flush=True)

    def write(self, folder: Path) -> Path:
        """Write the result and return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.subject}.json"
        body = {
            "subject": self.subject,
            "command": f"python -m benchmarks {self.subject}" + (" --quick" if self.quick else ""),
            "commit": self.tree.commit,
            "uncommitted": self.tree.uncommitted,
            "began": self._began.isoformat(timespec="seconds"),
            "seconds": round((datetime.now(UTC) - self._began).total_seconds()),
            "load_average": [round(self._load, 2), round(os.getloadavg()[0], 2)],
            "environment": environment(),
            "lab": self.lab,
            "figures": [asdict(figure) for figure in self.figures.values()],
        }
        # Each round is one line, so that a reader can see the samples and a diff is short.
        path.write_text(_dump(body) + "\n")
        return path


def read(path: Path) -> tuple[dict[str, Any], list[Figure]]:
    """Return the facts and figures of a result file."""
    body = json.loads(path.read_text())
    figures = [
        Figure(
            **{
                **each,
                "targets": tuple(Target(**target) for target in each["targets"]),
                "bounds": tuple(each["bounds"]),
                "rounds": [Round(**{**one, "load": tuple(one["load"])}) for one in each["rounds"]],
            }
        )
        for each in body.pop("figures")
    ]
    return body, figures


def environment() -> dict[str, str]:
    """Return the facts about the machine and the versions that the figures depend on."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = int(Path("/proc/meminfo").read_text().split()[1]) // 1024
    return {
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "memory": f"{memory} MiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
    }


def _ours() -> float:
    return cpu_of(descendants(os.getpid()))


def _thin(values: Sequence[float]) -> list[float]:
    if len(values) <= KEPT:
        return list(values)
    last = len(values) - 1
    return [values[round(number * last / (KEPT - 1))] for number in range(KEPT)]


def _statistic(values: Sequence[float], statistic: Statistic) -> float:
    """Return a statistic of sorted values. p50, p95 and p99 are the first value after 50, 95 and 99 %."""
    if statistic == "max":
        return values[-1]
    share = {"p50": 0.5, "median": 0.5, "p95": 0.95, "p99": 0.99}[statistic]
    return values[min(len(values) - 1, int(share * len(values)))]


def _dump(body: dict[str, Any]) -> str:
    """Return JSON with one line for each round."""
    rounds: list[str] = []

    def hide(figure: dict[str, Any]) -> dict[str, Any]:
        held = []
        for one in figure["rounds"]:
            rounds.append(json.dumps(one, separators=(",", ":"), ensure_ascii=False))
            held.append(f"@{len(rounds) - 1}@")
        return {**figure, "rounds": held}

    text = json.dumps({**body, "figures": [hide(each) for each in body["figures"]]}, indent=1, ensure_ascii=False)
    for number, line in enumerate(rounds):
        text = text.replace(f'"@{number}@"', line)
    return text
