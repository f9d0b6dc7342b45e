"""What `ostler watch` reads: it needs no Postgres and no GitHub, so it is given no secret of theirs."""

from __future__ import annotations

from pydantic import Field

from ostler.settings import RedisAlone, read


class WatchSettings(RedisAlone):
    """What the environment says to the watch; immutable."""

    kubeconfig: str | None = Field(default=None, description="path of a kubeconfig; empty means in-cluster")
    namespace: str = Field(default="ostler-runners", description="namespace of pools and runner Pods")
    alive_file: str | None = Field(default=None, description="a file that is touched with each sign of life")
    metrics_port: int = Field(default=0, ge=0, le=65535, description="port where `/metrics` is served; 0 serves none")

    watch_lease: float = Field(
        default=10,
        ge=2,
        le=300,
        description="Seconds of silence from the active watch after which a standby takes over. "
        "Larger values make a take-over later",
    )
    watch_timeout: int = Field(
        default=30,
        ge=2,
        le=3600,
        description="Longest life of one watch connection in seconds. "
        "A connection that is silent for 5 seconds longer is closed",
    )
    watch_executing_after: float = Field(
        default=5,
        ge=0,
        description="Seconds that the watch leaves to the webhook of a job that began, before it reports the job "
        "itself. Larger values send fewer tasks",
    )


def load_watch() -> WatchSettings:
    """Return the settings of `ostler watch`. Raises `ConfigurationError`."""
    return read(WatchSettings)
