"""Published figures belong to commits of `main` that are in the repository."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.commits import ROOT, Tree, is_ancestor, named_in, refusal, tree
from benchmarks.frame import NOTES, RESULTS

PAGES = (*(ROOT / "docs").rglob("*.md"), *NOTES.glob("*.md"))


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    for number in range(2):
        (root / "file").write_text(f"{number}\n")
        git(root, "add", ".")
        git(root, "commit", "--quiet", "--message", f"Add {number}")
    return root


def test_every_commit_of_a_figure_is_in_the_history() -> None:
    named = {path.name: {json.loads(path.read_text())["commit"]} for path in RESULTS.glob("*.json")}
    named |= {str(path.relative_to(ROOT)): named_in(path.read_text()) for path in PAGES}
    unknown = {name: missing for name, found in named.items() if (missing := {c for c in found if not is_ancestor(c)})}
    assert not unknown, "these commits are not in the history of HEAD: measure again, or remove the figures"


def test_named_commits_are_found_in_a_page() -> None:
    assert named_in("at commit `b6d3242322e1`, of commits `784121a`; a hash `abcdef1234` of another kind") == {
        "b6d3242322e1",
        "784121a",
    }


def test_commit_of_another_history_is_no_ancestor(repository: Path) -> None:
    assert is_ancestor(git(repository, "rev-parse", "HEAD~1"), root=repository)
    assert not is_ancestor("1be995e2bbd81afa08991ef0b7abe574d25db1a7", root=repository)
    git(repository, "checkout", "--quiet", "--orphan", "other")
    git(repository, "commit", "--quiet", "--message", "Begin again")
    assert not is_ancestor(git(repository, "rev-parse", "main"), root=repository)


def test_shallow_clone_is_an_error_with_its_cure(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{repository}", "shallow")
    with pytest.raises(RuntimeError, match=r"shallow clone.* run git fetch --unshallow"):
        is_ancestor("HEAD", root=tmp_path / "shallow")


def test_clean_commit_of_main_may_be_published(repository: Path) -> None:
    git(repository, "checkout", "--quiet", "--detach", "main~1")
    assert refusal(tree(repository), repository) is None


def test_results_and_page_of_a_run_are_no_changes(repository: Path) -> None:
    for name in ("benchmarks/results/latency.json", "docs/performance.md"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("1\n")
        git(repository, "add", name)
    assert tree(repository).uncommitted == ()


def test_uncommitted_change_is_refused_with_its_cure(repository: Path) -> None:
    (repository / "file").write_text("changed\n")
    found = tree(repository)
    assert found == Tree(git(repository, "rev-parse", "HEAD"), ("file",))
    why = refusal(found, repository) or ""
    assert "uncommitted changes (file): commit or stash them first" in why
    assert "--results FOLDER" in why


def test_commit_outside_main_is_refused_with_its_cure(repository: Path) -> None:
    git(repository, "checkout", "--quiet", "-b", "branch")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "Try")
    assert "not on the branch main: check out a commit of main first" in (refusal(tree(repository), repository) or "")


def test_commit_of_the_remote_main_may_be_published(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", str(repository), "clone")
    git(tmp_path / "clone", "checkout", "--quiet", "-b", "branch")
    git(tmp_path / "clone", "branch", "--quiet", "-D", "main")
    assert refusal(tree(tmp_path / "clone"), tmp_path / "clone") is None
