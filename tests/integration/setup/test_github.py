"""`ostler setup github`, the whole flow by HTTP: our page, GitHub's pages, the exchange, the secrets, a webhook."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from github_adapters.client import GitHub
from github_adapters.webhooks import verify_signature
from ostler.errors import Forbidden
from ostler.secrets import Secret
from rules.routing.scopes import Scope
from tests.contract.github.conftest import ORG_INSTALLATION, USER_INSTALLATION, Lab, make_app_key, running
from tests.integration.setup.browser import Browser

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with running(make_app_key(tmp_path), tmp_path) as lab:
        yield lab


@dataclass
class Web:
    """A stand-in for web that accepts webhooks signed with the secret in `file`, once the file exists."""

    file: Path
    url: str = ""
    answers: list[int] = field(default_factory=list)
    broken: int | None = None
    late: bool = False
    """The secret does not exist yet when the first webhook arrives."""

    def status_of(self, body: bytes, signature: str | None) -> int:
        """Return the answer to a webhook."""
        if self.broken is not None:
            return self.broken
        if self.late and not self.answers:
            return 503
        secret = read(self.file).get("OSTLER_WEBHOOK_SECRETS") if self.file.exists() else None
        if secret is None:  # GitHub pings as soon as the App is made
            return 503
        return 202 if verify_signature([secret], body, signature) else 401


@contextmanager
def serving(web: Web) -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            web.answers.append(web.status_of(body, self.headers["x-hub-signature-256"]))
            self.send_response(web.answers[-1])
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing, so that the output of the test stays readable."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.url = f"http://127.0.0.1:{server.server_port}/webhooks/github"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield web
    server.shutdown()
    server.server_close()


def read(file: Path) -> dict[str, Secret]:
    pairs = (line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)
    return {name: Secret(value.strip("'").replace("\\n", "\n")) for name, value in pairs}


@contextmanager
def setup(lab: Lab, webhook_url: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command as an operator would, but without a browser."""
    command = [
        sys.executable,
        "-m",
        "ostler",
        "setup",
        "github",
        "--no-browser",
        "--github-url",
        lab.url,
        "--github-api-url",
        lab.url,
        "--webhook-url",
        webhook_url,
        *arguments,
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OSTLER_")}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def page_of(process: subprocess.Popen[str]) -> str:
    """Return the address that the command prints."""
    assert process.stdout
    line = process.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+/", line)
    assert found, line + process.stdout.read()
    return found[0]


def rest_of(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=120)
    return output


def test_the_app_is_made_its_secrets_are_kept_and_its_webhooks_arrive(lab: Lab, tmp_path: Path) -> None:
    file, browser = tmp_path / "ostler.env", Browser()
    file.write_text("# mine\nOSTLER_DATABASE_URL=postgresql://x\n")
    with serving(Web(tmp_path / "secrets.env")) as web:
        web.file = file
        with setup(lab, web.url, "--organization", "acme", "--env-file", str(file)) as process:
            browser.open(page_of(process))
            assert browser.headers["cache-control"] == "no-store"
            browser.submit()
            assert "Create GitHub App for acme" in browser.content
            browser.submit()
            assert "GitHub made the App" in browser.content
            output = rest_of(process)
            assert process.returncode == 0, output
    assert web.answers[-1] == 202
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = read(file)
    assert file.read_text().startswith("# mine\nOSTLER_DATABASE_URL=postgresql://x\n")
    assert kept["OSTLER_GITHUB_API_URL"].reveal() == lab.url
    for name in ("OSTLER_GITHUB_PRIVATE_KEY", "OSTLER_WEBHOOK_SECRETS"):
        assert kept[name].reveal() not in output
        assert kept[name].reveal().splitlines()[-1] not in output
    assert "BEGIN" not in output


def test_ping_that_came_before_the_secret_was_kept_is_sent_again(lab: Lab, tmp_path: Path) -> None:
    file, browser = tmp_path / "ostler.env", Browser()
    with (
        serving(Web(file, late=True)) as web,
        setup(lab, web.url, "--organization", "acme", "--env-file", str(file)) as process,
    ):
        browser.open(page_of(process))
        browser.submit()
        browser.submit()
        output = rest_of(process)
        assert process.returncode == 0, output
    assert (web.answers[0], web.answers[-1]) == (503, 202)


def made(lab: Lab, file: Path, owner: list[str]) -> GitHub:
    """Create an App by the flow, and return a client with its id and key."""
    browser = Browser()
    with setup(
        lab, f"{lab.hooks.url}/webhooks/github", *owner, "--env-file", str(file), "--ping-within", "0"
    ) as process:
        browser.open(page_of(process))
        browser.submit()
        browser.submit()
        output = rest_of(process)
        assert process.returncode == 0, output
    kept = read(file)
    return GitHub(
        api_url=lab.url, app_id=kept["OSTLER_GITHUB_APP_ID"].reveal(), private_key=kept["OSTLER_GITHUB_PRIVATE_KEY"]
    )


@pytest.mark.parametrize(
    ("owner", "installation", "scope", "elsewhere", "other"),
    [
        (["--organization", "acme"], ORG_INSTALLATION, "orgs/acme", USER_INSTALLATION, "repos/ada/app"),
        ([], USER_INSTALLATION, "repos/ada/app", ORG_INSTALLATION, "orgs/acme"),
    ],
    ids=["organisation", "user"],
)
def test_its_permissions_are_what_the_calls_need_and_no_more(
    lab: Lab, tmp_path: Path, owner: list[str], installation: int, scope: str, elsewhere: int, other: str
) -> None:
    github = made(lab, tmp_path / "app.env", owner)
    place = Scope.parse(scope)
    repository = "acme/app" if owner else "ada/app"
    (job,) = lab.jobs(repository=repository)
    run = github.get_run(installation_id=installation, repository=repository, run_id=lab.job(job)["run_id"])
    assert run is not None
    assert github.get_job(installation_id=installation, repository=repository, job_id=job) is not None
    assert github.list_runs(installation_id=installation, repository=repository, status="queued").total == 1
    assert github.list_run_jobs(installation_id=installation, repository=repository, run=run).total == 1
    jit = github.mint(installation_id=installation, scope=place, name="r", labels=["x"], runner_group_id=1)
    assert len(github.list_runners(installation_id=installation, scope=place)) == 1
    github.delete_runner(installation_id=installation, scope=place, runner_id=jit.runner_id)
    if owner:
        assert github.list_runner_groups(installation_id=installation, login="acme")
    assert github.list_deliveries().deliveries
    with pytest.raises(Forbidden):  # an App of an organisation may not administer repositories, nor the other way round
        github.mint(installation_id=elsewhere, scope=Scope.parse(other), name="r", labels=["x"], runner_group_id=1)
    app = github.get_app()
    assert set(app.events) == {"workflow_job", "repository"}
    assert len(app.permissions) == 3
    github.close()


def test_what_is_there_is_not_overwritten_unless_asked(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "ostler.env"
    file.write_text("OSTLER_GITHUB_APP_ID=1\n")
    with setup(lab, f"{lab.hooks.url}/webhooks/github", "--organization", "acme", "--env-file", str(file)) as process:
        output = rest_of(process)
        assert process.returncode == 1
    assert "--replace" in output
    assert file.read_text() == "OSTLER_GITHUB_APP_ID=1\n"
    made(lab, file, ["--organization", "acme", "--replace"]).close()
    assert file.read_text().count("OSTLER_GITHUB_APP_ID=") == 1


def test_a_webhook_that_web_refuses_fails_and_says_why(lab: Lab, tmp_path: Path) -> None:
    browser = Browser()
    with serving(Web(tmp_path / "none", broken=401)) as web:
        arguments = ("--organization", "acme", "--env-file", str(tmp_path / "a.env"), "--ping-within", "3")
        with setup(lab, web.url, *arguments) as process:
            browser.open(page_of(process))
            browser.submit()
            browser.submit()
            output = rest_of(process)
            assert process.returncode == 1
    assert "another webhook secret" in output
    assert "ostler setup ping" in output


def test_a_name_that_is_taken_is_refused_by_github_and_nothing_is_kept(lab: Lab, tmp_path: Path) -> None:
    file, browser = tmp_path / "a.env", Browser()
    arguments = ("--organization", "acme", "--name", "ostler-lab", "--env-file", str(file), "--timeout", "3")
    with setup(lab, f"{lab.hooks.url}/webhooks/github", *arguments) as process:
        browser.open(page_of(process))
        browser.submit()
        assert "Name is already taken" in browser.content
        output = rest_of(process)
        assert process.returncode == 1
    assert "no secrets were stored" in output
    assert not file.exists()


def test_the_lab_refuses_manifests_as_github_does(lab: Lab) -> None:
    content = {
        "name": "x",
        "url": "https://x.example",
        "redirect_url": "http://127.0.0.1/callback",
        "hook_attributes": {"url": "https://x.example/webhooks/github"},
        "default_permissions": {"metadata": "read"},
        "default_events": ["installation", "workflow_job"],
    }
    answer = lab.pool.request(
        "POST", f"{lab.url}/settings/apps/new", fields={"manifest": json.dumps(content)}, encode_multipart=False
    )
    assert answer.status == 422
    assert "Default events unsupported: installation" in answer.data.decode()
    assert "not supported by permissions: installation and workflow_job" in answer.data.decode()
