"""The lab's GitHub in its own process, a listener for its webhooks, and the adapter that calls it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import jwt
import pytest
import urllib3
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from github_adapters.client import GitHub
from ostler.secrets import Secret

T = TypeVar("T")
APP_ID = "77"
ORG_INSTALLATION = 501
USER_INSTALLATION = 502


@dataclass(frozen=True, kw_only=True)
class Hook:
    """A received webhook."""

    headers: dict[str, str]
    body: bytes

    @property
    def payload(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass(kw_only=True)
class Hooks:
    """The received webhooks, and the status that the listener answers to each."""

    url: str
    secret: str
    seen: list[Hook] = field(default_factory=list)
    statuses: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)

    def of(self, job: int) -> list[str]:
        """Return the actions of the webhooks about a job."""
        return [hook.payload["action"] for hook in list(self.seen) if hook.payload["workflow_job"]["id"] == job]


@contextlib.contextmanager
def listening(secret: str | None = None) -> Iterator[Hooks]:
    """Run a listener for webhooks that are signed with `secret`."""
    hooks = Hooks(url="", secret=secret or secrets.token_hex(16))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            hooks.seen.append(Hook(headers={k.lower(): v for k, v in self.headers.items()}, body=body))
            self.send_response(202 if hooks.statuses.empty() else hooks.statuses.get())
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing, so that the output of the test stays readable."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hooks.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield hooks
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(kw_only=True)
class Lab:
    """The lab's GitHub, controlled from outside."""

    url: str
    log_file: Path
    private_key: Secret
    hooks: Hooks
    pool: urllib3.PoolManager

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send one request, and return the status and the body of the answer."""
        answer = self.pool.request(method, self.url + path, json=body, retries=False, timeout=30)
        return answer.status, json.loads(answer.data) if answer.data else None

    def jobs(self, **wanted: Any) -> list[int]:
        """Create jobs and return their ids."""
        body = {"repository": "acme/app", "labels": ["linux"], "duration_seconds": 0.1, **wanted}
        status, content = self.call("POST", "/_lab/jobs", body)
        assert status == 201
        ids: list[int] = content["ids"]
        return ids

    def job(self, job_id: int) -> dict[str, Any]:
        """Return a job as GitHub stores it."""
        _, content = self.call("GET", "/_lab/jobs")
        found: dict[str, Any] = next(job for job in content["jobs"] if job["id"] == job_id)
        return found

    def deliveries(self) -> list[dict[str, Any]]:
        """Return the list of deliveries as the API returns it to the App."""
        now = int(time.time())
        token = jwt.encode({"iat": now - 60, "exp": now + 300, "iss": APP_ID}, self.private_key.reveal(), "RS256")
        answer = self.pool.request(
            "GET", f"{self.url}/app/hook/deliveries?per_page=100", headers={"Authorization": f"Bearer {token}"}
        )
        assert answer.status == 200
        found: list[dict[str, Any]] = answer.json()
        return found

    def fault(self, **fault: Any) -> None:
        """Let the next matching call fail."""
        assert self.call("POST", "/_lab/faults", [fault])[0] == 201

    def settings(self, **settings: Any) -> None:
        """Change settings of the lab."""
        assert self.call("POST", "/_lab/settings", settings)[0] == 200

    def start(self, jit: Secret) -> str:
        """Start a runner and return its session."""
        status, content = self.call("POST", "/_runner/sessions", {"jit_config": jit.reveal()})
        assert status == 201
        return str(content["session"])

    def next_job(self, session: str) -> int:
        """Wait for a job as a runner does, and return the id of the job."""
        status, content = self.call("GET", f"/_runner/sessions/{session}/message?wait=20")
        assert status == 200
        return int(content["job_id"])

    def run(self, session: str, job_id: int) -> None:
        """Begin a job and end it with success."""
        assert self.call("POST", f"/_runner/sessions/{session}/started", {"job_id": job_id})[0] == 204
        finished = {"job_id": job_id, "conclusion": "success"}
        assert self.call("POST", f"/_runner/sessions/{session}/finished", finished)[0] == 204

    def log(self) -> list[dict[str, Any]]:
        """Return the journal."""
        text = self.log_file.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]  # the last may be half written


@pytest.fixture(scope="session")
def app_key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Secret, Path]:
    """A key of the App for this run: the private key, and the file with the public key."""
    return make_app_key(tmp_path_factory.mktemp("app"))


def make_app_key(folder: Path) -> tuple[Secret, Path]:
    """Return a new private key, and the file in `folder` with the public one."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = folder / "public.pem"
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return Secret(private.decode()), public


@contextlib.contextmanager
def running(
    app_key: tuple[Secret, Path],
    folder: Path,
    *,
    sabotage: str = "",
    webhook_url: str | None = None,
    secret: str | None = None,
) -> Iterator[Lab]:
    """Run the lab's GitHub with one organisation and one user.

    Its webhooks go to `webhook_url`, or to `hooks` if no URL is given.
    """
    log_file = folder / "github.jsonl"
    with listening(secret) as hooks, urllib3.PoolManager(maxsize=32) as pool:
        command = [
            sys.executable,
            "-m",
            "lab.github",
            "--webhook-url",
            webhook_url or hooks.url,
            "--webhook-secret-env",
            "HOOK_SECRET",
        ]
        command += ["--app-id", APP_ID, "--app-public-key", str(app_key[1]), "--log", str(log_file), "--seed", "7"]
        environment = {**os.environ, "HOOK_SECRET": hooks.secret, "LAB_SABOTAGE": sabotage}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout
                url = json.loads(process.stdout.readline())["url"]
                lab = Lab(url=url, log_file=log_file, private_key=app_key[0], hooks=hooks, pool=pool)
                for account in (
                    {"id": 1, "login": "acme", "type": "Organization", "installation_id": ORG_INSTALLATION},
                    {"id": 2, "login": "ada", "type": "User", "installation_id": USER_INSTALLATION},
                ):
                    repositories = [{"id": 10 + int(str(account["id"])), "name": "app"}]
                    assert lab.call("POST", "/_lab/accounts", {**account, "repositories": repositories})[0] == 201
                yield lab
            finally:
                process.terminate()
                process.wait()


@pytest.fixture
def lab(app_key: tuple[Secret, Path], tmp_path: Path) -> Iterator[Lab]:
    """The lab's GitHub in its own process."""
    with running(app_key, tmp_path) as lab:
        yield lab


@pytest.fixture
def github(lab: Lab) -> Iterator[GitHub]:
    """The adapter that calls the lab's GitHub."""
    client = GitHub(api_url=lab.url, app_id=APP_ID, private_key=lab.private_key)
    yield client
    client.close()
