"""Polls over TLS with the poller's own script: idle Pods and Pods that get their job, while the certificate changes."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.processes import free_port
from lab.redis import Redis
from tests.certificates import Authority
from tests.database import Database
from tests.integration.web.polls.stage import Pod, Stage, WebProcess, open_stage
from tests.unit.poller.pod import SCRIPTS, make_pod
from tests.waiting import eventually
from web.edge import tls
from web.edge.ports import Audience
from web.server import make_server

PORTS = ("web_port", "web_polls_port", "web_private_port", "web_polls_tls_port")


@dataclass
class Cluster:
    """Web with a certificate, and Pods that run the poller with a bundle of CAs that the test changes."""

    stage: Stage
    folder: Path
    pollers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_web(self, **changes: object) -> WebProcess:
        certificate, key = self.folder / "tls.crt", self.folder / "tls.key"
        given = {"web_polls_tls_cert": str(certificate), "web_polls_tls_key": str(key)}
        return self.stage.start_web(**{name: free_port() for name in PORTS} | given | changes)

    def trust(self, *authorities: Authority) -> None:
        """Write the bundle as the kubelet does."""
        new = self.folder / "ca.new"
        new.write_bytes(b"".join(each.certificate for each in authorities))
        new.rename(self.folder / "ca.crt")

    def poll(self, pod: Pod, url: str) -> Path:
        """Start the poller of a Pod, and return the folder that its containers share."""
        root = self.folder / pod.name
        root.mkdir()
        made = make_pod(root)
        made.token_file.write_text(pod.token)
        (root / "bin" / "sleep").unlink()
        environment = made.environment(url=url) | {"OSTLER_CA_FILE": str(self.folder / "ca.crt")}
        with (root / "log").open("wb") as log:
            command = ["sh", str(SCRIPTS / "poll.sh")]
            self.pollers.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
        return made.jit_dir

    def has_jit(self, jit_dir: Path) -> bool:
        return (jit_dir / "jit").exists()

    def polls(self, web: WebProcess) -> int:
        """Return the number of polls that web has answered with 204."""
        return web.web.counts["poll.204"]


@pytest.fixture
def cluster(
    database: Database, redis_server: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    monkeypatch.setattr(tls, "CHECK_EVERY", 0.05)
    with open_stage(database, redis_server) as stage:
        cluster = Cluster(stage, tmp_path)
        yield cluster
        for each in cluster.pollers:
            each.kill()
            each.wait()


def by_tls(web: WebProcess) -> str:
    return f"https://127.0.0.1:{tls_port(web)}/runners/v1/dispatch"


def tls_port(web: WebProcess) -> int:
    port = web._server.ports.tls
    assert port is not None
    return port


def deliver(stage: Stage, pod: Pod) -> None:
    stage.mint(stage.claim(pod, state="claimed"))


def served_by(web: WebProcess, authority: Authority) -> bool:
    """Return whether a client that trusts only this CA can connect."""
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    try:
        with (
            socket.create_connection(("127.0.0.1", tls_port(web)), timeout=30) as connection,
            context.wrap_socket(connection, server_hostname="127.0.0.1") as secured,
        ):
            assert secured.version() in {"TLSv1.2", "TLSv1.3"}
            return True
    except ssl.SSLCertVerificationError:
        return False


def test_pods_keep_polling_over_a_rotation_and_back(cluster: Cluster) -> None:
    old, new = Authority("old"), Authority("new")
    old.sign().write(cluster.folder)
    cluster.trust(old)
    pool = cluster.stage.pool()
    idle, later = cluster.stage.pod(pool), cluster.stage.pod(pool)
    web = cluster.start_web(poll_hold_min=0.5, poll_hold_max=1.0)
    cluster.poll(idle, by_tls(web))
    jit = cluster.poll(later, by_tls(web))

    # Both CAs are trusted, then web's certificate is of the new one, then the old one goes; and the way back.
    for trusted, signer in (
        ((old, new), old),
        ((old, new), new),
        ((new,), new),
        ((new, old), new),
        ((new, old), old),
    ):
        cluster.trust(*trusted)
        signer.sign().write(cluster.folder)
        eventually(lambda signer=signer: served_by(web, signer))  # type: ignore[misc]
        before = cluster.polls(web)
        eventually(lambda before=before: cluster.polls(web) >= before + 4)  # type: ignore[misc]

    deliver(cluster.stage, later)
    eventually(lambda: cluster.has_jit(jit))
    assert "curl" not in (cluster.folder / idle.name / "log").read_text()


def test_held_poll_gets_its_job_after_the_certificate_changed(cluster: Cluster) -> None:
    old, new = Authority("old"), Authority("new")
    old.sign().write(cluster.folder)
    cluster.trust(old)
    pod = cluster.stage.pod(cluster.stage.pool())
    web = cluster.start_web(poll_hold_min=600, poll_hold_max=600)
    jit = cluster.poll(pod, by_tls(web))
    eventually(lambda: cluster.stage.is_offered(pod))
    cluster.trust(new)
    new.sign().write(cluster.folder)
    eventually(lambda: served_by(web, new))
    assert not served_by(web, old)

    deliver(cluster.stage, pod)

    eventually(lambda: cluster.has_jit(jit))
    assert cluster.polls(web) == 0


def test_poller_sends_no_token_to_a_server_of_another_ca(cluster: Cluster) -> None:
    trusted, stranger = Authority("trusted"), Authority("stranger")
    stranger.sign().write(cluster.folder)
    cluster.trust(trusted)
    pod = cluster.stage.pod(cluster.stage.pool())
    web = cluster.start_web()
    cluster.poll(pod, by_tls(web))
    eventually(lambda: "backing off" in (cluster.folder / pod.name / "log").read_text())
    assert web.web.polls.held == 0
    assert not any(name.startswith("poll.") for name in web.web.counts)

    trusted.sign().write(cluster.folder)  # and polls when it may

    eventually(lambda: cluster.stage.is_offered(pod))


def test_old_and_new_addresses_are_served_at_once_until_plain_polls_are_switched_off(cluster: Cluster) -> None:
    authority = Authority()
    authority.sign().write(cluster.folder)
    cluster.trust(authority)
    pool = cluster.stage.pool()
    before, after = cluster.stage.pod(pool), cluster.stage.pod(pool)
    web = cluster.start_web()
    jits = [
        cluster.poll(before, f"http://127.0.0.1:{web.port_of(Audience.POLLS)}/runners/v1/dispatch"),
        cluster.poll(after, by_tls(web)),
    ]
    eventually(lambda: cluster.stage.is_offered(before) and cluster.stage.is_offered(after))
    for pod in (before, after):
        deliver(cluster.stage, pod)
    eventually(lambda: all(map(cluster.has_jit, jits)))

    alone = cluster.start_web(web_plain_polls=False, web_public_polls=False)
    assert alone.port_of(Audience.POLLS) == tls_port(alone)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", alone._server._settings.web_polls_port))


def test_files_that_do_not_fit_each_other_leave_the_certificate_before_in_force(cluster: Cluster) -> None:
    old, new = Authority("old"), Authority("new")
    old.sign().write(cluster.folder)
    web = cluster.start_web()
    signed = new.sign()
    (cluster.folder / "tls.crt").write_bytes(signed.certificate)
    certificate = web._server.certificate
    assert certificate is not None
    assert not certificate.check()
    assert served_by(web, old)

    (cluster.folder / "tls.key").write_bytes(signed.key)

    eventually(lambda: served_by(web, new))


@pytest.mark.parametrize("sends", [b"", b"POST /runners/v1/dispatch HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_client_without_a_handshake_counts_in_the_cap_and_is_dropped(
    cluster: Cluster, sends: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_WITHIN", 1.0)
    Authority().sign().write(cluster.folder)
    web = cluster.start_web()
    cap = web._server.ports.caps[tls_port(web)]
    with socket.create_connection(("127.0.0.1", tls_port(web)), timeout=60) as connection:
        if not sends:
            eventually(lambda: len(cap) == 1)
        connection.sendall(sends)
        try:
            while connection.recv(1000):
                pass
        except ConnectionResetError:
            pass
    eventually(lambda: len(cap) == 0)
    assert web._server.server_state.connections == set()


def test_connections_without_a_handshake_make_room_for_those_that_come(cluster: Cluster) -> None:
    authority = Authority()
    authority.sign().write(cluster.folder)
    web = cluster.start_web()
    cap = web._server.ports.caps[tls_port(web)]
    cap.most = 3
    idle = [socket.create_connection(("127.0.0.1", tls_port(web))) for _ in range(5)]
    eventually(lambda: cap.dropped == 2)
    assert served_by(web, authority)
    for each in idle:
        each.close()
    eventually(lambda: len(cap) == 0)


def test_stopping_process_ends_its_polls_by_tls(cluster: Cluster) -> None:
    authority = Authority()
    authority.sign().write(cluster.folder)
    cluster.trust(authority)
    pod = cluster.stage.pod(cluster.stage.pool())
    web = cluster.start_web(poll_hold_min=600, poll_hold_max=600)
    cluster.poll(pod, by_tls(web))
    eventually(lambda: cluster.stage.is_offered(pod))
    cluster.stage.stop_web(web)
    assert cluster.polls(web) == 1


@pytest.mark.parametrize(
    ("certificate", "key", "said"),
    [(None, None, "cannot read"), (b"no PEM", None, "contains no certificate"), ("right", b"no PEM", "is not the key")],
)
def test_web_does_not_start_with_a_certificate_that_does_not_do(
    cluster: Cluster, certificate: bytes | str | None, key: bytes | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if certificate is not None:
        Authority().sign().write(cluster.folder)
    if isinstance(certificate, bytes):
        (cluster.folder / "tls.crt").write_bytes(certificate)
    if key is not None:
        (cluster.folder / "tls.key").write_bytes(key)
    settings = cluster.stage.settings.model_copy(
        update=dict.fromkeys(PORTS, 0)
        | {"web_polls_tls_cert": str(cluster.folder / "tls.crt"), "web_polls_tls_key": str(cluster.folder / "tls.key")}
    )
    with pytest.raises(SystemExit) as ended:
        make_server(settings).run()
    assert ended.value.code == 2
    assert said in capsys.readouterr().out
