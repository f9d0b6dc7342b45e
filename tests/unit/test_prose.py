"""The prose linter finds each idiom that the style rules refuse, and none in plain sentences, code or quotations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prose.__main__ import ROOT, main
from tests.prose.clean import CLEAN
from tests.prose.idioms import in_markdown, in_python, in_text


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("A Pod of which no webhook told is retired.", "of which"),
        ("Return claims by what they wait for.", "by what"),
        ("The pool in whose queue it waits.", "in whose"),
        ("Whoever ends a claim moves its job.", "Whoever"),
        ("Only that which moved is written.", "that which"),
        ("Seconds, for so long it waits.", "for so long"),
        ("Up to so many more are made.", "so many more"),
        ("A task may not delete a busy Pod.", "may not"),
        ("It fails for want of a token.", "for want of"),
        ("Build the image anew.", "anew"),
    ],
)
def test_an_idiom_is_found(sentence: str, words: str) -> None:
    assert [finding.words for finding in in_text(sentence)] == [words]


@pytest.mark.parametrize(
    "sentence",
    [
        "The reconciler deletes spent Pods, which frees their budget.",
        "A task must not delete a busy Pod; GitHub might not answer.",
        "Each pool has 20 Pods, and its queue is empty for 30 seconds.",
        "Seconds for which rows are kept.",
        "Newer entries are renewed. Nobody asks what the row says.",
    ],
)
def test_a_plain_sentence_has_no_finding(sentence: str) -> None:
    assert list(in_text(sentence)) == []


def test_an_idiom_over_a_line_break_is_found_on_the_line_it_starts_in() -> None:
    [finding] = in_markdown("# Pods\n\nA Pod of\nwhich nothing is known.\n")

    assert (finding.line, finding.words) == (3, "of which")


def test_code_links_and_quotations_in_a_page_are_no_prose() -> None:
    page = 'Not `may not`, not [this](anew.md), not "of which".\n\n```sh\necho may not\n```\n'

    assert list(in_markdown(page)) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Pods of which nothing is known."""', (1, "of which")),
        ('"""Pods."""\n\n\ndef f():\n    """Return Pods.\n\n    It may not fail.\n    """\n', (7, "may not")),
        ('"""Pods."""\n\nLIMIT = 3\n"""Seconds, for so long."""\n', (4, "for so long")),
        ('"""What a Pod is asked."""', (1, "What")),
        ('"""Pods."""\n\n\ndef f():\n    """Be the kubelet."""\n', (5, "Be")),
        ('"""Pods."""\n\nname = column(\n    comment="Pods of which nothing is known"\n)\n', (4, "of which")),
    ],
    ids=["module", "function", "assignment", "title", "title of a function", "column comment"],
)
def test_docstrings_of_a_module_are_read(source: str, found: tuple[int, str]) -> None:
    assert [(finding.line, finding.words) for finding in in_python(source)] == [found]


def test_comments_and_strings_of_a_module_are_no_docstrings() -> None:
    assert list(in_python('"""Pods."""\n\n# may not\nsentence = "of which"\n')) == []


def test_number_may_begin_a_docstring() -> None:
    assert list(in_python('"""How many Pods a pool gets."""')) == []


def test_command_names_file_line_and_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\nA task may not wait.\n")

    assert main([str(page)]) == 1
    assert capsys.readouterr().out == f'{page}:3: "may not": "must not" prohibits, "might not" doubts\n'


def test_command_refuses_a_file_without_prose(tmp_path: Path) -> None:
    data = tmp_path / "data.json"
    data.write_text("{}")

    assert main([str(data)]) == 2


@pytest.mark.parametrize("pattern", CLEAN)
def test_every_entry_of_the_clean_list_names_a_file(pattern: str) -> None:
    assert list(ROOT.glob(pattern)) != []


def test_every_module_is_in_the_clean_list() -> None:
    modules = {path for package in ROOT.glob("*/__init__.py") for path in package.parent.rglob("*.py")}

    assert modules - {path for pattern in CLEAN for path in ROOT.glob(pattern)} == set()


def test_files_of_the_clean_list_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0, capsys.readouterr().out
