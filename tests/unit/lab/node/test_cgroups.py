from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.node import cgroups


@pytest.fixture
def hierarchy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    mounts = tmp_path / "mounts"
    root = tmp_path / "cpuset"
    root.mkdir()
    (root / "cpuset.cpus").write_text("0-1")
    mounts.write_text(f"cgroup {root} cgroup rw 0 0\nproc /proc proc rw 0 0\n")
    monkeypatch.setattr(cgroups, "_MOUNTS", mounts)
    return root


def roots(hierarchy: Path) -> list[str]:
    return [folder.name for folder in hierarchy.glob("ostler-lab-*")]


def test_root_of_a_run_is_removed_at_its_end(hierarchy: Path) -> None:
    with cgroups.own_root() as name:
        assert roots(hierarchy) == [name]
        (hierarchy / name / "kubepods" / "pod1").mkdir(parents=True)

    assert roots(hierarchy) == []


def test_root_of_a_killed_run_is_removed_by_the_next(hierarchy: Path) -> None:
    (hierarchy / f"ostler-lab-{os.getpid()}-1" / "kubepods").mkdir(parents=True)  # the id was given to another process

    with cgroups.own_root() as name:
        assert roots(hierarchy) == [name]


def test_root_of_a_living_run_stays(hierarchy: Path) -> None:
    with cgroups.own_root() as name:
        assert cgroups.remove_killed() == 0
        assert roots(hierarchy) == [name]


def test_pods_of_a_run_have_the_share_of_several_processes(hierarchy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cgroups.make

    def make(name: str) -> None:
        made(name)
        (hierarchy / name / "cpu.shares").write_text("1024")

    monkeypatch.setattr(cgroups, "make", make)

    with cgroups.own_root() as name:
        assert (hierarchy / name / "cpu.shares").read_text() == "8192"
        assert not (hierarchy / name / "cpu.weight").exists()
        (hierarchy / name / "cpu.shares").unlink()
