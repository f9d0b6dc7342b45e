"""`ostler-lab environment > compose/lab.env`: settings of `docker compose --profile lab`, with new keys."""

from __future__ import annotations

import argparse
import secrets
import sys

from cryptography.fernet import Fernet
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa


def environment() -> dict[str, str]:
    """Return the variables by name. Variables with a suitable default in the compose file are left out."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return {
        "POSTGRES_PASSWORD": secrets.token_hex(24),
        "REDIS_PASSWORD": secrets.token_hex(24),
        "REDIS_PASSWORD_BEAT": secrets.token_hex(24),
        "REDIS_PASSWORD_WATCH": secrets.token_hex(24),
        "REDIS_PASSWORD_FLOWER": secrets.token_hex(24),
        "OSTLER_GITHUB_APP_ID": "ostler-lab",
        "OSTLER_GITHUB_PRIVATE_KEY": _one_line(private),
        "OSTLER_GITHUB_API_URL": "http://lab-github:8090",
        "OSTLER_NEW_ACCOUNTS": "serve",  # every account of the lab's GitHub belongs to the lab
        "OSTLER_WEBHOOK_SECRETS": secrets.token_hex(24),
        "OSTLER_ENCRYPTION_KEYS": Fernet.generate_key().decode(),
        "KUBECONFIG_FILE": "/dev/null",
        "OSTLER_KUBECONFIG": "/var/lib/ostler/kubeconfig",
        "OSTLER_DISPATCH_URL": "http://web:8081/runners/v1/dispatch",
        "OSTLER_FLOWER_BASIC_AUTH": f"ostler:{secrets.token_hex(12)}",
        "LAB_APP_PUBLIC_KEY": _one_line(public),
    }


def _one_line(pem: bytes) -> str:
    return pem.decode().replace("\n", "\\n")


def main() -> None:
    """Print the variables, one `NAME=value` per line."""
    argparse.ArgumentParser(prog="ostler-lab environment", description=__doc__).parse_args()
    sys.stdout.write("".join(f"{name}={value}\n" for name, value in environment().items()))


if __name__ == "__main__":
    main()
