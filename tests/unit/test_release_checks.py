"""Checks of the repository itself: the search for credentials, and the check for advisories."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).parents[2] / ".ci"
X = "x" * 60


def matches(folder: Path, text: str) -> bool:
    """Return whether the search of `make lint` finds something in a file with this text."""
    (folder / "file").write_text(text)
    command = ["git", "grep", "--no-index", "-nIE", "-f", str(CI / "credentials")]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    "text",
    [
        f"token: ghs_{X[:36]}",
        f"github_pat_{X}",
        f"AKIA{'A' * 16}",
        f"AIza{X[:35]}",
        f"xoxb-{X[:12]}",
        "https://hooks.slack." + "com/services/T0/B0/x",
        f"npm_{X[:36]}",
        f"pypi-AgE{X}",
        "-----BEGIN RSA PRIVATE" + " KEY-----",
        "-----BEGIN PRIVATE" + " KEY-----",
        f"eyJ{X}.eyJ{X}.{X}",
    ],
)
def test_a_credential_in_a_file_is_found(tmp_path: Path, text: str) -> None:
    assert matches(tmp_path, text)


@pytest.mark.parametrize(
    "text", ["ghs_short", "-----BEGIN CERTIFICATE-----", "github_token: artificial-token", "sha256:" + "0" * 64]
)
def test_other_texts_are_not_reported(tmp_path: Path, text: str) -> None:
    assert not matches(tmp_path, text)


@pytest.mark.parametrize(
    ("out", "err", "status", "expected", "says"),
    [
        ('{"dependencies": []}', "", 0, 0, "no advisory is known"),
        ('{"dependencies": [{"name": "a", "vulns": [{"id": "X-1"}]}]}', "Found 1", 1, 1, "X-1"),
        ('{"dependencies": [{"skip_reason": "a"}, {"skip_reason": "b"}]}', "", 0, 0, "NOT CHECKED for advisories: 2 "),
        ('{"dependencies": [{"skip_reason": "a"}, {"name": "X-1"}]}', "", 1, 1, "X-1"),
        ("", "requests.exceptions.ConnectionError: no route", 1, 0, "NOT CHECKED for advisories: requests."),
    ],
)
def test_advisories_fail_the_check_and_a_silent_source_is_reported(
    tmp_path: Path, out: str, err: str, status: int, expected: int, says: str
) -> None:
    uv = tmp_path / "uv"
    uv.write_text(f"#!/bin/sh\necho '{out}'\necho '{err}' >&2\nexit {status}\n")
    uv.chmod(0o755)
    done = subprocess.run(
        [str(CI / "advisories")], env={**os.environ, "UV": str(uv)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == expected
    assert says in done.stdout + done.stderr
    assert ("no advisory is known" in done.stdout) is (says == "no advisory is known")
