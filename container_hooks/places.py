"""Place of a sidecar, read from its environment: the runner Pod, the sizes of hook Pods and the time limits."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from container_hooks.ports import Exec, Files, HookSettings, Ledger, Log, World
from k8s_adapters.calls.client import KubeClient
from k8s_adapters.calls.exec_stream import Heartbeat
from ostler.errors import ConfigurationError

POD = "ACTIONS_RUNNER_POD_NAME"
NAMESPACE = "ACTIONS_RUNNER_KUBERNETES_NAMESPACE"
UID, POOL = "OSTLER_HOOKS_POD_UID", "OSTLER_HOOKS_POOL"
VCPU, MEMORY, DISK = "OSTLER_HOOKS_VCPU", "OSTLER_HOOKS_MEMORY_MIB", "OSTLER_HOOKS_DISK_MIB"
WORKSPACE, SHARED = "OSTLER_HOOKS_WORKSPACE", "shared"
TEMPLATE = "ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE"
START = "ACTIONS_RUNNER_PREPARE_JOB_TIMEOUT_SECONDS"
PERIOD, DEADLINE = "ACTIONS_RUNNER_HEARTBEAT_PERIOD_MS", "ACTIONS_RUNNER_HEARTBEAT_DEADLINE_MS"
_POOL_SUFFIX = 9  # characters of "-" and 8 hex digits
_MILLISECONDS = 1000
_LEAST_DEADLINE = 12.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Place:
    """Names and limits that are the same for all commands of a runner Pod."""

    namespace: str
    pod: str
    uid: str
    pool: str
    settings: HookSettings
    heartbeat: Heartbeat

    def world(
        self,
        *,
        client: KubeClient,
        exec_: Exec,
        files: Files,
        log: Log,
        ledger: Ledger,
        folders: Mapping[str, str],
        alone: Callable[[], bool] = lambda: True,
    ) -> World:
        """Return the world of one command. `folders` has the folders of the job, as the runner named them."""
        return World(
            client=client,
            namespace=self.namespace,
            pod=self.pod,
            uid=self.uid,
            pool=self.pool,
            files=files,
            exec=exec_,
            log=log,
            timing=client.timing,
            settings=_in_folders(self.settings, folders),
            ledger=ledger,
            alone=alone,
        )


def read_place(environment: Mapping[str, str]) -> Place:
    """Return the place that the environment describes.

    The variables that begin with `ACTIONS_RUNNER_` are those of GitHub's own hooks. Raises `ConfigurationError` with
    the name of the variable that is missing or wrong.
    """
    pod = _required(environment, POD)
    defaults = HookSettings()
    template = environment.get(TEMPLATE) or None
    period = _number(environment, PERIOD, Heartbeat().period * _MILLISECONDS) / _MILLISECONDS
    deadline = _number(environment, DEADLINE, max(12 * period + 1, _LEAST_DEADLINE) * _MILLISECONDS) / _MILLISECONDS
    if deadline <= period:
        raise ConfigurationError(
            f"{DEADLINE}: must be more than {PERIOD}, which is {period * _MILLISECONDS:.0f}; found "
            f"{deadline * _MILLISECONDS:.0f}"
        )
    if deadline < _LEAST_DEADLINE:
        least = _LEAST_DEADLINE * _MILLISECONDS
        raise ConfigurationError(
            f"{DEADLINE}: must be at least {least:.0f}, because a step reports every 5 seconds; found "
            f"{deadline * _MILLISECONDS:.0f}"
        )
    return Place(
        namespace=_required(environment, NAMESPACE),
        pod=pod,
        uid=_required(environment, UID),
        pool=environment.get(POOL) or pod[:-_POOL_SUFFIX],
        settings=replace(
            defaults,
            vcpu_millicores=int(_number(environment, VCPU, defaults.vcpu_millicores)),
            memory_mib=int(_number(environment, MEMORY, defaults.memory_mib)),
            disk_mib=int(_number(environment, DISK, 1)) if environment.get(DISK) else None,
            shared=environment.get(WORKSPACE) == SHARED,
            overlay=None if template is None else Path(template),
            start_within=_number(environment, START, defaults.start_within),
        ),
        heartbeat=Heartbeat(period=period, deadline=deadline),
    )


def _in_folders(settings: HookSettings, folders: Mapping[str, str]) -> HookSettings:
    """Return the settings with the folders of the job.

    `RUNNER_WORKSPACE` is a folder in the work folder, and `GITHUB_WORKSPACE` is the workspace of the job.
    """
    known = folders.get("RUNNER_WORKSPACE", "")
    work = posixpath.dirname(posixpath.normpath(known)) if posixpath.isabs(known) else settings.work
    workspace = posixpath.normpath(folders.get("GITHUB_WORKSPACE") or "/")
    inside = posixpath.relpath(workspace, work)
    return replace(
        settings,
        work=work,
        externals=posixpath.join(posixpath.dirname(work), "externals"),
        workspace=None if inside.split("/")[0] in {".", ".."} else inside,
    )


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise ConfigurationError(f"{name}: it is not set; Ostler sets this variable in container `hooks` of a Pod")
    return value


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigurationError(f"{name}: found {text[:40]!r}; must be a number above 0")
    return value
