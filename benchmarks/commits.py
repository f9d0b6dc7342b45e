"""Commit of a measurement. A published figure belongs to a commit of `main` that anybody can check out again."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = ("benchmarks/results/", "docs/performance.md")
"""Files that a run writes itself. They may differ from the commit, because `all` writes them after each subject."""
BRANCHES = ("main", "origin/main")
ELSEWHERE = "To measure this tree without publishing, add --results FOLDER."

_NAMED = re.compile(r"commits? `([0-9a-f]{7,40})`")


@dataclass(frozen=True, slots=True)
class Tree:
    """Commit of a working tree, and the sorted paths whose content differs from it."""

    commit: str
    uncommitted: tuple[str, ...]


def tree(root: Path = ROOT) -> Tree:
    """Return the commit of the working tree and its changes, without the files that a run writes itself."""
    changed = (line[3:] for line in _git(root, "status", "--porcelain").splitlines())
    return Tree(
        _git(root, "rev-parse", "HEAD"), tuple(sorted(path for path in changed if not path.startswith(WRITTEN)))
    )


def refusal(found: Tree, root: Path = ROOT) -> str | None:
    """Return why figures of this tree must not be published, with the cure. None means that they may be."""
    if found.uncommitted:
        first, *others = found.uncommitted
        paths = first + (f" and {len(others)} more" if others else "")
        return f"the tree has uncommitted changes ({paths}): commit or stash them first. {ELSEWHERE}"
    if not any(is_ancestor(found.commit, branch, root) for branch in BRANCHES):
        return f"commit {found.commit[:12]} is not on the branch main: check out a commit of main first. {ELSEWHERE}"
    return None


def is_ancestor(commit: str, of: str = "HEAD", root: Path = ROOT) -> bool:
    """Return whether a commit is in the history of another one. A commit that Git does not know is not.

    Raises RuntimeError in a clone whose history is cut, because Git cannot answer there.
    """
    if _git(root, "rev-parse", "--is-shallow-repository") != "false":
        raise RuntimeError("this is a shallow clone, so no commit can be checked: run git fetch --unshallow first")
    command = ["git", "merge-base", "--is-ancestor", commit, of]
    return subprocess.run(command, cwd=root, check=False, capture_output=True).returncode == 0


def named_in(text: str) -> set[str]:
    """Return the commits that a page names, as in "at commit `b6d3242322e1`"."""
    return set(_NAMED.findall(text))


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.rstrip()
