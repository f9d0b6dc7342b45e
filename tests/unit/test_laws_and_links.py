"""Every cited law is defined in docs/laws.md, every relative link leads to a file, and no outside document is cited."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import WITH_HELM

ROOT = Path(__file__).parents[2]
LAWS = ROOT / "docs" / "laws.md"
NOTES = ROOT / "benchmarks" / "notes"
"""`make bench` copies these pages into docs/performance.md, so their links start there."""

FOLDERS = (
    ".ci",
    "benchmarks",
    "charts",
    "compose",
    "container_hooks",
    "docs",
    "github_adapters",
    "k8s_adapters",
    "lab",
    "models",
    "ostler",
    "cli",
    "watch",
    "poller",
    "rules",
    "deploys",
    "tasks",
    "tests",
    "web",
)
_CITED = re.compile(r"(?<![\w\[`])L(\d{1,2})\b")
_DEFINED = re.compile(r"^## L(\d+): ", re.MULTILINE)
_OUTSIDE = re.compile(r"\bDESIGN\b|\b(?:[Tt]he|of|in) design\b|\b[Ss]ections? \d")
_NEEDS_A_CLUSTER = re.compile(r"^pytestmark = .*mark\.cluster", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")


def files(*endings: str) -> Iterator[Path]:
    for folder in FOLDERS:
        yield from (path for path in (ROOT / folder).rglob("*") if path.suffix in endings)
    yield from (path for path in ROOT.glob("*") if path.suffix in endings)


def test_laws_are_defined_once_and_in_order() -> None:
    assert [int(number) for number in _DEFINED.findall(LAWS.read_text())] == list(range(1, 16))


ON_A_REAL_CLUSTER = {
    "tests/e2e/test_no_secret_leaks.py": "it reads and writes Events of the core API",
    "tests/integration/deploys": "Helm renders the charts",
    "tests/integration/tasks/pools/test_partitioned_node.py": "the taint manager evicts the Pods",
}
"""Tests of laws that `make test` does not run, with the reason. docs/laws.md names them too."""


def test_every_test_of_a_law_runs_in_make_test_unless_it_is_listed() -> None:
    named = {ROOT / "docs" / link for link in _LINK.findall(LAWS.read_text()) if link.startswith("../tests/")}
    needing = {
        str(path.resolve().relative_to(ROOT))
        for path in named
        if path.resolve() in WITH_HELM or (path.is_file() and _NEEDS_A_CLUSTER.search(path.read_text()))
    }
    assert len(named) > 10
    assert needing == set(ON_A_REAL_CLUSTER)


def test_every_cited_law_is_defined() -> None:
    defined = set(_DEFINED.findall(LAWS.read_text()))
    cited = {
        (str(path.relative_to(ROOT)), number)
        for path in files(".py", ".md")
        for number in _CITED.findall(path.read_text())
    }

    assert len(cited) > 100  # else the pattern has stopped to find them
    assert {(path, number) for path, number in cited if number not in defined} == set()


@pytest.mark.parametrize("page", sorted(files(".md")), ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_a_file(page: Path) -> None:
    shown_in = ROOT / "docs" if page.parent == NOTES else page.parent
    broken = [link for link in _LINK.findall(page.read_text()) if not (shown_in / link).exists()]

    assert broken == []


def test_no_file_cites_a_document_outside_the_repository() -> None:
    texts = {
        path.relative_to(ROOT): path.read_text()
        for path in files(".py", ".md", ".sh", ".toml", ".yaml", ".yml", ".tpl", ".txt", ".in", "")
        if path.is_file() and path not in (Path(__file__), ROOT / "LICENSE")
    }
    cited = {
        f"{path}:{number}: {line.strip()}"
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), start=1)
        if _OUTSIDE.search(line)
    }

    assert len(texts) > 500  # else the folders have stopped to hold the project
    assert cited == set()


def test_index_of_decisions_names_every_decision() -> None:
    folder = ROOT / "docs" / "decisions"
    linked = set(_LINK.findall((folder / "README.md").read_text()))

    assert {path.name for path in folder.glob("0*.md")} == linked
