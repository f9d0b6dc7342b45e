"""Names of the custom resource, and the labels, annotations and finalizer that Ostler writes and reads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

GROUP = "ostler.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "RunnerPool"
PLURAL = "runnerpools"

POOL_LABEL = "ostler.dev/pool"
OWNER_LABEL = "ostler.dev/runner-pool-owner"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
CLAIM_ANNOTATION = "ostler.dev/claim"
ATTEMPT_ANNOTATION = "ostler.dev/attempt"
PAUSE_ANNOTATION = "ostler.dev/pause-request"
DIGEST_ANNOTATION = "ostler.dev/spec-digest"
DRAIN_FINALIZER = "ostler.dev/drain"
SERVICE_ACCOUNT_ANNOTATION = "ostler.dev/service-account-uid"

EXIT_FINALIZER = "ostler.dev/exit"
"""Finalizer of a Pod of a StatefulSet. Without it, the controller would replace the Pod directly after its end."""

POOL_UID_ANNOTATION = "ostler.dev/pool-uid"
"""Annotation of a volume with the UID of its pool. Another pool with the same name does not use the volume."""

RUNNER_LABEL = "ostler.dev/runner"
"""Label of a StatefulSet's Pod and volumes, with the name of the StatefulSet. The StatefulSet selects this label."""

HOOK_OF_LABEL = "ostler.dev/hook-of"
"""Label of a hook Pod or of its Secret, with the name of the runner Pod. Such an object has no `POOL_LABEL`."""

HOOK_POOL_LABEL = "ostler.dev/hook-pool"
HOOK_SIZES = "hooksizes"
"""Resource of the group `GROUP` that exists in Roles only. Its resource names are sizes of hook Pods, and `LIMITED`."""

LIMITED = "limited"
"""Resource name that every Role with a size of hook Pods contains, besides the size itself.

A Role of an earlier release has neither a size nor this name.
"""

CONTAINERS_LABEL = "ostler.dev/containers"
CONTAINERS_KUBERNETES = "kubernetes"
"""Value of `CONTAINERS_LABEL` on runner Pods whose jobs may use containers. A network policy selects this label."""

CONTAINERS_BUILDKIT, CONTAINERS_DIND = "buildkit", "dind"
"""Values of `spec.containers.mode` of pools whose Pods have a BuildKit daemon or a Docker daemon."""

KEEP_NODE: Mapping[str, str] = MappingProxyType(
    {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
)
"""Annotations of stamped Pods and hook Pods. Because of them, Karpenter and the Cluster Autoscaler keep the node."""

JOB_ANNOTATIONS = ("ostler.dev/job-id", "ostler.dev/repository", "ostler.dev/workflow", "ostler.dev/job")
"""Annotations for people and for tools that compute costs: the job that GitHub runs on the Pod. No rule reads them."""

UNCLAIMED = "0.0"  # claim annotation of a Pod that was never stamped
