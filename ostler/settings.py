"""Settings of Ostler: typed objects that a process reads once from `OSTLER_…` variables and validates at its start.

A setting exists only for a value that an operator has a reason to change. Other periods and thresholds are in
`ostler.timings`.

`load()` raises `ConfigurationError` with one line for each variable that is missing or malformed. The line contains the
name, the value (never a secret) and the expected value. `docs/configuration.md` lists all variables, and a test
compares the list with this module. Times are in seconds unless the name says otherwise.
"""

from __future__ import annotations

import functools
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from ostler import egress
from ostler.errors import ConfigurationError
from ostler.github_urls import api_url_of, misplaced
from ostler.secrets import LEAST, Secret
from ostler.task_names import SWEEPS
from ostler.timings import Timings, help_of, overrides
from ostler.variables import Stranger, nearest, strangers, variable

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Read = TypeVar("Read", bound=BaseSettings)


class Environment(BaseSettings):
    """Base of all settings: `OSTLER_…` variables. The docstring of a field is its help."""

    model_config = SettingsConfigDict(
        env_prefix="OSTLER_", env_ignore_empty=True, frozen=True, extra="ignore", arbitrary_types_allowed=True
    )


class Trust(Environment):
    """Certificate authorities that this process trusts in addition to those of the system."""

    ca_bundle: str | None = None
    """Path of a PEM file with private certificate authorities for GitHub and Redis, in addition to those of the system.
    For Postgres set `sslrootcert` in OSTLER_DATABASE_URL.
    """

    @field_validator("ca_bundle")
    @classmethod
    def _certificates(cls, value: str | None) -> str | None:
        if value:
            egress.check_bundle(value)
        return value or None


class Stores(Trust):
    """Settings of the operator's commands: the addresses of Postgres and Redis.

    A command needs Redis only to make a change take effect at once.
    """

    database_url: Secret
    """Address of Postgres, for example `postgresql://user:password@host:5432/name`."""
    redis_url: Secret | None = None
    """Address of Redis, for example `redis://host:6379/0`. Redis contains the queues of tasks, the schedule of beat and
    the rate limits for GitHub.
    """

    @field_validator("database_url", "redis_url", mode="before")
    @classmethod
    def _url(cls, value: Any) -> Any:
        return secret(value)

    @field_validator("database_url")
    @classmethod
    def _psycopg2(cls, value: Secret) -> Secret:
        return postgres_address(value)

    @field_validator("redis_url")
    @classmethod
    def _redis(cls, value: Secret | None) -> Secret | None:
        return None if value is None else redis_address(value)


class ApiAccess(Trust):
    """Settings of the operator's commands that can ask the REST API instead of Postgres."""

    api_url: str | None = None
    """Address of web, for example `https://ostler.example.com`. If it is set, the commands `ostler jobs`, `job`,
    `job requeue`, `pods`, `pod`, `pool show`, `pool history`, `pool pause`, `pool resume`, `account show`, `usage` and
    `changes` ask the REST API, and need access to neither Postgres nor the cluster.
    """
    api_token: Secret | None = Field(default=None, validate_default=True)
    """API token for OSTLER_API_URL, from `ostler token create`, with the scope `read`, for `ostler job requeue`,
    `ostler pool pause` and `resume` also `write`. Over plain HTTP it can be read on the way.
    """

    @field_validator("api_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if urlsplit(http_address(value)).username is not None:
            raise ValueError("must contain no user and no password; OSTLER_API_TOKEN has the token")
        return value.rstrip("/").removesuffix("/api")

    @field_validator("api_token", mode="before")
    @classmethod
    def _token(cls, value: Any, known: ValidationInfo) -> Any:
        if value is None and known.data.get("api_url") is not None:
            raise ValueError("must be set together with OSTLER_API_URL")
        return secret(value)


class Namespaces(Environment):
    """Namespaces of pools and runner Pods: one, and a second one if the owner of the cluster allows more privileges."""

    namespace: str = "ostler-runners"
    """Kubernetes namespace of the pools and of their runner Pods, except for pools in OSTLER_ELEVATED_NAMESPACE. It
    also has the epoch and the Lease of the watch.
    """
    elevated_namespace: str | None = None
    """Kubernetes namespace, other than OSTLER_NAMESPACE, of the pools that need a Pod Security level above
    `restricted`, and of their runner Pods. If it is empty, such pools are Degraded.
    """

    @field_validator("elevated_namespace")
    @classmethod
    def _another_namespace(cls, value: str | None, known: ValidationInfo) -> str | None:
        if value == known.data.get("namespace"):
            raise ValueError("must differ from OSTLER_NAMESPACE")
        return value

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Return every namespace with runner Pods. The first one also has the epoch and the Lease of the watch."""
        return (self.namespace,) if self.elevated_namespace is None else (self.namespace, self.elevated_namespace)


class Cluster(Namespaces):
    """Settings of the access to the cluster: its kubeconfig and the namespaces of the pools."""

    kubeconfig: str | None = None
    """Path of the kubeconfig of web, of a worker or of the watch. If it is empty, the process uses the ServiceAccount
    of its Pod. An operator's command searches further places if it is empty.
    """


class Logs(Environment):
    """Settings of the logs of a process."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Lowest level of the messages that are logged: `DEBUG`, `INFO`, `WARNING` or `ERROR`."""
    log_style: Literal["json", "console"] = "json"
    """Format of log lines: `json` for programs, `console` for people."""


class Watched(Environment):
    """Settings of a process that shows its health in a file and has a port for metrics."""

    alive_file: str | None = None
    """Path of a file that `ostler healthy worker` and `ostler healthy watch` read; they fail if this setting is empty.
    A worker touches the file at each heartbeat while it reads its queues, a watch each time the cluster answers a
    request for its Lease.
    """
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Port of `ostler worker` and `ostler watch` for `/metrics`. With 0, they serve no metrics. Metrics of web are on
    OSTLER_WEB_PRIVATE_PORT.
    """


class Timed(Environment):
    """Timings of a process. Tests and chaos runs override them."""

    timings: Annotated[Timings, NoDecode] = Field(default_factory=Timings)
    """JSON object that overrides timings, for tests and chaos runs. The names in it are not a stable interface."""

    @field_validator("timings", mode="before")
    @classmethod
    def _overrides(cls, value: Any) -> Any:
        return overrides(value)


class App(Environment):
    """Settings of the GitHub App: the addresses of GitHub, and the id and the key of the App."""

    github_url: str = "https://github.com"
    """Address of GitHub in a browser. Use `https://SUBDOMAIN.ghe.com` for data residency and `https://HOST` for an
    Enterprise Server.
    """
    github_api_url: str = "https://api.github.com"
    """Root address of GitHub's REST API, only if it differs from the address that Ostler derives from
    OSTLER_GITHUB_URL.
    """
    github_app_id: str
    """Client id or app id of the GitHub App."""
    github_private_key: Secret
    r"""Private key of the GitHub App, as PEM text. You can write `\n` for each line end."""
    check_runs_after: int = Field(default=0, ge=0, le=86400)
    """Seconds that a job waits until a check run on its commit tells why it waits. A check run also tells that the Pod
    of a job ended before the job. With 0, Ostler makes no check runs. Larger values make fewer calls to GitHub. The App
    needs the permission `checks: write`.
    """

    @model_validator(mode="before")
    @classmethod
    def _api_of_github(cls, found: Any) -> Any:
        if isinstance(found, dict) and found.get("github_url") and not found.get("github_api_url"):
            with suppress(ValueError):  # the validator of `github_url` reports the malformed address
                return {**found, "github_api_url": api_url_of(http_address(found["github_url"]))}
        return found

    @field_validator("github_url", "github_api_url")
    @classmethod
    def _address(cls, value: str) -> str:
        return http_address(value)

    @field_validator("github_api_url")
    @classmethod
    def _api(cls, value: str) -> str:
        if (right := misplaced(value)) is not None:
            raise ValueError(f"must be {right}, because the given address is for browsers and not for the REST API")
        return value

    @field_validator("github_private_key", mode="before")
    @classmethod
    def _one_key(cls, value: Any) -> Any:
        return secret(value)


OIDC_CALLBACK = "/ui/oidc/callback"


def _is_right(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(type(account) in {str, int} for account in value)
    return value in ("read", "write")


class Login(Environment):
    """Settings of an OpenID provider, through which people log in to the dashboard."""

    oidc_issuer: str | None = None
    """Issuer URL of an OpenID provider, through which people log in to the dashboard without an API token. Also set
    OSTLER_OIDC_CLIENT_ID, OSTLER_OIDC_REDIRECT_URL and OSTLER_OIDC_GROUPS.
    """
    oidc_client_id: str | None = None
    """Id of Ostler's client at the OpenID provider."""
    oidc_client_secret: Secret | None = None
    """Secret of Ostler's client at the OpenID provider. Leave it out for a public client."""
    oidc_redirect_url: str | None = None
    """Address of the dashboard for the OpenID provider, `https://HOST/ui/oidc/callback`. Register it at the provider.
    """
    oidc_groups_claim: str = "groups"
    """Claim of the ID token that contains the groups of a person."""
    oidc_scopes: str = "openid profile"
    """Scopes that Ostler requests from the OpenID provider, separated by spaces. Some providers send the groups only
    with the scope `groups`.
    """

    oidc_groups: Annotated[dict[str, Literal["read", "write"] | tuple[str | int, ...]], NoDecode] = Field(
        default={}, validate_default=True
    )
    """JSON object with the rights of each group at the OpenID provider: `write` (see and change everything), `read`
    (see everything) or a list of logins or ids of accounts (see only these). A person has the rights of all groups.
    """

    @field_validator("oidc_client_secret", mode="before")
    @classmethod
    def _one_secret(cls, value: Any) -> Any:
        return secret(value)

    @field_validator("oidc_groups", mode="before")
    @classmethod
    def _groups(cls, value: Any) -> Any:
        try:
            found = json.loads(value) if isinstance(value, str) else value
        except json.JSONDecodeError:
            found = None
        if not isinstance(found, dict) or not all(_is_right(each) for each in found.values()):
            raise ValueError('must be a JSON object such as {"platform": "write", "support": "read", "shop": ["acme"]}')
        return found

    @field_validator("oidc_issuer", "oidc_redirect_url")
    @classmethod
    def _provider(cls, value: str | None) -> str | None:
        return None if value is None else http_address(value)

    @field_validator("oidc_redirect_url")
    @classmethod
    def _callback(cls, value: str | None) -> str | None:
        if value is not None and urlsplit(value).path != OIDC_CALLBACK:
            raise ValueError(f"must end with {OIDC_CALLBACK}, directly after the host")
        return value

    @field_validator("oidc_groups")
    @classmethod
    def _together(cls, value: dict[str, Any], known: ValidationInfo) -> dict[str, Any]:
        names = ("oidc_issuer", "oidc_client_id", "oidc_redirect_url")
        missing = [variable(name) for name in names if known.data.get(name, "not valid") is None]
        missing += [] if value else ["OSTLER_OIDC_GROUPS"]
        if 0 < len(missing) <= len(names):
            raise ValueError(f"a login through an OpenID provider also needs {' and '.join(missing)}")
        return value


class Settings(Stores, App, Login, Cluster, Timed, Logs, Watched):
    """Immutable settings of web and of the workers."""

    # Stores
    redis_url: Secret
    """Address of Redis, for example `redis://host:6379/0`. Redis contains the queues of tasks, the schedule of beat and
    the rate limits for GitHub.
    """
    connection_share: int = Field(default=16, ge=1)
    """Maximum number of Postgres connections of this process. Web or a worker that needs more does not start. Larger
    values need a larger OSTLER_CONNECTION_BUDGET.
    """
    connection_budget: int = Field(default=25, ge=1)
    """Sum of the connection shares of all replicas of web and of the workers. They do not start if this sum plus a
    reserve of 10 exceeds `max_connections` of Postgres.
    """
    worker_threads: int = Field(default=16, ge=1, le=200)
    """Number of threads of one worker process. Larger values run more tasks at once and need more connections."""

    # GitHub
    github_mints_per_minute: int = Field(default=180, ge=1)
    """Maximum number of runners that Ostler registers per minute for one installation, a third of them in one burst.
    Larger values use up GitHub's rate limit faster.
    """
    webhook_secrets: Annotated[tuple[Secret, ...], NoDecode]
    """Webhook secrets of the GitHub App, separated by commas, each with 16 characters or more. While you change the
    secret, set both the new and the old secret.
    """

    # Secrets at rest
    encryption_keys: Annotated[tuple[Secret, ...], NoDecode]
    """Fernet keys, separated by commas, newest first. Ostler encrypts JIT configs and signs page cursors of the REST
    API with the first key. It decrypts and verifies with all keys.
    """

    # Kubernetes
    allowed_pod_security: Literal["restricted", "baseline", "privileged"] = "restricted"
    """Least strict Pod Security level of pools: `restricted`, `baseline` or `privileged`. The last two need
    OSTLER_ELEVATED_NAMESPACE. A pool that asks for a less strict level is Degraded.
    """
    pod_job_annotations: bool = False
    """True if Ostler writes the repository, the workflow and the name of the running job into annotations of its Pod.
    This costs about one call to the API server per job. Everybody who may read Pods can then read these names.
    """
    dispatch_url: str = "http://ostler-web-polls.ostler.svc/runners/v1/dispatch"
    """Address that runner Pods poll. A change replaces every starting or warm Pod."""
    dispatch_ca: str | None = None
    """Name of a ConfigMap with certificate authorities in the key `ca.crt`, in each namespace of runner Pods. With an
    OSTLER_DISPATCH_URL of `https://`, runner Pods trust only these when they poll, and a change replaces every starting
    or warm Pod. If it is empty, they trust those of their image.
    """
    hooks_image: str | None = None
    """Image of the sidecar in pools with `containers.mode: kubernetes`: Ostler's own image. A change replaces every
    starting or warm Pod of these pools. If it is empty, these pools are Degraded.
    """
    buildkit_image: str | None = None
    """Image of the sidecar in pools with `containers.mode: buildkit`, with `buildkitd`, `buildctl` and `buildkit-runc`.
    A change replaces every starting or warm Pod of these pools. If it is empty, these pools are Degraded.
    """
    dind_image: str | None = None
    """Image of the sidecar in pools with `containers.mode: dind`, with the programs and the entry point of
    `docker:dind`. A change replaces every starting or warm Pod of these pools. If it is empty, these pools are
    Degraded.
    """
    token_audience: str = Field(default="ostler-dispatch")
    """Audience of the ServiceAccount tokens that runner Pods send with a poll, the same in web and the workers. A
    change replaces every starting or warm Pod.
    """

    # Web
    web_host: str = Field(default="0.0.0.0")  # noqa: S104  in a Pod
    """Network address that `ostler web` listens on."""
    web_port: int = Field(default=8080, ge=0, le=65535)
    """Public port of `ostler web`, for webhooks, the REST API and the dashboard."""
    web_polls_port: int = Field(default=8081, ge=0, le=65535)
    """Port of `ostler web` for polls without TLS, open if OSTLER_WEB_PLAIN_POLLS is true."""
    web_polls_tls_port: int = Field(default=8443, ge=0, le=65535)
    """Port of `ostler web` for polls over TLS, open if OSTLER_WEB_POLLS_TLS_CERT is set."""
    web_polls_tls_cert: str | None = None
    """Path of a PEM file with the certificate for OSTLER_WEB_POLLS_TLS_PORT and its chain. Web checks the file for
    changes every 10 seconds.
    """
    web_polls_tls_key: str | None = Field(default=None, validate_default=True)
    """Path of a PEM file with the private key of OSTLER_WEB_POLLS_TLS_CERT. Set both settings or neither."""
    web_plain_polls: bool = Field(default=True, validate_default=True)
    """True if OSTLER_WEB_POLLS_PORT serves polls without TLS. It must be true without OSTLER_WEB_POLLS_TLS_CERT.
    Disable it when every Pod polls over TLS.
    """
    web_private_port: int = Field(default=9090, ge=0, le=65535)
    """Private port of `ostler web`, for metrics and health."""
    web_public_polls: bool = True
    """True if OSTLER_WEB_PORT also serves polls, for Pods of older releases. Disable it when no such Pod is left."""
    web_ui: bool = True
    """True if OSTLER_WEB_PORT also serves the dashboard under `/ui`. If it is false, `/ui` answers 404."""
    intake_queue: int = Field(default=5000, ge=1)
    """Maximum number of webhooks about jobs that wait in one web process for their commit. If the queue is full, web
    answers 503 to the newest webhook of the account with the most waiting webhooks, and Ostler later asks GitHub to
    send it again. Larger values need more memory.
    """

    # Accounts
    new_accounts: Literal["hold", "serve"] = "hold"
    """Access of new accounts. With `hold`, their jobs are held until an operator runs `ostler account allow`, except
    those of the App's owner. With `serve`, the jobs of every account that installs the App run within the default
    budget. Known accounts do not change.
    """
    default_budget_count: int = Field(default=20, ge=0)
    """Number of Pods that a new account can use at once. Known accounts do not change. Larger values allow more jobs at
    once.
    """
    default_budget_vcpu: int = Field(default=80, ge=0)
    """Number of vCPUs that a new account can use at once. Known accounts do not change. Larger values allow more or
    larger jobs at once.
    """
    default_budget_memory_gib: int = Field(default=320, ge=0)
    """Memory in GiB that a new account can use at once. Known accounts do not change. Larger values allow more or
    larger jobs at once.
    """

    # Time limits
    start_timeout: float = Field(default=300, gt=0)
    """Seconds without a poll after which Ostler replaces a Pod that never received a JIT, if a web process ran all the
    time. `provisioning.startTimeout` of a pool has precedence. Larger values give slow images more time.
    """
    node_lost_after: float = Field(default=600, ge=60)
    """Seconds before an unreachable node counts as gone. Ostler then replaces the Pods of the node, and deletes most of
    them by force (`docs/operations/nodes.md`). Larger values wait longer for the node to return.
    """

    # Redelivery of failed webhooks
    redelivery_kept: float = Field(default=259200, gt=0)
    """Retention of webhook deliveries at GitHub in seconds: 259200 (3 days) on github.com, 604800 (7 days) on an
    Enterprise Server. Ostler asks GitHub to send lost webhooks again up to this age.
    """

    @field_validator("redelivery_kept")
    @classmethod
    def _is_kept_here_too(cls, value: float, known: ValidationInfo) -> float:
        timings = known.data.get("timings")
        if timings is not None and value > timings.keep_deliveries:
            raise ValueError(
                f"must not be larger than {timings.keep_deliveries:.0f}, the timing keep_deliveries: Ostler would "
                "request webhooks again that already arrived"
            )
        return value

    # Retention. docs/configuration.md lists when the time of each kind of row begins.
    keep_events: float = Field(default=2592000, gt=0)
    """Retention in seconds of events of jobs and claims, sweep runs, stalls and runner failures. Larger values need
    more disk.
    """
    keep_jobs: float = Field(default=7776000, ge=1209600)
    """Retention in seconds of completed jobs, ended claims and rows of Pods that are gone, 1209600 (14 days) at least.
    Larger values need more disk.
    """

    # Limits of repairs
    sweeps_paused: Annotated[tuple[str, ...], NoDecode] = ()
    """Names of sweeps that must not run, separated by commas, or `all`. Web and `ostler doctor` need the same value,
    because otherwise they report the sweeps as late. Dry runs are still possible. `ostler sweep pause` pauses sweeps
    without a restart.
    """
    repair_budget_percent: float = Field(default=10, ge=0, le=100)
    """Maximum percentage of the listed objects, such as Pods and runners, that one run of a sweep can delete, but 5
    objects at least. Larger values repair faster, but a run with wrong data deletes more.
    """

    # Metrics
    metrics_accounts: int = Field(default=0, ge=0, le=1000)
    """Maximum number of accounts, those with the most jobs and Pods, that have metrics of their own in `ostler web`,
    with their names as labels. The other accounts share one set of metrics. With 0, there are no metrics about
    accounts. Larger values add six series per account.
    """

    @field_validator("webhook_secrets", "encryption_keys", mode="before")
    @classmethod
    def _some_secrets(cls, value: Any) -> Any:
        return _secrets(value)

    @field_validator("dispatch_url")
    @classmethod
    def _polls(cls, value: str) -> str:
        return http_address(value, path=True)

    @field_validator(
        "dispatch_ca",
        "hooks_image",
        "buildkit_image",
        "dind_image",
        "web_polls_tls_cert",
        "web_polls_tls_key",
        mode="before",
    )
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("web_polls_tls_key")
    @classmethod
    def _both_or_none(cls, value: str | None, known: ValidationInfo) -> str | None:
        certificate = known.data.get("web_polls_tls_cert")
        if certificate is not None and value is None:
            raise ValueError("must be set, because OSTLER_WEB_POLLS_TLS_CERT is set")
        if certificate is None and value is not None:
            raise ValueError("must not be set without OSTLER_WEB_POLLS_TLS_CERT")
        return value

    @field_validator("web_plain_polls")
    @classmethod
    def _some_port_for_polls(cls, value: bool, known: ValidationInfo) -> bool:
        if not value and known.data.get("web_polls_tls_cert") is None:
            raise ValueError(
                "must be true without OSTLER_WEB_POLLS_TLS_CERT, because otherwise neither OSTLER_WEB_POLLS_PORT nor "
                "OSTLER_WEB_POLLS_TLS_PORT would be open"
            )
        return value

    @field_validator("sweeps_paused", mode="before")
    @classmethod
    def _some_names(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("sweeps_paused")
    @classmethod
    def _known_sweeps(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in value if name not in {*SWEEPS, "all"}]:
            raise ValueError(f"unknown sweep {unknown[0]!r}. Use one of: {', '.join(SWEEPS)}, all")
        return value

    @field_validator("webhook_secrets")
    @classmethod
    def _long_enough(cls, value: tuple[Secret, ...]) -> tuple[Secret, ...]:
        for each in value:
            check_length(each.reveal(), make="`openssl rand -hex 32` creates one; set the same secret in the App")
        return value

    @field_validator("webhook_secrets", "encryption_keys")
    @classmethod
    def _at_least_one(cls, value: tuple[Secret, ...]) -> tuple[Secret, ...]:
        if not value:
            raise ValueError("must have at least one value")
        return value


class AppAccess(App, Trust):
    """Settings of a command that calls GitHub as the App. The command needs no other variable."""


class RedisAlone(Logs, Trust):
    """Settings of a process whose only secret is the address of Redis."""

    redis_url: Secret
    """Address of Redis, for example `redis://host:6379/0`. Redis contains the queues of tasks, the schedule of beat and
    the rate limits for GitHub.
    """

    @field_validator("redis_url", mode="before")
    @classmethod
    def _one_secret(cls, value: Any) -> Any:
        return secret(value)

    @field_validator("redis_url")
    @classmethod
    def _redis(cls, value: Secret) -> Secret:
        return redis_address(value)


class BeatSettings(Timed, RedisAlone):
    """Settings of `ostler beat`, which sends messages and connects only to Redis."""


class FlowerSettings(RedisAlone):
    """Settings of `ostler flower`.

    People can log in to this process. Its only secrets are therefore the address of Redis and its own logins.
    """

    flower_host: str = Field(default="0.0.0.0")  # noqa: S104  in a Pod
    """Network address that `ostler flower` listens on."""
    flower_port: int = Field(default=5555, ge=0, le=65535)
    """Port of `ostler flower`."""
    flower_basic_auth: Annotated[tuple[Secret, ...], NoDecode] = ()
    """Logins of Flower as `user:password`, separated by commas, each password with 16 characters or more. Required
    unless OSTLER_FLOWER_WITHOUT_LOGIN is true.
    """
    flower_without_login: bool = False
    """True if Flower is served without a login. Enable it only behind a proxy that requires a login."""
    flower_state_file: str | None = None
    """Path of the file in which Flower stores its list of tasks and workers between restarts. A user with write access
    to its folder can run code in Flower, so give no other process access.
    """

    @field_validator("flower_basic_auth", mode="before")
    @classmethod
    def _some_secrets(cls, value: Any) -> Any:
        return _secrets(value)

    @field_validator("flower_basic_auth")
    @classmethod
    def _logins(cls, value: tuple[Secret, ...]) -> tuple[Secret, ...]:
        for secret in value:
            user, _, password = secret.reveal().partition(":")
            if not user or not password or not secret.reveal().isascii():
                raise ValueError("must be user:password, in ASCII")
            check_length(password, make="`openssl rand -hex 24` creates one")
        return value


def check_length(value: str, *, make: str) -> None:
    """Raise ValueError if a secret is too short. The message never contains the secret.

    `make` is the end of the message, which says how to create a longer secret.
    """
    if len(value) < LEAST:
        raise ValueError(f"must have {LEAST} characters or more, but a value has {len(value)}: {make}")


def secret(value: Any) -> Any:
    """Return a text as a `Secret`. Another value is returned unchanged, so that pydantic refuses it."""
    return Secret(value) if isinstance(value, str) else value


def _secrets(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(Secret(part.strip()) for part in value.split(",") if part.strip())
    return value


def postgres_address(value: Secret) -> Secret:
    """Return an address of Postgres with the name of the driver psycopg2 in its scheme.

    Providers use `postgres://` or `postgresql://`, which name no driver. Raises ValueError if the value is not an
    address of Postgres.
    """
    scheme, found, rest = value.reveal().partition("://")
    if not found or scheme not in {"postgres", "postgresql", "postgresql+psycopg2"}:
        raise ValueError("must begin with postgresql:// (or postgres://)")
    _check_port(value)
    return Secret(f"postgresql+psycopg2://{rest}")


def redis_address(value: Secret) -> Secret:
    """Return an address of Redis. An address with `rediss://` gets options that require a verified certificate.

    The certificate is verified with the authorities in `OSTLER_CA_BUNDLE`, or with those of the system if the variable
    is not set. TLS options in the address have precedence. Without these options kombu would accept every certificate.
    Raises ValueError if the value is not an address of Redis.
    """
    if not value.reveal().startswith(("redis://", "rediss://")):
        raise ValueError(
            "must begin with redis:// or rediss://; Sentinel is not supported: use one name or proxy that leads to the "
            "primary"
        )
    _check_port(value)
    database = urlsplit(value.reveal()).path.strip("/")
    if database and not (database.isascii() and database.isdecimal()):
        raise ValueError("must end in the number of a database, for example /0")
    return _verified(value) if value.reveal().startswith("rediss://") else value


def _verified(value: Secret) -> Secret:
    address = urlsplit(value.reveal())
    options = dict(parse_qsl(address.query, keep_blank_values=True))
    added = {"ssl_cert_reqs": "required"} if "ssl_cert_reqs" not in options else {}
    bundle = egress.ca_bundle(os.environ)
    if bundle is not None and not {"ssl_ca_certs", "ssl_ca_path", "ssl_ca_data"} & options.keys():
        added["ssl_ca_certs"] = bundle
    query = "&".join(part for part in (address.query, urlencode(added, safe="/")) if part)
    return Secret(address._replace(query=query).geturl())


def _check_port(value: Secret) -> None:
    """Raise ValueError if the port of an address is not a number.

    The message does not show the port, because the text after the colon might be a part of a password.
    """
    try:
        urlsplit(value.reveal()).port  # noqa: B018  reading it parses it
    except ValueError:
        raise ValueError(
            "must have a number as port; write @ : / # and % in a password as %40 %3A %2F %23 and %25"
        ) from None


def http_address(value: str, *, path: bool = False) -> str:
    """Return `value` if it begins with http:// or https:// and names a host. If `path` is true, it must have a path.

    Raises ValueError if the value does not meet these conditions.
    """
    try:
        parts = urlsplit(value)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("must begin with http:// or https:// and contain a host")
    if path and not parts.path.strip("/"):
        raise ValueError("must have a path: /runners/v1/dispatch, unless a proxy changes the path")
    return value


def expected(problem: ErrorDetails) -> str:
    """Return a description of the expected value of a setting, an option or an argument, in plain words.

    For a type of problem without a description of its own, return pydantic's message.
    """
    match problem["type"]:
        case "int_parsing" | "int_type" | "int_from_float":
            return "must be a whole number"
        case "float_parsing" | "float_type" | "finite_number":
            return "must be a number"
        case "bool_parsing" | "bool_type":
            return "must be true or false"
        case _:
            said = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
            _, is_choice, choices = said.partition(" is not one of ")
            return f"must be one of {choices}" if is_choice else said.replace("Input should be", "must be")


def describe(error: ValidationError, kind: type[BaseSettings]) -> str:
    """Return one line for each problem in an environment: the variable, its value and the expected value.

    `kind` is the settings class whose validation failed.
    """
    return "\n".join(_problem(each, kind) for each in error.errors())


def _problem(problem: ErrorDetails, kind: type[BaseSettings]) -> str:
    name = str(problem["loc"][0])
    field = kind.model_fields[name]
    if name == "timings" and len(problem["loc"]) > 1:
        return f"{variable(name)}: {_timing_problem(problem)}"
    if problem["type"] == "missing":
        unread = [each.name for each in strangers(os.environ, known_variables()) if each.near == variable(name)]
        hint = f"; {unread[0]} is set: is it misspelt?" if unread else ""
        return f"{variable(name)}: it is not set; {help_of(kind, name)}{hint}"
    hidden = "Secret" in str(field.annotation)
    found = "found an invalid value (hidden)" if hidden else f"found {problem['input']!r}"
    if problem["input"] is None:
        found = "it is not set"
    return f"{variable(name)}: {found}; {expected(problem)}; {help_of(kind, name)}"


def _timing_problem(problem: ErrorDetails) -> str:
    """Return a description of a malformed override: its key, its value and the expected value."""
    key = str(problem["loc"][1])
    if problem["type"] == "extra_forbidden":
        near = nearest(key, Timings.model_fields)
        meant = "docs/configuration.md lists them" if near is None else f"did you mean {near}?"
        return f"unknown timing {key!r}; {meant}"
    return f"{key}: found {problem['input']!r}; {expected(problem)}; {help_of(Timings, key)}"


_KINDS = (Settings, FlowerSettings, BeatSettings, AppAccess, Cluster, ApiAccess)
"""The settings of all processes and commands, except `WatchSettings`, whose variables other classes have too."""


def known_variables() -> frozenset[str]:
    """Return the variables of all processes and commands.

    The function does not read `WatchSettings`, because other classes have the same variables.
    """
    return frozenset(variable(name) for kind in _KINDS for name in kind.model_fields)


def is_secret_variable(name: str) -> bool:
    """Return whether an `OSTLER_…` variable contains a secret. An unknown variable might contain one."""
    found = [kind.model_fields[field] for kind in _KINDS for field in kind.model_fields if variable(field) == name]
    return not found or any("Secret" in str(each.annotation) for each in found)


def unread_variables() -> list[Stranger]:
    """Return the unknown `OSTLER_…` variables of this process's environment.

    Variables that Kubernetes sets for a Service, and variables that other code reads, are left out.
    """
    return strangers(os.environ, known_variables(), timings=Timings.model_fields)


def read(kind: type[Read]) -> Read:
    """Return the settings of class `kind` from the environment. Raises `ConfigurationError` if one is not valid."""
    try:
        return kind()
    except ValidationError as error:
        raise ConfigurationError(describe(error, kind)) from None


@functools.cache
def load() -> Settings:
    """Return the settings of this process. Only the first call reads the environment. Raises `ConfigurationError`."""
    return read(Settings)


def load_stores() -> Stores:
    """Return the settings of an operator's command that needs only the stores. Raises `ConfigurationError`."""
    return read(Stores)


def load_cluster() -> Cluster:
    """Return the settings of a command that calls only the cluster. Raises `ConfigurationError`."""
    return read(Cluster)


def load_app() -> AppAccess:
    """Return the settings of a command that calls GitHub as the App. Raises `ConfigurationError`."""
    return read(AppAccess)


def load_beat() -> BeatSettings:
    """Return the settings of `ostler beat`. Raises `ConfigurationError`."""
    return read(BeatSettings)


def load_flower() -> FlowerSettings:
    """Return the settings of `ostler flower`. Raises `ConfigurationError`."""
    return read(FlowerSettings)
