"""Shared base of all tables: metadata with stable constraint names, and column types."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from sqlalchemy import ARRAY, BigInteger, DateTime, Identity, MetaData, Text
from sqlalchemy.orm import DeclarativeBase, mapped_column

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Base class of every table.

    Strings are `text`, datetimes are `timestamptz`, and integers are `bigint`, because GitHub's ids need 64 bits.
    """

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012  SQLAlchemy reads it from the class
        str: Text(),
        datetime: DateTime(timezone=True),
        int: BigInteger(),
        list[str]: ARRAY(Text()),
        list[int]: ARRAY(BigInteger()),
    }


Serial = Annotated[int, mapped_column(BigInteger, Identity(always=True), primary_key=True)]
GitHubId = Annotated[int, mapped_column(BigInteger, primary_key=True, autoincrement=False)]
