"""The table in `docs/operations/cluster.md` has the fields of RunnerPool, and its example is valid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s_adapters.pools.crd import crd_manifest
from k8s_adapters.pools.pool_reader import read_pool

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "operations" / "cluster.md").read_text()
_ROW = re.compile(r"^\| `(?P<field>[\w.]+)` \| (?P<default>[^|]+) \| (?P<text>[^|]+) \|$", re.MULTILINE)
_HARDENED = re.compile(r"^(apiVersion: ostler\.dev/v1alpha1\n.*?)^```$", re.MULTILINE | re.DOTALL)
_EXAMPLE = re.compile(r"^(apiVersion: ostler\.dev/v1alpha1\n.*?)^EOF$", re.MULTILINE | re.DOTALL)


def spec_schema() -> dict[str, Any]:
    schema: dict[str, Any] = crd_manifest()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec: dict[str, Any] = schema["properties"]["spec"]
    return spec


def fields(schema: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield each field with its default in the form of the table."""
    for name, field in schema["properties"].items():
        if "properties" in field:
            yield from fields(field, f"{above}{name}.")
        elif name in schema.get("required", ()):
            yield f"{above}{name}", "required"
        elif "default" in field:
            default = field["default"]
            yield f"{above}{name}", f"`{str(default).lower() if isinstance(default, bool) else default}`"
        else:
            yield f"{above}{name}", "-"


def test_the_table_has_every_field_and_its_default() -> None:
    assert {each["field"]: each["default"] for each in _ROW.finditer(PAGE)} == dict(fields(spec_schema()))


@pytest.mark.parametrize(
    ("page", "form"), [(PAGE, _EXAMPLE), ((DOCS / "security.md").read_text(), _HARDENED)], ids=["cluster", "security"]
)
def test_documented_example_is_a_valid_pool_and_names_only_existing_fields(page: str, form: re.Pattern[str]) -> None:
    (found,) = form.findall(page)
    example = yaml.safe_load(found)
    assert _unknown(example["spec"], spec_schema()) == []
    pool = read_pool({**example, "metadata": {**example["metadata"], "uid": "1"}})
    assert pool.problem is None


def _unknown(value: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    found = [name for name in value if name not in schema["properties"]]
    for name, field in schema["properties"].items():
        if "properties" in field and name in value:
            found += _unknown(value[name], field)
    return found
