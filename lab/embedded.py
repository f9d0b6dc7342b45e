"""Start and stop of the embedded API server, which runs as a process of its own with the interface of `ControlPlane`.

`ostler-lab apiserver` is for a container of its own. It writes keys, a certificate and a kubeconfig for its clients,
and then becomes the server.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lab.control_plane_access import ClusterAccess, write_credentials, write_kubeconfig
from lab.control_plane_build import Say, quiet
from lab.processes import Child

_READY_WITHIN = 90.0
_LIFE = timedelta(days=7)
_SIGNS_ITSELF = x509.KeyUsage(  # required by Python 3.13 and newer
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


class EmbeddedCluster:
    """A running API server. `stop()`, or the end of the context, stops it."""

    def __init__(self, *, access: ClusterAccess, child: Child) -> None:
        self.access = access
        self._child = child

    @property
    def kubeconfig(self) -> Path:
        """Return the path of the administrator's kubeconfig."""
        return self.access.kubeconfig

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._child.pid

    @classmethod
    def start(cls, folder: Path, *, say: Say = quiet, program: tuple[str, ...] = ("lab.apiserver",)) -> EmbeddedCluster:
        """Start the server in `folder`, wait until it is ready, and write `folder/kubeconfig`.

        `program` is the module to run and its arguments. Raises `StartError`.
        """
        began = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        token = write_credentials(folder)
        ca_file = _write_certificate(folder / "certs")
        log = folder / "apiserver.log"
        log.unlink(missing_ok=True)
        child = Child("apiserver", [sys.executable, "-m", *program, "--folder", str(folder)], log=log)
        child.start()
        try:
            child.wait_until(lambda: _url(log) != "", timeout=_READY_WITHIN)
        except BaseException:
            child.kill()
            raise
        access = ClusterAccess(kubeconfig=folder / "kubeconfig", url=_url(log), ca_file=ca_file, token=token)
        write_kubeconfig(access.kubeconfig, url=access.url, ca_file=ca_file, token=token)
        say(f"the embedded API server is ready after {time.monotonic() - began:.1f} s: {access.url}")
        return cls(access=access, child=child)

    def running(self) -> bool:
        """Return whether the server is running."""
        return self._child.running()

    def stop(self) -> None:
        """Kill the server. It has no state to save."""
        self._child.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _url(log: Path) -> str:
    """Return the address that the server printed, or an empty string before that."""
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith('{"url"') and line.endswith("}"):
            return str(json.loads(line)["url"])
    return ""


def _write_certificate(folder: Path, *, names: Sequence[str] = ()) -> Path:
    """Write a self-signed certificate for 127.0.0.1 and `names`, and its key. Return the path of the certificate."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ostler-lab-apiserver")])
    now = datetime.now(UTC)
    here = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectAlternativeName([*here, *map(x509.DNSName, names)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_SIGNS_ITSELF, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = folder / "apiserver.key"
    private.touch(mode=0o600)
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public = folder / "apiserver.crt"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return public


def main() -> None:
    """Read the arguments, write the files of the server and its clients, and become the server."""
    parser = argparse.ArgumentParser(prog="ostler-lab apiserver", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where certificate, keys and tokens are written")
    parser.add_argument("--kubeconfig", type=Path, required=True, help="written for clients, its authority beside it")
    parser.add_argument("--name", required=True, help="the host name under which clients reach it")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    token = write_credentials(arguments.folder)
    certificate = _write_certificate(arguments.folder / "certs", names=[arguments.name])
    authority = arguments.kubeconfig.with_name("authority.crt")
    shutil.copyfile(certificate, authority)
    url = f"https://{arguments.name}:{arguments.port}"
    write_kubeconfig(arguments.kubeconfig, url=url, ca_file=Path(authority.name), token=token)
    place = ["--folder", str(arguments.folder), "--host", arguments.host, "--port", str(arguments.port)]
    os.execv(sys.executable, [sys.executable, "-m", "lab.apiserver", *place])  # noqa: S606  no shell is wanted


if __name__ == "__main__":
    main()
