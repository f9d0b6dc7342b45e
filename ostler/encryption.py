"""Encryption of stored JIT configs: Fernet with rotating keys. The newest key encrypts, and every key can decrypt."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from ostler.errors import ConfigurationError, OstlerError
from ostler.secrets import Secret


class Undecryptable(OstlerError):
    """No key decrypts a token. The usual cause: the right key was removed from `OSTLER_ENCRYPTION_KEYS` too early."""


class Cipher:
    """Encrypts and decrypts secrets with the keys of this process."""

    def __init__(self, keys: Sequence[Secret]) -> None:
        try:
            self._fernet = MultiFernet([Fernet(key.reveal()) for key in keys])
        except ValueError:
            raise ConfigurationError(
                "OSTLER_ENCRYPTION_KEYS: found a value that is not a Fernet key (hidden); "
                "create one with `ostler generate-key`"
            ) from None

    def encrypt(self, secret: Secret) -> bytes:
        """Return the encrypted token to store."""
        return self._fernet.encrypt(secret.reveal().encode())

    def decrypt(self, token: bytes) -> Secret:
        """Return the secret in a stored token. Raises `Undecryptable` if no key decrypts the token."""
        try:
            return Secret(self._fernet.decrypt(bytes(token)).decode())
        except InvalidToken:
            raise Undecryptable(
                "a stored JIT config cannot be decrypted with any of OSTLER_ENCRYPTION_KEYS; add the removed key again"
            ) from None
