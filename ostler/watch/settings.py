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
        default=10, ge=2, le=300, description="a standby takes over from a watch that was silent for so long"
    )
    watch_timeout: int = Field(
        default=30, ge=2, le=3600, description="longest life of one connection; one that is silent 5 s longer is dead"
    )
    watch_executing_after: float = Field(
        default=5, ge=0, description="a job that began is told of when its webhook had so much time to come first"
    )


def load_watch() -> WatchSettings:
    """Return the settings of `ostler watch`. Raises `ConfigurationError`."""
    return read(WatchSettings)
