# ruff: noqa: S311  the lab's randomness is for variety
from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lab.github.entities import Account, Job, Repository, Runner, now
from lab.github.market import Bag, Market

ACME = Account(id=1, login="acme", type="Organization", installation_id=1)
APP, SITE = (Repository(id=number, name=name, account=ACME) for number, name in ((1, "app"), (2, "site")))


def job(number: int, *labels: str, repository: Repository = APP) -> Job:
    return Job(
        id=number,
        run_id=number,
        repository=repository,
        labels=labels,
        duration_seconds=1,
        name="build",
        workflow_name="CI",
        head_branch="main",
        status="queued",
        created_at=now(),
    )


def runner(number: int, *labels: str, scope: str = "orgs/acme") -> Runner:
    return Runner(id=number, name=f"r{number}", scope=scope, labels=labels, group_id=1)


def test_organisation_runner_serves_every_repository_and_another_only_its_own() -> None:
    market = Market()
    market.offer_runner(runner(1, "linux", scope="repos/acme/site"))
    market.offer_job(job(10, "linux"))
    assert market.pair(Random(1)) == []

    market.offer_runner(runner(2, "linux"))

    assert market.pair(Random(1)) == [(10, 2)]


def test_labels_must_be_covered_in_any_case() -> None:
    market = Market()
    market.offer_runner(runner(1, "Linux"))
    market.offer_job(job(10, "linux", "GPU"))
    assert market.pair(Random(1)) == []

    market.offer_runner(runner(2, "gpu", "LINUX", "big"))

    assert market.pair(Random(1)) == [(10, 2)]


def test_who_was_withdrawn_is_not_paired() -> None:
    market = Market()
    market.offer_runner(runner(1, "linux"))
    market.offer_job(job(10, "linux"))
    market.withdraw_job(job(10, "linux"))
    market.offer_job(job(11, "linux"))
    market.withdraw_runner(runner(1, "linux"))

    assert market.pair(Random(1)) == []


def test_the_same_seed_pairs_the_same_and_another_one_differently() -> None:
    def pairs(seed: int) -> list[tuple[int, int]]:
        market = Market()
        for number in range(20):
            market.offer_job(job(100 + number, "linux"))
            market.offer_runner(runner(number, "linux"))
        return market.pair(Random(seed))

    assert pairs(1) == pairs(1)
    assert pairs(1) != pairs(2)
    assert len(set(pairs(1))) == 20


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9))), st.integers())
def test_a_bag_is_a_set(steps: list[tuple[bool, int]], seed: int) -> None:
    bag = Bag()
    model: set[int] = set()
    for put, item in steps:
        (bag.add if put else bag.discard)(item)
        (model.add if put else model.discard)(item)
    assert {bag.take(Random(seed)) for _ in range(len(bag))} == model
