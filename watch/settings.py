"""Settings of `ostler watch`. The process uses neither Postgres nor GitHub, so it gets no credentials for them."""

from __future__ import annotations

from pydantic import Field

from ostler.settings import Namespaces, RedisAlone, Timed, read


class WatchSettings(Timed, RedisAlone, Namespaces):
    """Immutable settings of the watch from the environment."""

    kubeconfig: str | None = Field(
        default=None,
        description=(
            "Path of the kubeconfig of web, of a worker or of the watch. If this setting is empty, the process uses "
            "the ServiceAccount of its Pod. An operator's command uses this setting too, and searches further places "
            "if it is empty"
        ),
    )
    alive_file: str | None = Field(
        default=None,
        description=(
            "Path of a file whose modification time shows that a worker or a watch still works. A worker touches the "
            "file at each heartbeat, unless it has not read its queues for 30 seconds. A watch touches the file each "
            "time the cluster answers a request for the Lease of the watch. `ostler healthy worker` and `ostler "
            "healthy watch` read the file, and fail if this setting is empty"
        ),
    )
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description=(
            "Port of `ostler worker` and `ostler watch` for `/metrics`. With 0, these processes serve no metrics. "
            "`ostler web` serves its metrics on OSTLER_WEB_PRIVATE_PORT"
        ),
    )


def load_watch() -> WatchSettings:
    """Return the settings of `ostler watch`. Raises `ConfigurationError` if a setting is missing or malformed."""
    return read(WatchSettings)
