"""The screen of the fleet fits 80 columns and the given height, and shows problems."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console, Group

from cli.output import duration
from cli.screen import Fleet, Sort, height_of, render
from models.browse.fleet import AccountLine, PoolLine
from models.browse.waits import Waits
from rules.pools.pod_states import PodState

NOW = datetime(2026, 11, 29, 14, 5, 12, tzinfo=UTC)


def pool(name: str, *, counted: int = 4, waits: int | None = None, busy: int = 2, **fields: Any) -> PoolLine:
    pods = dict.fromkeys(PodState, 0) | {PodState.WARM: 3, PodState.RESERVED: 1, PodState.BUSY: busy}
    values: dict[str, Any] = {
        "id": 1,
        "namespace": "runners",
        "name": name,
        "replicas": 6,
        "paused": False,
        "draining": False,
        "queued": 12,
        "held": 5,
        "oldest_queued_at": None,
        "oldest_dispatchable_at": None if waits is None else NOW - timedelta(seconds=waits),
        "pods": pods | {PodState.RETIRING: 2, PodState.SPENT: 1},
        "counted_at": NOW - timedelta(seconds=counted),
        "problem": None,
        **fields,
    }
    return PoolLine(**values)


def account(login: str, *, used: int = 4, budget: int = 20, waits: int | None = None) -> AccountLine:
    at = None if waits is None else NOW - timedelta(seconds=waits)
    return AccountLine(1, login, 1, "allowed", budget, 40000, 81920, used, 8000, 16384, 7, 1, 3, at)


def fleet(**fields: Any) -> Fleet:
    values: dict[str, Any] = {
        "now": NOW,
        "problems": [],
        "pools": [pool("large", waits=72), pool("small", busy=1)],
        "accounts": [account("acme", waits=100), account("globex", used=9)],
        "waits": {"acme": Waits("acme", 9, 0.42, 71.0, 90.0, 600.0)},
        "claims": [
            SimpleNamespace(purpose="retire", state="claimed", claims=2),
            SimpleNamespace(purpose="job", state="executing", claims=4),
            SimpleNamespace(purpose="job", state="claimed", claims=1),
        ],
        "repairs": [
            SimpleNamespace(sweep="rematch", outcome="moved_on", repairs=5),
            SimpleNamespace(sweep="resume", outcome="failed", repairs=1),
            SimpleNamespace(sweep="resume", outcome="verified", repairs=2),
        ],
        **fields,
    }
    return Fleet(**values)


def lines(shown: Fleet, *, width: int = 80, **options: Any) -> list[str]:
    """Return the lines of the screen on a terminal of this width."""
    parts = render(shown, width=width, **options)
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(Group(*parts))
    found = out.getvalue().splitlines()
    assert len(found) == height_of(parts)
    return [line.rstrip() for line in found]


def test_screen_shows_pools_accounts_claims_and_repairs() -> None:
    assert lines(fleet()) == [
        "14:05:12 UTC",
        "pool              replicas starting warm reserved busy other queued  held oldest",
        "large                    6        0    3        1    2     3     12     5  1m12s",
        "small                    6        0    3        1    1     3     12     5      -",
        "",
        "account                       Pods queued  held running oldest wait p50 wait p95",
        "acme                          4/20      7     1       3  1m40s     0.4s    1m11s",
        "globex                        9/20      7     1       3      -        -        -",
        "",
        "claims: 1 claimed, 4 executing, 2 retire",
        "repairs in the last hour: resume 3 (1 failed)",
    ]


def test_screen_of_an_empty_fleet_says_so() -> None:
    assert lines(fleet(pools=[], accounts=[], waits={}, claims=[], repairs=[])) == [
        "14:05:12 UTC",
        "no pools",
        "",
        "no account has jobs, claims or Pods",
        "",
        "claims: none",
        "repairs in the last hour: none",
    ]


def test_screen_begins_with_the_problems_of_the_fleet() -> None:
    gate = "the gate of github has been tripped since 14:00:00 UTC: " + "9 of 9 calls failed; " * 5
    shown = lines(fleet(problems=["no job is matched", gate]))
    assert shown[1] == "no job is matched"
    assert " ".join(shown[2:5]).startswith(gate.strip())


def test_screen_reports_problems_and_old_numbers_of_pools() -> None:
    pools = [
        pool("a", paused=True),
        pool("b", counted=75),
        pool("c", problem="no image " * 20),
        pool("d", pods=None, counted_at=None),
    ]
    shown = lines(fleet(pools=pools))
    assert shown[5].split() == ["d", "6", "-", "-", "-", "-", "-", "12", "5", "-"]
    assert shown[6].startswith("c: no image no image")
    assert shown[6].endswith("…")
    assert shown[7:9] == ["b: its Pods were counted 1m15s ago", "a: paused"]


@pytest.mark.parametrize(
    "name", ["n" * 39, "\u202eevil\x1b[2J\r\n\x9b31m", "[red]x[/red]:smile:", "名前" * 20, "\x1b]0;t\x07"]
)
def test_name_of_others_stays_within_its_column(name: str) -> None:
    shown = lines(fleet(pools=[pool(name)], accounts=[account(name)], problems=[name]))
    assert len(shown) - len(lines(fleet())) in {-1, 0}  # one pool and one account less; the problem might be wrapped
    assert all(cell_len(line) <= 80 and line.isprintable() for line in shown)
    assert shown[-7].endswith(" 6        0    3        1    2     3     12     5      -")


def test_markup_in_a_name_is_shown_and_not_obeyed() -> None:
    assert lines(fleet(pools=[pool("[red]x[/red]")]))[2].startswith("[red]x[/red] ")


def test_names_differ_at_their_ends_and_lose_their_middle() -> None:
    shown = lines(fleet(pools=[pool("linux-large-with-a-long-name-arm64")]))
    assert shown[2].startswith("linux-la…me-arm64")


def test_pools_of_the_same_name_are_shown_with_their_namespaces() -> None:
    shown = lines(fleet(pools=[pool("a", namespace="one"), pool("a", namespace="two"), pool("b")]))
    assert [line.split()[0] for line in shown[2:5]] == ["one/a", "two/a", "b"]


@pytest.mark.parametrize(
    ("sort", "names"),
    [(Sort.NAME, ["a", "b", "c"]), (Sort.QUEUE, ["c", "b", "a"]), (Sort.BUSY, ["b", "a", "c"])],
)
def test_pools_have_the_requested_order(sort: Sort, names: list[str]) -> None:
    pools = [pool("c", waits=90, busy=0), pool("a"), pool("b", waits=7, busy=5)]
    shown = lines(fleet(pools=pools), sort=sort)
    assert [line.split()[0] for line in shown[2:5]] == names


@pytest.mark.parametrize("height", [16, 24, 40])
@pytest.mark.parametrize(("pools", "accounts"), [(1, 60), (60, 1), (60, 60), (3, 4)])
def test_screen_fits_its_height_and_counts_the_rest(pools: int, accounts: int, height: int) -> None:
    shown = fleet(
        pools=[pool(f"pool-{number:02}", paused=pools > 9) for number in range(pools)],
        accounts=[account(f"account-{number:02}") for number in range(accounts)],
    )
    found = lines(shown, height=height)
    assert len(found) < height
    for number, what in ((pools, "pool"), (accounts, "account")):
        rows = sum(line.startswith(f"{what}-") and ": paused" not in line for line in found)
        more = f"and {number - rows} more {what}s"
        assert rows >= 1
        assert (more in found) == (rows < number)
    assert found[-1].startswith("repairs")


def test_columns_stay_in_place_when_values_change() -> None:
    small, large = fleet(), fleet(pools=[pool("large", waits=300000, busy=9999, queued=999999, held=99999)])
    assert lines(small)[1] == lines(large)[1]
    assert max(map(len, lines(large))) == 80


def test_durations_have_one_decimal_below_ten_seconds() -> None:
    assert [duration(each) for each in (None, 0.04, 9.94, 10.0, 71.9, 90061.0)] == [
        "-",
        "0.0s",
        "9.9s",
        "10s",
        "1m11s",
        "1d1h",
    ]
