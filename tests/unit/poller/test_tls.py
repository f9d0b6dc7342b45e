"""The poller and the certificate of the address that it polls, with the curl of this machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import which

import pytest

from tests.certificates import Authority
from tests.unit.poller.dispatch_stub import Answer, DispatchStub
from tests.unit.poller.pod import SCRIPTS, make_pod

WORK = Answer(200, {"Content-Type": "text/plain", "X-Ostler-Claim": "4711"}, "ZmFrZSBqaXQ=")
NOTHING = Answer(204, {"Retry-After": "0"})


@pytest.fixture
def authority() -> Authority:
    return Authority()


def poll(
    root: Path,
    url: str,
    environment: Mapping[str, str],
    *,
    sleep: str = "",
    client: str | None = None,
    through: Sequence[str] = (),
) -> tuple[int, str]:
    """Run the poller to its end, or for a few seconds of its backoff. Return its status and its output."""
    pod = make_pod(root, clients=None if client is None else (client,))
    (root / "bin" / "sleep").write_text(f"#!/bin/sh\n{sleep}\n")
    given = {**pod.environment(url=url), **environment}
    done = subprocess.run(
        [*through, "sh", str(SCRIPTS / "poll.sh")], env=given, capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("variable", ["OSTLER_CA_FILE", "CURL_CA_BUNDLE"])
def test_poller_trusts_the_cas_of_its_file(authority: Authority, tmp_path: Path, variable: str) -> None:
    """Older poll.sh versions read only CURL_CA_BUNDLE."""
    (tmp_path / "ca.crt").write_bytes(Authority("other").certificate + authority.certificate)
    (tmp_path / "pod").mkdir()
    with DispatchStub([NOTHING, WORK], certificate=authority.sign().write(tmp_path)) as stub:
        code, said = poll(tmp_path / "pod", stub.url, {variable: str(tmp_path / "ca.crt")})
    assert code == 0, said
    assert (tmp_path / "pod" / "jit" / "jit").read_text() == WORK.body
    assert len(stub.polls) == 2


@pytest.mark.parametrize(
    ("trusted", "host", "status"),
    [("other", "127.0.0.1", 60), ("missing", "127.0.0.1", 77), ("none", "127.0.0.1", 60), ("right", "127.0.0.2", 60)],
)
def test_poller_backs_off_from_a_server_that_it_cannot_verify(
    authority: Authority, tmp_path: Path, trusted: str, host: str, status: int
) -> None:
    if trusted != "missing":
        found = authority if trusted == "right" else Authority("other")
        (tmp_path / "ca.crt").write_bytes(found.certificate)
    (tmp_path / "pod").mkdir()
    environment = {} if trusted == "none" else {"OSTLER_CA_FILE": str(tmp_path / "ca.crt")}
    with DispatchStub([WORK], certificate=authority.sign().write(tmp_path), host="") as stub:
        url = stub.url.replace("127.0.0.1", host)
        # The third wait ends the poller, as the kubelet would.
        ends = (
            f'n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n + 1)) >{tmp_path}/n; [ "$n" -lt 2 ] || kill $PPID'
        )
        code, said = poll(tmp_path / "pod", url, environment, sleep=ends)
    assert code == 128 + 15, said
    assert said.count("backing off") >= 3
    assert f"curl: ({status})" in said
    assert stub.polls == [], "the token was sent"


def test_poller_reads_the_file_again_for_each_poll(authority: Authority, tmp_path: Path) -> None:
    old = Authority("old")
    (tmp_path / "ca.crt").write_bytes(old.certificate)
    (tmp_path / "new").write_bytes(authority.certificate)
    (tmp_path / "pod").mkdir()
    with DispatchStub([WORK], certificate=authority.sign().write(tmp_path)) as stub:
        code, said = poll(
            tmp_path / "pod",
            stub.url,
            {"OSTLER_CA_FILE": str(tmp_path / "ca.crt")},
            sleep=f"cp {tmp_path}/new {tmp_path}/ca.crt",
        )
    assert code == 0, said
    assert "curl: (60)" in said
    assert [each.name for each in (tmp_path / "pod" / "jit").iterdir()] == ["jit"]


@pytest.mark.parametrize(
    ("trusted", "host", "served"),
    [
        ("right", "127.0.0.1", True),
        ("other", "127.0.0.1", False),
        ("missing", "127.0.0.1", False),
        ("none", "127.0.0.1", False),
        ("right", "127.0.0.2", False),
    ],
)
def test_wget_serves_only_a_server_that_it_can_verify(
    authority: Authority, tmp_path: Path, trusted: str, host: str, served: bool
) -> None:
    if trusted != "missing":
        found = authority if trusted == "right" else Authority("other")
        (tmp_path / "ca.crt").write_bytes(found.certificate)
    (tmp_path / "pod").mkdir()
    environment = {} if trusted == "none" else {"OSTLER_CA_FILE": str(tmp_path / "ca.crt")}
    with DispatchStub([WORK], certificate=authority.sign().write(tmp_path), host="") as stub:
        url = stub.url.replace("127.0.0.1", host)
        code, said = poll(tmp_path / "pod", url, environment, sleep="kill $PPID", client="wget")
    assert (code, len(stub.polls)) == ((0, 1) if served else (128 + 15, 0)), said


CAS_OF_THE_IMAGE = "/etc/ssl/certs/ca-certificates.crt"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process a file system of its own")
def test_wget_trusts_no_other_ca_than_those_of_the_file(authority: Authority, tmp_path: Path) -> None:
    """The image trusts the server's CA, but the file of the Pod does not."""
    (tmp_path / "image.crt").write_bytes(authority.certificate)
    (tmp_path / "ca.crt").write_bytes(Authority("other").certificate)
    unshare, mount, shell = (which(each) or each for each in ("unshare", "mount", "sh"))
    image = (unshare, "--mount", "--propagation=private", shell, "-c")
    script = f'{mount} --bind {tmp_path / "image.crt"} {CAS_OF_THE_IMAGE} && exec "$0" "$@"'
    found = {}
    for name, environment in (("image", {}), ("file", {"OSTLER_CA_FILE": str(tmp_path / "ca.crt")})):
        (tmp_path / name).mkdir()
        with DispatchStub([WORK], certificate=authority.sign().write(tmp_path)) as stub:
            code, _ = poll(
                tmp_path / name, stub.url, environment, sleep="kill $PPID", client="wget", through=(*image, script)
            )
        found[name] = (code, len(stub.polls))
    assert found == {"image": (0, 1), "file": (128 + 15, 0)}
