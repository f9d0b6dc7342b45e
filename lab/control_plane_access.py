"""Access to the lab's control plane: tokens, keys, kubeconfigs."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa


@dataclass(frozen=True, kw_only=True)
class ClusterAccess:
    """Access to a control plane as its administrator."""

    kubeconfig: Path
    url: str
    ca_file: Path
    token: str


def write_credentials(folder: Path) -> str:
    """Write the token file and the keys of ServiceAccount tokens. Return the administrator's token."""
    token = secrets.token_hex(24)
    (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    (folder / "tokens.csv").chmod(0o600)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = folder / "service-accounts.key"
    private.touch(mode=0o600)
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "service-accounts.pub").write_bytes(public)
    return token


def write_kubeconfig(path: Path, *, url: str, ca_file: Path, token: str) -> None:
    """Write a kubeconfig with the address `url` and one bearer token."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": url, "certificate-authority": str(ca_file)}}],
        "users": [{"name": "lab", "user": {"token": token}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "current-context": "lab",
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content))
