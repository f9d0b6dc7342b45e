"""Labels and annotations that Ostler writes on Pods and ServiceAccounts, and reads back."""

from __future__ import annotations

POOL_LABEL = "ostler.dev/pool"
OWNER_LABEL = "ostler.dev/runner-pool-owner"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
CLAIM_ANNOTATION = "ostler.dev/claim"
ATTEMPT_ANNOTATION = "ostler.dev/attempt"
DIGEST_ANNOTATION = "ostler.dev/spec-digest"
SERVICE_ACCOUNT_ANNOTATION = "ostler.dev/service-account-uid"

UNCLAIMED = "0.0"  # the claim annotation of a Pod that was never stamped
