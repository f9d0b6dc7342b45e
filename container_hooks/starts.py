"""Wait until a hook Pod is ready. Each failure becomes one line for the log of the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from container_hooks.cluster import Made
from container_hooks.failures import HookFailed
from container_hooks.pod_state import Seen, see
from container_hooks.ports import World
from k8s_adapters.calls.client import Json, object_path
from ostler.errors import Gone, RateLimited, Retryable

_FIRST_WAIT, _GROWTH, _LONGEST_WAIT = 0.5, 1.5, 5.0  # seconds between two reads
_LEEWAY = 15.0  # seconds by which the kubelet and the API server can delay the result of a health check
_TELL_EVERY = 30.0


@dataclass
class _Patience:
    """Times at which conditions of a Pod began, in seconds of the clock."""

    since_pull_error: float | None = None
    since_running: dict[str, float] = field(default_factory=dict)


def wait_until_ready(
    world: World,
    made: Made,
    *,
    images: Mapping[str, str],
    patience: Mapping[str, float],
    view: Callable[[Json], Json] = lambda pod: pod,
) -> Json:
    """Return the JSON of the Pod when all its containers run and are healthy.

    `view` returns the part of the Pod that counts. `patience` has the seconds in which the health command of each
    container must succeed, by the name of the container. Raises `HookFailed` with the reason if the Pod fails or is
    gone, an image cannot be pulled, a health command does not succeed within its patience, or the Pod is not ready
    within `start_within` seconds.
    """
    clock, settings = world.timing.clock, world.settings
    began = told = clock()
    wait, times, seen = _FIRST_WAIT, _Patience(), Seen(waits_for="the API server has not answered yet")
    while True:
        pod = _read(world, made)
        if pod is not None:
            seen = see(view(pod), images=images)
            if seen.ready:
                return pod
            _give_up(world, made, seen, times, patience)
        now = clock()
        if now - began >= settings.start_within:
            raise HookFailed(
                f"Pod {made.name} was not ready within {settings.start_within:.0f} seconds: {seen.waits_for}"
            )
        if now - told >= _TELL_EVERY:
            told = now
            world.log.line(f"Waiting for Pod {made.name}: {seen.waits_for}")
        world.timing.sleep(min(wait, max(began + settings.start_within - now, 0.1)))
        wait = min(wait * _GROWTH, _LONGEST_WAIT)


def _read(world: World, made: Made) -> Json | None:
    """Return the Pod, or None if the API server does not answer now. Raises `HookFailed` if the Pod is gone."""
    try:
        pod = world.client.request("GET", object_path("pods", namespace=world.namespace, name=made.name))
    except (Retryable, RateLimited):
        return None
    except Gone as error:
        raise HookFailed(f"Pod {made.name} was deleted before it was ready; run the job again") from error
    if pod["metadata"]["uid"] != made.uid:
        raise HookFailed(f"Pod {made.name} was replaced by another Pod; run the job again")
    return pod


def _give_up(world: World, made: Made, seen: Seen, times: _Patience, patience: Mapping[str, float]) -> None:
    """Raise `HookFailed` if the Pod failed, or if a pull or a health command failed for too long."""
    now = world.timing.clock()
    if seen.failed is not None:
        raise HookFailed(f"Pod {made.name}: {seen.failed}")
    if seen.pull_error is None:
        times.since_pull_error = None
    elif times.since_pull_error is None:
        times.since_pull_error = now
    elif now - times.since_pull_error >= world.settings.pull_errors_for:
        raise HookFailed(f"Pod {made.name}: {seen.pull_error}")
    for name in seen.unhealthy & patience.keys():
        since = times.since_running.setdefault(name, now)
        if now - since >= patience[name] + _LEEWAY:
            raise HookFailed(
                f"Pod {made.name}: container {name} did not become healthy within {patience[name]:.0f} seconds; "
                "check its --health-cmd and its log"
            )
