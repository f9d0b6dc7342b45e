"""Values of runner scale sets from Helm releases: Secrets that `kubectl get --output yaml` wrote.

A release has the values of its user beside the defaults of its chart, and the rendered manifest, which can contain
credentials. Only the values of scale sets leave this module. A chart that contains gha-runner-scale-set as a part has
one release for several scale sets.

Source: `encodeRelease` and `newSecretsObject` of helm/helm, pkg/storage/driver. Helm 3 and 4 write the same form.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rules.conversion.arc_pods import Json, NotConvertible
from rules.conversion.arc_scale_sets import is_values

TYPE = "helm.sh/release.v1"
"""Type of the Secrets that Helm writes, one for each revision of a release."""

_CHART = "gha-runner-scale-set"
_GZIP = zlib.MAX_WBITS + 16  # the format of gzip
_MAGIC = b"\x1f\x8b\x08"
_LARGEST = 64 * 2**20
"""Maximum number of bytes of a release. A Secret has at most 1 MiB, and manifests shrink to a tenth."""


@dataclass(frozen=True, slots=True)
class Release:
    """One revision of a Helm release, with the values of each scale set that it installs.

    `deployed` is True for the revision that Helm installed last.
    """

    name: str
    namespace: str
    revision: int
    deployed: bool
    scale_sets: tuple[Json, ...]

    @property
    def title(self) -> str:
        """Return the name of this revision for a note."""
        return f"Helm release {self.name}, revision {self.revision}"


def is_release(item: Json) -> bool:
    """Return whether an object is the Secret of a Helm release."""
    return item.get("kind") == "Secret" and item.get("type") == TYPE


def read_releases(items: Iterable[Json]) -> list[Release]:
    """Return the releases of these Secrets that install scale sets.

    Raises `NotConvertible` if a Secret is no release. The text never shows data of a Secret (L13).
    """
    found = []
    for item in items:
        try:
            release = _read(item)
        except (AttributeError, KeyError, TypeError, ValueError, binascii.Error, zlib.error):
            metadata = item.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            raise NotConvertible(
                f"the Secret {name} is no complete Helm release; read it with `kubectl get secret {name} --output yaml`"
            ) from None
        if release.scale_sets:
            found.append(release)
    return found


def _read(item: Json) -> Release:
    inner = base64.b64decode(item["data"]["release"], validate=True)
    packed = base64.b64decode(inner, validate=True)
    if packed.startswith(_MAGIC):
        unpacked = zlib.decompressobj(_GZIP)
        packed = unpacked.decompress(packed, _LARGEST)
        if not unpacked.eof:
            raise ValueError(_LARGEST)
    release: Json = json.loads(packed)
    name, namespace = str(release["name"]), str(release.get("namespace") or "")
    values = _merged(release["chart"].get("values") or {}, release.get("config") or {})
    is_own = release["chart"]["metadata"]["name"] == _CHART
    sets = [values] if is_own else _parts(values)
    return Release(
        name=name,
        namespace=namespace,
        revision=int(release["version"]),
        deployed=release["info"]["status"] == "deployed",
        scale_sets=tuple(
            {**each, **_absent(each, runnerScaleSetName=name, namespaceOverride=namespace)} for each in sets
        ),
    )


def _parts(values: Json) -> Iterator[Json]:
    """Yield the values of each part of a chart that is a scale set. A part has its name, or an alias."""
    for each in values.values():
        if isinstance(each, dict) and is_values(each):
            yield each


def _merged(below: Any, above: Any) -> Any:
    """Return values of a chart with those of its user, as Helm merges them. A null removes its field."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    merged = {**below, **{name: _merged(below.get(name), value) for name, value in above.items()}}
    return {name: value for name, value in merged.items() if value is not None}


def _absent(values: Json, **defaults: str) -> Json:
    """Return the defaults of fields that the values do not set."""
    return {name: value for name, value in defaults.items() if value and not values.get(name)}
