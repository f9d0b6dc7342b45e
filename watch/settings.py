"""Settings of `ostler watch`. The process uses neither Postgres nor GitHub, so it gets no credentials for them."""

from __future__ import annotations

from pydantic import Field

from ostler.settings import Namespaces, RedisAlone, Timed, read


class WatchSettings(Timed, RedisAlone, Namespaces):
    """Immutable settings of the watch from the environment."""

    kubeconfig: str | None = Field(
        default=None,
        description=(
            "Path of the kubeconfig of web, of a worker or of the watch. If it is empty, the process uses the "
            "ServiceAccount of its Pod. An operator's command searches further places if it is empty"
        ),
    )
    alive_file: str | None = Field(
        default=None,
        description=(
            "Path of a file that `ostler healthy worker` and `ostler healthy watch` read; they fail if this setting "
            "is empty. A worker touches the file at each heartbeat while it reads its queues, a watch each time the "
            "cluster answers a request for its Lease"
        ),
    )
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description=(
            "Port of `ostler worker` and `ostler watch` for `/metrics`. With 0, they serve no metrics. Metrics of "
            "web are on OSTLER_WEB_PRIVATE_PORT"
        ),
    )


def load_watch() -> WatchSettings:
    """Return the settings of `ostler watch`. Raises `ConfigurationError` if a setting is missing or malformed."""
    return read(WatchSettings)
