"""A Pod as the kubelet reads it: its containers, and the environment and token of its poller."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lab.kubelet.cluster import PodKey
from lab.kubelet.hook_view import HookContainer, HookView, added_containers, view_hook
from lab.kubelet.sidecar import HOOKS

POLLER = "poller"
RUNNER = "runner"
REGISTER = "register"
DEFAULT_TOKEN_SECONDS = 3600
OF_CONTAINERS = "ostler.dev/containers"
"""Label of runner Pods whose jobs may use containers."""
SERVED_BY = "lab.ostler.dev/node"
"""Key of a node selector. Its value names the kubelet that must run the Pod (`--serves`)."""

STAYS = "stays"
"""Image tag of a further container that runs until its Pod is deleted."""


@dataclass(frozen=True, kw_only=True)
class TokenVolume:
    """The token that the Pod's projected volume requests."""

    audience: str
    seconds: int


@dataclass(frozen=True, kw_only=True)
class PodView:
    """The fields of a Pod that the kubelet uses."""

    key: PodKey
    account: str
    node: str | None
    phase: str
    deleted: bool
    images: dict[str, str]
    """Images by container name, in the Pod's order."""
    environment: dict[str, dict[str, str]]
    """Environment variables by container name."""
    token: TokenVolume | None
    init_images: dict[str, str] = field(default_factory=dict)
    """Images of the init containers of a hook Pod, by name. For other Pods it is empty."""
    scripts: str | None = None
    """Name of the ConfigMap with the script that container `poller` executes. None if its image contains the script."""
    sidecar: dict[str, str] | None = None
    """Environment of the sidecar `hooks` of a runner Pod. None if the Pod has no such sidecar."""
    hook: HookView | None = None
    """The containers of a hook Pod. None for any other Pod."""
    added: tuple[HookContainer, ...] = ()
    """The ephemeral containers of the Pod. More of them can be added while the Pod runs."""
    served_by: str | None = None
    """Name of the kubelet in the Pod's node selector. None asks for the kubelet without a name."""

    @property
    def has_company(self) -> bool:
        """Return whether a further container outlives the runner."""
        return any(
            image.endswith(f":{STAYS}") for name, image in self.images.items() if name not in {POLLER, RUNNER, REGISTER}
        )

    @property
    def persistent(self) -> bool:
        """Return whether the Pod registers a persistent runner. The kubelet always runs such a Pod as processes."""
        return REGISTER in self.images

    @property
    def terminal(self) -> bool:
        """Return whether the Pod's phase is final."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def is_runner(self) -> bool:
        """Return whether the Pod has the two containers of a runner Pod."""
        return POLLER in self.images and RUNNER in self.images


def view(pod: dict[str, Any]) -> PodView:
    """Parse a Pod that the API server sent."""
    metadata, spec = pod["metadata"], pod["spec"]
    hook = view_hook(pod)
    return PodView(
        key=PodKey(name=metadata["name"], uid=metadata["uid"]),
        account=spec.get("serviceAccountName") or "default",
        node=spec.get("nodeName"),
        phase=pod.get("status", {}).get("phase") or "Pending",
        deleted=bool(metadata.get("deletionTimestamp")),
        images={container["name"]: container.get("image", "") for container in spec["containers"]},
        environment={container["name"]: _environment(container, metadata) for container in spec["containers"]},
        token=_token_volume(spec.get("volumes") or []),
        init_images={each.name: each.image for each in hook.init_containers} if hook is not None else {},
        scripts=_scripts_of(spec),
        sidecar=_sidecar(spec, metadata),
        hook=hook,
        added=added_containers(pod),
        served_by=(spec.get("nodeSelector") or {}).get(SERVED_BY),
    )


def _environment(container: dict[str, Any], metadata: dict[str, Any]) -> dict[str, str]:
    fields = {f"metadata.{name}": metadata.get(name, "") for name in ("name", "namespace", "uid")}
    found: dict[str, str] = {}
    for variable in container.get("env") or []:
        source = (variable.get("valueFrom") or {}).get("fieldRef", {}).get("fieldPath")
        found[variable["name"]] = fields.get(source, "") if source else variable.get("value", "")
    return found


def _sidecar(spec: dict[str, Any], metadata: dict[str, Any]) -> dict[str, str] | None:
    found = next((each for each in spec.get("initContainers") or () if each["name"] == HOOKS), None)
    return None if found is None or not metadata.get("labels", {}).get(OF_CONTAINERS) else _environment(found, metadata)


def _scripts_of(spec: dict[str, Any]) -> str | None:
    poller: dict[str, Any] = next((each for each in spec["containers"] if each["name"] == POLLER), {})
    folder = ((poller.get("command") or [""])[-1]).rpartition("/")[0]
    mounts = {each["mountPath"]: each["name"] for each in poller.get("volumeMounts") or []}
    maps = {each["name"]: each["configMap"]["name"] for each in spec.get("volumes") or [] if "configMap" in each}
    return maps.get(mounts.get(folder, ""))


def _token_volume(volumes: list[dict[str, Any]]) -> TokenVolume | None:
    for volume in volumes:
        for source in (volume.get("projected") or {}).get("sources") or []:
            asked = source.get("serviceAccountToken")
            if asked and asked.get("audience"):
                seconds = int(asked.get("expirationSeconds") or DEFAULT_TOKEN_SECONDS)
                return TokenVolume(audience=asked["audience"], seconds=seconds)
    return None
