from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lab.node import namespace


def test_user_other_than_root_is_told_what_to_do_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(namespace.CannotIsolate) as raised:
        namespace.run_isolated(["true"])

    assert "needs root" in str(raised.value)
    assert "CLUSTER=real" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_process_outside_knows_that_it_is_not_isolated() -> None:
    assert not namespace.is_isolated()


def test_error_in_a_forked_child_does_not_run_the_caller_s_code_twice() -> None:
    program = "from lab.node import namespace as n; print(n._fork_and_wait(lambda: 1 / 0)); print('caller')"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "1\ncaller\n"
    assert "ZeroDivisionError" in done.stderr
