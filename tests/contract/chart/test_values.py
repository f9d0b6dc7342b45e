"""Values that make no sense are refused by Helm, with a message that names the value."""

from __future__ import annotations

from typing import Any

import pytest

from lab import helm


def test_helm_finds_no_fault_with_the_chart() -> None:
    assert "0 chart(s) failed" in helm.lint()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"imag": {}}, "imag"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"runners": {"namespace": "Runners"}}, "namespace"),
        ({"runners": {"namespace": ""}}, "namespace"),
        ({"pools": {"small": 3}}, "pools"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_by_its_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(helm.HelmRefused, match=named):
        helm.render(values=values)
