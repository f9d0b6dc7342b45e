"""Init container that copies the programs of the runner into a volume, for the containers of a job."""

from __future__ import annotations

from k8s_adapters.calls.client import Json
from rules.pools.pod_template import EXTERNALS, EXTERNALS_VOLUME

_HOME = "/home/runner"


def copy_externals(runner_image: str) -> Json:
    """Return the init container that copies the programs that the runner mounts into containers, such as Node.js."""
    return {
        "name": EXTERNALS,
        "image": runner_image,
        "command": ["/bin/sh", "-c", f"! test -d {_HOME}/externals || cp -R {_HOME}/externals/. /externals/"],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"cpu": "500m", "memory": "64Mi"},
        },
        "volumeMounts": [{"name": EXTERNALS_VOLUME, "mountPath": "/externals"}],
    }
