"""Peers of a Pod: a dispatch endpoint, and a GitHub that gives each runner one job."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from lab.github.world import TOO_OLD

HOLD_SECONDS = 0.5


@dataclass
class World:
    """The work to hand out: one JIT for each Pod, and one job for each JIT. The lock protects all fields."""

    work: list[str] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)
    """JIT by token."""
    refuse: int | None = None
    """Answer every poll with this status."""
    job_seconds: float = 0.2
    ensure_removed: bool = False
    """Tell runners that renew their job that it is no longer theirs. These runners end."""
    tokens: list[str] = field(default_factory=list)
    accepts: set[str] = field(default_factory=set)
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of call and session, in the order of their arrival."""
    finished: dict[str, str] = field(default_factory=dict)
    """Conclusion by session."""
    lock: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, reached: Callable[[], bool]) -> None:
        """Wait until a condition is true. Raise AssertionError after 120 s."""
        with self.lock:
            assert self.lock.wait_for(reached, timeout=120)

    def give(self, *jits: str) -> None:
        """Add work."""
        with self.lock:
            self.work.extend(jits)
            self.lock.notify_all()


class Handler(BaseHTTPRequestHandler):
    """Both endpoints on one port."""

    protocol_version = "HTTP/1.1"
    world: World

    def do_POST(self) -> None:
        """Route a POST."""
        path = urlsplit(self.path).path
        if path == "/runners/v1/dispatch":
            self._body()
            self._dispatch()
        elif path == "/_runner/sessions":
            self._connect(self._body())
        else:
            *_, session, what = path.split("/")
            self._note(session, what, self._body())

    def do_GET(self) -> None:
        """Give its job to the session."""
        session = urlsplit(self.path).path.split("/")[-2]
        assert "wait" in parse_qs(urlsplit(self.path).query)
        job = {"job_id": int(session.removeprefix("s")), "duration_seconds": self.world.job_seconds, "name": "build"}
        self._send(200, job)

    def do_DELETE(self) -> None:
        """End a session."""
        self._note(self.path.split("/")[-1], "deleted", {})

    def _dispatch(self) -> None:
        world = self.world
        token = self.headers["Authorization"].removeprefix("Bearer ")
        plain = self.headers["Accept"] == "text/plain"
        with world.lock:
            world.tokens.append(token)
            world.accepts.add(self.headers["Accept"])
            world.lock.notify_all()
            deadline = time.monotonic() + HOLD_SECONDS
            world.lock.wait_for(lambda: bool(world.work or world.refuse), timeout=deadline - time.monotonic())
            if world.refuse:
                self._send(world.refuse)
                return
            if not world.work:
                self._send(204, headers={"Retry-After": "0"})
                return
            jit = world.given[token] = world.work.pop(0)
        claim, name = f"claim-{jit}", f"runner-{jit}"
        if plain:
            self._send(200, jit, {"X-Ostler-Claim": claim, "X-Ostler-Runner": name})
        else:
            self._send(200, {"jit_config": jit, "runner_name": name, "claim_id": claim, "owner": "acme"})

    def _connect(self, body: dict[str, Any]) -> None:
        jit = body["jit_config"]
        if body.get("version") == TOO_OLD:
            self._send(403)
            return
        with self.world.lock:
            self.world.calls.append(("updates" if body.get("updates") else "connected", str(jit)))
            known = jit in self.world.given.values()
        if known:
            self._send(201, {"session": f"s{jit.removeprefix('jit-')}", "runner_name": f"runner-{jit}"})
        else:
            self._send(401)

    def _note(self, session: str, what: str, body: dict[str, Any]) -> None:
        with self.world.lock:
            heard_before = what in {"started", "finished"} and (what, session) in self.world.calls
            self.world.calls.append((what, session))
            if what == "finished":
                self.world.finished[session] = body["conclusion"]
            taken = what == "heartbeat" and self.world.ensure_removed
            self.world.lock.notify_all()
        self._send(404 if heard_before or taken else 204)

    def _body(self) -> dict[str, Any]:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = json.loads(raw) if raw else {}
        assert isinstance(found, dict)
        return found

    def _send(self, status: int, body: Any = None, headers: dict[str, str] | None = None) -> None:
        raw = b"" if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if isinstance(body, str):
            self.send_header("Content-Type", "text/plain")
        if status != 204:
            self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_args: object) -> None:
        """Print nothing."""


class Server(ThreadingHTTPServer):
    """A server for many polls at once, which ignores closed connections of Pods."""

    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, *_args: object) -> None:
        """Ignore the error, because a deleted Pod has closed its connection."""


class LabStubs:
    """A context manager that serves both endpoints in threads."""

    def __init__(self) -> None:
        self.world = World()
        self._server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"world": self.world}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        """Return the address of the GitHub."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def dispatch_url(self) -> str:
        """Return the address of the dispatch endpoint."""
        return f"{self.url}/runners/v1/dispatch"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
