"""Cache of SQL statements, so that a process makes one `TextClause` per statement.

SQLAlchemy caches the compilation of a statement, but for each new `TextClause` it first parses the SQL and computes the
cache key. Without the cache of this module, this work would take more time than the compilation.
"""

from __future__ import annotations

from functools import lru_cache

import sqlalchemy
from sqlalchemy import TextClause


@lru_cache(maxsize=1000)
def text(statement: str) -> TextClause:
    """Return the `TextClause` of a statement. The same SQL always gives the same object.

    Threads may share the object, because nothing changes it.
    """
    return sqlalchemy.text(statement)
