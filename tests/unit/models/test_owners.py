"""Tables own their writes: every statement that changes rows is in the room of its table.

Statements are found in the strings of the source, also in f-strings, and in calls of SQLAlchemy's constructs.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from models.schema import metadata
from tests.house import counts

ROOT = Path(__file__).parents[3]
FLOORS = ("models", "tasks", "web", "watch", "cli", "ostler", "rules", "deploys", "k8s_adapters", "github_adapters")

OWNERS = {
    "api_tokens": {"api_tokens"},
    "claims": {"runner_failures"},
    "db": {"epochs"},
    "pools": {"pod_lists", "pools", "runner_versions"},
    "routing": {"accounts", "installations", "run_origins", "runner_group_lists"},
    "sweeps": {
        "catch_up_quotas",
        "catch_up_repositories",
        "redeliveries",
        "redelivery_progress",
        "repairs",
        "runner_lists",
        "sweep_runs",
        "sweeps",
    },
    "state": {
        "changes",
        "claim_events",
        "claims",
        "deliveries",
        "executions",
        "job_events",
        "jobs",
        "mint_attempts",
        "offers",
        "runner_pods",
        "stalls",
        "web_instances",
    },
    "upstream": {"backoffs", "gates", "upstream_calls"},
}
"""By room of `models`, or by module outside of rooms: the tables whose rows only its statements change."""

COMPOSED = {"models/state/transitions.py"}
"""Modules that build a statement for a table that is a parameter: `claims` or `jobs`, and their events."""

COLUMNS = {
    ("claims", "job_id"): {"claim_jobs"},
    ("claims", "spare_since"): {"claim_jobs"},
    ("claims", "leased_until"): {"claim_leases"},
    ("claims", "due_at"): {"claim_leases"},
    ("claims", "stamp"): {"claim_checks"},
    ("claims", "stalled_at"): {"claim_leases", "stalls"},
    ("jobs", "hold_reason"): {"job_holds"},
    ("jobs", "hold_detail"): {"job_holds"},
    ("jobs", "not_before"): {"job_holds"},
    ("jobs", "ask_after"): {"job_holds"},
    ("runner_pods", "uid"): {"offers", "pod_births"},
    ("runner_pods", "stamp_value"): {"pod_facts"},
}
"""By table and column: the modules of `models/state` that set the column in a row that keeps its state.

A first poll binds a Pod's UID in the statement that writes its offer. `resume` marks overdue claims in the statement
that raises their chain number.
"""

_TABLE = r"(?P<table>[a-z_]+|[a-z_]*\{[^}]*\}[a-z_]*)"
_WRITE = re.compile(
    rf"\b(?P<verb>INSERT\s+INTO|DELETE\s+FROM|MERGE\s+INTO|TRUNCATE|COPY|(?<!FOR )(?<!KEY )(?<!DO )UPDATE)\s+{_TABLE}"
    r"(?P<rest>.*)",
    re.DOTALL,
)
_STARTS = re.compile(
    r"\b(INSERT\s+INTO|DELETE\s+FROM|MERGE\s+INTO|TRUNCATE|COPY|(?<!FOR )(?<!KEY )(?<!DO )UPDATE)\s+[a-z_{]"
)
_ASSIGNED = re.compile(r"(?:SET|,)\s*([a-z_]+) = ")
_CONSTRUCTS = {"insert", "update", "delete"}


@dataclass(frozen=True, slots=True)
class Write:
    """One statement that changes rows: its place, and the columns that an UPDATE sets."""

    path: str
    line: int
    table: str
    columns: frozenset[str] = frozenset()

    @property
    def room(self) -> str | None:
        """Return the room of `models` that contains the statement, or the module outside of rooms, or None."""
        parts = self.path.split("/")
        return parts[1].removesuffix(".py") if parts[0] == "models" and len(parts) <= 3 else None


def _documentation(tree: ast.AST) -> set[int]:
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.JoinedStr)
    }


def _strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    skipped = _documentation(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(_shown(part) for part in node.values)


def _shown(part: ast.expr) -> str:
    if isinstance(part, ast.FormattedValue):
        return "{" + ast.unparse(part.value) + "}"
    return str(part.value) if isinstance(part, ast.Constant) else ""


def _columns(verb: str, rest: str) -> frozenset[str]:
    if not verb.startswith("UPDATE"):
        return frozenset()
    own = re.split(r"\b(?:FROM|WHERE|RETURNING)\b(?![^()]*\))", rest, maxsplit=1)[0]
    return frozenset(_ASSIGNED.findall(own))


def writes_in(source: str, path: str) -> Iterator[Write]:
    """Yield the statements of one module that change rows."""
    tree = ast.parse(source)
    for line, string in _strings(tree):
        places = [found.start() for found in _STARTS.finditer(string)]
        for start, end in itertools.pairwise([*places, len(string)]):
            if (found := _WRITE.match(string, start, end)) is not None:
                yield Write(path, line, found["table"], _columns(found["verb"], found["rest"]))
    constructs = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sqlalchemy")
        for name in node.names
        if name.name in _CONSTRUCTS
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in constructs:
            yield Write(path, node.lineno, f"{{{ast.unparse(node.args[0]) if node.args else ''}}}")


@functools.cache
def writes() -> list[Write]:
    """Return every statement of the product that changes rows."""
    return [
        write
        for floor in FLOORS
        for path in sorted((ROOT / floor).rglob("*.py"))
        if "migrations" not in path.parts
        for write in writes_in(path.read_text(), str(path.relative_to(ROOT)))
    ]


def foreign(found: list[Write]) -> list[str]:
    """Return the statements that are outside of the room of their table."""
    owner = {table: room for room, tables in OWNERS.items() for table in tables}
    return [
        f"{each.path}:{each.line} changes {each.table}, whose room is models/{owner.get(each.table, '?')}"
        for each in found
        if each.path not in COMPOSED and (each.room is None or owner.get(each.table) != each.room)
    ]


def test_every_table_has_one_owner() -> None:
    owned = [table for tables in OWNERS.values() for table in tables]
    assert sorted(owned) == sorted(metadata.tables)


def test_every_statement_stands_in_the_room_of_its_table() -> None:
    assert foreign(writes()) == []


def test_no_sql_of_a_transition_comes_from_outside_of_its_module() -> None:
    assert counts.statements_from_outside(counts.sources(ROOT)) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("guard = 'AND a'\nmove_claim(db, guard=guard)", ["guard", "move_claim"]),
        ("from models.state.transitions import move_jobs as go\ngo(db, **given)", ["move_jobs"]),
        ("claim_leases.lease_mint(db, 1, sets=WRITES)", ["sets"]),
        ("transaction(engine, transitions.move_claim)", ["move_claim"]),
        ("job_holds.lift(db, which=where)", ["which"]),
        ("sets = guard = []\njob_holds.hold_job(db, 1)", []),
    ],
)
@pytest.mark.parametrize("room", ["models/claims", "tasks/sweeps"])
def test_sql_of_a_transition_is_found_outside(tmp_path: Path, room: str, source: str, found: list[str]) -> None:
    for folder in (room, "models/state"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "seeded.py").write_text(source)
    uses = counts.statements_from_outside(counts.sources(tmp_path))
    assert sorted(uses) == [f"{room}/seeded.py: {each}" for each in found]


@pytest.mark.parametrize("table", ["claims", "jobs", "runner_pods", "pools", "executions"])
def test_one_room_writes_a_shared_table(table: str) -> None:
    assert len({each.room for each in writes() if each.table == table}) == 1


def test_each_group_of_columns_is_set_in_its_module() -> None:
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for each in writes():
        for column in each.columns:
            found[each.table, column].add(Path(each.path).stem)
    assert {key: found[key] for key in COLUMNS} == COLUMNS


@pytest.mark.parametrize(
    ("path", "source", "table"),
    [
        ("models/sweeps/seeded.py", "text('UPDATE claims SET job_id = NULL')", "claims"),
        ("models/sweeps/seeded.py", "text(f'WITH a AS (DELETE FROM jobs {where}) SELECT 1')", "jobs"),
        ("web/seeded.py", "text('INSERT INTO accounts (id) VALUES (1)')", "accounts"),
        ("models/pools/seeded.py", "text(f'DELETE FROM {kind} WHERE true')", "{kind}"),
        ("models/pools/seeded.py", "from sqlalchemy import update\nupdate(Job).values(state='queued')", "{Job}"),
    ],
)
def test_a_statement_outside_its_room_is_found(path: str, source: str, table: str) -> None:
    found = list(writes_in(source, path))
    assert [each.table for each in found] == [table]
    assert len(foreign(found)) == 1


def test_locks_and_prose_are_no_writes() -> None:
    source = (
        '"""Then UPDATE jobs."""\n'
        'text("SELECT id FROM jobs FOR NO KEY UPDATE SKIP LOCKED")\n'
        'text("ON CONFLICT (id) DO UPDATE SET a = 1")'
    )
    assert list(writes_in(source, "models/sweeps/seeded.py")) == []
