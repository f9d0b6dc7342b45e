"""A locked offer or claim delays neither the offers nor the deliveries of other Pods (law L14)."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import text

from ostler.encryption import Cipher
from ostler.secrets import Secret
from tests.integration.web.polls.stage import Stage
from tests.waiting import eventually


def test_other_pods_are_offered_when_one_offer_is_locked(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.runners.offering.BATCH_EVERY", 1.0)  # so that all six share one statement on any machine
    web = stage.start_web()
    pool = stage.pool()
    stuck, *others = (stage.pod(pool) for _ in range(6))
    stage.execute(
        """
        INSERT INTO offers (pod_uid, pool_id, web_id, poll_id, until)
        VALUES (:uid, :pool, 'other', 'x', now() + interval '1 min')
        """,
        uid=stuck.uid,
        pool=pool,
    )
    with stage.engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM offers WHERE pod_uid = :u FOR UPDATE"), {"u": stuck.uid})
        _, *polls = [web.begin_poll(pod.token) for pod in (stuck, *others)]
        eventually(lambda: all(stage.is_offered(pod, web) for pod in others))
        told = [poll.result().status_code if poll.done() else "held" for poll in polls]
        holder.rollback()
    assert told == ["held"] * 5


def test_a_jit_is_delivered_when_twelve_other_claims_are_locked(stage: Stage) -> None:
    web = stage.start_web()
    pool = stage.pool()
    frozen = [stage.pod(pool) for _ in range(12)]
    other = stage.pod(pool)
    *_, poll = [web.begin_poll(pod.token) for pod in (*frozen, other)]
    eventually(lambda: all(stage.is_offered(pod, web) for pod in (*frozen, other)))
    claims = {pod.uid: stage.claim(pod, state="claimed") for pod in (*frozen, other)}
    jit = Cipher(stage.settings.encryption_keys).encrypt(Secret("jit"))
    for claim in claims.values():
        stage.execute(
            """
            UPDATE claims SET state = 'minted', jit = :jit, runner_name = 'r-' || id, minted_at = now() WHERE id = :id
            """,
            jit=jit,
            id=claim,
        )
    mine = claims.pop(other.uid)

    def notify(uid: str, claim: int) -> None:
        stage.execute("SELECT pg_notify('ostler', :payload)", payload=f"minted {claim} {uid}")

    with stage.engine.connect() as holder:
        locked = {"ids": list(claims.values())}
        holder.execute(text("SELECT 1 FROM claims WHERE id = ANY(:ids) FOR NO KEY UPDATE"), locked)
        for uid, claim in claims.items():
            notify(uid, claim)
        time.sleep(0.3)
        began = time.monotonic()
        notify(other.uid, mine)
        answer = poll.result(60)
        took = time.monotonic() - began
        holder.rollback()
    assert answer.status_code == 200
    assert took < 4  # each locked claim would cost 5
