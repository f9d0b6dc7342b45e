"""PersistentVolumes in folders of the node. The lab's clusters have no provisioner of volumes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from k8s_adapters.calls.client import Json, KubeClient
from ostler.errors import Conflict


def add_volume(kube: KubeClient, folder: Path) -> None:
    """Create a PersistentVolume of the class `by-hand` for a folder, which any user of the node may write to.

    It has the name of the folder. It is no error if it exists.
    """
    folder.chmod(0o777)
    folder.parent.chmod(0o755)
    body: Json = {
        "metadata": {"name": folder.name},
        "spec": {
            "capacity": {"storage": "10Mi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "by-hand",
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder), "type": "Directory"},
        },
    }
    with suppress(Conflict):
        kube.request("POST", "/api/v1/persistentvolumes", body=body)
