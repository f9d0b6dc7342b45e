from __future__ import annotations

import os

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
