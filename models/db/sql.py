"""The statements of a process, each made once: a `TextClause` is looked through and keyed for SQLAlchemy's cache once.

Made anew per call, both are done again for each execution, and cost more than compiling, which SQLAlchemy does once.
"""

from __future__ import annotations

from functools import lru_cache

import sqlalchemy
from sqlalchemy import TextClause


@lru_cache(maxsize=1000)
def text(statement: str) -> TextClause:
    """Return the statement, the same object for the same words; threads may share it, and nothing changes it."""
    return sqlalchemy.text(statement)
