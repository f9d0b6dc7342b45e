"""Secrets: no way of printing a secret shows it."""

from __future__ import annotations

import json
import logging
import pickle

import pytest
from cryptography.fernet import Fernet

from ostler.encryption import Cipher, Undecryptable
from ostler.errors import ConfigurationError
from ostler.secrets import Secret

SECRET = Secret("hunter2")


@pytest.mark.parametrize("shown", [str(SECRET), repr(SECRET), f"{SECRET}", f"{SECRET!r:>20}", f"{[SECRET]}"])
def test_a_secret_prints_as_stars(shown: str) -> None:
    assert "hunter2" not in shown
    assert "***" in shown


def test_a_secret_in_a_log_line_prints_as_stars(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("key %s", SECRET)
    assert "hunter2" not in caplog.text


def test_a_secret_is_never_serialised() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(SECRET)
    with pytest.raises(TypeError):
        json.dumps({"key": SECRET})


def test_a_jit_is_read_back_with_any_of_the_keys() -> None:
    old, new = Secret(Fernet.generate_key().decode()), Secret(Fernet.generate_key().decode())
    sealed = Cipher([old]).encrypt(SECRET)
    assert b"hunter2" not in sealed
    assert Cipher([new, old]).decrypt(sealed) == SECRET


def test_a_key_taken_out_too_early_is_an_error_that_shows_nothing() -> None:
    sealed = Cipher([Secret(Fernet.generate_key().decode())]).encrypt(SECRET)
    with pytest.raises(Undecryptable, match="OSTLER_ENCRYPTION_KEYS"):
        Cipher([Secret(Fernet.generate_key().decode())]).decrypt(sealed)


def test_a_malformed_key_is_named_without_being_shown() -> None:
    with pytest.raises(ConfigurationError) as error:
        Cipher([Secret("hunter2")])
    assert "hunter2" not in str(error.value)
    assert "ostler generate-key" in str(error.value)
