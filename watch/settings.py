"""Settings of `ostler watch`. The process needs neither Postgres nor GitHub, so it gets no secret for them."""

from __future__ import annotations

from pydantic import Field

from ostler.settings import RedisAlone, Timed, read


class WatchSettings(Timed, RedisAlone):
    """Immutable settings of the watch from the environment."""

    kubeconfig: str | None = Field(default=None, description="path of a kubeconfig; empty means in-cluster")
    namespace: str = Field(default="ostler-runners", description="namespace of pools and runner Pods")
    alive_file: str | None = Field(default=None, description="a file that is touched with each sign of life")
    metrics_port: int = Field(default=0, ge=0, le=65535, description="port where `/metrics` is served; 0 serves none")


def load_watch() -> WatchSettings:
    """Return the settings of `ostler watch`. Raises `ConfigurationError` if one is missing or malformed."""
    return read(WatchSettings)
