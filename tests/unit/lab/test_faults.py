"""The fault proxy: passed and failed calls, as the upstream and as the client see them."""

import asyncio
import contextlib
import errno
import gc
import http.client
import json
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from lab.faults import Fault, FaultPlan, FaultProxy
from lab.faults.proxy import Gateway
from lab.faults.proxy import Upstream as Target


@dataclass
class Upstream:
    """A store of things: POST creates one, GET lists them, and `/watch` sends a line for each `say`."""

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
        elif self.path == "/echo":
            self._echo()
        elif self.path == "/chunked":
            self._send_in_chunks([thing.encode() for thing in self.upstream.things])
        else:
            self._send(200, json.dumps(self.upstream.things).encode())

    def _send_in_chunks(self, chunks: list[bytes]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for chunk in [*chunks, b""]:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))

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

    def _echo(self) -> None:
        """Change to a protocol in which every byte is returned in upper case."""
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", "echo")
        self.end_headers()
        while data := self.connection.recv(65_536):
            self.connection.sendall(data.upper())
        self.upstream.hung_up.set()
        self.close_connection = True

    def log_message(self, *_args: object) -> None:
        """Print nothing."""


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


def _upgraded(proxy: FaultProxy) -> socket.socket:
    """Return a connection whose upgrade was requested."""
    connection = socket.create_connection(("127.0.0.1", urlsplit(proxy.url).port or 0), timeout=20)
    connection.sendall(b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
    return connection


def test_bytes_pass_both_ways_after_an_upgrade(upstream: Upstream, proxy: FaultProxy) -> None:
    with _upgraded(proxy) as connection, connection.makefile("rb") as received:
        assert received.readline().startswith(b"HTTP/1.1 101 ")
        while received.readline() != b"\r\n":
            pass
        for word in (b"one\n", b"x" * 300_000 + b"\n"):
            connection.sendall(word)
            assert received.readline() == word.upper()

    assert upstream.hung_up.wait(10)


def test_disconnecting_ends_both_sides_and_new_connections_work(upstream: Upstream, proxy: FaultProxy) -> None:
    with _upgraded(proxy) as connection, connection.makefile("rb") as received:
        assert received.readline().startswith(b"HTTP/1.1 101 ")

        proxy.disconnect()

        with contextlib.suppress(ConnectionResetError):
            received.read()
    assert upstream.hung_up.wait(10)
    with _upgraded(proxy) as connection:
        assert connection.recv(12) == b"HTTP/1.1 101"


async def _close_in_the_middle(url: str, turns: int, *, asked: bool) -> None:
    """Close a gateway some turns of the event loop after a client connected, or after the client's last answer."""
    gateway = Gateway(upstream=Target.of(url), plan=FaultPlan())
    port = await gateway.start(port=0)
    with socket.create_connection(("127.0.0.1", port)) as client:  # takes no turn of the loop
        if asked:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            await asyncio.to_thread(client.recv, 1)
        for _ in range(turns):
            await asyncio.sleep(0)
        await gateway.close()


@pytest.mark.parametrize("asked", [False, True], ids=["connected", "answered"])
def test_closing_leaves_no_connection_open_whenever_it_comes(upstream: Upstream, *, asked: bool) -> None:
    for turns in [*range(15)] * 10:
        asyncio.run(_close_in_the_middle(upstream.url, turns, asked=asked))
    gc.collect()  # an open connection warns when it is collected, and pytest makes the warning a failure of this test


def test_a_reset_after_applying_breaks_an_upgrade(upstream: Upstream, proxy: FaultProxy) -> None:
    proxy.add(Fault(kind="reset_after", path_regex="/echo"))

    with _upgraded(proxy) as connection, pytest.raises(ConnectionResetError):
        connection.recv(1)

    assert upstream.seen[-1][1] == "/echo"
    assert upstream.hung_up.wait(10)


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
    assert {kind: count for kind, count in proxy.counts.items() if count} == {"status": 1, "forwarded": 1}
    assert proxy.routes == {"POST .*": {"status": 1}}


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


def test_a_delay_is_late_and_nothing_else(
    upstream: Upstream, proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    proxy.add(Fault(kind="delay", delay_seconds=0.3, times=1))

    began = time.monotonic()
    assert _ask(client, "POST", "/things", "one") == (201, "made")

    assert time.monotonic() - began >= 0.3
    assert upstream.things == ["one"]
    assert proxy.counts["delay"] == 1


def test_a_client_that_leaves_during_a_delay_is_not_served(upstream: Upstream, proxy: FaultProxy) -> None:
    proxy.add(Fault(kind="delay", delay_seconds=0.3, method_regex="POST"))

    with socket.create_connection(("127.0.0.1", urlsplit(proxy.url).port or 0), timeout=20) as raw:
        raw.sendall(b"POST /things HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\none")
        while not proxy.counts["delay"]:
            time.sleep(0.01)
    time.sleep(0.6)  # longer than the delay: it would have arrived by now

    assert upstream.things == []


@pytest.mark.parametrize("path", ["/things", "/chunked"])
def test_a_truncated_body_was_written_and_ends_in_its_middle(
    upstream: Upstream, proxy: FaultProxy, client: http.client.HTTPConnection, path: str
) -> None:
    upstream.things.append("x" * 100)
    proxy.add(Fault(kind="truncate", times=1))

    client.request("GET", path)
    answer = client.getresponse()

    assert answer.status == 200
    with pytest.raises(http.client.IncompleteRead) as cut:
        answer.read()
    assert len(cut.value.partial) < 100
    assert upstream.seen[-1][1] == path


def test_a_truncated_answer_without_a_body_ends_in_its_first_line(
    upstream: Upstream, proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    proxy.add(Fault(kind="truncate", times=1))

    with pytest.raises((http.client.HTTPException, ConnectionError)):
        _ask(client, "DELETE", "/things/9")

    assert [method for method, _, _ in upstream.seen] == ["DELETE"]


def test_a_truncated_watch_is_cut_after_it_began(
    upstream: Upstream, proxy: FaultProxy, client: http.client.HTTPConnection
) -> None:
    proxy.add(Fault(kind="truncate", times=1))
    for _ in range(3):
        upstream.say.release()

    client.request("GET", "/watch")
    answer = client.getresponse()
    with pytest.raises(http.client.IncompleteRead):
        answer.read()

    assert upstream.hung_up.wait(20)


def test_an_outage_has_a_beginning_and_an_end() -> None:
    now = 100.0
    plan = FaultPlan([Fault(kind="reset_before", from_seconds=10, until_seconds=20)], clock=lambda: now)

    def met(seconds: float) -> bool:
        nonlocal now
        now = 100 + seconds
        return plan.meet(method="GET", target="/") is not None

    assert [met(seconds) for seconds in (0, 9.5, 10, 19.5, 20)] == [False, False, True, True, False]


def test_the_traffic_of_one_route_does_not_change_what_another_meets() -> None:
    def met(*, others: int) -> list[bool]:
        plan = FaultPlan(
            [Fault(kind="status", path_regex=path, probability=0.5) for path in ("/other", "/things")], seed=7
        )
        for _ in range(others):
            plan.meet(method="GET", target="/other")
        return [plan.meet(method="GET", target="/things") is not None for _ in range(40)]

    assert {True, False} == set(met(others=0))
    assert met(others=0) == met(others=17)


def test_a_plan_is_written_and_read_again_and_plays_the_same(tmp_path: Path) -> None:
    plan = FaultPlan(
        [
            Fault(kind="status", status=502, headers={"Retry-After": "1"}, path_regex="/a.*", probability=0.3),
            Fault(kind="delay", delay_seconds=0.5, times=3, from_seconds=1, until_seconds=2.5),
        ],
        seed=11,
    )
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan.dump()))

    again = FaultPlan.load(path)

    assert again.dump() == plan.dump()
    assert [plan.meet(method="GET", target="/ab") for _ in range(50)] == [
        again.meet(method="GET", target="/ab") for _ in range(50)
    ]


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ([], "a plan must be a JSON object"),
        ({"fault": []}, "fault: unknown; a plan has faults, seed"),
        ({"seed": "x"}, "seed: found 'x'; must be a whole number"),
        ({"faults": {}}, "faults: must be a list"),
        ({"faults": [{"kind": "status"}, {"kind": "status", "probabilty": 1}]}, "faults[1]: probabilty: unknown"),
        ({"faults": [{"kind": "explode"}]}, "faults[0]: kind: found 'explode'; must be one of"),
        ({"faults": [{"status": 500}]}, "faults[0]: kind: not given"),
        ({"faults": [{"kind": "status", "status": "500"}]}, "faults[0]: status: found '500'; must be a whole number"),
        ({"faults": [{"kind": "status", "headers": {"a": 1}}]}, "faults[0]: headers: found {'a': 1}"),
        ({"faults": [{"kind": "status", "probability": 5}]}, "faults[0]: probability: found 5"),
        ({"faults": [{"kind": "status", "path_regex": "("}]}, "faults[0]: method_regex or path_regex is not"),
        ({"faults": [{"kind": "delay"}]}, "faults[0]: delay_seconds: found 0"),
        ({"faults": [{"kind": "status", "from_seconds": 5, "until_seconds": 5}]}, "faults[0]: until_seconds"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_with_its_place_and_cause(
    plan: object, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))

    with pytest.raises(ValueError, match=re.escape(f"{path}: {says}")):
        FaultPlan.load(path)


def test_as_a_process_it_refuses_a_plan_with_one_line(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"faults": [{"kind": "status", "rate": 5}]}')

    done = subprocess.run(
        [sys.executable, "-m", "lab.faults", "--upstream", "http://127.0.0.1:1", "--plan", str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 1
    assert done.stderr.startswith(f"lab.faults: {path}: faults[0]: rate: unknown; a fault has after_bytes, body,")
    assert done.stderr.count("\n") == 1


def test_as_a_process_it_plays_a_plan_and_is_told_more_over_http(upstream: Upstream, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"seed": 3, "faults": [{"kind": "status", "status": 410, "times": 1}]}')
    with subprocess.Popen(
        [sys.executable, "-m", "lab.faults", "--upstream", upstream.url, "--control", "--plan", str(plan)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            connection = http.client.HTTPConnection(urlsplit(ready["url"]).netloc, timeout=20)
            assert _ask(connection, "GET", "/things")[0] == 410
            assert _ask(connection, "POST", "/_faults", '{"kind": "nonsense"}')[0] == 400
            assert _ask(connection, "POST", "/_faults", '{"kind": "status", "status": 418}')[0] == 200
            assert _ask(connection, "GET", "/things")[0] == 418
            assert _ask(connection, "DELETE", "/_faults")[0] == 200
            assert _ask(connection, "GET", "/things")[0] == 200
            told = json.loads(_ask(connection, "GET", "/_faults")[1])
            assert connection.sock is None  # its end was told with the answer: the next request cannot run into it
            connection.close()
        finally:
            process.terminate()

    assert (told["counts"]["status"], told["counts"]["forwarded"]) == (2, 1)
    assert told["routes"] == {".* .*": {"status": 2}}
    assert process.returncode == 0
