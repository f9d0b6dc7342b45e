"""Creation of objects of any kind in a cluster. The API server is asked for the path of each kind."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from k8s_adapters.client import MERGE_PATCH, Json, KubeClient
from ostler.errors import Conflict

Manifest = dict[str, Any]


class UnknownKind(LookupError):
    """The cluster has no such kind."""


class Kinds:
    """The kinds of one cluster. Each group is requested once."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._known: dict[tuple[str, str], tuple[str, bool]] = {}
        self._asked: set[str] = set()

    def collection(self, manifest: Manifest) -> str:
        """Return the path for creating an object of this kind. Raises `UnknownKind`."""
        version, kind = manifest["apiVersion"], manifest["kind"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if version not in self._asked:
            for each in self._client.request("GET", base)["resources"]:
                if "/" not in each["name"]:
                    self._known[version, each["kind"]] = each["name"], each["namespaced"]
            self._asked.add(version)
        if (version, kind) not in self._known:
            raise UnknownKind(f"{version} {kind}")
        plural, namespaced = self._known[version, kind]
        if not namespaced:
            return f"{base}/{plural}"
        return f"{base}/namespaces/{quote(manifest['metadata']['namespace'], safe='')}/{plural}"

    def check(self, manifest: Manifest) -> Json:
        """Return the object that the server would create, in a dry run. An unknown field raises `Invalid`."""
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        return self._client.request("POST", self.collection(manifest), query=query, body=manifest)

    def apply(self, manifest: Manifest) -> Json:
        """Create an object, or patch the existing one to the content of the manifest. Return it."""
        collection = self.collection(manifest)
        try:
            return self._client.request("POST", collection, body=manifest)
        except Conflict:
            path = f"{collection}/{quote(manifest['metadata']['name'], safe='')}"
            return self._client.request("PATCH", path, body=manifest, content_type=MERGE_PATCH)
