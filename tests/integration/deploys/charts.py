"""Charts of these tests, rendered by the real Helm: the project's chart, a small one, and broken variants of it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploys.manifests import Manifests, read_manifests
from lab.helm import render

HERE = Path(__file__).parent
SMALL = HERE / "small_chart"
BROKEN = HERE / "broken_charts"


def broken_chart(name: str, folder: Path) -> Path:
    """Return the small chart with the policies of a broken one."""
    made = folder / name
    shutil.copytree(SMALL, made)
    shutil.copy(BROKEN / name / "network-policies.yaml", made / "templates")
    return made


def rendered(chart: Path, values: Mapping[str, Any] | None = None) -> Manifests:
    """Return the parsed manifests that a chart renders to."""
    return read_manifests(render(chart, values), namespace="ostler")
