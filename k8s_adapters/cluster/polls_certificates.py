"""Certificate of the runners' polls, created once in the cluster, for charts that are rendered without a cluster.

Helm makes these objects itself and reads them back at each upgrade. Argo CD and `helm template` only render the chart,
so a Job creates what is missing. An object that exists is never changed: a second run keeps the CA, and polls go on.
The objects have the form of those that the chart makes (`polls-tls.yaml`).
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from k8s_adapters.calls.client import Json, KubeClient, part
from ostler.errors import ConfigurationError, Conflict, Gone

BUNDLE = "ostler-polls-ca"
"""Name of the ConfigMap with the CAs that runner Pods trust, which is part of their template."""

_APPLY = "application/apply-patch+yaml"
_CA = "1"
"""Name of the first CA of a release."""
_LASTS = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The objects of a release: two Secrets in its namespace, and a ConfigMap in each namespace of runners.

    `hosts` are the DNS names of the certificate, the first one as its subject.
    """

    namespace: str
    ca_secret: str
    tls_secret: str
    hosts: Sequence[str]
    runners: Sequence[str]


def ensure(client: KubeClient, wanted: Wanted, *, now: datetime) -> list[str]:
    """Create the objects that are missing, and return their names. Objects that exist are not changed.

    Raises `ConfigurationError` if an existing object does not fit the others, and the errors of `KubeClient.request`.
    """
    made: list[str] = []
    ca = _had(client, _secret(wanted, wanted.ca_secret), lambda: _new_ca(now), made)
    crt, key = (_text(ca, wanted.ca_secret, f"{_CA}.{each}") for each in ("crt", "key"))
    tls = _had(client, _secret(wanted, wanted.tls_secret), lambda: _new_certificate(crt, key, wanted.hosts, now), made)
    names = part(part(tls, "metadata"), "annotations").get("ostler.dev/names")
    if names != ",".join(wanted.hosts):
        raise ConfigurationError(
            f"Secret {wanted.tls_secret} has a certificate for {names}, and web needs one for {wanted.hosts[0]}: "
            "delete the Secret and run this command again"
        )
    for namespace in wanted.runners:
        path = f"/api/v1/namespaces/{namespace}/configmaps/{BUNDLE}"
        bundle = _had(client, path, lambda: {"kind": "ConfigMap", "data": {"ca.crt": crt}}, made)
        if crt.strip() not in part(bundle, "data").get("ca.crt", ""):
            raise ConfigurationError(
                f"ConfigMap {BUNDLE} in namespace {namespace} does not contain the CA of Secret {wanted.ca_secret}: "
                "add the CA to the ConfigMap, or delete the ConfigMap and run this command again"
            )
    return made


def _secret(wanted: Wanted, name: str) -> str:
    return f"/api/v1/namespaces/{wanted.namespace}/secrets/{name}"


def _had(client: KubeClient, path: str, make: Callable[[], Json], made: list[str]) -> Json:
    """Return the object at a path. If it does not exist, create it and add its name to `made`.

    The creation is an apply, because a Role can limit the names that a client may apply, but not those that it may
    post. A manager of its own makes a second apply a conflict, so that two runs cannot overwrite each other.
    """
    try:
        return client.request("GET", path)
    except Gone:
        pass
    name = path.rpartition("/")[2]
    body = {"apiVersion": "v1", **make()}
    body["metadata"] = {"name": name, **body.get("metadata", {})}
    try:
        query = {"fieldManager": f"ostler-certificates-{secrets.token_hex(4)}"}
        client.request("PATCH", path, body=body, content_type=_APPLY, query=query)
        made.append(f"{body['kind']} {name}")
    except Conflict:
        pass  # another run has created it
    return client.request("GET", path)


def _text(secret: Json, name: str, key: str) -> str:
    try:
        return base64.b64decode(part(secret, "data")[key]).decode()
    except (KeyError, ValueError):
        raise ConfigurationError(f"Secret {name} has no {key}: delete the Secret and run this command again") from None


def _new_ca(now: datetime) -> Json:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"ostler polls {_CA}")
    ends = now + _LASTS
    builder = _builder(subject, subject, key, now, ends=ends)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(identifier, critical=False)
    crt = _pem(builder.add_extension(_usage(signs=True), critical=True).sign(key, hashes.SHA256()))
    parts = {"crt": crt, "key": _key(key), "ends": str(int(ends.timestamp()))}
    return {"kind": "Secret", "type": "Opaque", "data": {f"{_CA}.{each}": _data(text) for each, text in parts.items()}}


def _new_certificate(ca: str, ca_key: str, hosts: Sequence[str], now: datetime) -> Json:
    """Return the Secret with a certificate that lasts as long as its CA, because only a person replaces it."""
    authority = x509.load_pem_x509_certificate(ca.encode())
    signer = serialization.load_pem_private_key(ca_key.encode(), None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ConfigurationError("the CA of the release has no EC key: name a certificate in web.tls.existingSecret")
    key = ec.generate_private_key(ec.SECP256R1())
    ends = authority.not_valid_after_utc
    builder = _builder(authority.subject, _name(hosts[0]), key, now, ends=ends)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
        (x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    said = {
        "signer": _CA,
        "signed-by": hashlib.sha256(ca.encode()).hexdigest(),
        "names": ",".join(hosts),
        "ends": str(int(ends.timestamp())),
    }
    return {
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"annotations": {f"ostler.dev/{name}": text for name, text in said.items()}},
        "data": {"tls.crt": _data(_pem(builder.sign(signer, hashes.SHA256()))), "tls.key": _data(_key(key))},
    }


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, *, ends: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().issuer_name(issuer).subject_name(subject).public_key(key.public_key())
    # Clocks of nodes can be a little behind.
    begins = now - timedelta(hours=1)
    return builder.serial_number(x509.random_serial_number()).not_valid_before(begins).not_valid_after(ends)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key(key: ec.EllipticCurvePrivateKey) -> str:
    kind, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(kind, form, serialization.NoEncryption()).decode()


def _data(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
