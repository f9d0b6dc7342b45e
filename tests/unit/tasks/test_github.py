"""What is not known is not asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tasks.github import owner_renamed


class NoGitHub:
    """Fails when it is asked for anything."""

    def __getattr__(self, name: str) -> None:
        raise AssertionError(f"GitHub was asked: {name}")


def test_a_claim_of_no_known_installation_asks_nobody_for_its_owners_name() -> None:
    work: Any = SimpleNamespace(installation_id=None, account_id=1)
    assert owner_renamed(cast("Any", SimpleNamespace(github=NoGitHub())), work) is False
