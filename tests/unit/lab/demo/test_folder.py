"""A killed demo leaves files. The next demo removes these files and no others."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.demo.folder import folder_of_run, remove_killed, running_in

RUN = """
import sys
from pathlib import Path
from lab.demo.folder import running_in
with running_in(Path(sys.argv[1]), store=Path(sys.argv[2])):
    print("runs", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    store = tmp_path / "ostler-pg-1"
    (store / "data").mkdir(parents=True)
    return store


@pytest.fixture
def run(store: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run in a separate process, and its folder."""
    folder = folder_of_run(None)
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder), str(store)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    yield process, folder
    process.kill()
    process.communicate()


def test_what_a_killed_run_left_is_removed(run: tuple[subprocess.Popen[str], Path], store: Path) -> None:
    process, folder = run
    process.kill()
    process.wait()
    assert remove_killed() == 1
    assert not folder.exists()
    assert not store.exists()


def test_a_run_that_goes_on_keeps_its_files(run: tuple[subprocess.Popen[str], Path], store: Path) -> None:
    _, folder = run
    assert remove_killed() == 0
    assert folder.exists()
    assert store.exists()


def test_the_logs_of_a_run_that_ended_stay(store: Path) -> None:
    folder = folder_of_run(None)
    with running_in(folder, store=store):
        pass
    assert remove_killed() == 0
    assert list(folder.parent.glob(f"{folder.name}*")) == [folder]


def test_nothing_but_a_store_of_the_lab_is_removed_with_a_folder(
    run: tuple[subprocess.Popen[str], Path], tmp_path: Path
) -> None:
    process, folder = run
    process.kill()
    process.wait()
    mine = tmp_path / "thesis"
    mine.mkdir()
    (folder / "running").write_text(str(mine))
    assert remove_killed() == 1
    assert mine.exists()
