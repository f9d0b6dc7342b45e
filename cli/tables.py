"""Table writer of all commands. A table fits the width of the terminal, and values that people copy stay complete.

If a table is too wide, columns are dropped in a fixed order, names are cut in the middle, and texts are wrapped. Ids,
words and numbers are never shortened. Output to a pipe has no width limit and one line for each row. The contents of
cells come from GitHub and the cluster, so control characters are replaced before the output.
"""

from __future__ import annotations

import functools
import inspect
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Annotated, Any

import typer
from rich.cells import cell_len, chop_cells, set_cell_size

from cli.output import Json, print_json

GAP = "  "
_UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"
LEAST_NAME = 20
LEAST_TEXT = 20
"""Minimum width of a name or a text in characters. If less room is left, a column is dropped."""


class Kind(Enum):
    """Treatment of a cell that is wider than its column."""

    WORD = "stays as it is"
    NAME = "loses its middle"
    TEXT = "is wrapped"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Columns with a larger `drop` are dropped first. A column whose `drop` is None is never dropped.
    """

    title: str
    kind: Kind = Kind.WORD
    drop: int | None = None


class Form(StrEnum):
    """Output format of a list."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    NAME = "name"


Wide = Annotated[bool, typer.Option("--wide", help="show all columns, even beyond the width of the terminal")]
Output = Annotated[
    Form | None,
    typer.Option("--output", "-o", help="format: `name` prints only ids or names, one per line; `wide`, `json`"),
]


def form_of(*, as_json: bool, wide: bool, output: Form | None) -> Form:
    """Return the output format that the options select. Raises BadParameter if they select two."""
    asked = {form for form, given in ((Form.JSON, as_json), (Form.WIDE, wide)) if given} | ({output} - {None})
    if len(asked) > 1:
        raise typer.BadParameter(f"{' and '.join(sorted(str(each) for each in asked))} cannot be used together")
    return next((each for each in asked if each is not None), Form.TABLE)


def listed(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options `--json`, `--wide` and `--output` to the command of a list.

    The command gets the output format that they select as its parameter `form`.
    """
    signature = inspect.signature(command, eval_str=True)
    own = [each for each in signature.parameters.values() if each.name != "form"]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, default, annotation in (("as_json", False, Json), ("wide", False, Wide), ("output", None, Output))
    ]

    @functools.wraps(command)
    def run(*, as_json: bool, wide: bool, output: Form | None, **given: Any) -> None:
        command(form=form_of(as_json=as_json, wide=wide, output=output), **given)

    parameters = [*own, *options]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def printed(form: Form, rows: Any, *, names: Iterable[Any]) -> bool:
    """Print rows as JSON, or only their names, one per line, for `xargs` and loops. Return False if a table is wanted.

    The caller then prints the table.
    """
    if form is Form.JSON:
        print_json(rows)
    elif form is Form.NAME:
        sys.stdout.writelines(f"{plain(each)}\n" for each in names)
    return form in {Form.JSON, Form.NAME}


def print_table(
    columns: Sequence[Column | str], rows: Iterable[Sequence[Any]], *, empty: str, wide: bool = False
) -> None:
    """Print a table, or the text `empty` if it has no rows. If `wide` is true, print every column."""
    given = [Column(each) if isinstance(each, str) else each for each in columns]
    cells = [["-" if cell is None or cell == "" else plain(cell) for cell in row] for row in rows]
    if not cells:
        sys.stdout.write(f"{empty}\n")
        return
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal and not wide else None
    lines, dropped = lay_out(given, cells, width=width)
    head, *body = lines
    sys.stdout.write(f"\x1b[1m{head}\x1b[0m\n" if terminal else f"{head}\n")
    sys.stdout.writelines(f"{line}\n" for line in body)
    if dropped:
        sys.stdout.flush()
        print_note(f"columns that do not fit: {', '.join(dropped)}; --wide shows them")


def print_note(text: str) -> None:
    """Print a note about a table on stderr. If stderr is a terminal, lines break between words."""
    print_text(text, err=True)


def print_text(text: str, *, indent: str = "", err: bool = False) -> None:
    """Print a text on stdout or stderr. If this is a terminal, lines break between words and begin with `indent`."""
    line, stream = plain(text), sys.stderr if err else sys.stdout
    terminal = stream.isatty()
    lines = wrap(line, max(LEAST_TEXT, shutil.get_terminal_size().columns - len(indent))) if terminal else [line]
    typer.echo("\n".join(indent + each for each in lines), err=err)


def lay_out(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], *, width: int | None
) -> tuple[list[str], list[str]]:
    """Return the lines of a table, and the titles of the dropped columns. The first lines contain the column titles.

    `width` is the width of the terminal in characters, or None if there is no limit.
    """
    natural = [
        max([cell_len(column.title), *(cell_len(row[place]) for row in cells)]) for place, column in enumerate(columns)
    ]
    kept = _kept(columns, natural, width)
    widths = _widths([columns[place] for place in kept], [natural[place] for place in kept], width)
    lines = _row([columns[place].title for place in kept], [Kind.WORD] * len(kept), widths)
    for row in cells:
        lines += _row([row[place] for place in kept], [columns[place].kind for place in kept], widths)
    return lines, [column.title for place, column in enumerate(columns) if place not in kept]


def plain(value: Any) -> str:
    """Return a value as one line of text without control characters."""
    text = " ".join(str(value).split())
    return "".join(each if each.isprintable() else _UNPRINTABLE for each in text)


def shorten(name: str, width: int) -> str:
    """Return a name shortened to `width` characters. The middle is cut, because names of Pods differ at their ends."""
    if cell_len(name) <= width:
        return name
    tail = (width - 1) // 2
    head = width - 1 - tail
    return f"{set_cell_size(name, head)}…{set_cell_size(name[::-1], tail)[::-1]}"


def wrap(text: str, width: int) -> list[str]:
    """Return the lines of a text. Lines break between words, or inside a word that is longer than a line."""
    lines = [""]
    for word in (part for each in text.split() for part in (chop_cells(each, width) or [each])):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(word)
    return lines


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _least(column: Column, natural: int) -> int:
    """Return the minimum width of a column. `natural` is the width of the column's longest cell."""
    match column.kind:
        case Kind.WORD:
            return natural
        case Kind.NAME:
            return min(natural, max(LEAST_NAME, len(column.title)))
        case Kind.TEXT:
            return min(natural, max(LEAST_TEXT, len(column.title)))


def _kept(columns: Sequence[Column], natural: Sequence[int], width: int | None) -> list[int]:
    """Return the places of the columns that fit. The columns with the highest `drop` are dropped first."""
    kept = list(range(len(columns)))
    optional = (place for place in kept if columns[place].drop is not None)
    by_drop = sorted(optional, key=lambda place: columns[place].drop or 0, reverse=True)
    while width is not None and by_drop and _total([_least(columns[place], natural[place]) for place in kept]) > width:
        kept.remove(by_drop.pop(0))
    return kept


def _widths(columns: Sequence[Column], natural: Sequence[int], width: int | None) -> list[int]:
    """Return the width of each column. Spare width goes to names first, and then to texts, in equal parts."""
    if width is None or _total(natural) <= width:
        return list(natural)
    widths = [_least(column, most) for column, most in zip(columns, natural, strict=True)]
    for kind in (Kind.NAME, Kind.TEXT):
        places = [place for place, column in enumerate(columns) if column.kind is kind]
        while (room := width - _total(widths)) > 0 and (
            short := [place for place in places if widths[place] < natural[place]]
        ):
            for place in short:
                part = min(max(1, room // len(short)), natural[place] - widths[place], width - _total(widths))
                widths[place] += max(0, part)
    return widths


def _row(cells: Sequence[str], kinds: Sequence[Kind], widths: Sequence[int]) -> list[str]:
    """Return the lines of one row. A row has several lines only if a text is wrapped."""
    blocks = []
    for cell, kind, width in zip(cells, kinds, widths, strict=True):
        if kind is Kind.NAME:
            blocks.append([shorten(cell, width)])
        elif kind is Kind.TEXT and cell_len(cell) > width:
            blocks.append(wrap(cell, width))
        else:
            blocks.append([cell])
    height = max(map(len, blocks))
    lines = []
    for number in range(height):
        parts = [block[number] if number < len(block) else "" for block in blocks]
        padded = (part + " " * (width - cell_len(part)) for part, width in zip(parts, widths, strict=True))
        lines.append(GAP.join(padded).rstrip())
    return lines
