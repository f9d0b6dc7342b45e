"""Tables fit the terminal: columns are left out in a fixed order, long names lose their middle, and ids are whole."""

from __future__ import annotations

import io
import os
import sys

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from cli import pools
from cli.tables import GAP, Column, Form, Kind, form_of, lay_out, plain, print_table, print_text, shorten

JOBS = (
    Column("job"),
    Column("repository", Kind.NAME, drop=1),
    Column("name", Kind.NAME, drop=2),
    Column("state"),
    Column("pool", Kind.NAME, drop=3),
    Column("why", Kind.TEXT),
)
ROW = (
    "179538279902",
    "acme-industries/a-rather-long-repository-name",
    "build (ubuntu, 3.14, with-coverage)",
    "queued",
    "large",
    "2 of 3 have a job, and the others start, end or are replaced",
)


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_table_without_a_width_is_one_whole_line_for_each_row() -> None:
    lines, dropped = lay_out(JOBS, [ROW], width=None)
    assert (len(lines), dropped) == (2, [])
    assert all(cell in lines[1] for cell in ROW)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_table_fits_and_its_ids_are_whole(width: int) -> None:
    lines, _ = lay_out(JOBS, [ROW], width=width)
    assert all(cell_len(line) <= width for line in lines)
    assert "179538279902" in lines[1]


def test_columns_are_dropped_in_their_order() -> None:
    dropped = [lay_out(JOBS, [ROW], width=width)[1] for width in (200, 90, 80, 60, 10)]
    assert dropped == [[], ["pool"], ["name", "pool"], ["repository", "name", "pool"], ["repository", "name", "pool"]]


def test_words_are_whole_even_where_nothing_fits() -> None:
    lines, _ = lay_out((Column("id"), Column("other")), [("1" * 60, "2" * 60)], width=80)
    assert lines[1].split() == ["1" * 60, "2" * 60]


def test_name_loses_its_middle_and_text_is_wrapped() -> None:
    columns = (Column("id"), Column("pod", Kind.NAME), Column("why", Kind.TEXT))
    lines, _ = lay_out(columns, [("7", "large-runner-with-a-long-name-22def40a", "one two three four " * 4)], width=60)
    assert lines[1].startswith("7   large-runn")
    assert "22def40a" in lines[1]
    assert len(lines) > 2
    assert (shorten("small", 9), shorten("large-22def40a", 9)) == ("small", "larg…f40a")


@pytest.mark.parametrize("cell", ["a\x1b[31mb", "a\x1b]0;title\x07", "a\u202eb", "a\x9bb"])
def test_cell_of_others_cannot_control_the_terminal(cell: str) -> None:
    assert plain(cell).isprintable()
    assert plain("a\r\n\tb") == "a b"


def test_terminal_is_told_which_columns_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    print_table(JOBS, [ROW], empty="no jobs")
    assert "columns that do not fit: name, pool; --wide shows them" in capsys.readouterr().err
    print_table(JOBS, [ROW], empty="no jobs", wide=True)
    assert ROW[2] in terminal.getvalue()
    assert capsys.readouterr().err == ""


def test_text_breaks_between_words_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    text = "one two three four five six seven eight"
    print_text(text)
    assert capsys.readouterr().out == f"{text}\n"
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    print_text(text, indent="  ")
    assert terminal.getvalue() == "  one two three four five six\n  seven eight\n"


def test_pool_list_drops_an_empty_column_of_problems_before_the_numbers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    counts = {"queued": 0, "held": 0, "oldest_queued_at": None}
    pool = {"id": 1, "name": "small", "labels": ["linux"], "autoscaled": False, "replicas": 14}
    pool |= {"status": None, "state": "ready", "counts": counts, "trouble": ""}
    for trouble in ("", "no node accepts its Pods"):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(pools, "query", lambda _, trouble=trouble: ([pool | {"trouble": trouble}], None))
        pools.list_(as_json=False, wide=False, output=None, why=False, everything=False, limit=50)
        head = terminal.getvalue().splitlines()[0]
        assert ("what is wrong" in head) == bool(trouble)
        assert ("held" in head) == (not trouble)
    assert "--wide shows them" in capsys.readouterr().err


def test_forms_exclude_each_other() -> None:
    assert form_of(as_json=False, wide=False, output=None) is Form.TABLE
    assert form_of(as_json=True, wide=False, output=Form.JSON) is Form.JSON
    assert form_of(as_json=False, wide=True, output=None) is Form.WIDE
    with pytest.raises(typer.BadParameter, match="json and name cannot be used together"):
        form_of(as_json=True, wide=False, output=Form.NAME)


CELL = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), max_size=60).map(plain)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(CELL, CELL, CELL, CELL), min_size=1, max_size=5), st.integers(40, 200))
def test_table_never_exceeds_its_width_but_for_words(rows: list[tuple[str, ...]], width: int) -> None:
    columns = (Column("id"), Column("n", Kind.NAME, drop=1), Column("t", Kind.TEXT), Column("u", Kind.TEXT, drop=2))
    lines, dropped = lay_out(columns, rows, width=width)
    words = max(2, *(cell_len(row[0]) for row in rows))
    assert dropped in ([], ["u"], ["n", "u"])
    least = words + len(GAP) + 20
    assert all(cell_len(line) <= max(width, least) for line in lines), os.linesep.join(lines)
