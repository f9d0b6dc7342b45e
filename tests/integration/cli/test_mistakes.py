"""Mistakes of a new operator: the typed or set value, the exit status, and the message.

Each message is one line with cause and remedy. None is a traceback, and none names a Python class.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import structlog
import urllib3
import yaml
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from k8s_adapters.calls import client as kube_client
from k8s_adapters.calls.client import KubeClient
from lab.processes import free_port
from models.db import client_waits
from ostler.clock import Timing
from tests.database import Database
from tests.integration.cli.test_operator import Done, Operator, operator, run_command

__all__ = ["operator"]

SILLY = re.compile(
    r"Traceback|\b[A-Z][A-Za-z]+(Error|Exception|Warning)\b|\bRetryable\b|\bForbidden\b|\bRateLimited\b"
    r"|<urlopen|report it|hunter2"
)
"""Texts that no message may contain: a traceback, a class name, an invitation to report a bug, a password."""

WRONG_USE, AWAY = 2, 3


@dataclass(frozen=True)
class Mistake:
    """A typed command with its variables, the exit status, and words of its message."""

    typed: str
    status: int
    said: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([*(f"{name}={value}" for name, value in self.env.items()), "ostler", self.typed])


def mistake(typed: str, status: int, *said: str, **env: str) -> Mistake:
    return Mistake(typed, status, said, {f"OSTLER_{name}": value for name, value in env.items()})


FULL = {
    "DATABASE_URL": "postgresql://u:hunter2@127.0.0.1:1/x",
    "REDIS_URL": "redis://:hunter2@127.0.0.1:1/0",
    "GITHUB_APP_ID": "1",
    "GITHUB_PRIVATE_KEY": "hunter2",
    "WEBHOOK_SECRETS": "hunter2-hunter2-hunter2",
    "ENCRYPTION_KEYS": Fernet.generate_key().decode(),
}
DEAD = FULL["DATABASE_URL"]


def full(**env: str) -> dict[str, str]:
    return FULL | env


WRONG_USES = (
    mistake("jbos", 2, "No such command 'jbos'", "Did you mean 'jobs'"),
    mistake("accounts", 2, "Did you mean 'account'"),
    mistake("sweeps", 2, "Did you mean 'sweep'"),
    mistake("job", 2, "Missing argument 'ID'"),
    mistake("job abc", 2, "'ID'", "found 'abc'; must be a whole number"),
    mistake("job 0", 2, "'ID'", "1"),
    mistake("jobs --state bogus", 2, "--state", "found 'bogus'; must be one of 'waiting', 'queued'"),
    mistake("jobs --limit 0", 2, "--limit", "found '0'; must be greater than or equal to 1"),
    mistake("jobs --limit many", 2, "--limit", "found 'many'; must be a whole number"),
    mistake("jobs --json -o name", 2, "json and name cannot be used together"),
    mistake("jobs -o yaml", 2, "--output", "yaml"),
    mistake("account set acme", 2, "give at least one of --count"),
    mistake("account set acme --weight 0", 2, "--weight", "0.001"),
    mistake("account set acme --vcpu nan", 2, "--vcpu"),
    mistake("account set acme --vcpu two", 2, "--vcpu", "found 'two'; must be a number"),
    mistake("account set acme --cpu 3", 2, "No such option: --cpu"),
    mistake("token create ä", 2, "printable ASCII"),
    mistake("token create ci --days 0", 2, "--days"),
    mistake("token create ci --scope admin", 2, "--scope", "admin"),
    mistake("token revoke x", 2, "'ID'"),
    mistake("pool scale small many", 2, "replicas", "found 'many'; must be a whole number"),
    mistake("pool scale small -- -1", 2, "replicas", "found '-1'; must be greater than or equal to 0"),
    mistake("sweep run unresolved_jobs --wait 0", 2, "--wait"),
    mistake("healthy postgres", 2, "postgres"),
    mistake("doctor --only bogus", 2, "--only: found 'bogus'; must be one of postgres, settings"),
    mistake("worker --queues foo", 2, "--queues: found 'foo'; must be one of dispatch"),
    mistake("demo --jobs 5", 2, "demo is a command of the lab: run `ostler-lab demo`"),
    mistake("control-plane", 2, "control-plane is a command of the lab: run `ostler-lab control-plane`"),
    mistake("check-deploy", 2, "OLD"),
    mistake("check-deploy a.yaml", 2, "OLD: not given", "--first"),
    mistake("check-deploy /nope.yaml /nope.yaml", 2, "does not exist"),
    mistake("check-deploy a b c", 2, "found 3 arguments"),
    mistake("setup github --webhook-url https://ci.example.com/webhooks/github", 2, "--namespace or --env-file"),
    mistake("setup github --webhook-url ci.example.com --env-file x", 2, "--webhook-url: found 'ci.example.com'"),
    mistake("setup github --webhook-url http://ci.example.com/webhooks/github --env-file x", 2, "found http://"),
    mistake("setup github --webhook-url https://localhost/webhooks/github --env-file x", 2, "cannot reach localhost"),
    mistake("setup github --webhook-url https://10.1.2.3/webhooks/github --env-file x", 2, "cannot reach 10.1.2.3"),
    mistake("setup github --webhook-url https://ci.example.com/hook --env-file x", 2, "the path '/hook'"),
)
"""Wrong commands, with no variable set."""

SETTINGS = (
    mistake("jobs", 2, "OSTLER_DATABASE_URL: it is not set; Address of Postgres, for example `postgresql://"),
    mistake("token create ci", 2, "OSTLER_DATABASE_URL: it is not set"),
    mistake("migrate", 2, "OSTLER_DATABASE_URL: it is not set"),
    mistake("restore", 2, *(f"OSTLER_{name}: it is not set; " for name in FULL)),
    mistake("worker", 2, *(f"OSTLER_{name}: it is not set; " for name in FULL)),
    mistake("web", 2, *(f"OSTLER_{name}: it is not set; " for name in FULL)),
    mistake("beat", 2, "OSTLER_REDIS_URL: it is not set"),
    mistake("watch", 2, "OSTLER_REDIS_URL: it is not set"),
    mistake("flower", 2, "OSTLER_REDIS_URL: it is not set"),
    mistake("setup ping", 2, "OSTLER_GITHUB_APP_ID: it is not set", "OSTLER_GITHUB_PRIVATE_KEY: it is not set"),
    mistake("setup ping", 2, "not an RSA private key in PEM", GITHUB_APP_ID="1", GITHUB_PRIVATE_KEY="hunter2"),
    mistake("healthy worker", 2, *(f"OSTLER_{name}: it is not set; " for name in FULL)),
    mistake("jobs", 2, "must begin with postgresql:// (or postgres://)", DATABASE_URL="hello"),
    mistake("jobs", 2, "must begin with postgresql://", DATABASE_URL="mysql://u:hunter2@h/x"),
    mistake("jobs", 2, "%2F", DATABASE_URL="postgres://u:hunter2/x@h/x"),
    mistake("beat", 2, "must begin with redis://", REDIS_URL="http://:hunter2@h"),
    mistake("watch", 2, "Sentinel is not supported: use one name", REDIS_URL="sentinel://:hunter2@h:26379"),
    mistake("beat", 2, "OSTLER_CLOCK_OFFSET: found '1 min'; must be a number of seconds", CLOCK_OFFSET="1 min"),
    mistake("jobs", 2, "OSTLER_DATABSE_URL is set: is it misspelt?", DATABSE_URL="postgres://u:hunter2@h/x"),
    mistake("generate-key", 0, "OSTLER_WEB_PROT is set", "did you mean OSTLER_WEB_PORT?", WEB_PROT="80"),
    mistake("worker", 2, "OSTLER_WEB_PORT: found 'abc'; must be a whole number", **full(WEB_PORT="abc")),
    mistake("worker", 2, "OSTLER_DISPATCH_URL: found 'foo'; must begin with http://", **full(DISPATCH_URL="foo")),
    mistake("worker", 2, "OSTLER_GITHUB_API_URL: found 'github'", **full(GITHUB_API_URL="github")),
    mistake("worker", 2, "OSTLER_LOG_LEVEL: found 'LOUD'; must be 'DEBUG'", **full(LOG_LEVEL="LOUD")),
    mistake("worker", 2, "unknown sweep 'nope'", **full(SWEEPS_PAUSED="nope")),
    mistake(
        "watch",
        2,
        "OSTLER_ELEVATED_NAMESPACE: found 'ci'; must differ from OSTLER_NAMESPACE",
        REDIS_URL="redis://h/0",
        NAMESPACE="ci",
        ELEVATED_NAMESPACE="ci",
    ),
    mistake("flower", 2, "must be user:password", REDIS_URL="redis://h/0", FLOWER_BASIC_AUTH="hunter2"),
    mistake("sweep run unresolved_jobs", 2, "OSTLER_REDIS_URL: it is not set", DATABASE_URL=DEAD),
)
"""Wrong or missing settings."""

OUTAGES = (
    mistake("jobs", 3, "Postgres at 127.0.0.1:1 does not answer: Connection refused", DATABASE_URL=DEAD),
    mistake("migrate", 3, "Postgres at 127.0.0.1:1 does not answer", "OSTLER_DATABASE_URL", DATABASE_URL=DEAD),
    mistake("gates", 3, "nope.invalid", "OSTLER_DATABASE_URL", DATABASE_URL="postgres://u:hunter2@nope.invalid/x"),
    mistake(
        "sweep run unresolved_jobs",
        3,
        "Redis at 127.0.0.1:1 does not answer: connection refused",
        DATABASE_URL=DEAD,
        REDIS_URL=FULL["REDIS_URL"],
    ),
    mistake("healthy beat", 1, "Redis at 127.0.0.1:1 does not answer", REDIS_URL=FULL["REDIS_URL"]),
)
"""Parts that do not answer."""

ROWS = (
    mistake(
        "job 123",
        1,
        "there is no job 123; `ostler jobs` lists the known jobs. If GitHub shows the job, its webhook was lost",
    ),
    mistake("jobs --account nope", 1, "there is no account 'nope'; `ostler account list` lists"),
    mistake("jobs --pool nope", 1, "there is no pool 'nope'; `ostler pool list` lists"),
    mistake("jobs --repository nope/nope", 0, "no jobs"),
    mistake("account set nope --jobs 3", 1, "there is no account 'nope'"),
    mistake("token revoke 99", 1, "there is no token 99; `ostler token list` lists"),
    mistake("sweep pause nope", 1, "there is no sweep 'nope'; `ostler sweep list` lists"),
    mistake("sweep run nope", 1, "there is no sweep 'nope'"),
    mistake("repairs --sweep nope", 1, "there is no sweep 'nope'"),
    mistake("token create ci", 0, "it is not shown again"),
    mistake("token create ci", 0, "warning: token 1 has the same name"),
)
"""Commands that name something that does not exist."""


def deviation(done: Done, wanted: Mistake) -> str | None:
    """Return the difference between the message and the expected one, or None."""
    said = " ".join(re.sub("[│╭╮╰╯─]", " ", done.stdout + done.stderr).split())
    if done.returncode != wanted.status:
        return f"exit status {done.returncode}, not {wanted.status}: {said[-400:]}"
    if missing := [each for each in wanted.said if each not in said]:
        return f"{missing} not said: {said[-400:]}"
    if silly := SILLY.search(said):
        return f"{silly[0]!r} is said: {said[-400:]}"
    ours = [line for line in done.stderr.splitlines() if line.startswith("ostler: ")]
    if wanted.status in {WRONG_USE, AWAY} and not ours and "Usage:" not in done.stderr:
        return f"no line of ours: {done.stderr}"
    return None


def deviations(mistakes: tuple[Mistake, ...], environment: Mapping[str, str]) -> dict[str, str]:
    found = {
        str(each): deviation(run_command({**environment, **each.env}, *each.typed.split()), each) for each in mistakes
    }
    return {typed: wrong for typed, wrong in found.items() if wrong is not None}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment without settings, a home without files, and short client waits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(client_waits, "CONNECT", 2.0)
    monkeypatch.setattr(kube_client, "Timing", lambda: Timing(sleep=lambda _: None))
    root, configured = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    yield {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TERM": "dumb", "COLUMNS": "200"}
    root.handlers, root.level = handlers, level  # commands that begin their logs ran in this process
    structlog.configure(**configured)


def test_wrong_use_is_named_with_its_cure(bare: dict[str, str]) -> None:
    assert deviations(WRONG_USES, bare) == {}


def test_wrong_setting_is_named_with_its_cure(bare: dict[str, str]) -> None:
    assert deviations(SETTINGS, bare) == {}


def test_outage_is_said_with_host_port_and_reason_and_is_status_3(bare: dict[str, str]) -> None:
    assert deviations(OUTAGES, bare) == {}


def test_thing_that_is_not_there_is_named_with_the_list_that_has_it(operator: Operator) -> None:
    assert deviations(ROWS, operator.environment()) == {}


def test_database_that_refuses_is_a_wrong_setting(database: Database, operator: Operator) -> None:
    del database
    url = operator.environment()["OSTLER_DATABASE_URL"]
    done = operator.run("jobs", OSTLER_DATABASE_URL=re.sub(r"/test_\w+", "/nope", url))
    assert (done.returncode, 'database "nope" does not exist' in done.stderr) == (2, True), done.stderr


@dataclass(frozen=True)
class Files:
    """Kubeconfigs that lead to no server."""

    garbage: Path
    binary: Path
    empty: Path
    dead: Path


def kubeconfig_of(server: str) -> dict[str, object]:
    """Return a kubeconfig of one cluster with a token."""
    return {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "users": [{"name": "c", "user": {"token": "hunter2"}}],
    }


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(*(tmp_path / name for name in ("garbage", "binary", "empty", "dead")))
    made.garbage.write_text("127.0.0.1 localhost\n")
    made.binary.write_bytes(b"\x7fELF\xff\xfe")
    made.empty.touch()
    made.dead.write_text(yaml.safe_dump(kubeconfig_of(f"https://127.0.0.1:{free_port()}")))
    return made


COMMANDS = (
    "pool pause small",
    "crd",
    "verify-deploy",
    "setup github --namespace x --webhook-url https://ci.example.com/webhooks/github",
)


def test_wrong_kubeconfig_is_one_line_for_every_command(bare: dict[str, str], files: Files, tmp_path: Path) -> None:
    wrong = {
        files.garbage: "is not a usable kubeconfig: it does not have the parts of a kubeconfig",
        files.binary: "it is not text",
        files.empty: "is empty",
        tmp_path: "cannot be read",
        tmp_path / "nope": "does not exist",
    }
    mistakes = [
        mistake(command, 2, "OSTLER_KUBECONFIG: ", said, KUBECONFIG=str(path))
        for path, said in wrong.items()
        for command in COMMANDS
    ]
    mistakes += [mistake(command, 2, "no kubeconfig is set") for command in COMMANDS]
    mistakes += [
        mistake("doctor --wide --only cluster", 1, "kubernetes failed OSTLER_KUBECONFIG: ", said, KUBECONFIG=str(path))
        for path, said in wrong.items()
    ]
    assert deviations(tuple(mistakes), bare) == {}


def test_dead_api_server_is_one_line_for_every_command(bare: dict[str, str], files: Files) -> None:
    said = ("the API server 127.0.0.1:", "does not answer: connection refused")
    mistakes = [mistake(command, 3, *said, KUBECONFIG=str(files.dead)) for command in COMMANDS[:3]]
    mistakes.append(
        mistake(COMMANDS[3], 3, "nothing was created yet", "connection refused", KUBECONFIG=str(files.dead))
    )
    mistakes.append(mistake("doctor --wide --only cluster", 1, "kubernetes failed", *said, KUBECONFIG=str(files.dead)))
    assert deviations(tuple(mistakes), bare) == {}


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server that accepts connections and never answers, with short client waits."""
    monkeypatch.setattr(client_waits, "CONNECT", 0.5)
    monkeypatch.setattr(import_module("cli.setup.ping"), "LAST_CALL", 0.3)  # the name is a command, too
    make_client = kube_client.make_client

    def impatient(**given: Any) -> KubeClient:
        return make_client(**given | {"connect_timeout": 0.3, "read_timeout": 0.3})

    monkeypatch.setattr(kube_client, "make_client", impatient)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:  # the kernel accepts for it
        yield server.getsockname()[1]


def test_unresponsive_server_is_reported_with_host_port_and_cure_and_is_status_3(
    bare: dict[str, str], silent: int, tmp_path: Path
) -> None:
    at = f"127.0.0.1:{silent}"
    database, redis = f"postgresql://u:hunter2@{at}/x", f"redis://:hunter2@{at}/0"
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
    )
    cure = "Check OSTLER_DATABASE_URL, and that Postgres runs"
    postgres = (f"Postgres at {at} does not answer", "did not answer within", cure)
    app = {"GITHUB_APP_ID": "1", "GITHUB_PRIVATE_KEY": key.decode()}
    github = (f"GitHub at {at} did not answer: no answer in time", "Check OSTLER_GITHUB_API_URL")
    mistakes = [
        mistake("jobs", 3, *postgres, DATABASE_URL=database),
        mistake("migrate", 3, *postgres, DATABASE_URL=database),
        mistake(
            "sweep run unresolved_jobs",
            3,
            f"Redis at {at} does not answer: no answer in time",
            "Check OSTLER_REDIS_URL, and that Redis runs",
            DATABASE_URL=DEAD,
            REDIS_URL=redis,
        ),
        mistake("setup ping --within 1", 3, *github, GITHUB_API_URL=f"http://{at}", **app),
    ]
    said = (f"the API server {at} does not answer: timed out", "Check OSTLER_KUBECONFIG, and that the API server runs")
    for scheme, commands in (("http", COMMANDS[:3]), ("https", COMMANDS[:1])):
        path = tmp_path / scheme
        path.write_text(yaml.safe_dump(kubeconfig_of(f"{scheme}://{at}")))
        mistakes += [mistake(command, 3, *said, KUBECONFIG=str(path)) for command in commands]
    assert deviations(tuple(mistakes), bare) == {}


class Waits(threading.local):
    """A clock for each thread that advances only by the waits of the client, in calls and between two attempts."""

    def __init__(self, longest: list[float]) -> None:
        self.longest = longest
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.longest.append(self.now)

    def urlopen(self, *_: Any, timeout: urllib3.Timeout, **__: Any) -> None:
        limits = (timeout.total, timeout.read_timeout)
        self.sleep(min(each for each in limits if isinstance(each, float)))
        raise TimeoutError


@pytest.mark.parametrize("command", [*COMMANDS, "doctor --only cluster"])
def test_command_waits_less_than_ten_seconds_for_an_unresponsive_api_server(
    bare: dict[str, str], files: Files, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    waits = Waits([])
    monkeypatch.setattr(kube_client, "Timing", lambda: Timing(sleep=waits.sleep, clock=lambda: waits.now))
    monkeypatch.setattr(urllib3.PoolManager, "urlopen", lambda _, *given, **named: waits.urlopen(*given, **named))
    done = run_command(bare | {"OSTLER_KUBECONFIG": str(files.dead)}, *command.split())
    assert "timed out" in done.stdout + done.stderr
    assert 1 < max(waits.longest) < 10


def test_doctor_without_settings_blames_the_variable_of_each_line(bare: dict[str, str]) -> None:
    done = run_command(bare, "doctor", "--wide", "--only", "postgres,settings,redis,github,fleet")
    lines = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert done.returncode == 1
    assert "OSTLER_REDIS_URL" in lines["redis"]
    assert "DATABASE_URL" not in lines["redis"]
    assert all(f"OSTLER_{name}: it is not set" in lines["settings"] for name in FULL)
    assert SILLY.search(done.stdout) is None


def test_alerts_refuses_an_address_of_runbooks_that_is_none(bare: dict[str, str]) -> None:
    done = run_command(bare, "alerts", "--runbooks", "docs")
    assert done.returncode == 2
    assert "found 'docs'; expected an address such as https://" in re.sub(r"[\s│]+", " ", done.stderr)


def test_command_with_a_moved_clock_warns(bare: dict[str, str]) -> None:
    done = run_command(bare | {"OSTLER_CLOCK_OFFSET": "-60"}, "generate-key")
    assert done.returncode == 0
    assert "warning: OSTLER_CLOCK_OFFSET moves the clock by -60 s; it is only for tests" in done.stderr


def test_doctor_names_misspelt_variables_and_is_strict_about_them(bare: dict[str, str]) -> None:
    key = "-----BEGIN"  # the check fails on it, and names the misspelt variable first only when all else is right
    env = bare | {f"OSTLER_{name}": value for name, value in full(GITHUB_PRIVATE_KEY=key).items()}
    done = run_command(env | {"OSTLER_WEB_PROT": "1"}, "doctor", "--only", "settings", "--strict")
    assert done.returncode == 1
    assert "did you mean OSTLER_WEB_PORT?" in done.stderr
