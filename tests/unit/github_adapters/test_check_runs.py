"""Texts of check runs come from strangers: they are shown as plain text, in one line, and are cut."""

from __future__ import annotations

import pytest

from github_adapters.endpoints.check_runs import LONGEST_TITLE, escaped, plain


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a\nb\x1b[31m\u202ec\x00", "a b [31m c"),
        ("x" * 1000, "x" * LONGEST_TITLE),
        ("  build   (3.11) ", "build (3.11)"),
    ],
)
def test_plain_text_has_one_line_and_no_controls(given: str, shown: str) -> None:
    found = plain(given, LONGEST_TITLE)
    assert len(found) <= LONGEST_TITLE
    assert found.isprintable()
    assert found.replace("\ufffd", " ").split() == shown.split()


@pytest.mark.parametrize(
    "given",
    [
        "![x](https://evil.example/y)",
        "<img src=x onerror=a()>",
        "[a](javascript:b)",
        "`code`",
        "# title",
        "@acme/all",
    ],
)
def test_markdown_of_strangers_has_no_effect(given: str) -> None:
    found = escaped(given)
    bare = found.replace("\\\\", "")
    for mark in "[]()<>`#!":
        assert found.count(mark) == found.count(f"\\{mark}"), (mark, bare)
    assert "@a" not in found
