"""Settings: the error of a missing or malformed value is one line that names the variable and the remedy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from pydantic_settings import BaseSettings

from beat_schedule import periods
from ostler.errors import ConfigurationError
from ostler.redis_users import RedisUser, password_variable
from ostler.settings import (
    ApiAccess,
    FlowerSettings,
    Settings,
    known_variables,
    load,
    load_app,
    load_beat,
    load_flower,
    unread_variables,
)
from ostler.timings import Timings, help_of
from watch.settings import WatchSettings, load_watch

ROOT = Path(__file__).parents[3]
GOOD = {
    "OSTLER_DATABASE_URL": "postgresql+psycopg2://ostler@localhost/ostler",
    "OSTLER_REDIS_URL": "redis://localhost:6379/0",
    "OSTLER_GITHUB_APP_ID": "123",
    "OSTLER_GITHUB_PRIVATE_KEY": "not a key, and never shown",
    "OSTLER_WEBHOOK_SECRETS": "the first of these, the second of these",
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
    assert [secret.reveal() for secret in settings.webhook_secrets] == ["the first of these", "the second of these"]
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
        ("OSTLER_DATABASE_URL", "mysql://user:hunter2@host/db", "postgresql://"),
        ("OSTLER_DATABASE_URL", "hello", "postgresql://"),
        ("OSTLER_DATABASE_URL", "postgres://user:hunter2/x@host/db", "%2F"),
        ("OSTLER_REDIS_URL", "redis://:hunter2@host:port/0", "%40"),
        ("OSTLER_REDIS_URL", "redis://:hunter2@host/first", "example /0"),
        ("OSTLER_DISPATCH_URL", "foo", "must begin with http:// or https:// and contain a host"),
        ("OSTLER_DISPATCH_URL", "http://web", "/runners/v1/dispatch"),
        (
            "OSTLER_DISPATCH_URL",
            "https://web:port/runners/v1/dispatch",
            "must begin with http:// or https:// and contain a host",
        ),
        ("OSTLER_GITHUB_API_URL", "api.github.com", "must begin with http:// or https:// and contain a host"),
        ("OSTLER_GITHUB_API_URL", "https://octocorp.ghe.com", "must be https://api.octocorp.ghe.com"),
        ("OSTLER_GITHUB_API_URL", "https://octocorp.ghe.com/api/v3", "must be https://api.octocorp.ghe.com"),
        ("OSTLER_GITHUB_API_URL", "https://github.com", "must be https://api.github.com"),
        ("OSTLER_GITHUB_URL", "octocorp.ghe.com", "must begin with http:// or https:// and contain a host"),
        ("OSTLER_CA_BUNDLE", "/does/not/exist.pem", "must be a readable file (no such file or directory)"),
        ("OSTLER_CA_BUNDLE", "/etc/hostname", "must be a file with certificates in PEM"),
        ("OSTLER_REDIS_URL", "http://:hunter2@host", "redis://"),
        ("OSTLER_WEBHOOK_SECRETS", " , ", "at least one"),
        ("OSTLER_WEBHOOK_SECRETS", "hunter2", "16 characters or more, but a value has 7: `openssl rand -hex 32`"),
        ("OSTLER_WEBHOOK_SECRETS", "a secret of these tests, hunter2", "a value has 7"),
        ("OSTLER_WEBHOOK_SECRETS", "hunter2-hunter2", "a value has 15"),
        ("OSTLER_WEB_PORT", "hunter2", "'hunter2'"),
        ("OSTLER_WEB_PORT", "70000", "'70000'"),
        ("OSTLER_WORKER_THREADS", "0", "'0'"),
        ("OSTLER_LOG_LEVEL", "LOUD", "'LOUD'"),
        ("OSTLER_START_TIMEOUT", "nan", "'nan'"),
        ("OSTLER_TIMINGS", "sweep_every=3", 'must be a JSON object, for example {"sweep_every": 3}'),
        ("OSTLER_TIMINGS", "[3]", 'must be a JSON object, for example {"sweep_every": 3}'),
        ("OSTLER_TIMINGS", '{"swep_every": 3}', "unknown timing 'swep_every'; did you mean sweep_every?"),
        ("OSTLER_TIMINGS", '{"xyzzy": 3}', "unknown timing 'xyzzy'; docs/configuration.md lists them"),
        ("OSTLER_TIMINGS", '{"sweep_every": "3"}', "sweep_every: found '3'; must be a number; Seconds between"),
        ("OSTLER_TIMINGS", '{"sweep_every": true}', "sweep_every: found True; must be a number"),
        ("OSTLER_TIMINGS", '{"sweep_every": NaN}', "sweep_every: found nan; must be a number"),
        ("OSTLER_TIMINGS", '{"sweep_every": 0}', "sweep_every: found 0; must be greater than 0"),
        ("OSTLER_TIMINGS", '{"match_batch": 1.5}', "match_batch: found 1.5; must be a whole number"),
        ("OSTLER_REDELIVERY_KEPT", "604801", "must not be larger than 604800, the timing keep_deliveries"),
        ("OSTLER_WEB_POLLS_TLS_KEY", "/tls.key", "must not be set without OSTLER_WEB_POLLS_TLS_CERT"),
        ("OSTLER_WEB_PLAIN_POLLS", "false", "must be true without OSTLER_WEB_POLLS_TLS_CERT"),
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


def test_empty_variable_is_one_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMESPACE", "GITHUB_API_URL", "NEW_ACCOUNTS", "DEFAULT_BUDGET_COUNT", "LOG_LEVEL"):
        monkeypatch.setenv(f"OSTLER_{name}", "")
    settings = load()
    assert settings.namespace == "ostler-runners"
    assert settings.github_api_url == "https://api.github.com"
    assert (settings.new_accounts, settings.default_budget_count, settings.log_level) == ("hold", 20, "INFO")

    load.cache_clear()
    monkeypatch.setenv("OSTLER_GITHUB_APP_ID", "")
    with pytest.raises(ConfigurationError, match="OSTLER_GITHUB_APP_ID: it is not set"):
        load()


def test_certificate_without_its_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTLER_WEB_POLLS_TLS_CERT", "/tls.crt")
    with pytest.raises(ConfigurationError, match=r"OSTLER_WEB_POLLS_TLS_KEY: .*must be set, because"):
        load()
    monkeypatch.setenv("OSTLER_WEB_POLLS_TLS_KEY", "/tls.key")
    assert load().web_polls_tls_key == "/tls.key"


LOGIN = {
    "OSTLER_OIDC_ISSUER": "https://login.example.com",
    "OSTLER_OIDC_CLIENT_ID": "ostler",
    "OSTLER_OIDC_REDIRECT_URL": "https://ostler.example.com/ui/oidc/callback",
    "OSTLER_OIDC_GROUPS": '{"platform": "write", "shop": ["acme"]}',
}


@pytest.mark.parametrize("name", LOGIN)
def test_login_by_a_provider_needs_all_four_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each, value in LOGIN.items():
        monkeypatch.setenv(each, value)
    assert load().oidc_groups == {"platform": "write", "shop": ("acme",)}
    load.cache_clear()
    monkeypatch.delenv(name)
    with pytest.raises(ConfigurationError, match=f"also needs {name}"):
        load()


@pytest.mark.parametrize("groups", ["{", "[]", '{"a": "admin"}', '{"a": []}', '{"a": ["acme", 3.5]}', '{"a": {}}'])
def test_groups_of_a_provider_are_checked_at_start(groups: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each, value in (LOGIN | {"OSTLER_OIDC_GROUPS": groups}).items():
        monkeypatch.setenv(each, value)
    with pytest.raises(ConfigurationError, match=r"OSTLER_OIDC_GROUPS: .*must be a JSON object such as"):
        load()


def test_empty_variables_of_tls_are_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OSTLER_WEB_POLLS_TLS_CERT", "OSTLER_WEB_POLLS_TLS_KEY", "OSTLER_DISPATCH_CA"):
        monkeypatch.setenv(name, "")
    settings = load()
    assert (settings.web_polls_tls_cert, settings.web_polls_tls_key, settings.dispatch_ca) == (None, None, None)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg2"])
def test_address_of_postgres_is_taken_as_providers_hand_it_out(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTLER_DATABASE_URL", f"{scheme}://user:hunter2@host:1/db?sslmode=require")
    assert load().database_url.reveal() == "postgresql+psycopg2://user:hunter2@host:1/db?sslmode=require"


@pytest.mark.parametrize(
    ("website", "api"),
    [
        ("https://github.com", "https://api.github.com"),
        ("https://octocorp.ghe.com/", "https://api.octocorp.ghe.com"),
        ("https://api.octocorp.ghe.com", "https://api.octocorp.ghe.com"),
        ("https://ghe.corp.example", "https://ghe.corp.example/api/v3"),
        ("https://ghe.corp.example:8443/", "https://ghe.corp.example:8443/api/v3"),
    ],
)
def test_api_follows_from_the_address_of_github(website: str, api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTLER_GITHUB_URL", website)
    assert load().github_api_url == load_app().github_api_url == api


def test_address_of_the_api_wins_over_that_of_github(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTLER_GITHUB_URL", "https://octocorp.ghe.com")
    monkeypatch.setenv("OSTLER_GITHUB_API_URL", "https://proxy.corp.example/github")
    assert load().github_api_url == "https://proxy.corp.example/github"


def test_everything_that_is_missing_or_malformed_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OSTLER_REDIS_URL")
    monkeypatch.delenv("OSTLER_WEBHOOK_SECRETS")
    monkeypatch.setenv("OSTLER_WEB_PORT", "no")
    with pytest.raises(ConfigurationError) as error:
        load()
    lines = str(error.value).splitlines()
    assert sorted(line.partition(":")[0] for line in lines) == [
        "OSTLER_REDIS_URL",
        "OSTLER_WEBHOOK_SECRETS",
        "OSTLER_WEB_PORT",
    ]
    port = "Public port of `ostler web`, for webhooks, the REST API and the dashboard"
    assert f"OSTLER_WEB_PORT: found 'no'; must be a whole number; {port}" in lines


def test_process_stops_at_start_with_a_line_for_each_missing_variable() -> None:
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
    named = [line.removeprefix("ostler: ").partition(": it is not set; ")[0] for line in answer.stderr.splitlines()]
    assert sorted(named) == sorted(GOOD)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("OSTLER_WEB_PROT", "OSTLER_WEB_PORT"),
        ("OSTLER_START_TIMEOUTT", "OSTLER_START_TIMEOUT"),
        ("OSTLER_SWEEP_EVERY", "sweep_every in OSTLER_TIMINGS"),
        ("OSTLER_WATCH_LEASE", "watch_lease in OSTLER_TIMINGS"),
        ("OSTLER_DATABSE_URL", "OSTLER_DATABASE_URL"),
        ("OSTLER_FLOWER_BASICAUTH", "OSTLER_FLOWER_BASIC_AUTH"),
        ("OSTLER_XYZZY", None),
    ],
)
def test_misspelt_variable_is_named_with_its_nearest(
    name: str, near: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "hunter2")
    (found,) = unread_variables()
    assert (found.name, found.near) == (name, near)
    assert "hunter2" not in str(found)
    assert near is None or near in str(found)


def test_misspelt_variable_is_named_beside_the_one_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OSTLER_REDIS_URL")
    monkeypatch.setenv("OSTLER_REDIS_ULR", "redis://x")
    with pytest.raises(ConfigurationError, match=r"OSTLER_REDIS_URL: .*; OSTLER_REDIS_ULR is set: is it misspelt"):
        load()


def test_every_setting_of_the_watch_is_a_known_variable() -> None:
    assert {f"OSTLER_{name.upper()}" for name in WatchSettings.model_fields} <= known_variables()


def test_passwords_of_the_users_of_redis_are_known_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for user in RedisUser:
        monkeypatch.setenv(password_variable(user), "x" * 20)
    assert unread_variables() == []


@pytest.mark.parametrize(
    "name", ["OSTLER_WEB_SERVICE_HOST", "OSTLER_WEB_PORT_80_TCP", "OSTLER_WEB_SERVICE_PORT_HTTP", "OSTLER_HALT_DIR"]
)
def test_variable_of_kubernetes_or_of_a_test_is_not_taken_for_misspelt(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "tcp://10.0.0.1:80")
    assert unread_variables() == []


def test_flower_needs_the_way_to_redis_and_no_other_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GOOD:
        if name != "OSTLER_REDIS_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("OSTLER_FLOWER_BASIC_AUTH", "ann:hunter2-hunter2-2, bob:hunter3-hunter3-3")
    assert [secret.reveal() for secret in load_flower().flower_basic_auth] == [
        "ann:hunter2-hunter2-2",
        "bob:hunter3-hunter3-3",
    ]


def test_beat_needs_the_way_to_redis_and_no_other_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GOOD:
        if name != "OSTLER_REDIS_URL":
            monkeypatch.delenv(name)
    monkeypatch.setenv("OSTLER_TIMINGS", '{"resume_every": 7}')
    assert periods(load_beat().timings)["resume"] == 7
    monkeypatch.setenv("OSTLER_REDIS_URL", "http://:hunter2@host")
    with pytest.raises(ConfigurationError, match="must begin with redis://"):
        load_beat()


def test_the_watch_needs_the_way_to_redis_and_no_other_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GOOD:
        if name != "OSTLER_REDIS_URL":
            monkeypatch.delenv(name)
    assert load_watch().timings.watch_lease == 10
    monkeypatch.setenv("OSTLER_TIMINGS", '{"watch_lease": 1}')
    with pytest.raises(ConfigurationError, match=r"^OSTLER_TIMINGS: watch_lease: found 1; "):
        load_watch()


@pytest.mark.parametrize("password", ["hunter2", "hunter2-hunter2"])
def test_password_of_flower_below_16_characters_is_refused_and_not_shown(
    password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTLER_FLOWER_BASIC_AUTH", f"ann:hunter2-hunter2-2,bob:{password}")
    with pytest.raises(ConfigurationError) as error:
        load_flower()
    line = str(error.value)
    assert line.startswith("OSTLER_FLOWER_BASIC_AUTH: ")
    assert f"16 characters or more, but a value has {len(password)}: `openssl rand -hex 24` creates one" in line
    assert "hunter2" not in line


@pytest.mark.parametrize("login", ["hunter2", ":hunter2", "hunter2:", "ann:hunter2,hunter2", "ann:hünter2"])
def test_a_login_of_flower_that_is_none_is_refused_and_not_shown(login: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTLER_FLOWER_BASIC_AUTH", login)
    with pytest.raises(ConfigurationError, match="user:password") as error:
        load_flower()
    assert str(error.value).startswith("OSTLER_FLOWER_BASIC_AUTH: ")
    assert "nter2" not in str(error.value)


def test_overrides_of_timings_leave_the_others_at_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load().timings == Timings()
    load.cache_clear()
    monkeypatch.setenv("OSTLER_TIMINGS", '{"sweep_every": 3, "due_after": 2.5}')
    assert load().timings == Timings(sweep_every=3, due_after=2.5)


def test_empty_timings_are_no_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTLER_TIMINGS", "")
    assert load().timings == Timings()


def test_each_wrong_timing_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTLER_TIMINGS", '{"sweep_every": 0, "due_after": "3", "xyzzy": 1}')
    with pytest.raises(ConfigurationError) as error:
        load()
    assert len(str(error.value).splitlines()) == 3


def test_no_timing_is_a_setting_too() -> None:
    fields = Settings.model_fields | WatchSettings.model_fields | FlowerSettings.model_fields
    assert not fields.keys() & Timings.model_fields.keys()


def test_the_documentation_lists_every_variable_with_its_default_and_no_other() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    documented = dict(re.findall(r"^\| `(OSTLER_[A-Z0-9_]+)` \| ([^|]*) \|", text, flags=re.MULTILINE))
    fields = WatchSettings.model_fields | Settings.model_fields | FlowerSettings.model_fields | ApiAccess.model_fields
    expected = {
        f"OSTLER_{name.upper()}": "required" if field.is_required() else f"`{_shown(field.default)}`"
        for name, field in fields.items()
        if name != "timings"
    }
    for name in ("OSTLER_CLOCK_OFFSET", "OSTLER_HALT_DIR", "OSTLER_TIMINGS"):  # for tests only
        assert documented.pop(name).strip() == "``"
    assert {name: default.strip() for name, default in documented.items()} == expected


def test_the_documentation_lists_every_timing_with_its_default_and_meaning() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    documented = re.findall(r"^\| `([a-z0-9_]+)` \| `([^|]*)` \| ([^|]*) \|$", text, flags=re.MULTILINE)
    expected = [(name, _shown(field.default), help_of(Timings, name)) for name, field in Timings.model_fields.items()]
    assert documented == expected


@pytest.mark.parametrize("kind", [WatchSettings, Settings, FlowerSettings, ApiAccess])
def test_every_setting_has_a_help_in_one_line(kind: type[BaseSettings]) -> None:
    helps = [help_of(kind, name) for name in kind.model_fields]
    assert all(text[0].isupper() and "\n" not in text and not text.endswith(".") for text in helps)


def _shown(default: object) -> str:
    return "" if default is None else str(default)
