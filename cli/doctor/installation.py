"""Checks of the settings and of the installed versions."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from cli.doctor.context import Context
from cli.doctor.findings import Verdict, failed, ok, warning
from github_adapters.calls.auth import AppAuth
from github_adapters.calls.governor import Ungoverned
from github_adapters.calls.http import Http
from ostler.clock import machine_now
from ostler.encryption import Cipher
from ostler.errors import ConfigurationError
from ostler.settings import unread_variables


def settings(context: Context) -> Verdict:
    """Check that every required setting exists and is valid."""
    try:
        found = context.settings
        Cipher(found.encryption_keys)
        http = Http(api_url=found.github_api_url, timeout=1)
        AppAuth(
            http=http,
            app_id=found.github_app_id,
            private_key=found.github_private_key,
            clock=machine_now,
            governor=Ungoverned(),
        )
    except ConfigurationError as error:
        return failed(
            "; ".join(str(error).splitlines()), "correct these settings for every process; see docs/configuration.md"
        )
    if unread := unread_variables():
        return warning("; ".join(map(str, unread)), "correct the names, or remove these variables")
    return ok(f"all required variables are set; runner Pods run in {' and '.join(found.namespaces)}")


def versions(context: Context) -> Verdict:
    """Report the versions of Ostler, Python and its main packages. Other checks report the versions of servers."""
    del context
    told = [f"Python {platform.python_version()}"]
    for package in ("celery", "celery-redbeat", "SQLAlchemy"):
        try:
            told.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            return failed(f"{package} is not installed", "install from the lock file: requirements/runtime.txt")
    try:
        own = version("ostler")
    except PackageNotFoundError:
        own = "of a working tree"
    return ok(f"Ostler {own}, {', '.join(told)}")
