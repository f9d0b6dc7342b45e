"""Choice of the pool for a job: cover, exact set, fewest labels, priority, and never a guess."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.routing.forks import Origin
from rules.routing.holds import HoldReason
from rules.routing.labels import PoolChoice, PoolLabels, choose_pool, detail_of

ACME, OTHER = 7, 8

CLUSTER_PAGE = Path(__file__).parents[3] / "docs" / "operations" / "cluster.md"


def pool(
    pool_id: int,
    *labels: str,
    priority: int = 0,
    accounts: Iterable[int] = (),
    repositories: Iterable[str] = (),
    forks: bool = False,
) -> PoolLabels:
    return PoolLabels(
        id=pool_id,
        labels=frozenset(labels),
        routing_priority=priority,
        allowed_accounts=frozenset(accounts),
        allowed_repositories=frozenset(repositories),
        allow_forks=forks,
        name=f"pool-{pool_id}",
    )


def choose(
    pools: Iterable[PoolLabels],
    *labels: str,
    account_id: int = ACME,
    public: bool = False,
    origin: Origin = Origin.HERE,
) -> PoolChoice:
    return choose_pool(pools, labels=labels, account_id=account_id, repository="Acme/App", public=public, origin=origin)


def told(choice: PoolChoice) -> str:
    return str(detail_of(choice, labels=["linux"], account_id=ACME, repository="Acme/App"))


def test_pool_with_exactly_the_labels_wins_over_a_larger_one_of_higher_priority() -> None:
    choice = choose([pool(1, "linux", "gpu", priority=9), pool(2, "linux")], "linux")

    assert choice == PoolChoice(pool_id=2, hold_reason=None, candidates=(2, 1))


def test_without_an_exact_set_the_fewest_labels_win() -> None:
    assert choose([pool(1, "linux", "x64", "gpu", "big"), pool(2, "linux", "x64", "gpu")], "linux", "gpu").pool_id == 2


def test_among_equally_large_sets_the_higher_routing_priority_wins() -> None:
    assert choose([pool(1, "linux", "a", priority=1), pool(2, "linux", "b", priority=2)], "linux").pool_id == 2


def test_a_tie_is_held_and_names_only_the_tied_pools() -> None:
    pools = [pool(3, "linux", "b"), pool(1, "linux", "a"), pool(2, "linux", "c", "d")]

    assert choose(pools, "linux") == PoolChoice(pool_id=None, hold_reason=HoldReason.TWO_POOLS, candidates=(1, 3))


def test_a_job_that_no_pool_covers_is_held() -> None:
    choice = choose([pool(1, "linux")], "linux", "gpu")

    assert choice == PoolChoice(pool_id=None, hold_reason=HoldReason.NO_POOL, candidates=())


def test_labels_match_whatever_their_case() -> None:
    assert choose([pool(1, "self-hosted", "linux")], "Self-Hosted", "LINUX").pool_id == 1


@pytest.mark.parametrize("label", ["dependabot", "code-scanning"])
@pytest.mark.parametrize("public", [True, False])
def test_jobs_that_github_starts_itself_are_served_by_a_pool_with_their_label(label: str, public: bool) -> None:
    pools = [pool(1, "self-hosted", "linux"), pool(2, label)]
    assert choose(pools, label, public=public).pool_id == 2
    assert choose(pools[:1], label, public=public).hold_reason is HoldReason.NO_POOL
    assert f"| `{label}`" in CLUSTER_PAGE.read_text()


def test_hold_of_a_job_without_labels_names_the_runner_group() -> None:
    assert (
        detail_of(choose([pool(1, "linux")]), labels=(), account_id=ACME, repository="Acme/App")
        == "the workflow names only a runner group, and no pool declares that it serves such jobs"
    )


def test_a_job_without_labels_matches_no_pool() -> None:
    pools = [pool(1, "linux"), pool(2, "linux", priority=9)]
    assert choose(pools).hold_reason is HoldReason.NO_POOL
    assert choose(pools, public=True, origin=Origin.UNKNOWN).hold_reason is HoldReason.NO_POOL


def test_a_job_without_labels_goes_to_the_pool_that_declares_it_whatever_its_labels() -> None:
    declared = replace(pool(3, "linux", "gpu", "big"), serves_unlabelled=True)
    assert choose([pool(1, "linux"), declared]).pool_id == 3
    assert choose([pool(1, "linux"), declared], "linux").pool_id == 1
    refusing = replace(declared, allowed_accounts=frozenset({OTHER}))
    assert choose([pool(1, "linux"), refusing]).hold_reason is HoldReason.NOT_ALLOWED


def test_a_pool_of_other_accounts_does_not_serve_and_does_not_tie() -> None:
    pools = [pool(1, "linux", "a", accounts=[OTHER]), pool(2, "linux", "b")]

    assert choose(pools, "linux").pool_id == 2
    assert choose(pools, "linux", account_id=OTHER).hold_reason is HoldReason.TWO_POOLS


def test_allowed_repositories_bind_whatever_their_case() -> None:
    assert choose([pool(1, "linux", repositories=["acme/app"])], "linux").pool_id == 1
    assert choose([pool(1, "linux", repositories=["acme/other"])], "linux").hold_reason is HoldReason.NOT_ALLOWED


@pytest.mark.parametrize(("pattern", "serves"), [("acme/*", True), ("acme-2/*", False), ("*/*", False), ("*", False)])
def test_allowed_repositories_can_be_all_of_an_owner(pattern: str, serves: bool) -> None:
    assert (choose([pool(1, "linux", repositories=[pattern])], "linux").pool_id is not None) is serves


def test_a_job_that_only_rules_keep_out_is_told_which_pool_and_which_rule() -> None:
    choice = choose([pool(1, "linux", "x", repositories=["acme/other"]), pool(2, "linux", accounts=[OTHER])], "linux")

    assert (choice.pool_id, choice.hold_reason) == (None, HoldReason.NOT_ALLOWED)
    assert told(choice) == (
        "pool pool-2: its allowedAccounts do not name account 7; "
        "pool pool-1: its allowedRepositories do not name Acme/App"
    )


def test_many_pools_that_keep_a_job_out_are_not_all_told() -> None:
    choice = choose([pool(number, "linux", accounts=[OTHER]) for number in range(1, 8)], "linux")
    assert told(choice).endswith("and 4 more")


def test_a_fork_goes_only_where_a_pool_says_so() -> None:
    best, other = pool(1, "linux"), pool(2, "linux", "x", forks=True)

    assert choose([best, other], "linux", public=True).pool_id == 1
    assert choose([best, other], "linux", public=True, origin=Origin.FORK).pool_id == 2
    assert choose([best, other], "linux", origin=Origin.FORK).pool_id == 1
    refused = choose([best], "linux", public=True, origin=Origin.FORK)
    assert refused.hold_reason is HoldReason.NOT_ALLOWED
    assert "allowForks is false" in told(refused)


def test_pool_above_restricted_that_admits_forks_once_is_named_with_both_fields() -> None:
    refused = choose([replace(pool(1, "linux"), elevated=True)], "linux", public=True, origin=Origin.FORK)
    assert refused.hold_reason is HoldReason.NOT_ALLOWED
    assert "both its allowForks and its security.allowForks" in told(refused)
    forks = replace(pool(1, "linux", forks=True), elevated=True)
    admitted = choose([forks], "linux", public=True, origin=Origin.FORK)
    assert admitted.pool_id == 1


@pytest.mark.parametrize("origin", list(Origin))
def test_a_pool_with_retained_volumes_serves_private_repositories_only(origin: Origin) -> None:
    cached, other = replace(pool(1, "linux", priority=1), retains=True), pool(2, "linux", forks=True)

    assert choose([cached, other], "linux").pool_id == 1
    assert choose([cached, other], "linux", public=True, origin=origin).pool_id == 2
    assert choose([cached], "linux", public=True, origin=Origin.HERE).hold_reason is HoldReason.NOT_ALLOWED


def test_a_pool_with_retained_volumes_serves_no_fork_of_a_private_repository() -> None:
    cached, other = replace(pool(1, "linux", priority=1), retains=True), pool(2, "linux")

    assert choose([cached, other], "linux", origin=Origin.HERE).pool_id == 1
    assert choose([cached, other], "linux", origin=Origin.FORK).pool_id == 2
    assert choose([cached, other], "linux", origin=Origin.UNKNOWN).hold_reason is HoldReason.ORIGIN_UNKNOWN
    assert choose([other], "linux", origin=Origin.UNKNOWN).pool_id == 2
    refused = choose([cached], "linux", origin=Origin.FORK)
    assert (refused.hold_reason, "comes from a fork of Acme/App" in told(refused)) == (HoldReason.NOT_ALLOWED, True)


def test_a_persistent_pool_is_not_asked_about_forks_of_private_repositories() -> None:
    static = replace(pool(1, "linux"), registers_in="orgs/acme", retains=True)
    assert {choose([static], "linux", origin=origin).pool_id for origin in Origin} == {1}


def test_a_persistent_pool_without_forks_serves_private_repositories_only() -> None:
    static, other = replace(pool(1, "linux", priority=1), registers_in="orgs/acme"), pool(2, "linux", forks=True)

    assert choose([static, other], "linux").pool_id == 1
    assert {choose([static, other], "linux", public=True, origin=origin).pool_id for origin in Origin} == {2}
    refused = choose([static], "linux", public=True)
    assert "its lifecycle is persistent, its allowForks is false, and Acme/App is public" in told(refused)
    assert choose([replace(static, allow_forks=True)], "linux", public=True).pool_id == 1


@pytest.mark.parametrize("scope", ["orgs/zoo", "repos/acme/tools"])
def test_a_persistent_pool_refuses_jobs_that_github_never_gives_to_its_runners(scope: str) -> None:
    static, other = replace(pool(1, "linux", priority=1), registers_in=scope), pool(2, "linux")

    assert choose([static, other], "linux").pool_id == 2
    refused = choose([static], "linux")
    assert refused.hold_reason is HoldReason.NOT_ALLOWED
    assert told(refused) == (
        "pool pool-1: its registration does not cover Acme/App, so GitHub gives none of its jobs to these runners"
    )
    assert choose([replace(static, registers_in="repos/acme/app")], "linux").pool_id == 1


def test_runners_of_one_repository_have_no_group() -> None:
    found = pool(1, "linux")
    assert [replace(found, registers_in=each).has_group for each in (None, "orgs/acme", "repos/acme/app")] == [
        True,
        True,
        False,
    ]


def test_a_public_repository_is_told_why_a_pool_with_retained_volumes_refuses_it() -> None:
    refused = choose([replace(pool(1, "linux"), retains=True)], "linux", public=True)
    assert told(refused) == (
        "pool pool-1: its volumes.reclaim is Retain, and Acme/App is public, so a job of a fork could reach its volumes"
    )


@pytest.mark.parametrize(
    ("retains", "persistent", "forks", "expected"),
    [
        (False, False, False, False),
        (False, False, True, False),
        (False, True, False, True),
        (False, True, True, False),
        (True, False, False, True),
        (True, True, True, True),
    ],
)
def test_the_group_of_runners_that_keep_data_admits_no_public_repository(
    retains: bool, persistent: bool, forks: bool, expected: bool
) -> None:
    scope = "orgs/acme" if persistent else None
    found = replace(pool(1, "linux", forks=forks), retains=retains, registers_in=scope)
    assert found.private_only is expected


def test_an_unknown_origin_holds_a_job_unless_it_makes_no_difference() -> None:
    def unknown(*pools: PoolLabels) -> PoolChoice:
        return choose(pools, "linux", public=True, origin=Origin.UNKNOWN)

    assert unknown(pool(1, "linux")).hold_reason is HoldReason.ORIGIN_UNKNOWN
    assert unknown(pool(1, "linux"), pool(2, "linux", "x", forks=True)).pool_id is None
    assert unknown(pool(1, "linux", forks=True)).pool_id == 1
    assert unknown(pool(1, "gpu")).hold_reason is HoldReason.NO_POOL
    assert unknown(pool(1, "linux", accounts=[OTHER])).hold_reason is HoldReason.NOT_ALLOWED


NAMES = st.sampled_from(["a", "b", "c", "d"])
POOLS = st.lists(
    st.builds(
        PoolLabels,
        id=st.integers(1, 50),
        labels=st.frozensets(NAMES, min_size=1),
        routing_priority=st.integers(0, 1),
        allowed_accounts=st.frozensets(st.sampled_from([ACME, OTHER])),
        allowed_repositories=st.frozensets(st.sampled_from(["acme/app", "acme/other"])),
        allow_forks=st.booleans(),
        retains=st.booleans(),
        registers_in=st.none() | st.just("orgs/acme"),
    ),
    unique_by=lambda each: each.id,
    max_size=6,
)


@given(pools=POOLS, labels=st.lists(NAMES, max_size=4), public=st.booleans())
def test_what_is_decided_before_the_origin_is_known_stays_right_whatever_it_is(
    pools: list[PoolLabels], labels: list[str], public: bool
) -> None:
    before = choose(pools, *labels, public=public, origin=Origin.UNKNOWN)
    if before.pool_id is not None:
        after = {choose(pools, *labels, public=public, origin=origin).pool_id for origin in (Origin.HERE, Origin.FORK)}
        assert after == {before.pool_id}


@given(pools=POOLS, labels=st.lists(NAMES, max_size=4), origin=st.sampled_from(Origin))
def test_no_job_of_a_public_repository_gets_a_pool_whose_runners_keep_data(
    pools: list[PoolLabels], labels: list[str], origin: Origin
) -> None:
    choice = choose(pools, *labels, public=True, origin=origin)
    assert {each.id for each in pools if each.private_only}.isdisjoint({choice.pool_id, *choice.candidates})


@given(pools=POOLS, labels=st.lists(NAMES, max_size=4), data=st.data())
def test_a_choice_is_allowed_covers_the_job_and_does_not_depend_on_the_order(
    pools: list[PoolLabels], labels: list[str], data: st.DataObject
) -> None:
    choice = choose(pools, *labels)

    assert choose(data.draw(st.permutations(pools)), *labels) == choice
    assert (choice.pool_id is None) != (choice.hold_reason is None)
    by_id = {each.id: each for each in pools}
    for candidate in choice.candidates:
        assert by_id[candidate].labels >= set(labels)
        assert by_id[candidate].allowed_accounts in (frozenset(), by_id[candidate].allowed_accounts | {ACME})
    if choice.pool_id is not None:
        best = by_id[choice.pool_id]
        for candidate in set(choice.candidates) - {choice.pool_id}:
            other = by_id[candidate]
            assert (len(best.labels), -best.routing_priority) < (len(other.labels), -other.routing_priority)


def test_what_is_known_of_a_hold_is_told() -> None:
    assert detail_of(PoolChoice(1, None, (1,)), labels=[], account_id=ACME, repository="Acme/App") is None
    assert told(PoolChoice(None, HoldReason.TWO_POOLS, (1, 2))) == "pools with the ids 1, 2"
    assert "a fork of Acme/App" in told(PoolChoice(None, HoldReason.ORIGIN_UNKNOWN, ()))


def test_a_repository_is_compared_without_case_where_the_origin_is_not_known() -> None:
    only = [pool(1, "linux", repositories=["acme/app"], forks=True)]
    assert choose(only, "linux", origin=Origin.UNKNOWN).pool_id == 1
