"""Apply manifests of any kind to a cluster. The API server returns the path of the objects of a kind."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from k8s_adapters.calls.client import MERGE_PATCH, Json, KubeClient
from ostler.errors import Conflict

Manifest = dict[str, Any]


class UnknownKind(LookupError):
    """The cluster does not serve this kind."""


class Kinds:
    """Kinds that one cluster serves. The API server is asked once for each API version."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._known: dict[tuple[str, str], tuple[str, bool]] = {}
        self._asked: set[str] = set()

    def collection(self, manifest: Manifest) -> str:
        """Return the path of the collection that a new object of the manifest's kind is posted to.

        Raises `UnknownKind`.
        """
        version, kind = manifest["apiVersion"], manifest["kind"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if version not in self._asked:
            for each in self._client.request("GET", base)["resources"]:
                if "/" not in each["name"]:
                    self._known[version, each["kind"]] = each["name"], each["namespaced"]
            self._asked.add(version)
        if (version, kind) not in self._known:
            raise UnknownKind(
                f"the cluster does not serve {kind} of {version}: apply its CustomResourceDefinition first"
            )
        plural, namespaced = self._known[version, kind]
        if not namespaced:
            return f"{base}/{plural}"
        return f"{base}/namespaces/{quote(manifest['metadata']['namespace'], safe='')}/{plural}"

    def check(self, manifest: Manifest) -> Json:
        """Return the object that the server would create from a manifest.

        Nothing is stored. Raises `Invalid` for an unknown field.
        """
        query = {"dryRun": "All", "fieldValidation": "Strict"}
        return self._client.request("POST", self.collection(manifest), query=query, body=manifest)

    def apply(self, manifest: Manifest) -> Json:
        """Create the object of a manifest and return it.

        If an object of that name exists, patch it to the manifest instead.
        """
        collection = self.collection(manifest)
        try:
            return self._client.request("POST", collection, body=manifest)
        except Conflict:
            path = f"{collection}/{quote(manifest['metadata']['name'], safe='')}"
            return self._client.request("PATCH", path, body=manifest, content_type=MERGE_PATCH)
