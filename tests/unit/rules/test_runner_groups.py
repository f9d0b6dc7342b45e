"""The runner group for a job's runner, and the reasons why the job never reaches it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from rules.routing.runner_groups import Ask, GroupSeen, GroupVerdict, judge_group

GROUPS = [
    GroupSeen(id=1, name="Default", visibility="all", public=False),
    GroupSeen(id=4, name="ci", visibility="all", public=True),
    GroupSeen(id=5, name="Secret", visibility="selected", public=False),
    GroupSeen(id=6, name="inside", visibility="private", public=True),
]


def judge(
    wanted: int | str,
    *,
    organization: bool = True,
    public: bool = False,
    private_only: bool = False,
    groups: Sequence[GroupSeen] | None = GROUPS,
    visible: Collection[int] | None = None,
) -> GroupVerdict:
    return judge_group(
        wanted,
        owner="acme",
        organization=organization,
        repository="acme/app",
        public=public,
        private_only=private_only,
        groups=groups,
        visible=visible,
    )


@pytest.mark.parametrize(("wanted", "number"), [("ci", 4), ("CI", 4), (4, 4), ("default", 1), ("inside", 6)])
def test_a_group_is_found_by_its_name_or_its_number(wanted: int | str, number: int) -> None:
    assert judge(wanted).group_id == number


def test_nothing_is_asked_for_the_default_group_and_a_private_repository() -> None:
    assert judge(1, groups=None).group_id == 1
    assert judge(1, groups=None, public=True).ask is Ask.GROUPS
    assert judge("ci", groups=None).ask is Ask.GROUPS


@pytest.mark.parametrize("wanted", ["gone", 9])
def test_one_that_does_not_exist_is_refused_for_every_repository(wanted: int | str) -> None:
    verdict = judge(wanted)
    assert "does not exist in organisation acme" in str(verdict.refusal)
    assert verdict.everywhere


@pytest.mark.parametrize("wanted", [1, "inside"])
def test_a_public_repository_needs_a_group_that_admits_those(wanted: int | str) -> None:
    assert "does not admit public repositories" in str(judge(wanted, public=True).refusal)
    assert judge("ci", public=True).group_id == 4


@pytest.mark.parametrize(("wanted", "number"), [(1, 1), ("default", 1), ("inside", 6)])
def test_a_pool_whose_runners_keep_data_gets_a_group_without_public_repositories(
    wanted: int | str, number: int
) -> None:
    assert judge(wanted, private_only=True, groups=None).ask is Ask.GROUPS
    assert judge(wanted, private_only=True).group_id == number
    assert judge("Secret", private_only=True).ask is Ask.VISIBLE


def test_a_group_for_public_repositories_is_refused_to_such_a_pool_for_every_job() -> None:
    refused = judge("ci", private_only=True)
    assert refused.everywhere
    assert "runner group 'ci' of acme admits public repositories" in str(refused.refusal)


@pytest.mark.parametrize("organization", [True, False])
def test_such_a_pool_serves_no_public_repository(organization: bool) -> None:
    refused = judge(1, private_only=True, public=True, organization=organization, groups=None)
    assert "acme/app is public, so a job of a fork could reach" in str(refused.refusal)
    assert not refused.everywhere
    assert judge(1, private_only=True, organization=False, groups=None).group_id == 1


def test_of_selected_repositories_github_is_asked_which_they_are() -> None:
    assert judge("Secret").ask is Ask.VISIBLE
    assert judge("Secret", visible={1, 5}).group_id == 5
    refused = judge("Secret", visible={1})
    assert "does not admit repository acme/app" in str(refused.refusal)
    assert not refused.everywhere


def test_a_user_account_has_no_groups() -> None:
    assert judge(1, organization=False, groups=None).group_id == 1
    assert judge("Default", organization=False, groups=None).group_id == 1
    assert "user account" in str(judge("ci", organization=False, groups=None).refusal)


def test_of_two_names_that_differ_in_case_the_exact_one_counts() -> None:
    twins = [
        GroupSeen(id=4, name="ci", visibility="all", public=False),
        GroupSeen(id=7, name="CI", visibility="all", public=False),
    ]
    assert judge("CI", groups=twins).group_id == 7
    assert judge("Ci", groups=twins).refusal is not None


def test_a_group_is_told_by_its_number_or_its_name() -> None:
    assert str(judge(9).refusal).startswith("runner group 9 ")
    assert str(judge("gone").refusal).startswith("runner group 'gone' ")
