"""Discovery: the groups and the resources that the server serves, so that kubectl finds the path of a resource.

The server has no OpenAPI document, so `kubectl apply` and `kubectl explain` do not work.
"""

from __future__ import annotations

from collections.abc import Sequence

from lab.apiserver.kinds import Json, Kind

_VERBS = ("create", "delete", "get", "list", "patch", "watch")


def answer(path: str, served: Sequence[Kind]) -> Json | None:
    """Return the answer to a path of discovery, or None if the path is none or names a group that is not served."""
    words = path.strip("/").split("/")
    if words == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    groups = sorted({(kind.group, kind.version) for kind in served if kind.group})
    if words == ["apis"]:
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(*each) for each in groups]}
    if words == ["api", "v1"]:
        return _resources("v1", [kind for kind in served if not kind.group])
    for group, version in groups:
        if words == ["apis", group]:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, version)}
        if words == ["apis", group, version]:
            return _resources(f"{group}/{version}", [kind for kind in served if kind.group == group])
    return None


def _group(group: str, version: str) -> Json:
    only = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [only], "preferredVersion": only}


def _resources(group_version: str, kinds: Sequence[Kind]) -> Json:
    resources: list[Json] = []
    for kind in kinds:
        resource: Json = {
            "name": kind.plural,
            "singularName": kind.name.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.name,
            "verbs": list(_VERBS),
        }
        if kind.short_names:
            resource["shortNames"] = list(kind.short_names)
        resources.append(resource)
        if kind.status:
            status = {"name": f"{kind.plural}/status", "singularName": "", "verbs": ["get", "patch"]}
            resources.append({**status, "namespaced": kind.namespaced, "kind": kind.name})
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}
