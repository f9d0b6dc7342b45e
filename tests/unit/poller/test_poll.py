"""The poller's script with every row of the dispatch endpoint's answer table."""

import os
import signal
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from shutil import rmtree, which

import pytest

from tests.unit.poller.dispatch_stub import Answer, DispatchStub, Poll
from tests.unit.poller.pod import TOKEN, Pod, make_pod, write_script
from tests.waiting import eventually

JIT = "ZmFrZSBqaXQgY29uZmlnIG9mIGEgdGVzdA=="
WORK = Answer(
    200,
    {"Content-Type": "text/plain; charset=utf-8", "X-Ostler-Claim": "4711", "X-Ostler-Runner": "linux-0a1b-9f"},
    JIT,
)


def signed(body: str, *, by: str) -> Answer:
    """Return an answer with the digest of a text."""
    return Answer(200, {"X-Ostler-Claim": "4711", "X-Ostler-Sha256": sha256(by.encode()).hexdigest()}, body)


KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...] | None]] = {
    "sh-curl": (("sh",), None),
    "sh-wget": (("sh",), ("wget",)),
    "bash-wget": (("bash", "--posix"), ("wget",)),
    "busybox-curl": (("busybox", "sh"), ("curl",)),
    "busybox-wget": (("busybox", "sh"), ("wget",)),
}
"""Shell and HTTP clients of an image."""

FEW = [kind for kind in ("sh-curl", "sh-wget") if which("wget") or "wget" not in kind]
MANY = [kind for kind in KINDS if which("wget") or "wget" not in kind if which("busybox") or "busybox" not in kind]


@pytest.fixture(params=FEW)
def pod(tmp_path: Path, request: pytest.FixtureRequest) -> Pod:
    return pod_of(tmp_path, request.param)


def pod_of(root: Path, kind: str) -> Pod:
    shell, clients = KINDS[kind]
    return make_pod(root, shell=shell, clients=clients)


@dataclass(frozen=True)
class Row:
    """The answers, and the result of the poller. `waits` are the bounds of each sleep, in seconds."""

    name: str
    answers: list[Answer]
    code: int
    message: str
    waits: list[tuple[float, float]]


REPLACED = "replaced: status 410"
ROWS = [
    Row("200 is work", [WORK], 0, "4711", []),
    Row("200 without a body is not work", [Answer(200), WORK], 0, "4711", [(0.5, 1)]),
    Row("200 with blanks only is not work", [Answer(200, {}, " \n\n"), WORK], 0, "4711", [(0.5, 1)]),
    Row(
        "200 with a page is not work", [Answer(200, {"Content-Type": "text/html"}, "<p>"), WORK], 0, "4711", [(0.5, 1)]
    ),
    Row("200 cut short is not work", [Answer(200, {}, JIT, cut=True), WORK], 0, "4711", [(0.5, 1)]),
    Row("200 without a claim id is not work", [Answer(200, {}, JIT), WORK], 0, "4711", [(0.5, 1)]),
    Row("200 with its digest is work", [signed(JIT, by=JIT)], 0, "4711", []),
    Row("200 with another digest is not work", [signed(JIT, by="other"), WORK], 0, "4711", [(0.5, 1)]),
    Row("204 polls again as told", [Answer(204, {"Retry-After": "2"}), WORK], 0, "4711", [(2, 2.8)]),
    Row("204 with 0 polls again nearly at once", [Answer(204, {"Retry-After": "0"}), WORK], 0, "4711", [(0, 0.25)]),
    Row("204 untold polls again soon", [Answer(204), WORK], 0, "4711", [(0.5, 1.5)]),
    Row("401 ends it", [Answer(401)], 1, "refused: status 401", []),
    Row("403 ends it", [Answer(403)], 1, "refused: status 403", []),
    Row("410 replaces the Pod", [Answer(410)], 10, REPLACED, []),
    Row("429 waits as told", [Answer(429, {"Retry-After": "7"})], 10, REPLACED, [(7, 9)]),
    Row("503 waits as told", [Answer(503, {"Retry-After": "4"}, "{}")], 10, REPLACED, [(4, 5.25)]),
    Row("header names know no case", [Answer(503, {"RETRY-after": "4"})], 10, REPLACED, [(4, 5.25)]),
    Row("503 untold backs off", [Answer(503)], 10, REPLACED, [(0.5, 1)]),
    Row("Retry-After is capped", [Answer(503, {"Retry-After": "86400"})], 10, REPLACED, [(60, 75.25)]),
    Row("Retry-After beyond all numbers", [Answer(503, {"Retry-After": "9" * 40})], 10, REPLACED, [(60, 75.25)]),
    Row("Retry-After with leading zeros", [Answer(503, {"Retry-After": "008"})], 10, REPLACED, [(8, 10.25)]),
    Row("Retry-After as a date", [Answer(503, {"Retry-After": "Fri, 1 Jan 2027"})], 10, REPLACED, [(0.5, 1)]),
    Row("Retry-After below zero", [Answer(429, {"Retry-After": "-5"})], 10, REPLACED, [(0.5, 1)]),
    Row("Retry-After with a command", [Answer(429, {"Retry-After": "$(id)"})], 10, REPLACED, [(0.5, 1)]),
    Row("500 backs off", [Answer(500)], 10, REPLACED, [(0.5, 1)]),
    Row("404 backs off", [Answer(404)], 10, REPLACED, [(0.5, 1)]),
    Row("a redirect is not followed", [Answer(302, {"Location": "http://127.0.0.1:9/"})], 10, REPLACED, [(0.5, 1)]),
    Row(
        "backoff doubles to its cap",
        [Answer(500)] * 7,
        10,
        REPLACED,
        [(0.5, 1), (1, 2), (2, 4), (4, 8), (8, 16), (15, 30), (15, 30)],
    ),
    Row(
        "204 starts the backoff anew",
        [Answer(500), Answer(500), Answer(204, {"Retry-After": "0"}), Answer(500)],
        10,
        REPLACED,
        [(0.5, 1), (1, 2), (0, 0.25), (0.5, 1)],
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_poller_obeys_the_answer_table(pod: Pod, row: Row) -> None:
    with DispatchStub(row.answers) as dispatch:
        ended = pod.poll(url=dispatch.url)

    assert (ended.code, ended.message) == (row.code, row.message), ended.output
    assert len(ended.slept) == len(row.waits), ended.slept
    for slept, (least, most) in zip(ended.slept, row.waits, strict=True):
        assert least <= slept <= most
    left = sorted(path.name for path in pod.jit_dir.iterdir())
    assert left == (["jit"] if row.code == 0 else ["no-work"])


def test_a_poll_is_a_post_with_the_token_that_asks_for_the_bare_config(pod: Pod) -> None:
    with DispatchStub([WORK]) as dispatch:
        pod.poll(url=dispatch.url)

    assert dispatch.polls == [Poll("POST", "/runners/v1/dispatch", f"Bearer {TOKEN}", "text/plain")]


def test_the_config_arrives_whole_and_private(pod: Pod) -> None:
    with DispatchStub([WORK]) as dispatch:
        pod.poll(url=dispatch.url)

    jit = pod.jit_dir / "jit"
    assert jit.read_text() == JIT
    assert stat.S_IMODE(jit.stat().st_mode) == 0o400


def test_the_config_appears_in_one_step(pod: Pod) -> None:
    # The last command before the rename finds the config whole beside its final name, which nobody has seen yet.
    write_script(pod.root / "bin" / "mv", f'/bin/ls -A "{pod.jit_dir}" >"{pod.root}/before"; exec /bin/mv "$@"')
    with DispatchStub([WORK]) as dispatch:
        ended = pod.poll(url=dispatch.url)

    assert ended.code == 0
    before = (pod.root / "before").read_text().split()
    assert "jit" not in before
    assert ".poll.body" in before


def test_a_failed_write_is_never_exit_0(pod: Pod) -> None:
    write_script(pod.root / "bin" / "mv", "exit 1")
    with DispatchStub([WORK]) as dispatch:
        ended = pod.poll(url=dispatch.url)

    assert (ended.code, ended.message) == (1, "cannot write the JIT config")
    assert [path.name for path in pod.jit_dir.iterdir()] == ["no-work"]


def test_a_missing_volume_ends_it_before_a_config_is_asked_for(pod: Pod) -> None:
    rmtree(pod.jit_dir)
    with DispatchStub([WORK]) as dispatch:
        ended = pod.poll(url=dispatch.url)

    assert (ended.code, ended.message) == (1, "cannot write to the shared directory")
    assert dispatch.polls == []


def test_a_dead_server_is_backed_off_from(pod: Pod) -> None:
    # The fourth sleep brings the poller to its end.
    write_script(
        pod.root / "bin" / "sleep",
        f'echo "$1" >>"{pod.root}/slept"; [ "$(wc -l <"{pod.root}/slept")" -lt 4 ] || kill "$PPID"',
    )
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # taken, and nobody listens
        ended = pod.poll(url=f"http://127.0.0.1:{deaf.getsockname()[1]}/")

    assert ended.code == 128 + signal.SIGTERM
    assert ended.slept[0] <= 1
    assert ended.slept[3] >= 4


def test_a_missing_token_is_waited_for(pod: Pod) -> None:
    pod.token_file.unlink()
    write_script(pod.root / "bin" / "sleep", f'echo "$1" >>"{pod.root}/slept"; printf {TOKEN} >"{pod.token_file}"')
    with DispatchStub([WORK]) as dispatch:
        ended = pod.poll(url=dispatch.url)

    assert ended.code == 0
    assert len(ended.slept) == 1
    assert len(dispatch.polls) == 1


def test_a_rotated_token_is_used_by_the_next_poll(pod: Pod) -> None:
    # kubelet swaps the projected token between two polls.
    write_script(pod.root / "bin" / "sleep", f'printf rotated >"{pod.token_file}"')
    with DispatchStub([Answer(204, {"Retry-After": "1"}), WORK]) as dispatch:
        pod.poll(url=dispatch.url)

    assert [poll.authorization for poll in dispatch.polls] == [f"Bearer {TOKEN}", "Bearer rotated"]


def test_sigterm_ends_a_held_poll_at_once_and_leaves_no_work(pod: Pod) -> None:
    with DispatchStub([Answer(hang=True)]) as dispatch:
        process = pod.start("poll.sh", url=dispatch.url)
        dispatch.wait_for_polls(1)
        process.terminate()
        ended = pod.end(process)

    assert (ended.code, ended.message) == (128 + signal.SIGTERM, "terminated by signal 15")
    assert [path.name for path in pod.jit_dir.iterdir()] == ["no-work"]
    assert list(_command_lines(of=dispatch.url)) == []


def test_the_token_is_on_no_command_line(pod: Pod) -> None:
    with DispatchStub([Answer(hang=True)]) as dispatch:
        process = pod.start("poll.sh", url=dispatch.url)
        dispatch.wait_for_polls(1)
        seen = list(_command_lines(of=dispatch.url))
        process.terminate()
        pod.end(process)

    assert any(client in line for line in seen for client in ("curl", "wget"))
    assert not any(TOKEN in line for line in seen)


def test_a_trace_shows_neither_token_nor_config(pod: Pod) -> None:
    with DispatchStub([Answer(204, {"Retry-After": "0"}), WORK]) as dispatch:
        ended = pod.poll(url=dispatch.url, trace=True)

    assert ended.code == 0
    assert "4711" in ended.output
    assert TOKEN not in ended.output
    assert JIT not in ended.output


@pytest.mark.parametrize("missing", ["OSTLER_DISPATCH_URL", "OSTLER_TOKEN_FILE"])
def test_a_missing_setting_is_named_and_leaves_no_work(pod: Pod, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    full = pod.environment(url="http://127.0.0.1:9/")
    monkeypatch.setattr(Pod, "environment", lambda _self, url: {**full, missing: url[:0]})
    ended = pod.poll(url="http://127.0.0.1:9/")

    assert (ended.code, ended.message) == (1, f"{missing} is not set")
    assert (pod.jit_dir / "no-work").exists()


@pytest.mark.parametrize("kind", sorted(set(MANY) - set(FEW)))
def test_poller_works_in_other_shells(tmp_path: Path, kind: str) -> None:
    pod = pod_of(tmp_path, kind)
    with DispatchStub([Answer(503, {"Retry-After": "4"}), Answer(204), Answer(200, {}, JIT, cut=True), WORK]) as stub:
        ended = pod.poll(url=stub.url)

    assert (ended.code, ended.message) == (0, "4711"), ended.output
    assert 4 <= ended.slept[0] <= 5.25
    assert (pod.jit_dir / "jit").read_text() == JIT
    assert [poll.authorization for poll in stub.polls] == [f"Bearer {TOKEN}"] * 4


@pytest.mark.parametrize(
    "clients",
    [
        pytest.param((), id="none"),
        pytest.param(
            ("busybox",),
            id="busybox",
            marks=pytest.mark.skipif(which("busybox") is None, reason="busybox is not installed"),
        ),
    ],
)
def test_poller_ends_without_a_client_that_verifies_certificates(tmp_path: Path, clients: tuple[str, ...]) -> None:
    pod = make_pod(tmp_path, clients=clients)
    if clients:
        write_script(tmp_path / "bin" / "wget", 'exec busybox wget "$@"')

    ended = pod.poll(url="http://127.0.0.1:9/")

    assert (ended.code, ended.message) == (21, "the image has neither curl nor GNU wget")
    assert (pod.jit_dir / "no-work").exists()


def test_poller_asks_for_nothing_before_the_runner_is_checked(pod: Pod) -> None:
    usable = pod.jit_dir / "runner-usable"
    usable.unlink()
    # The third check finds the result of the entry.
    script = f'echo "$1" >>"{pod.root}/slept"; [ "$(wc -l <"{pod.root}/slept")" -lt 3 ] || true >"{usable}"'
    write_script(pod.root / "bin" / "sleep", script)
    with DispatchStub([WORK]) as dispatch:
        ended = pod.poll(url=dispatch.url)

    assert ended.code == 0, ended.output
    assert ended.slept == [0.2, 0.2, 0.2]
    assert len(dispatch.polls) == 1


@pytest.mark.parametrize(
    ("left", "code", "message"),
    [
        ("22 there is no /home/runner/run.sh\n", 22, "there is no /home/runner/run.sh"),
        ("23 user 7 cannot write", 23, "user 7 cannot write"),
        ("0 fine\n", 1, "run.sh left a result that this script does not know"),
        ("$(id)\n", 1, "run.sh left a result that this script does not know"),
    ],
    ids=["no-runner", "wrong-user", "zero", "command"],
)
def test_poller_ends_with_the_result_of_an_unusable_runner(pod: Pod, left: str, code: int, message: str) -> None:
    (pod.jit_dir / "runner-usable").unlink()
    (pod.jit_dir / "runner-unusable").write_text(left)
    with DispatchStub([WORK]) as dispatch:
        ended = pod.poll(url=dispatch.url)

    assert (ended.code, ended.message) == (code, message), ended.output
    assert dispatch.polls == []


def test_sigterm_ends_the_wait_for_the_check_of_the_runner(pod: Pod) -> None:
    (pod.jit_dir / "runner-usable").unlink()
    write_script(pod.root / "bin" / "sleep", f'true >"{pod.root}/waits"; exec /bin/sleep 60')
    process = pod.start("poll.sh", url="http://127.0.0.1:9/")
    eventually((pod.root / "waits").exists, "the poller does not wait")
    process.terminate()

    assert pod.end(process).code == 128 + signal.SIGTERM


def test_the_token_has_no_name_in_the_shared_volume(pod: Pod) -> None:
    """Container `runner` mounts the volume too."""
    with DispatchStub([Answer(hang=True)]) as dispatch:
        process = pod.start("poll.sh", url=dispatch.url)
        dispatch.wait_for_polls(1)
        found = {path.name: path.read_bytes() for path in pod.jit_dir.iterdir()}
        process.terminate()
        pod.end(process)

    assert not [name for name, content in found.items() if TOKEN.encode() in content]


def _command_lines(*, of: str) -> Iterator[str]:
    """Yield the command lines of all processes that contain this address."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if of in line:
            yield line
