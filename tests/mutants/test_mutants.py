"""The seeding of mistakes: the mutants that are made, their reports, and code that is not mutated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import of_rules, of_sql, refused


def dropped(statement: str) -> list[tuple[str, str]]:
    return [(statement[start:end].strip(), to) for start, end, to in of_sql.conditions(statement)]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT 1 FROM t", []),
        ("UPDATE t SET a = 1 WHERE a = :x AND b", [("a = :x", "TRUE"), ("b", "TRUE")]),
        ("DELETE FROM t WHERE a OR b RETURNING id", [("a", "FALSE"), ("b", "FALSE")]),
        ("WHERE a AND (b OR c) ORDER BY a AND b", [("a", "TRUE"), ("(b OR c)", "TRUE")]),
        ("WHERE a BETWEEN 1 AND 2 AND b", [("a BETWEEN 1 AND 2", "TRUE"), ("b", "TRUE")]),
        ("WHERE CASE WHEN a AND b THEN c END AND d", [("CASE WHEN a AND b THEN c END", "TRUE"), ("d", "TRUE")]),
        ("WHERE note = 'this AND that' AND {rows}", [("note = 'this AND that'", "TRUE"), ("{rows}", "TRUE")]),
    ],
)
def test_each_condition_of_a_where_can_be_dropped(statement: str, expected: list[tuple[str, str]]) -> None:
    assert dropped(statement) == expected


def test_conditions_of_a_subquery_are_dropped_as_well() -> None:
    found = dropped("UPDATE t SET a = 1 WHERE b AND NOT EXISTS (SELECT FROM c WHERE d AND e) RETURNING a")
    assert {condition for condition, _ in found} == {"b", "NOT EXISTS (SELECT FROM c WHERE d AND e)", "d", "e"}


def test_a_mutant_of_sql_changes_its_condition_alone(tmp_path: Path) -> None:
    module = tmp_path / "table.py"
    source = '''"""Ünlocked WHERE rows UPDATE."""
TAKE = text("UPDATE t SET a = 1 WHERE id = :id AND state = 'claimed' AND free")
LOCK = text("SELECT 1 FROM t WHERE free FOR UPDATE SKIP LOCKED")
READ = text("SELECT 1 FROM t WHERE free")
'''
    module.write_text(source)
    found = of_sql.mutants_of(module, root=tmp_path)
    assert [(each.line, each.before, each.after) for each in found] == [
        (2, "state = 'claimed'", "TRUE"),
        (2, "free", "TRUE"),
        (3, "free", "TRUE"),
        (3, "SKIP LOCKED", ""),
    ]
    raw = source.encode()
    assert all(raw[each.start : each.end].decode() == each.before for each in found)


def test_a_mutant_of_a_further_condition_keeps_its_parameters(tmp_path: Path) -> None:
    module = tmp_path / "state" / "moves.py"
    module.parent.mkdir()
    module.write_text("""
def move(db):
    apply(guard=f"AND a = :a AND (b OR c) {_REST}", sets=", d = :d")
    apply(guard="AND e AND EXISTS (SELECT FROM t WHERE f OR g)")
    apply(guard="AND h")
    apply(guard="AND h")
""")
    found = of_sql.mutants_of(module, root=tmp_path)
    assert [(each.line, each.after) for each in found] == [
        (3, "(TRUE OR a = :a)"),
        (3, "(TRUE OR (b OR c))"),
        (4, "(TRUE OR e)"),
        (4, "(TRUE OR EXISTS (SELECT FROM t WHERE f OR g))"),
        (4, "(FALSE AND f)"),
        (4, "(FALSE AND g)"),
        (5, "(TRUE OR h)"),
        (6, "(TRUE OR h)"),
    ]
    assert len({each.key for each in found}) == len(found)


def test_every_module_has_its_share_of_the_mutants_of_a_run() -> None:
    names = ("state/claim_leases", "claims/releases", "state/offers")
    modules = [of_sql.mutants_of(of_sql.ROOT / "models" / f"{name}.py") for name in names]
    few = of_sql.chosen(modules, 9)
    assert few == of_sql.chosen(modules, 9)
    assert [sum(each.path == f"models/{name}.py" for each in few) for name in names] == [3, 3, 3]


def test_every_module_that_has_mutants_of_sql_has_tests_that_exist() -> None:
    table = of_sql.read_table()["tests"]
    paths = [path for path in of_sql.sources() if of_sql.mutants_of(path)]
    files = [file for path in paths for file in of_sql.nearest(path.stem, table)]
    assert [path.stem for path in paths if not of_sql.nearest(path.stem, table)] == []
    assert [file for file in files if not (of_sql.ROOT / file).exists()] == []


def test_every_reason_for_a_survivor_of_sql_names_a_mutant_that_exists() -> None:
    known = {each.named for path in of_sql.sources() for each in of_sql.mutants_of(path)}
    table = of_sql.read_table()
    assert of_sql.reasons(table) - known == set()
    assert all(each["reason"] for each in table["survivor"])


def test_a_survivor_is_shown_with_its_line_in_the_module(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "ages.py").write_text("class Age:\n    def old(self):\n        a = 1\n        return a > 2\n")
    shown = "--- ages\n+++ ages\n@@ -1,3 +1,3 @@\n def old(self):\n     a = 1\n-    return a > 2\n+    return a >= 2\n"
    found = of_rules.survivor("rules.ages.xǁAgeǁold__mutmut_3", shown, tested=True, root=tmp_path)
    assert found.line == "rules/ages.py:4 Age.old: return a > 2  =>  return a >= 2"


def test_a_function_keeps_its_underscore_when_its_mutant_is_named() -> None:
    assert of_rules.readable("rules.sweeps.orphans.x__keep__mutmut_1") == "_keep"
    assert of_rules.readable("rules.claims.stamps.xǁStampValueǁ__post_init____mutmut_10") == "StampValue.__post_init__"


def test_changed_modules_are_those_that_differ_from_the_base_committed_or_not(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def write(name: str, content: str) -> None:
        (tmp_path / "rules" / name).write_text(content)

    (tmp_path / "rules").mkdir()
    git("init", "-q", "-b", "main")
    for name in ("same.py", "edited.py", "committed.py"):
        write(name, "A = 1\n")
    git("add", ".")
    git("commit", "-qm", "base")
    git("branch", "base")
    write("committed.py", "A = 2\n")
    git("commit", "-qam", "change")
    write("edited.py", "A = 2\n")
    write("new.py", "A = 2\n")
    assert of_rules.changed_modules("base", root=tmp_path) == ["committed", "edited", "new"]


def test_only_mutants_without_a_result_run_and_survivors_when_asked(tmp_path: Path) -> None:
    for folder in (tmp_path / "rules", tmp_path / "results"):
        folder.mkdir()
        (folder / "ages.py").write_text("A = 1\n")
    (tmp_path / "rules" / "fresh.py").write_text("A = 1\n")
    codes = {"killed": 1, "survived": 0, "untested": 33, "new": None}
    (tmp_path / "results" / "ages.py.meta").write_text(json.dumps({"exit_code_by_key": codes}))
    results = tmp_path / "results"
    assert of_rules.to_run(["ages", "fresh"], results=results, root=tmp_path) == ["new", "rules.fresh.*"]
    again = of_rules.to_run(["ages"], again=True, results=results, root=tmp_path)
    assert again == ["survived", "untested", "new"]


def test_mypy_refuses_what_stands_in_a_mutant_and_is_about_types(tmp_path: Path) -> None:
    module = tmp_path / "ages.py"
    module.write_text("def x_old__mutmut_orig(): ...\ndef x_old__mutmut_1():\n    return None\n")
    told = [
        (1, "arg-type", "bad"),
        (3, "arg-type", "bad"),
        (3, "var-annotated", "bad"),
        (3, "index", "Cannot determine type"),
    ]
    lines = [
        json.dumps({"file": str(module), "line": line, "code": code, "message": message, "severity": "error"})
        for line, code, message in told
    ]
    assert [(each["line"], each["code"]) for each in refused.refusals(iter(["", *lines]), {"ages"})] == [
        (3, "arg-type")
    ]
    assert not list(refused.refusals(iter(lines), {"others"}))


def test_mutants_of_prose_are_counted_apart(tmp_path: Path) -> None:
    pytest.importorskip("mutmut", exc_type=ModuleNotFoundError)
    (tmp_path / "rules" / "claims").mkdir(parents=True)
    source = 'A = "outside of functions"\ndef old():\n    """What it does."""\n    return "Very old", "word"\n'
    (tmp_path / "rules" / "claims" / "ages.py").write_text(source)
    assert of_rules.prose(["ages"], results=tmp_path, root=tmp_path) == 3
    assert of_rules.prose(["ages"], results=tmp_path, root=tmp_path) == 3


def test_mutant_is_refused_when_an_error_stands_inside_of_it(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    module = "def x_old__mutmut_orig():\n    return 1\ndef x_old__mutmut_1():\n    return None\nclass A:\n"
    method = "    def xǁAǁold__mutmut_2(self):\n        return None\n"
    (tmp_path / "rules" / "ages.py").write_text(module + method)
    errors = [{"file": "rules/ages.py", "line": line, "message": f"of line {line}"} for line in (4, 7)]
    command = [sys.executable, "-c", f"print({chr(10).join(map(json.dumps, errors))!r})"]
    found = of_rules.refused_by(command, made=tmp_path)
    assert {name: each.error.error_description for name, each in found.items()} == {
        "rules.ages.x_old__mutmut_1": "of line 4",
        "rules.ages.xǁAǁold__mutmut_2": "of line 7",
    }


def test_tests_of_the_module_run_before_others_that_are_little_faster() -> None:
    forked = pytest.importorskip("tests.mutants.forked", reason="needs mutmut", exc_type=ModuleNotFoundError)
    own, fast, slow = "unit/test_ages.py::a", "unit/test_b.py::fast", "unit/test_b.py::slow"
    assert forked.in_order("ages", [slow, own, fast], {own: 1.0, fast: 0.1, slow: 0.3}) == [fast, own, slow]
    assert forked.in_order("ages", [own, fast], {own: forked.SLOW, fast: 0.1}) == [fast]


def test_every_module_about_a_law_exists() -> None:
    assert set(of_rules.LAWS) <= set(of_rules.sources())


def test_every_reason_for_a_survivor_names_a_line_that_exists() -> None:
    sources = {name: path.read_text() for name, path in of_rules.sources().items()}
    for (function, before, _), reason in of_rules.accepted().items():
        assert reason
        shown = " ".join(before.split())
        assert any(shown in " ".join(source.split()) for source in sources.values()), f"{function}: {before}"
