"""Cache of SQL statements, so that a process makes one `TextClause` per statement.

SQLAlchemy parses a new `TextClause` and computes its cache key. To repeat this for every execution would cost more than
the compilation that SQLAlchemy caches.
"""

from __future__ import annotations

from functools import lru_cache

import sqlalchemy
from sqlalchemy import TextClause


@lru_cache(maxsize=1000)
def text(statement: str) -> TextClause:
    """Return the `TextClause` of a statement, always the same object for the same SQL.

    Threads may share the object, because nothing changes it.
    """
    return sqlalchemy.text(statement)
