"""Handlers of errors with a reason in words never log the name of the class instead."""

from __future__ import annotations

import ast
from pathlib import Path

from ostler import errors

TREE = Path(__file__).parents[3]
FOLDERS = ("tasks", "web", "models")
WITH_WORDS = {"RedisError", "DBAPIError", "SQLAlchemyError", "PoolTimeoutError"} | {
    name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.UpstreamError)
}


def caught(handler: ast.ExceptHandler) -> set[str]:
    """Return the names of the exceptions that a handler catches, without their modules."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(kind).rpartition(".")[2] for kind in kinds if kind is not None}


def known_classes(source: str) -> list[int]:
    """Return the lines where handlers of errors with words log the name of a class."""
    handlers = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.ExceptHandler)]
    return [
        node.lineno
        for handler in handlers
        if caught(handler) and caught(handler) <= WITH_WORDS
        for node in ast.walk(handler)
        if isinstance(node, ast.Attribute) and node.attr == "__name__" and isinstance(node.value, ast.Call)
    ]


def test_handlers_of_errors_with_words_tell_no_class() -> None:
    paths = [path for folder in FOLDERS for path in (TREE / folder).rglob("*.py")]
    found = {path.relative_to(TREE).as_posix(): known_classes(path.read_text()) for path in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_handler_of_an_error_with_words_that_tells_its_class_is_found() -> None:
    source = "try:\n    pass\nexcept (Gone, Busy) as error:\n    log(type(error).__name__)\n"
    assert known_classes(source) == [4]
    assert known_classes(source.replace("Busy", "DBAPIError")) == [4]
    assert known_classes(source.replace("Busy", "ValueError")) == []
