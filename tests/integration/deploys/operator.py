"""The command as an operator runs it, in this process, with its exit status and output."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli import main
from lab.helm import render
from tests.integration.deploys.charts import SMALL


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    status: int
    out: str
    err: str


class Operator:
    """An operator who runs `ostler`. `write` writes a rendered chart to a file for the command."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def run(self, *arguments: str, stdin: str = "") -> Done:
        self._monkeypatch.setattr("sys.argv", ["ostler", *arguments])
        self._monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        seen = self._capsys.readouterr()
        return Done(int(ended.value.code or 0), seen.out, seen.err)

    def write(self, name: str, chart: Path = SMALL, namespace: str = "ostler", **values: Any) -> str:
        path = self.folder / name
        path.write_text(yaml.safe_dump_all(render(chart, values, namespace=namespace)))
        return str(path)
