"""Certificates for tests: an authority and the certificates that it signs, in PEM."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Signed:
    """A certificate and its key."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write both files and return their paths. Each file replaces the old one in one step, as in a mount."""
        paths = folder / "tls.crt", folder / "tls.key"
        for path, content in zip(paths, (self.certificate, self.key), strict=True):
            new = path.with_suffix(".new")
            new.write_bytes(content)
            new.chmod(0o600)
            new.rename(path)
        return paths


class Authority:
    """A certificate authority."""

    def __init__(self, name: str = "ca") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = _builder(self._name, self._name, timedelta(days=3650)).public_key(self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.certificate = _pem(builder.add_extension(usage, critical=True).sign(self._key, hashes.SHA256()))

    def sign(self, *names: str, lasts: timedelta = timedelta(days=365)) -> Signed:
        """Return a certificate for 127.0.0.1, localhost and these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(self._name, _name("web"), lasts).public_key(key.public_key())
        alternatives = [x509.IPAddress(IPv4Address("127.0.0.1")), *map(x509.DNSName, ("localhost", *names))]
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return Signed(
            _pem(builder.sign(self._key, hashes.SHA256())),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )


def _builder(issuer: x509.Name, subject: x509.Name, lasts: timedelta) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(issuer, subject).serial_number(x509.random_serial_number())
    return builder.not_valid_before(min(now, now + lasts) - timedelta(days=1)).not_valid_after(now + lasts)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
