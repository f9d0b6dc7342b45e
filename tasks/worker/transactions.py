"""Functions of `models`, each run in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Concatenate, Final, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine

from models.db.engine import transaction
from ostler.clock import utcnow

P = ParamSpec("P")
T = TypeVar("T")


class _BeginTime(datetime):
    """Type of `NOW`. A value of this type has no time zone, so comparing it with a time raises TypeError."""


NOW: Final[datetime] = _BeginTime(1, 1, 1)
"""Placeholder for the begin time of a transaction, passed as the argument `now` of `Transactions.transaction`.

A lease starts at the begin time of its transaction. Therefore the clock is read when the connection is available, and
again in each retry. A time that the caller read before the wait for a connection would be too old.
"""


class Transactions:
    """Runs functions in transactions on `engine`. `tasks.worker.runtime.Runtime` derives from it."""

    engine: Engine

    def transaction(self, function: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` with a connection and these arguments in one transaction, and return its result.

        Every attempt gets the same arguments, except that each attempt replaces `now=NOW` by the current time. Retries
        and raises as `models.db.engine.transaction` does.
        """
        is_dated = kwargs.get("now") is NOW
        if any(each is NOW for each in args) or any(each is NOW for name, each in kwargs.items() if name != "now"):
            raise TypeError("NOW was passed for another argument than `now`; pass a datetime instead")

        def body(db: Connection) -> T:
            if is_dated:
                kwargs["now"] = utcnow()
            return function(db, *args, **kwargs)

        return transaction(self.engine, body)
