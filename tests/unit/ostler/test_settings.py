"""Settings: what is missing or malformed is one line that names the variable and the cure."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from beat_schedule import settings_of
from ostler.errors import ConfigurationError
from ostler.settings import FlowerSettings, Settings, load, load_beat, load_flower
from ostler.watch.settings import WatchSettings, load_watch

ROOT = Path(__file__).parents[3]
GOOD = {
    "OSTLER_DATABASE_URL": "postgresql+psycopg2://ostler@localhost/ostler",
    "OSTLER_REDIS_URL": "redis://localhost:6379/0",
    "OSTLER_GITHUB_APP_ID": "123",
    "OSTLER_GITHUB_PRIVATE_KEY": "not a key, and never shown",
    "OSTLER_WEBHOOK_SECRETS": "one, two",
    "OSTLER_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OSTLER_"):
            monkeypatch.delenv(name)
    for name, value in GOOD.items():
        monkeypatch.setenv(name, value)
    load.cache_clear()


def test_a_full_environment_is_read_once() -> None:
    settings = load()
    assert [secret.reveal() for secret in settings.webhook_secrets] == ["one", "two"]
    assert load() is settings


@pytest.mark.parametrize("name", sorted(GOOD))
def test_a_missing_variable_is_named_with_what_would_be_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name)
    with pytest.raises(ConfigurationError) as error:
        load()
    line = str(error.value)
    assert line.startswith(f"{name}: it is not set; ")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("OSTLER_DATABASE_URL", "postgresql://user:hunter2@host/db", "postgresql+psycopg2://"),
        ("OSTLER_REDIS_URL", "http://:hunter2@host", "redis://"),
        ("OSTLER_WEBHOOK_SECRETS", " , ", "at least one"),
        ("OSTLER_WEB_PORT", "hunter2", "'hunter2'"),
        ("OSTLER_WEB_PORT", "70000", "'70000'"),
        ("OSTLER_WORKER_THREADS", "0", "'0'"),
        ("OSTLER_LOG_LEVEL", "LOUD", "'LOUD'"),
        ("OSTLER_DUE_AFTER", "nan", "'nan'"),
    ],
)
def test_a_malformed_variable_is_named_with_what_was_found(
    name: str, value: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as error:
        load()
    line = str(error.value)
    assert line.startswith(f"{name}: ")
    assert shown in line
    assert "\n" not in line
    if name in {"OSTLER_DATABASE_URL", "OSTLER_REDIS_URL", "OSTLER_WEBHOOK_SECRETS"}:
        assert "hunter2" not in line


def test_a_process_stops_at_start_with_the_one_line() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OSTLER_")}
    answer = subprocess.run(
        [sys.executable, "-m", "ostler", "worker"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert answer.returncode == 2
    assert answer.stderr.startswith("ostler: OSTLER_DATABASE_URL: it is not set; ")
    assert answer.stderr.count("\n") == 1


def test_flower_needs_the_way_to_redis_and_no_other_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GOOD:
        if name != "OSTLER_REDIS_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("OSTLER_FLOWER_BASIC_AUTH", "ann:hunter2, bob:hunter3")
    assert [secret.reveal() for secret in load_flower().flower_basic_auth] == ["ann:hunter2", "bob:hunter3"]


def test_beat_needs_the_way_to_redis_and_no_other_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GOOD:
        if name != "OSTLER_REDIS_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("OSTLER_RESUME_EVERY", "7")
    assert settings_of(load_beat())["resume_every"] == 7
    monkeypatch.setenv("OSTLER_REDIS_URL", "http://:hunter2@host")
    with pytest.raises(ConfigurationError, match="must begin with redis://"):
        load_beat()


def test_the_watch_needs_the_way_to_redis_and_no_other_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GOOD:
        if name != "OSTLER_REDIS_URL":
            monkeypatch.delenv(name)
    assert load_watch().watch_lease == 10
    monkeypatch.setenv("OSTLER_WATCH_LEASE", "1")
    with pytest.raises(ConfigurationError, match=r"^OSTLER_WATCH_LEASE: found '1'; "):
        load_watch()


@pytest.mark.parametrize("login", ["hunter2", ":hunter2", "hunter2:", "ann:hunter2,hunter2", "ann:hünter2"])
def test_a_login_of_flower_that_is_none_is_refused_and_not_shown(login: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTLER_FLOWER_BASIC_AUTH", login)
    with pytest.raises(ConfigurationError, match="user:password") as error:
        load_flower()
    assert str(error.value).startswith("OSTLER_FLOWER_BASIC_AUTH: ")
    assert "nter2" not in str(error.value)


def test_the_documentation_lists_every_variable_with_its_default_and_no_other() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    documented = dict(re.findall(r"^\| `(OSTLER_[A-Z0-9_]+)` \| ([^|]*) \|", text, flags=re.MULTILINE))
    expected = {
        f"OSTLER_{name.upper()}": "required" if field.is_required() else f"`{_shown(field.default)}`"
        for name, field in (WatchSettings.model_fields | Settings.model_fields | FlowerSettings.model_fields).items()
    }
    documented.pop("OSTLER_HALT_DIR", None)  # read by ostler.halt, for fault tests only
    assert {name: default.strip() for name, default in documented.items()} == expected


def _shown(default: object) -> str:
    return "" if default is None else str(default)
