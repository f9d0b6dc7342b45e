"""A tripped gate stops, task by task, the deletion of live Pods. Dispatch and its work continue."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.fernet import Fernet

from github_adapters.endpoints.runners import Jit
from k8s_adapters.pools.pools import patch_pool_replicas
from ostler.encryption import Cipher
from ostler.secrets import Secret
from ostler.upstreams import TALLY
from tasks.claims import dispatch as module
from tasks.claims.dispatch import dispatch
from tasks.claims.mint import mint
from tasks.claims.stamp import stamp
from tasks.pools.mirror_pools import pools
from tasks.pools.reconcile import reconcile
from tasks.sweeps.gates import gates
from tasks.sweeps.unresponsive_pods import unresponsive_pods
from tests.integration.matching.stage import WakeKeys
from tests.integration.tasks.conftest import Stage, StubGitHub


class Minting(StubGitHub):
    """A GitHub that mints."""

    def mint(self, *, name: str, **_: Any) -> Jit:
        return Jit(runner_id=8, runner_name=name, config=Secret("jit"))


@pytest.fixture
def closed(stage: Stage, pod: str) -> str:
    """Trip both gates."""
    stage.rows("""
        INSERT INTO gates (upstream, closed_at, why)
        VALUES ('github', now(), 'it fails'), ('kubernetes', now(), 'it fails, too')
    """)
    return pod


def kept(stage: Stage, *, replicas: int) -> None:
    """Reconcile a pool with `replicas` replicas."""
    patch_pool_replicas(stage.kube, namespace=stage.namespace, name="small", replicas=replicas)
    pools.run()
    for message in stage.outbox.take("ostler.reconcile"):
        reconcile.run(**message)


def retiring(stage: Stage) -> int:
    return len(stage.rows("SELECT 1 FROM claims WHERE purpose = 'retire' AND ended_at IS NULL"))


def test_a_job_is_matched_and_its_pod_stamped_and_given_a_runner(
    stage: Stage, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.rt.github = Minting()
    stage.rt.wake_keys = WakeKeys()  # type: ignore[attr-defined]
    stage.rt.cipher = Cipher([Secret(Fernet.generate_key().decode())])  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "start_chains", chains)
    stage.job(7, state="queued")
    stage.rows("INSERT INTO web_instances (id, started_at, beat_at) SELECT 'w', now(), now() + interval '1 hour'")
    stage.rows(
        """
        INSERT INTO offers (pod_uid, pool_id, web_id, poll_id, until)
        SELECT uid, pool_id, 'w', 'p', now() + interval '1 hour' FROM runner_pods WHERE name = :pod
        """,
        pod=closed,
    )
    (pool,) = stage.rows("SELECT id FROM pools")

    dispatch.run(pool_id=pool.id)

    (claim,) = stage.rows("SELECT job_id, state, stamp FROM claims")
    assert tuple(claim) == (7, "minted", "on")
    assert stage.pods()[closed].owner == 1


def chains(claim_ids: Any, *, chain_no: int) -> None:
    """Act as the worker that gets the messages."""
    for claim_id in claim_ids:
        stamp.run(claim_id=claim_id, chain_no=chain_no)
        mint.run(claim_id=claim_id, chain_no=chain_no)


def test_pool_is_filled_and_spent_pods_are_replaced_but_no_live_pod_is_retired(stage: Stage, closed: str) -> None:
    kept(stage, replicas=3)
    assert len(stage.pods()) == 3

    stage.finish(closed)
    kept(stage, replicas=3)
    assert (closed in stage.pods(), len(stage.pods())) == (False, 3)

    stage.rows("UPDATE runner_pods SET created_at = created_at - interval '1 h', first_polled_at = created_at")
    stage.rows("UPDATE pools SET start_timeout = -3600")  # whatever does not poll has been silent for long
    stage.rows("INSERT INTO web_instances (id, started_at, beat_at) SELECT 'w', now() - interval '9 h', now()")
    unresponsive_pods.run()
    assert (len(stage.pods()), retiring(stage)) == (3, 0)

    stage.rows("UPDATE gates SET closed_at = NULL")
    unresponsive_pods.run()
    assert retiring(stage) == 3


@pytest.mark.usefixtures("closed")
def test_a_pool_that_is_too_large_stays_so_until_the_gate_opens(stage: Stage) -> None:
    kept(stage, replicas=1)
    assert retiring(stage) == 0

    stage.rows("UPDATE gates SET closed_at = NULL")
    kept(stage, replicas=1)
    assert retiring(stage) == 1


def test_gates_that_close_together_do_not_open_together(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.rt.github = StubGitHub()
    TALLY.take()
    stage.rows("INSERT INTO upstream_calls VALUES ('github', now(), 20, 20), ('kubernetes', now(), 20, 20)")
    drawn = iter([0.0, 0.99])
    monkeypatch.setattr("tasks.sweeps.gates.random.random", lambda: next(drawn))
    gates.run()
    assert [row.needs for row in stage.rows("SELECT needs FROM gates ORDER BY upstream")] == [4, 8]
