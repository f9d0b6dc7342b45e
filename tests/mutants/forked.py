"""Runner for mutmut that collects the tests of `rules` once, and forks a process for each mutant.

mutmut's own runner starts pytest in each fork, which reads the configuration and collects the files again. That takes
several times as long as the tests of a mutant. Its limit counts seconds of the wall clock, so a busy machine or a
suspended run looks like a killed mutant. This runner counts CPU time only. A mutant that waits without using CPU would
block the run. `rules` does no input or output.
"""

from __future__ import annotations

import gc
import math
import os
import resource
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from mutmut.configuration import config
from mutmut.mutation.trampoline import set_mutant_under_test
from mutmut.runners.harness import PytestRunner
from mutmut.state import state
from mutmut.utils.file_utils import change_cwd
from mutmut.workers.isolation import ForkRunner, RunningWorker

NEAR = 4
"""A test of the module's own file runs before a test of another file that is less than this many times faster."""
SLOW = 10.0
"""A test of this many seconds judges no mutant, because it would take hours. Mutants that only it kills survive."""


def in_order(module: str, tests: Iterable[str], durations: Mapping[str, float]) -> list[str]:
    """Return the tests of a mutant that are not slow, in the order in which they probably detect a mistake."""
    own = f"/test_{module}.py::"
    quick = [name for name in tests if durations[name] < SLOW]
    return sorted(quick, key=lambda name: (durations[name] * (1 if own in name else NEAR), name))


def cpu_seconds(tests: Iterable[str], durations: Mapping[str, float]) -> int:
    """Return the seconds of CPU time after which the tests of a mutant count as endless."""
    settings = config()
    return math.ceil(sum(durations[name] for name in tests) * settings.timeout_multiplier + settings.timeout_constant)


class ForkedSessions(ForkRunner):
    """Forks of a pytest session with all collected tests. A child runs the tests of its mutant until one fails."""

    def __init__(self, children: int) -> None:
        super().__init__(max_workers=children, test_runner=PytestRunner())
        self._session: Any = None
        self._items: dict[str, Any] = {}

    def _collect(self) -> None:
        from _pytest.config import _prepareconfig  # noqa: PLC0415 - pytest offers no other way to stop before the tests
        from _pytest.main import Session  # noqa: PLC0415

        settings = config()
        chosen = [*settings.pytest_add_cli_args, *settings.pytest_add_cli_args_test_selection]
        pytest_config = _prepareconfig(["--rootdir=.", "--tb=native", "-q", *chosen])
        pytest_config._do_configure()
        self._session = Session.from_config(pytest_config)
        pytest_config.hook.pytest_sessionstart(session=self._session)
        pytest_config.hook.pytest_collection(session=self._session)
        self._items = {item.nodeid: item for item in self._session.items}

    def _run_here(self, tests: Sequence[str]) -> int:
        items = [self._items[name] for name in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._session.testsfailed:
                return 1
        return 0

    def _fork(self, tests: Sequence[str], *, mutant: str, cpu: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = -1
        try:
            set_mutant_under_test(mutant)
            spent = math.ceil(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
            resource.setrlimit(resource.RLIMIT_CPU, (spent + cpu, spent + cpu + 1))
            with open(os.devnull, "w") as nothing, change_cwd("mutants"):  # noqa: PTH123
                sys.stdout = sys.stderr = nothing
                code = self._run_here(tests)
        except BaseException:  # noqa: BLE001 - a mutant may raise anything, and this process ends here
            traceback.print_exc(file=sys.__stderr__)
            code = 1
        finally:
            os._exit(code)

    def run_clean_tests(self, tests: Iterable[str]) -> int:
        """Collect all tests, run those of all mutants without a mutant, and return 0 if they pass."""
        with change_cwd("mutants"):
            self._collect()
        gc.freeze()
        pid = self._fork(in_order("", tests, state().duration_by_test), mutant="", cpu=3600)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def run_forced_fail(self) -> int:
        """Run all tests while every function of `rules` raises, and return a result other than 0."""
        pid = self._fork(list(self._items), mutant="fail", cpu=600)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def submit(self, mutant_name: str, tests: list[str], cpu_time_limit: int, estimated_time: float) -> None:
        """Start the tests of a mutant. The limit of mutmut is larger, because it also has one of wall time."""
        durations = state().duration_by_test
        names = in_order(mutant_name.split(".")[1], tests, durations)
        pid = self._fork(names, mutant=mutant_name, cpu=min(cpu_time_limit, cpu_seconds(names, durations)))
        self._running[pid] = RunningWorker(mutant_name, datetime.now(), estimated_time)  # noqa: DTZ005 - as mutmut
