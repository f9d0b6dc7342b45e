"""A demo reads its logs when they are complete: when GitHub and the kubelet's log both contain the end of every job."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.demo import run
from lab.system import read_log
from lab.verdict import jobs_in_progress

WRITTEN_AFTER = 0.5


def test_a_job_that_is_over_at_github_is_awaited_in_the_log_of_the_kubelet(tmp_path: Path) -> None:
    log = tmp_path / "kubelet.jsonl"
    log.write_text(json.dumps({"event": "job_started", "uid": "u-1", "pod": "small-1", "job": 11}) + "\n")

    def end_the_job() -> None:
        with log.open("a") as file:
            file.write(json.dumps({"event": "job_finished", "uid": "u-1", "job": 11, "conclusion": "success"}) + "\n")

    threading.Timer(WRITTEN_AFTER, end_the_job).start()

    run._settle(system_with(log))

    assert jobs_in_progress(read_log(log)) == {}


def test_a_job_that_never_ends_is_left_to_the_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "kubelet.jsonl"
    log.write_text(json.dumps({"event": "job_started", "uid": "u-1", "pod": "small-1", "job": 11}) + "\n")
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", lambda _: None)

    run._settle(system_with(log))

    assert jobs_in_progress(read_log(log)) == {"u-1": 11}


def system_with(kubelet_log: Path) -> Any:
    """Return a system whose GitHub has no undelivered webhook and no busy runner."""
    stats = {"webhooks_in_flight": 0, "runners": {"idle": 3}}
    return SimpleNamespace(lab=lambda *_: stats, kubelet_log=kubelet_log)
