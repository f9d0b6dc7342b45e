"""Nothing is held across the network (L15): it is an error to request a client inside a transaction."""

from __future__ import annotations

from typing import Any, cast

import pytest
from sqlalchemy import Connection

from models.db.engine import transaction
from tasks.worker.runtime import HeldAcrossNetwork, Runtime
from tests.database import Database

CLIENTS = ("kube", "github", "waker")


@pytest.fixture
def runtime() -> Runtime:
    """A runtime whose clients are strings. Tests request them and never call them."""
    made = cast("Any", Runtime.__new__(Runtime))
    made._kube, made._github, made._waker = CLIENTS
    return cast("Runtime", made)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_is_had_between_transactions(database: Database, runtime: Runtime, client: str) -> None:
    transaction(database.engine, lambda _db: None)
    assert getattr(runtime, client) == client


@pytest.mark.parametrize("client", CLIENTS)
def test_a_transaction_open_across_a_call_fails(database: Database, runtime: Runtime, client: str) -> None:
    def body(db: Connection) -> object:
        db.exec_driver_sql("SELECT 1")
        return getattr(runtime, client)

    with pytest.raises(HeldAcrossNetwork):
        transaction(database.engine, body)
    assert getattr(runtime, client) == client, "the failed transaction is over"


def test_only_the_wake_key_is_deleted_under_a_lock(database: Database, runtime: Runtime) -> None:
    keys = transaction(database.engine, lambda _db: runtime.wake_keys)
    assert cast("Any", keys) == "waker"
