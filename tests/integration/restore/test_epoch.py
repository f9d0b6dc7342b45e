"""The epoch detects a restored Postgres, even if other processes write meanwhile. A failed read is doubt, not proof."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Row

from k8s_adapters.cluster import epochs as adapter
from k8s_adapters.cluster.epochs import EpochSeen
from models.db import epochs
from models.db.engine import transaction
from ostler import clock
from ostler.clock import Clock, utcnow
from ostler.errors import Forbidden, Invalid, Retryable
from rules.restore.epochs import Epoch, Standing
from tasks.restore import epochs as tasks
from tasks.restore.epochs import compare, epoch
from tasks.worker.base import SWEEP, calls
from tests.integration.restore.conftest import Stage

PATH = "/api/v1/namespaces/{}/configmaps"


def row(stage: Stage) -> Row[Any]:
    (found,) = stage.rows("SELECT * FROM epochs")
    return found


def cluster(stage: Stage) -> dict[str, str]:
    data: dict[str, str] = stage.kube.request("GET", f"{PATH.format(stage.namespace)}/ostler-epoch")["data"]
    return data


def standing(stage: Stage) -> Standing | None:
    verdict = compare(stage.rt)  # type: ignore[arg-type]
    return None if verdict is None else verdict.standing


def test_a_fresh_installation_makes_the_epoch_and_is_trusted(untrusted: Stage) -> None:
    assert epochs.doubt(untrusted.rt.engine.connect(), now=utcnow()) is not None
    assert standing(untrusted) is Standing.FIRST
    assert (row(untrusted).number, cluster(untrusted)["epoch"]) == (1, "1")
    assert transaction(untrusted.rt.engine, lambda db: epochs.doubt(db, now=utcnow())) is None


def test_both_rise_with_each_comparison(untrusted: Stage) -> None:
    assert [standing(untrusted) for _ in range(3)] == [Standing.FIRST, Standing.CURRENT, Standing.CURRENT]
    assert (row(untrusted).number, cluster(untrusted)["epoch"]) == (3, "3")


def test_a_postgres_that_was_put_back_is_noticed_and_the_clusters_epoch_stays(untrusted: Stage) -> None:
    standing(untrusted)
    standing(untrusted)
    untrusted.rows("UPDATE epochs SET number = 1")
    for _ in range(3):
        assert standing(untrusted) is Standing.OLDER
    found = row(untrusted)
    assert (found.number, found.trusted_until, cluster(untrusted)["epoch"]) == (1, None, "2")
    assert found.lost_from == found.confirmed_at
    assert "restored to an earlier state" in found.why


def test_an_empty_postgres_beside_a_cluster_with_an_epoch_is_another_one(untrusted: Stage) -> None:
    standing(untrusted)
    untrusted.rows("UPDATE epochs SET number = 7, database = 'another'")
    assert standing(untrusted) is Standing.FOREIGN
    assert cluster(untrusted)["epoch"] == "1"


def test_what_cannot_be_read_changes_nothing_and_trust_runs_out(
    untrusted: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing(untrusted)
    before = row(untrusted)

    def down(*_: Any, **__: Any) -> None:
        raise Retryable("down")

    monkeypatch.setattr(tasks, "read_epoch", down)
    with pytest.raises(Retryable):
        epoch.run()
    after = row(untrusted)
    assert (after.number, after.trusted_until, after.older_since) == (before.number, before.trusted_until, None)
    assert "could not be read" in after.why
    late = before.trusted_until
    assert "could not be read" in str(transaction(untrusted.rt.engine, lambda db: epochs.doubt(db, now=late)))


def test_a_write_that_is_not_answered_leaves_postgres_ahead_which_is_well(
    untrusted: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing(untrusted)

    def lost(*_: Any, **__: Any) -> bool:
        raise Retryable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(tasks, "write_epoch", lost)
        with pytest.raises(Retryable):
            standing(untrusted)
    assert (row(untrusted).number, cluster(untrusted)["epoch"]) == (2, "1")
    assert standing(untrusted) is Standing.CURRENT
    assert (row(untrusted).number, cluster(untrusted)["epoch"]) == (3, "3")


def test_a_write_that_fails_for_long_is_told_with_its_reason_and_since_when(
    untrusted: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing(untrusted)
    confirmed = row(untrusted).confirmed_at

    def forbidden(*_: Any, **__: Any) -> bool:
        raise Forbidden("may not patch")

    monkeypatch.setattr(tasks, "write_epoch", forbidden)
    for _ in range(3):
        with pytest.raises(Forbidden):
            epoch.run()
    after = row(untrusted)
    assert (after.number, cluster(untrusted)["epoch"], after.confirmed_at) == (4, "1", confirmed)
    late = after.trusted_until
    doubt = str(transaction(untrusted.rt.engine, lambda db: epochs.doubt(db, now=late)))
    why = "the cluster's epoch could not be written: access is refused"
    assert f"(last confirmed: {confirmed:%Y-%m-%d %H:%M:%S} UTC): {why}" in doubt


def test_of_two_at_once_neither_finds_an_earlier_state(untrusted: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    standing(untrusted)
    real = adapter.read_epoch

    def read_and_be_overtaken(*given: Any, **named: Any) -> EpochSeen | None:
        seen = real(*given, **named)
        monkeypatch.setattr(tasks, "read_epoch", real)
        assert standing(untrusted) is Standing.CURRENT
        return seen

    monkeypatch.setattr(tasks, "read_epoch", read_and_be_overtaken)
    assert standing(untrusted) is None
    assert row(untrusted).older_since is None
    assert standing(untrusted) is Standing.CURRENT


def test_comparison_overtaken_before_it_reads_raises_no_alarm(
    untrusted: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster is read first. An older row would look behind a newer epoch that another process wrote meanwhile."""
    standing(untrusted)
    real = adapter.read_epoch

    def be_overtaken_and_read(*given: Any, **named: Any) -> EpochSeen | None:
        monkeypatch.setattr(tasks, "read_epoch", real)
        assert standing(untrusted) is Standing.CURRENT
        return real(*given, **named)

    monkeypatch.setattr(tasks, "read_epoch", be_overtaken_and_read)
    assert standing(untrusted) is Standing.CURRENT
    assert row(untrusted).number == 3


def test_deleted_config_map_is_recreated_unless_pods_have_stamps_postgres_lacks(untrusted: Stage, pod: str) -> None:
    standing(untrusted)
    path = f"{PATH.format(untrusted.namespace)}/ostler-epoch"
    untrusted.kube.request("DELETE", path)
    assert standing(untrusted) is Standing.FIRST
    untrusted.kube.request("DELETE", path)
    untrusted.kube.request(
        "PATCH",
        f"/api/v1/namespaces/{untrusted.namespace}/pods/{pod}",
        content_type="application/merge-patch+json",
        body={
            "metadata": {"labels": {"ostler.dev/runner-pool-owner": "1"}, "annotations": {"ostler.dev/claim": "4711.1"}}
        },
    )
    assert standing(untrusted) is Standing.OLDER
    assert "stamps of claims" in row(untrusted).why


def test_a_config_map_that_says_no_epoch_is_doubt(untrusted: Stage) -> None:
    untrusted.kube.request(
        "POST", PATH.format(untrusted.namespace), body={"metadata": {"name": "ostler-epoch"}, "data": {"epoch": "many"}}
    )
    assert standing(untrusted) is None
    found = row(untrusted)
    assert (found.number, found.trusted_until) == (0, None)
    assert "contains no epoch" in found.why


def test_the_adapter_itself_refuses_to_go_back(untrusted: Stage) -> None:
    standing(untrusted)
    seen = tasks.read(untrusted.rt)  # type: ignore[arg-type]
    assert seen is not None
    assert seen.epoch is not None
    with pytest.raises(Invalid):
        adapter.write_epoch(
            untrusted.kube,
            namespace=untrusted.namespace,
            epoch=Epoch(0, seen.epoch.database),
            seen=seen,
            policy=calls(SWEEP),
        )


def test_rows_are_not_trusted_after_a_jump_of_the_clock_of_postgres(
    untrusted: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_a_jump = Clock()
    monkeypatch.setattr(clock, "process", after_a_jump)
    after_a_jump.measure(utcnow)
    after_a_jump.measure(lambda: utcnow() + timedelta(seconds=60))
    compare(untrusted.rt)  # type: ignore[arg-type]
    doubt = transaction(untrusted.rt.engine, lambda db: epochs.doubt(db, now=utcnow()))
    assert doubt is not None
    assert "the clock of Postgres jumped" in doubt

    monkeypatch.setattr(clock, "process", Clock())
    compare(untrusted.rt)  # type: ignore[arg-type]
    assert transaction(untrusted.rt.engine, lambda db: epochs.doubt(db, now=utcnow())) is None
