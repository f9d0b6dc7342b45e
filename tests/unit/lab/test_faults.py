"""The fault proxy: what passes, what fails, and what the upstream and the client each saw of it."""

import errno
import http.client
import json
import re
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from lab.faults import Fault, FaultProxy


@dataclass
class Upstream:
    """A store of things: POST makes one, GET lists them, `/watch` sends a line for each `say`."""

    url: str
    things: list[str] = field(default_factory=list)
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    say: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    hung_up: threading.Event = field(default_factory=threading.Event)
    connections: set[tuple[str, int]] = field(default_factory=set)


def _hung_up(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: Upstream

    def _note(self) -> bytes:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.upstream.seen.append((self.command, self.path, headers))
        self.upstream.connections.add(self.client_address)
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(headers.get("content-length", 0)))

    def do_POST(self) -> None:
        self.upstream.things.append(self._note().decode())
        self._send(201, b"made")

    def do_DELETE(self) -> None:
        self._note()
        self.send_response(204)
        self.end_headers()

    def do_GET(self) -> None:
        self._note()
        if self.path == "/watch":
            self._watch()
        else:
            self._send(200, json.dumps(self.upstream.things).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.connection.settimeout(0.02)
        for number in range(10_000):
            while not self.upstream.say.acquire(timeout=0.02):
                if _hung_up(self.connection):
                    self.upstream.hung_up.set()
                    self.close_connection = True
                    return
            line = f"event {number}\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def log_message(self, *_args: object) -> None:
        """Stay silent."""


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    found = Upstream("")
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"upstream": found}))
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def proxy(upstream: Upstream) -> Iterator[FaultProxy]:
    with FaultProxy(upstream.url) as running:
        yield running


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=20)
    yield connection
    connection.close()


def _ask(
    client: http.client.HTTPConnection, method: str, path: str, body: str | None = None, **headers: str
) -> tuple[int, str]:
    client.request(method, path, body, headers)
    answer = client.getresponse()
    return answer.status, answer.read().decode()


def test_without_faults_everything_passes_on_one_connection(
    upstream: Upstream, client: http.client.HTTPConnection
) -> None:
    assert _ask(client, "POST", "/things", "one") == (201, "made")
    assert _ask(client, "DELETE", "/things/9") == (204, "")
    assert _ask(client, "GET", "/things?limit=5", Authorization="Bearer mine") == (200, '["one"]')

    method, path, headers = upstream.seen[-1]
    assert (method, path, headers["authorization"]) == ("GET", "/things?limit=5", "Bearer mine")
    assert len(upstream.connections) == 1


def test_a_chunked_request_arrives_whole(upstream: Upstream, client: http.client.HTTPConnection) -> None:
    client.request("POST", "/things", iter([b"in ", b"pieces"]), encode_chunked=True)

    assert client.getresponse().read() == b"made"
    assert upstream.things == ["in pieces"]


def test_a_large_body_passes_both_ways(upstream: Upstream, client: http.client.HTTPConnection) -> None:
    large = "x" * 3_000_000

    assert _ask(client, "POST", "/things", large) == (201, "made")
    assert _ask(client, "GET", "/things") == (200, json.dumps([large]))
    assert upstream.things == [large]


def test_a_status_is_played_and_the_upstream_never_hears_of_it(
    upstream: Upstream, proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    proxy.add(Fault(kind="status", status=429, headers={"Retry-After": "7"}, body="{}", method_regex="POST", times=1))

    client.request("POST", "/things", "one")
    answer = client.getresponse()
    assert (answer.status, answer.headers["Retry-After"], answer.read()) == (429, "7", b"{}")
    assert upstream.seen == []

    assert _ask(client, "POST", "/things", "two") == (201, "made")
    assert proxy.counts == {"status": 1, "reset_before": 0, "reset_after": 0, "forwarded": 1}


def test_a_reset_before_leaves_nothing_upstream(
    upstream: Upstream, proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    proxy.add(Fault(kind="reset_before", times=1))

    with pytest.raises(ConnectionResetError):
        _ask(client, "POST", "/things", "one")
    assert upstream.seen == []


def test_a_reset_after_has_written_upstream_and_the_client_saw_a_tcp_reset(
    upstream: Upstream, proxy: FaultProxy
) -> None:
    proxy.add(Fault(kind="reset_after", method_regex="POST", path_regex="/things", times=1))

    with socket.create_connection(("127.0.0.1", urlsplit(proxy.url).port or 0), timeout=20) as raw:
        raw.sendall(b"POST /things HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\none")
        with pytest.raises(ConnectionResetError) as reset:
            raw.recv(1)

    assert reset.value.errno == errno.ECONNRESET  # a FIN would have been an empty read
    assert upstream.things == ["one"]
    assert proxy.counts["reset_after"] == 1


def test_faults_meet_only_their_route(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    proxy.add(Fault(kind="status", status=500, method_regex="GET|DELETE", path_regex=r"/pods/.*"))

    assert _ask(client, "GET", "/pods/a")[0] == 500
    assert _ask(client, "DELETE", "/pods/a")[0] == 500
    assert _ask(client, "POST", "/pods/a", "x")[0] == 201
    assert _ask(client, "GET", "/v1/pods/a")[0] == 200


def test_a_cleared_fault_is_over(proxy: FaultProxy, client: http.client.HTTPConnection) -> None:
    proxy.add(Fault(kind="status"))
    assert _ask(client, "GET", "/things")[0] == 503

    proxy.clear()

    assert _ask(client, "GET", "/things")[0] == 200


def test_a_probability_is_a_share_and_its_seed_repeats_it(upstream: Upstream) -> None:
    def played(seed: int) -> list[int]:
        with FaultProxy(upstream.url, seed=seed) as proxy:
            proxy.add(Fault(kind="status", status=500, probability=0.5))
            connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=20)
            statuses = [_ask(connection, "GET", "/things")[0] for _ in range(40)]
            connection.close()
            return statuses

    first = played(7)
    assert {200, 500} == set(first)
    assert first == played(7)


def test_a_watch_comes_as_it_happens_and_a_hang_up_reaches_the_upstream(
    upstream: Upstream, client: http.client.HTTPConnection
) -> None:
    client.request("GET", "/watch")
    answer = client.getresponse()
    for number in range(3):
        upstream.say.release()
        assert answer.readline() == f"event {number}\n".encode()

    answer.close()
    client.close()

    assert upstream.hung_up.wait(20)


def test_a_dead_upstream_is_a_bad_gateway() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # taken, and nobody listens
        with FaultProxy(f"http://127.0.0.1:{deaf.getsockname()[1]}") as proxy:
            connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=20)
            assert _ask(connection, "GET", "/")[0] == 502
            connection.close()


def test_a_client_without_a_token_is_given_the_proxys(upstream: Upstream) -> None:
    with FaultProxy(upstream.url, token="own") as proxy:
        connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=20)
        _ask(connection, "GET", "/things")
        _ask(connection, "GET", "/things", Authorization="Bearer mine")
        connection.close()

    assert [headers["authorization"] for _, _, headers in upstream.seen] == ["Bearer own", "Bearer mine"]


def test_a_kubeconfig_through_the_proxy_keeps_its_token(proxy: FaultProxy, tmp_path: Path) -> None:
    source = tmp_path / "kubeconfig"
    cluster = {"server": "https://127.0.0.1:6443", "certificate-authority-data": "AA=="}
    source.write_text(
        yaml.safe_dump(
            {
                "clusters": [{"name": "lab", "cluster": cluster}],
                "users": [{"name": "lab", "user": {"token": "secret"}}],
                "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
                "current-context": "lab",
            }
        )
    )

    copy = proxy.kubeconfig(source)

    config = yaml.safe_load(copy.read_text())
    assert config["clusters"] == [{"name": "lab", "cluster": {"server": proxy.url}}]
    assert config["users"][0]["user"] == {"token": "secret"}
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


@pytest.mark.parametrize("wrong", [{"kind": "explode"}, {"kind": "status", "path_regex": "("}])
def test_a_fault_that_makes_no_sense_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=re.compile("explode|expression")):
        Fault.parse(wrong)


def test_as_a_process_it_is_told_its_faults_over_http(upstream: Upstream) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "lab.faults", "--upstream", upstream.url, "--control"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            connection = http.client.HTTPConnection(urlsplit(ready["url"]).netloc, timeout=20)
            assert _ask(connection, "POST", "/_faults", '{"kind": "nonsense"}')[0] == 400
            assert _ask(connection, "POST", "/_faults", '{"kind": "status", "status": 418}')[0] == 200
            assert _ask(connection, "GET", "/things")[0] == 418
            assert _ask(connection, "DELETE", "/_faults")[0] == 200
            assert _ask(connection, "GET", "/things")[0] == 200
            counts = json.loads(_ask(connection, "GET", "/_faults")[1])["counts"]
            connection.close()
        finally:
            process.terminate()

    assert counts["status"] == 1
    assert counts["forwarded"] == 1
    assert process.returncode == 0
