"""An attacker who can write to Redis sends every task: no row changes without a reason in the rows (law L6)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import product
from pprint import pformat
from typing import Any, NoReturn

import pytest
from cryptography.fernet import Fernet

from github_adapters.endpoints.runners import Jit
from ostler.clock import utcnow
from ostler.encryption import Cipher
from ostler.errors import Retryable, UpstreamError
from ostler.secrets import Secret
from ostler.task_names import QUEUE_OF, RELEASE, RESUME
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tasks.worker.app import MODULES, app
from tests.integration.tasks.conftest import Stage, StubGitHub

AT_REST = ("minted", "delivered", "executing", "registered", "ended")
"""Claims whose rows give no task a reason to change them. A `claimed` claim waits for its mint, so it may be minted."""

CHAIN = 3
"""The present chain number of every claim."""


class Minting(StubGitHub):
    def mint(self, *, name: str, **_: Any) -> Jit:
        return Jit(runner_id=78, runner_name=name, config=Secret("jit"))

    def __getattr__(self, _name: str) -> Callable[..., NoReturn]:
        """Answer no call about webhooks and installations."""

        def fail(**_: Any) -> NoReturn:
            raise Retryable("down")

        return fail


def make_claims(stage: Stage) -> dict[str, int]:
    """Create a free Pod, and a Pod with a claim in each state. Return the claims by state."""
    stage.pool(replicas=len(AT_REST) + 2)
    pools.run()
    for message in stage.outbox.take("ostler.reconcile"):
        reconcile.run(**message)
    stage.outbox.sent.clear()
    pods = sorted(stage.pods())
    claims = {}
    for number, state in enumerate(("claimed", *AT_REST), start=1):
        real = {"registered": "delivered", "ended": "executing"}.get(state, state)
        if state == "registered":
            claims[state] = stage.claim_without_job(pods[number], state=real, runner=f"r-{number}")
        else:
            stage.job(number, state="running" if real == "executing" else "claimed")
            claims[state] = stage.claim(pods[number], job_id=number, state=real, runner=f"r-{number}")
    stage.rows("DELETE FROM mint_attempts WHERE claim_id = :id", id=claims["claimed"])
    stage.rows("UPDATE claims SET stamp = 'on', minted_at = now() + interval '1 h'")
    stage.rows(
        "INSERT INTO executions (job_id, runner_name, claim_id, account_id, vcpu, memory, started_at) "
        "SELECT job_id, runner_name, id, 1, 2000, 4096, now() FROM claims WHERE state = 'executing'"
    )
    stage.rows("UPDATE claims SET chain_no = :chain, due_at = now() + interval '1 min'", chain=CHAIN)
    stage.rows("UPDATE claims SET purpose = 'register', spare_since = NULL WHERE id = :id", id=claims["registered"])
    stage.rows(
        "UPDATE claims SET state = 'ended', ended_at = now(), end_reason = 'completed' WHERE id = :id",
        id=claims["ended"],
    )
    stage.rows("UPDATE jobs SET state = 'completed', conclusion = 'success', completed_at = now() WHERE id = 6")
    for job_id, state in ((21, "queued"), (22, "waiting"), (23, "completed")):
        stage.job(job_id, state=state)
    return claims


def forgeries(stage: Stage) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every task with every combination of plausible arguments."""
    claims = [row.id for row in stage.rows("SELECT id FROM claims ORDER BY id")]
    uids = [row.uid for row in stage.rows("SELECT uid FROM runner_pods ORDER BY id")]
    ids = [row.id for row in stage.rows("SELECT id FROM pools")]
    ending = {"deletion_at": utcnow().isoformat(), "reason": "Forged", "runner_exit_code": 1}
    now = utcnow().isoformat()
    hook = {
        "name": "x",
        "phase": "Failed",
        "node": None,
        "problem": "x",
        "created_at": now,
        "seen_at": now,
        "gone": True,
    }
    plausible: Mapping[str, Sequence[Any]] = {
        "claim_id": [*claims, claims[-1] + 1],
        "chain_no": [None, CHAIN - 1, CHAIN, CHAIN + 1],
        "reason": ["forged"],
        "pool_id": [None, *ids, ids[-1] + 1],
        "pool": [None, "small", "unknown"],
        "shared": [False, True],
        "ended": [(), ["small"]],  # of a reconcile: false or true; of the report of a watch: names of pools
        "namespace": [stage.namespace],
        "pools": [["small"]],
        "gone": [(), uids],
        "executing": [uids],
        "unstamped": [uids],
        "endings": [None, dict.fromkeys(uids, ending)],
        "hooks": [None, {uid: [hook] for uid in uids}],
        "pod_uid": [*uids, "unknown"],
        "run_id": [1, 99],
        "dry": [False],
        "asked": [None, "forged"],
        "spread": [0.0],
    }
    for module in MODULES:
        import_module(module)
    for name in QUEUE_OF:
        task = app.tasks[name]
        body = inspect.unwrap(getattr(task.run, "__func__", task.run))
        allowed = {
            each.name: [value for value in plausible[each.name] if value is not None or each.default is None]
            for each in inspect.signature(body).parameters.values()
            if each.kind is inspect.Parameter.KEYWORD_ONLY
        }
        if name == RELEASE:  # messages of other versions have more arguments
            allowed = {"chain_no": [*plausible["chain_no"]], "reason": [*plausible["reason"]], **allowed}
        for values in product(*allowed.values()):
            yield name, dict(zip(allowed, values, strict=True))


def rows_of(stage: Stage, *, but: int) -> dict[str, Any]:
    """Return everything that no message may change: rows, the cluster's objects, and GitHub's deletions.

    `but`: the claim that is left out.
    """
    return {
        "claims": stage.rows(
            "SELECT id, purpose, state, stamp, job_id, pod_uid, release_reason, end_reason, delivered_at, ended_at "
            "FROM claims WHERE id <> :but ORDER BY id",
            but=but,
        ),
        "jobs": stage.rows("SELECT id, state, hold_reason, conclusion FROM jobs ORDER BY id"),
        "pods": stage.rows("SELECT uid, gone_at, terminal_at FROM runner_pods ORDER BY id"),
        "attempts": stage.rows("SELECT id, outcome FROM mint_attempts WHERE claim_id <> :but ORDER BY id", but=but),
        "cluster": [(pod.uid, pod.terminating) for pod in stage.pods().values()],
        "deleted": list(stage.rt.github.deleted),
    }


def run(name: str, arguments: Mapping[str, Any]) -> None:
    """Run one message as a worker would, except errors that a worker would log."""
    with suppress(UpstreamError):
        app.tasks[name].run(**arguments)


@pytest.fixture
def forger(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage.rt.github = Minting(runner="idle")
    stage.rt.cipher = Cipher([Secret(Fernet.generate_key().decode())])  # type: ignore[attr-defined]
    monkeypatch.setattr("tasks.claims.dispatch.start_chains", lambda _claims, **_more: None)
    monkeypatch.setattr("tasks.sweeps.resume.start_chains", lambda _claims, **_more: None)
    monkeypatch.setattr("tasks.claims.dispatch.clear_wake", lambda _rt, _pool_id: None)
    return stage


def test_forged_messages_move_no_row_without_a_reason_of_its_own(forger: Stage) -> None:
    claimed = make_claims(forger)["claimed"]
    before = rows_of(forger, but=claimed)
    moved: dict[str, Any] = {}
    for name, arguments in forgeries(forger):
        run(name, arguments)
        after = rows_of(forger, but=claimed)
        if after != before:
            moved[f"{name} {arguments}"] = {
                key: [row for row in after[key] if row not in before[key]] for key in after if after[key] != before[key]
            }
            before = after
    assert not moved, pformat(moved, width=200)
    assert (forger.see(claimed).state, forger.see(claimed).release_reason) == ("minted", None)


def test_release_message_of_an_older_worker_leaves_its_claim_to_resume(
    forger: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_id = make_claims(forger)["claimed"]
    sent: list[tuple[list[int], int]] = []
    monkeypatch.setattr("tasks.sweeps.resume.start_chains", lambda ids, *, chain_no: sent.append((ids, chain_no)))
    forger.rows("UPDATE claims SET due_at = now() - interval '1 s' WHERE id = :id", id=claim_id)

    run(RELEASE, {"claim_id": claim_id, "chain_no": CHAIN})
    assert forger.see(claim_id).state == "claimed"
    run(RESUME, {})

    assert sent == [([claim_id], CHAIN + 1)]
