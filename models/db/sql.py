"""Cache of SQL statements, so that a process makes one `TextClause` per statement, and a check of their parameters.

SQLAlchemy caches the compilation of a statement, but for each new `TextClause` it first parses the SQL and computes the
cache key. Without the cache of this module, this work would take more time than the compilation.
"""

from __future__ import annotations

import re
from functools import lru_cache

import sqlalchemy
from sqlalchemy import TextClause


@lru_cache(maxsize=1000)
def text(statement: str) -> TextClause:
    """Return the `TextClause` of a statement. The same SQL always gives the same object.

    Threads may share the object, because nothing changes it.
    """
    return sqlalchemy.text(statement)


@lru_cache(maxsize=1000)
def refuse_unknown(fragments: str, names: tuple[str, ...]) -> None:
    """Raise TypeError if a name is not a parameter of the SQL `fragments`. SQLAlchemy would ignore its value."""
    parameters = re.findall(r"(?<!:):(\w+)", fragments)
    if unknown := [name for name in names if name not in parameters]:
        raise TypeError(f"the SQL has no parameter {', '.join(unknown)}: remove the argument or correct its name")
