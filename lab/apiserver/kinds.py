"""Resources that the server serves: built-in resources, and those that a CustomResourceDefinition adds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One resource. Two kinds are equal if they are served at the same path, whatever their schema.

    `generation` says whether `metadata.generation` counts the changes of its objects. `custom` says whether a
    CustomResourceDefinition added the resource, and `schema` is the schema of that definition.
    """

    group: str
    version: str
    plural: str
    name: str
    namespaced: bool = True
    generation: bool = False
    returns_deleted: bool = False
    """Whether the answer to a deletion is the deleted object instead of a Status."""
    custom: bool = False
    schema: Json = field(default_factory=dict, compare=False)
    status: bool = field(default=True, compare=False)
    """Whether `status` is a subresource, which is written separately from the rest of the object."""
    short_names: tuple[str, ...] = field(default=(), compare=False)
    columns: tuple[Json, ...] = field(default=(), compare=False)
    """Columns that `kubectl get` prints beside the name. Only a CustomResourceDefinition sets them."""

    @property
    def api_version(self) -> str:
        """Return `v1`, or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The plural name in messages, for example `pods` or `runnerpools.ostler.dev`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified(self) -> str:
        """The name of the kind in messages, for example `Pod` or `RunnerPool.ostler.dev`."""
        return f"{self.name}.{self.group}" if self.group else self.name


NAMESPACE = Kind(
    group="",
    version="v1",
    plural="namespaces",
    name="Namespace",
    namespaced=False,
    returns_deleted=True,
    short_names=("ns",),
)
NODE = Kind(group="", version="v1", plural="nodes", name="Node", namespaced=False, short_names=("no",))
POD = Kind(
    group="", version="v1", plural="pods", name="Pod", generation=True, returns_deleted=True, short_names=("po",)
)
SERVICE_ACCOUNT = Kind(
    group="",
    version="v1",
    plural="serviceaccounts",
    name="ServiceAccount",
    returns_deleted=True,
    status=False,
    short_names=("sa",),
)
LEASE = Kind(group="coordination.k8s.io", version="v1", plural="leases", name="Lease", status=False)
CONFIG_MAP = Kind(group="", version="v1", plural="configmaps", name="ConfigMap", status=False, short_names=("cm",))
SECRET = Kind(group="", version="v1", plural="secrets", name="Secret", status=False)
ROLE = Kind(group="rbac.authorization.k8s.io", version="v1", plural="roles", name="Role", status=False)
ROLE_BINDING = Kind(
    group="rbac.authorization.k8s.io", version="v1", plural="rolebindings", name="RoleBinding", status=False
)
EVENT = Kind(group="events.k8s.io", version="v1", plural="events", name="Event", status=False, short_names=("ev",))
DEFINITION = Kind(
    group="apiextensions.k8s.io",
    version="v1",
    plural="customresourcedefinitions",
    name="CustomResourceDefinition",
    namespaced=False,
    generation=True,
    short_names=("crd", "crds"),
)
TOKEN_REQUEST = Kind(group="authentication.k8s.io", version="v1", plural="tokenrequests", name="TokenRequest")
BUILT_IN = (
    NAMESPACE,
    NODE,
    POD,
    SERVICE_ACCOUNT,
    LEASE,
    CONFIG_MAP,
    SECRET,
    ROLE,
    ROLE_BINDING,
    EVENT,
    DEFINITION,
)


def defined_by(definition: Json) -> Kind:
    """Return the kind that a CustomResourceDefinition adds.

    Raises KeyError or StopIteration if the definition is incomplete.
    """
    spec: Json = definition["spec"]
    version = next(each for each in spec["versions"] if each["served"])
    return Kind(
        group=spec["group"],
        version=version["name"],
        plural=spec["names"]["plural"],
        name=spec["names"]["kind"],
        namespaced=spec["scope"] == "Namespaced",
        generation=True,
        custom=True,
        schema=version["schema"]["openAPIV3Schema"],
        status="status" in version.get("subresources", {}),
        short_names=tuple(spec["names"].get("shortNames") or ()),
        columns=tuple(version.get("additionalPrinterColumns") or ()),
    )
