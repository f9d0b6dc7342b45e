"""What `ostler watch` reads: it needs no Postgres and no GitHub, so it is given no secret of theirs."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from ostler.errors import ConfigurationError
from ostler.secrets import Secret
from ostler.settings import describe, redis_address, secret


class WatchSettings(BaseSettings):
    """What the environment says to the watch; immutable."""

    model_config = SettingsConfigDict(env_prefix="OSTLER_", frozen=True, extra="ignore", arbitrary_types_allowed=True)

    redis_url: Secret = Field(description="Redis for Celery and redbeat, as `redis://host:6379/0`")
    kubeconfig: str | None = Field(default=None, description="path of a kubeconfig; empty means in-cluster")
    namespace: str = Field(default="ostler-runners", description="namespace of pools and runner Pods")
    alive_file: str | None = Field(default=None, description="a file that is touched with each sign of life")
    metrics_port: int = Field(default=0, ge=0, le=65535, description="port where `/metrics` is served; 0 serves none")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="least level logged")
    log_style: Literal["json", "console"] = Field(default="json", description="how log lines look")

    watch_lease: float = Field(
        default=10, ge=2, le=300, description="a standby takes over from a watch that was silent for so long"
    )
    watch_timeout: int = Field(
        default=30, ge=2, le=3600, description="longest life of one connection; one that is silent 5 s longer is dead"
    )
    watch_executing_after: float = Field(
        default=5, ge=0, description="a job that began is told of when its webhook had so much time to come first"
    )

    @field_validator("redis_url", mode="before")
    @classmethod
    def _one_secret(cls, value: object) -> object:
        return secret(value)

    @field_validator("redis_url")
    @classmethod
    def _redis(cls, value: Secret) -> Secret:
        return redis_address(value)


def load_watch() -> WatchSettings:
    """Return the settings of `ostler watch`. Raises `ConfigurationError`."""
    try:
        return WatchSettings()
    except ValidationError as error:
        raise ConfigurationError(describe(error, WatchSettings)) from None
