"""Reader of rendered manifests from a file, a folder or stdin. An error is one line with a cure."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ostler.errors import ConfigurationError

if TYPE_CHECKING:
    from deploys.manifests import Manifests

STDIN = "-"
_SUFFIXES = {".yaml", ".yml", ".json"}
_RENDER = "render it with `helm template`, or get the deployed manifest with `helm get manifest`"


def read_files(name: str, path: str, *, namespace: str) -> Manifests:
    """Return the manifests in a file, in a folder or on stdin.

    `name` is the argument that named the path, for messages. `namespace` is the namespace of objects that name none.
    Raises `ConfigurationError`, with cause and cure in one line, if a file is missing, empty, not YAML or not a
    manifest.
    """
    from deploys.manifests import read_manifests
    from deploys.selectors import Malformed

    found = read_objects(name, path, cure=_RENDER)
    try:
        return read_manifests(found, namespace=namespace)
    except Malformed as error:
        raise ConfigurationError(f"{name}: {path}: {error}; correct it, or {_RENDER}") from None


def read_objects(name: str, path: str, *, cure: str) -> list[Any]:
    """Return the YAML documents in a file, in a folder or on stdin, at least one.

    `name` is the argument that named the path, and `cure` says how to get a good file. Raises `ConfigurationError`,
    with cause and cure in one line, if a file is missing, empty or not YAML.
    """
    found: list[Any] = []
    for source, text in _texts(name, path, cure):
        try:
            # JSON is also YAML. The C parser is used if it exists, because a rendered chart is long.
            loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            found += [each for each in yaml.load_all(text, Loader=loader) if each is not None]
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f", line {mark.line + 1}" if mark is not None else ""
            said = getattr(error, "problem", None) or "it cannot be read"
            raise ConfigurationError(f"{name}: {source} is not valid YAML{where}: {said}; {cure}") from None
    if not found:
        raise ConfigurationError(f"{name}: {path} contains no objects; {cure}")
    return found


def _texts(name: str, path: str, cure: str) -> Iterator[tuple[str, str]]:
    if path == STDIN:
        yield "stdin", sys.stdin.read()
        return
    place = Path(path)
    if place.is_dir():
        files = sorted(each for each in place.rglob("*") if each.suffix in _SUFFIXES and each.is_file())
        if not files:
            raise ConfigurationError(f"{name}: {path} contains no file that ends in .yaml, .yml or .json; {cure}")
    else:
        files = [place]
    for each in files:
        try:
            yield str(each), each.read_text()
        except FileNotFoundError:
            raise ConfigurationError(f"{name}: {each} does not exist; {cure}") from None
        except (OSError, UnicodeDecodeError) as error:
            why = (error.strerror or "no reason was given") if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigurationError(f"{name}: {each} cannot be read ({why}); {cure}") from None
