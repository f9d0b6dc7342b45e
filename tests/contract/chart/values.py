"""Values for the tests of the chart: few sets that together cover every branch of its templates."""

from __future__ import annotations

from typing import Any

KEDA = {"redis": {"address": "redis.stores:6379", "tls": True, "passwordSecret": {"name": "redis", "key": "password"}}}

MATRIX: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": {
        "image": {"digest": f"sha256:{'0' * 64}", "pullSecrets": ["registry"], "pullPolicy": "Always"},
        "secretRefs": {"OSTLER_DATABASE_URL": {"name": "postgres-app", "key": "uri"}},
        "settings": {
            "OSTLER_GITHUB_API_URL": "https://github.example.com/api/v3",
            "OSTLER_NODE_LOST_AFTER": 900,
            "OSTLER_FLOWER_WITHOUT_LOGIN": True,
            "OSTLER_LOG_LEVEL": "DEBUG",
        },
        "postgres": {"maxConnections": 400},
        "pools": {"small": {"image": "runner:1", "runnerLabels": ["self-hosted", "small"]}},
        "web": {"replicas": 3, "service": {"port": 8000, "annotations": {"example.com/a": "b"}}},
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "host": "ostler.example.com",
            "tlsSecret": "tls",
            "annotations": {"example.com/a": "b"},
        },
        "workers": {
            "default": {"queues": ["dispatch", "sweeps"], "autoscaling": {"enabled": True}},
            "network": {"queues": ["github", "pools", "retire"], "threads": 15, "keda": {"enabled": True}},
        },
        "keda": KEDA,
        "metrics": {"monitors": True, "rules": True, "labels": {"release": "prometheus"}},
        "podAnnotations": {"example.com/a": "b"},
        "podLabels": {"example.com/c": "d"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "control-plane", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "runners": {
            "containers": {
                "enabled": True,
                "labels": ["team"],
                "annotations": ["example.com/a"],
                "tolerations": ["ci"],
                "resources": ["nvidia.com/gpu"],
                "priorityClasses": ["jobs"],
                "runtimeClasses": ["gvisor"],
                "pullSecrets": ["registry"],
            }
        },
        "networkPolicies": {"apiServer": {"addresses": ["10.0.0.1/32", "fd00::1/128"]}},
    },
    "groups of workers": {
        "worker": {"threads": 8, "autoscaling": {"enabled": True}},
        "workers": {
            "default": None,
            "claims": {"queues": ["dispatch"], "autoscaling": {"enabled": False}, "replicas": 1},
            "upstream": {"queues": ["github", "pools", "retire"]},
            "repairs": {"queues": ["sweeps"], "replicas": 1, "autoscaling": {"enabled": False}},
        },
        "postgres": {"maxConnections": 200},
        "flower": {"enabled": False},
    },
    "a namespace that exists": {"runners": {"create": False}, "migrate": {"enabled": False}, "fullnameOverride": "o"},
    "a Job for the certificate": {"web": {"tls": {}}},
}
