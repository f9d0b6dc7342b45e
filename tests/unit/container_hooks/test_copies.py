"""Copies from containers that send nothing, or a listing that is too long."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from container_hooks import copies
from container_hooks.conversation import CommandCancelled
from container_hooks.failures import HookFailed
from container_hooks.ports import World
from ostler.clock import Timing
from tests.unit.container_hooks.worlds import Stage


class Silent:
    """Satisfies `Exec`: a process that writes nothing for some seconds."""

    def run(self, *_words: Any, **_streams: Any) -> int:
        time.sleep(5)
        return 0


def copy_from(world: World, folder: Path) -> None:
    copies.to_runner(
        world, source="pod", pack=["tar"], folder=str(folder), what="Copy of files", keep=copies.everything
    )


def test_copy_from_a_silent_container_ends_when_it_is_cancelled(tmp_path: Path) -> None:
    calls = itertools.count()

    def clock() -> float:
        if next(calls) > 0:
            raise CommandCancelled("hook.sh ended")
        return 0.0

    world = replace(Stage(tmp_path).world(), exec=Silent(), timing=Timing(clock=clock))

    with pytest.raises(HookFailed, match=r"hook\.sh ended"):
        copy_from(world, tmp_path)


def test_copy_from_a_silent_container_fails_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_SILENT_FOR", 2.0)

    with pytest.raises(HookFailed, match="sent nothing for 2 s"):
        copy_from(replace(Stage(tmp_path).world(), exec=Silent()), tmp_path)


def test_listing_without_an_end_of_line_is_not_stored() -> None:
    listing = copies.Listing(most=lambda: 100)

    with pytest.raises(HookFailed, match="a line has more than"):
        listing.read(bytes(5000))


def test_listing_with_more_files_than_were_sent_is_not_stored() -> None:
    """A hostile container lists files with many links, whose inodes are stored."""
    listing = copies.Listing(most=lambda: 3)

    with pytest.raises(HookFailed, match="more than the 3 files that were sent"):
        listing.read(b"2 1 1\n2 2 1\n2 3 1\n2 4 1\n2 5 1\n")

    assert listing.files == 4
