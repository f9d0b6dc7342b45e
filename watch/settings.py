"""Settings of `ostler watch`. The process uses neither Postgres nor GitHub, so it gets no credentials for them."""

from __future__ import annotations

from ostler.settings import Cluster, RedisAlone, Timed, Watched, read


class WatchSettings(Timed, RedisAlone, Cluster, Watched):
    """Immutable settings of the watch from the environment."""


def load_watch() -> WatchSettings:
    """Return the settings of `ostler watch`. Raises `ConfigurationError` if a setting is missing or malformed."""
    return read(WatchSettings)
