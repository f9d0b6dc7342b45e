"""The real poller script with a real web process: every row of the answer table.

The script's sleeps are recorded and not slept, except if a row says that the script polls again. 429 is missing,
because only a proxy can answer it, and never Ostler. `tests/unit/poller` tests it.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from k8s_adapters.runners.identity import TokenRejected
from ostler.clock import utcnow
from tests.integration.web.polls.stage import JIT, Pod, Stage, WebProcess
from tests.unit.poller import pod as scripts
from tests.waiting import eventually
from web.runners import polls

DELIVERED: dict[str, Any] = {"delivered_at": utcnow()}


def run_poller(folder: Path, pod: Pod, web: WebProcess, *, give_up_after: int = 1) -> scripts.Ended:
    """Run the poller as this Pod until it ends. After `give_up_after` sleeps, SIGTERM ends it."""
    script = prepared(folder, pod, give_up_after=give_up_after)
    return script.poll(url=f"{web.url}/runners/v1/dispatch")


def prepared(folder: Path, pod: Pod, *, give_up_after: int = 1) -> scripts.Pod:
    script = scripts.make_pod(folder)
    script.token_file.write_text(pod.token)
    slept = folder / "slept"
    scripts.write_script(
        folder / "bin" / "sleep",
        f'echo "$1" >>"{slept}"; [ "$(wc -l <"{slept}")" -lt {give_up_after} ] || kill "$PPID"',
    )
    return script


def left_by(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "jit").iterdir())


STOPPED = (128 + signal.SIGTERM, "terminated by signal 15")


@pytest.mark.parametrize("state", ["minted", "delivered"])
def test_200_is_written_whole_and_exit_0_names_the_claim(stage: Stage, tmp_path: Path, state: str) -> None:
    pod = stage.pod(stage.pool())
    claim_id = stage.claim(pod, state=state, **(DELIVERED if state == "delivered" else {}))

    ended = run_poller(tmp_path, pod, stage.start_web())

    assert (ended.code, ended.message, ended.slept) == (0, str(claim_id), [])
    assert left_by(tmp_path) == ["jit"]
    assert (tmp_path / "jit" / "jit").read_text() == JIT
    assert stage.state(claim_id) == "delivered"
    assert pod.token not in ended.output
    assert JIT not in ended.output


def test_poller_repeats_almost_at_once_and_stays_offered_after_a_204(stage: Stage, tmp_path: Path) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web(poll_hold_min=0.2, poll_hold_max=0.3)

    ended = run_poller(tmp_path, pod, web, give_up_after=3)

    assert (ended.code, ended.message) == STOPPED
    assert len(ended.slept) == 3
    assert all(0 <= slept <= 0.25 for slept in ended.slept), ended.slept
    assert left_by(tmp_path) == ["no-work"]
    assert web.web.counts["poll.204"] == 3
    assert stage.is_offered(pod)


def test_204_of_a_stopping_process_is_polled_again_elsewhere_a_second_later(stage: Stage, tmp_path: Path) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    script = prepared(tmp_path, pod)
    process = script.start("poll.sh", url=f"{web.url}/runners/v1/dispatch")
    eventually(lambda: stage.is_offered(pod))

    stage.stop_web(web)

    ended = script.end(process)
    assert (ended.code, ended.message) == STOPPED
    assert 1 <= ended.slept[0] <= 1.5


def reject(stage: Stage, pod: Pod) -> None:
    stage.cluster.tokens[pod.token] = TokenRejected("expired")


def refuse_in_review(stage: Stage, pod: Pod) -> None:
    stage.claim(pod)
    stage.cluster.review_says = False


def move_to_another_namespace(stage: Stage, pod: Pod) -> None:
    stage.cluster.tokens[pod.token] = stage.identity(pod.name, pod.uid, namespace="elsewhere")


def prove_gone(stage: Stage, _pod: Pod) -> None:
    stage.execute("UPDATE runner_pods SET gone_at = now()")


def forget(stage: Stage, _pod: Pod) -> None:
    stage.execute("DELETE FROM runner_pods")


def claim(**changes: Any) -> Callable[[Stage, Pod], None]:
    def given(stage: Stage, pod: Pod) -> None:
        stage.claim(pod, **changes)

    return given


@dataclass(frozen=True)
class Row:
    """The case, and the expected end of the poller."""

    name: str
    given: Callable[[Stage, Pod], None]
    code: int
    message: str


ENDED: dict[str, Any] = {"ended_at": utcnow(), "end_reason": "completed", "leased_until": None}
FINAL = [
    Row("401, the token is bad", reject, 1, "refused: status 401"),
    Row("401, the token review says no", refuse_in_review, 1, "refused: status 401"),
    Row("403, of another namespace", move_to_another_namespace, 1, "refused: status 403"),
    Row("403, the Pod is gone", prove_gone, 1, "refused: status 403"),
    Row("403, no such Pod", forget, 1, "refused: status 403"),
    Row("410, being retired", claim(state="claimed", purpose="retire"), 10, "replaced: status 410"),
    Row("410, released after its delivery", claim(state="releasing", **DELIVERED), 10, "replaced: status 410"),
    Row("410, its JIT was seen used", claim(state="executing", **DELIVERED), 10, "replaced: status 410"),
    Row("410, it was delivered once", claim(state="ended", **DELIVERED, **ENDED), 10, "replaced: status 410"),
]


@pytest.mark.parametrize("row", FINAL, ids=lambda row: row.name)
def test_a_refusal_ends_the_poller_and_frees_the_runner(stage: Stage, tmp_path: Path, row: Row) -> None:
    pod = stage.pod(stage.pool())
    row.given(stage, pod)

    ended = run_poller(tmp_path, pod, stage.start_web())

    assert (ended.code, ended.message, ended.slept) == (row.code, row.message, [])
    assert left_by(tmp_path) == ["no-work"]
    scripts.write_script(tmp_path / "home" / "run.sh", "exit 99")
    entry = subprocess.run(
        ["sh", str(scripts.SCRIPTS / "run.sh")], env=scripts.Pod(tmp_path).environment(url=""), timeout=30, check=False
    )
    assert entry.returncode == 0


def cannot_be_judged(stage: Stage, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    del monkeypatch
    stage.cluster.unknown_keys.add(pod.token)


def too_many(_stage: Stage, _pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polls, "MOST_POLLS", 0)


@pytest.mark.parametrize("given", [cannot_be_judged, too_many])
def test_503_is_polled_again_as_told_and_good_later(
    stage: Stage, tmp_path: Path, given: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = stage.pod(stage.pool())
    given(stage, pod, monkeypatch)
    web = stage.start_web()
    script = prepared(tmp_path, pod, give_up_after=100)
    process = script.start("poll.sh", url=f"{web.url}/runners/v1/dispatch")
    eventually(lambda: web.web.counts["poll.503"] >= 3)
    stage.cluster.unknown_keys.clear()
    monkeypatch.undo()
    claim_id = stage.claim(pod)

    ended = script.end(process)

    assert (ended.code, ended.message) == (0, str(claim_id))
    assert all(1 <= slept <= 1.5 for slept in ended.slept), ended.slept
    assert left_by(tmp_path) == ["jit"]


def test_a_poll_that_waits_is_answered_when_its_claim_is_minted(stage: Stage, tmp_path: Path) -> None:
    pod = stage.pod(stage.pool())
    web = stage.start_web()
    script = prepared(tmp_path, pod)
    process = script.start("poll.sh", url=f"{web.url}/runners/v1/dispatch")
    eventually(lambda: stage.is_offered(pod))
    claim_id = stage.claim(pod, state="claimed")

    stage.mint(claim_id)

    ended = script.end(process)
    assert (ended.code, ended.message, ended.slept) == (0, str(claim_id), [])


def test_a_lost_reply_is_made_good_with_the_same_jit(stage: Stage, tmp_path: Path) -> None:
    pod = stage.pod(stage.pool())
    claim_id = stage.claim(pod)
    web = stage.start_web()
    assert web.poll(pod.token, accept="text/plain").text == JIT

    ended = run_poller(tmp_path, pod, web)

    assert (ended.code, ended.message) == (0, str(claim_id))
    assert (tmp_path / "jit" / "jit").read_text() == JIT
