"""Addresses of GitHub: github.com, subdomains of ghe.com (data residency), and Enterprise Servers.

Sources: GitHub docs, "GitHub Enterprise Cloud with data residency" and "Getting started with the REST API".
"""

from __future__ import annotations

from urllib.parse import urlsplit

GITHUB = "https://github.com"
GITHUB_API = "https://api.github.com"
RESIDENCY = ".ghe.com"


def api_url_of(github_url: str) -> str:
    """Return the root of the REST API for GitHub's address in a browser.

    If the address is already a root of the REST API, return it unchanged.
    """
    root = github_url.rstrip("/")
    if (urlsplit(root).hostname or "").startswith("api."):
        return root
    if root == GITHUB:
        return GITHUB_API
    if (subdomain := _subdomain(root)) is not None:
        return f"https://api.{subdomain}{RESIDENCY}"
    return f"{root}/api/v3"


def misplaced(api_url: str) -> str | None:
    """Return the right API root if `api_url` is a browser address of github.com or ghe.com. Return None otherwise."""
    if (urlsplit(api_url).hostname or "") == urlsplit(GITHUB).hostname:
        return GITHUB_API
    subdomain = _subdomain(api_url)
    return None if subdomain is None else f"https://api.{subdomain}{RESIDENCY}"


def _subdomain(url: str) -> str | None:
    """Return SUBDOMAIN of `https://SUBDOMAIN.ghe.com`.

    Return None for any other address, also for `https://api.SUBDOMAIN.ghe.com`.
    """
    host = urlsplit(url).hostname or ""
    subdomain = host.removesuffix(RESIDENCY)
    return None if subdomain in {host, ""} or "." in subdomain else subdomain
