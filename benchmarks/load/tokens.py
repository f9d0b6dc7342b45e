"""Pod tokens as an API server signs them: RS256, bound to a Pod, for one audience."""

from __future__ import annotations

import time
from dataclasses import dataclass

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

ISSUER = "https://kubernetes.default.svc.cluster.local"
KEY_ID = "benchmark"
AUDIENCE = "ostler-dispatch"
NAMESPACE = "ostler-runners"


@dataclass(frozen=True, slots=True)
class BenchPod:
    """A Pod that exists only as a row and a poll."""

    name: str
    uid: str


def sign(key: RSAPrivateKey, pod: BenchPod) -> str:
    """Return the Pod's token, which is valid for an hour."""
    now = int(time.time())
    claims = {
        "iss": ISSUER,
        "aud": [AUDIENCE],
        "iat": now,
        "nbf": now,
        "exp": now + 3600,
        "jti": pod.uid,
        "sub": f"system:serviceaccount:{NAMESPACE}:{pod.name}",
        "kubernetes.io": {
            "namespace": NAMESPACE,
            "node": {"name": "node-1", "uid": "5f3a2b4c-0000-4000-8000-000000000000"},
            "pod": {"name": pod.name, "uid": pod.uid},
            "serviceaccount": {"name": pod.name, "uid": pod.uid},
        },
    }
    return jwt.encode(claims, key, algorithm="RS256", headers={"kid": KEY_ID})
