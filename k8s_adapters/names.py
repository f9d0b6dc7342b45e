"""Names of the custom resource, and the labels, annotations and finalizer that Ostler writes and reads."""

from __future__ import annotations

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
DIGEST_ANNOTATION = "ostler.dev/spec-digest"
DRAIN_FINALIZER = "ostler.dev/drain"
SERVICE_ACCOUNT_ANNOTATION = "ostler.dev/service-account-uid"

UNCLAIMED = "0.0"  # claim annotation of a Pod that was never stamped

FIELD_MANAGER = "ostler"
"""Ostler's name in the managed fields of objects. The API server takes this name from the header User-Agent."""
