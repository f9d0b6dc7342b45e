"""Notes about pools whose Pods read Secrets although the chart's admission policy will refuse such Pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deploys.manifests import Manifests

_POLICY = "ValidatingAdmissionPolicy.admissionregistration.k8s.io"
_POOL = "RunnerPool.ostler.dev"


def note_secrets(after: Manifests) -> Iterator[str]:
    """Yield a note for each pool whose `podTemplate` reads a Secret although the chart's policy refuses such Pods."""
    refusing = {
        each.key[2]: _namespace_of(each.body)
        for each in after.objects.values()
        if each.key[0] == _POLICY and each.key[2].endswith("-creations") and "secretKeyRef" in each.text
    }
    for each in after.objects.values():
        if each.key[0] != _POOL:
            continue
        found = sorted(set(secrets_read(each.body)))
        for policy, namespace in sorted(refusing.items()):
            if found and namespace in {None, each.key[1]}:
                yield (
                    f"pool {each.key[1]}/{each.key[2]} reads Secrets ({', '.join(found)}), and policy {policy} refuses "
                    "its Pods: remove the Secrets from its podTemplate, or set runners.allowSecrets of the chart"
                )


def _namespace_of(policy: Mapping[str, Any]) -> str | None:
    """Return the only namespace that a policy matches, or None if the policy is not limited to one namespace."""
    selector = _map(_map(_map(policy.get("spec")).get("matchConstraints")).get("namespaceSelector"))
    name = _map(selector.get("matchLabels")).get("kubernetes.io/metadata.name")
    return name if isinstance(name, str) else None


def secrets_read(pool: Mapping[str, Any]) -> Iterator[str]:
    """Yield each place in a pool's `podTemplate` where a Secret is read.

    Image pull secrets do not count, because only the kubelet reads them.
    """
    spec = _map(_map(_map(pool.get("spec")).get("podTemplate")).get("spec"))
    for container in (*_maps(spec.get("containers")), *_maps(spec.get("initContainers"))):
        name = container.get("name")
        for each in _maps(container.get("envFrom")):
            if "secretRef" in each:
                yield f"envFrom of {name}"
        for each in _maps(container.get("env")):
            if "secretKeyRef" in _map(each.get("valueFrom")):
                yield f"env {each.get('name')} of {name}"
    for volume in _maps(spec.get("volumes")):
        projected = _maps(_map(volume.get("projected")).get("sources"))
        if (
            "secret" in volume
            or "nodePublishSecretRef" in _map(volume.get("csi"))
            or any("secret" in each for each in projected)
        ):
            yield f"volume {volume.get('name')}"


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
