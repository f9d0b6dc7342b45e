"""`ostler doctor`: cause and cure of what is wrong, and an exit status that a script can ask."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import text

from ostler.cli import doctor
from tests.database import Database
from tests.integration.cli.test_operator import Operator


@pytest.fixture
def operator(database: Database) -> Operator:
    return Operator(database)


def execute(operator: Operator, statement: str) -> None:
    with operator.database.engine.begin() as db:
        db.execute(text(statement))


def found(operator: Operator) -> tuple[int, dict[str, dict[str, Any]]]:
    done = operator.run("doctor", "--json")
    return done.returncode, {each["name"]: each for each in json.loads(done.stdout)}


def test_all_is_well_and_each_check_says_what_it_saw(operator: Operator) -> None:
    execute(operator, "INSERT INTO sweeps (name, began_at) VALUES ('resume', now())")
    status, findings = found(operator)
    assert status == 0
    assert [each["outcome"] for each in findings.values()] == ["ok", "ok", "ok"]
    assert list(findings) == ["epoch", "database revision", "beat"]
    assert all(each["cause"] for each in findings.values())


def test_a_database_that_was_put_back_is_named_first_with_its_cure(operator: Operator) -> None:
    execute(operator, "UPDATE epochs SET older_since = now(), why = 'Postgres is at epoch 1 and the cluster at 9'")
    status, findings = found(operator)
    assert status == 1
    assert findings["epoch"]["outcome"] == "failed"
    assert "the cluster at 9" in findings["epoch"]["cause"]
    assert "ostler restore" in findings["epoch"]["cure"]
    assert "older than the cluster" in operator.run("sweep", "list").stderr


def test_an_epoch_that_nobody_compares_says_what_keeps_them(operator: Operator) -> None:
    execute(operator, "UPDATE epochs SET trusted_until = now(), why = 'the cluster could not be read: Forbidden'")
    status, findings = found(operator)
    assert (status, findings["epoch"]["outcome"]) == (1, "failed")
    assert "Forbidden" in findings["epoch"]["cause"]
    assert "ConfigMap" in findings["epoch"]["cure"]
    assert "ostler restore --anyway" in findings["epoch"]["cure"]


def test_since_when_the_epoch_could_not_be_written_is_said(operator: Operator) -> None:
    execute(
        operator,
        """
        UPDATE epochs SET trusted_until = '2026-11-01 10:01+00', confirmed_at = '2026-11-01 10:00+00',
               why = 'the cluster''s epoch could not be written: Forbidden'
        """,
    )
    status, findings = found(operator)
    assert (status, findings["epoch"]["outcome"]) == (1, "failed")
    assert "last 2026-11-01 10:00:00 UTC: the cluster's epoch could not be written" in findings["epoch"]["cause"]


def test_a_schema_of_before_and_a_beat_that_is_away_are_found(operator: Operator) -> None:
    status, findings = found(operator)
    assert (status, findings["beat"]["outcome"]) == (1, "failed")
    execute(operator, "UPDATE alembic_version SET version_num = '0001'")
    status, findings = found(operator)
    assert findings["database revision"]["cure"] == "run `ostler migrate`"
    assert findings["epoch"]["outcome"] == "unknown"


def test_a_check_that_fails_is_unknown_and_stops_no_other(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_seen: doctor.Seen) -> doctor.Finding:
        raise ZeroDivisionError

    monkeypatch.setattr(doctor, "CHECKS", (broken, *doctor.CHECKS))
    status, findings = found(operator)
    assert status == 1
    assert findings["broken"]["outcome"] == "unknown"
    assert len(findings) == 4
