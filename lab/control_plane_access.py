"""Access to the lab's control plane: tokens, keys and kubeconfigs."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, kw_only=True)
class ClusterAccess:
    """Address and credentials of a control plane's administrator."""

    kubeconfig: Path
    url: str
    ca_file: Path
    token: str
    embedded: bool = False
    """Whether the server is the embedded one, which has no admission policies and no disruption budgets."""


@dataclass(frozen=True, kw_only=True)
class NodeAccess:
    """Credentials of kubelets and the scheduler, and the certificate that the API server shows to kubelets."""

    kubelets: Mapping[str, str]
    """The bearer token of each kubelet, by the name of its node."""
    scheduler: str
    """The bearer token of the scheduler."""
    client_ca: Path
    """The CA of the certificate that the API server shows to kubelets."""
    client_certificate: Path
    client_key: Path


def write_credentials(folder: Path, *, nodes: NodeAccess | None = None) -> str:
    """Write the token file and the key pair for service-account tokens. Return the administrator's token."""
    token = secrets.token_hex(24)
    lines = [f"{token},admin,admin,system:masters"]
    if nodes is not None:
        lines += [f"{each},system:node:{name},{name},system:nodes" for name, each in nodes.kubelets.items()]
        lines.append(f"{nodes.scheduler},system:kube-scheduler,scheduler")
    (folder / "tokens.csv").touch(mode=0o600)
    (folder / "tokens.csv").write_text("\n".join(lines) + "\n")
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


def make_node_access(folder: Path, names: Sequence[str]) -> NodeAccess:
    """Make the credentials of nodes and write the certificate of the API server's calls to them."""
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, client_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab-kubelet-clients")])
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:masters"),
            x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver"),
        ]
    )
    ca = _certificate(issuer, ca_key.public_key(), issuer, ca_key, authority=True)
    client = _certificate(subject, client_key.public_key(), issuer, ca_key, authority=False)
    access = NodeAccess(
        kubelets={name: secrets.token_hex(24) for name in names},
        scheduler=secrets.token_hex(24),
        client_ca=folder / "kubelet-clients-ca.crt",
        client_certificate=folder / "kubelet-client.crt",
        client_key=folder / "kubelet-client.key",
    )
    access.client_ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    access.client_certificate.write_bytes(client.public_bytes(serialization.Encoding.PEM))
    access.client_key.touch(mode=0o600)
    access.client_key.write_bytes(
        client_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return access


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
) -> x509.Certificate:
    """Return a certificate that is valid for a day, longer than any run of the lab."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .sign(signer, hashes.SHA256())
    )


def write_kubeconfig(path: Path, *, url: str, ca_file: Path, token: str) -> None:
    """Write a kubeconfig for the server at `url` with one bearer token."""
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
