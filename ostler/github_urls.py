"""Addresses of GitHub: github.com, a subdomain of ghe.com (data residency), and an Enterprise Server.

Sources: GitHub docs, "GitHub Enterprise Cloud with data residency" and "Getting started with the REST API".
"""

from __future__ import annotations

from urllib.parse import urlsplit

GITHUB = "https://github.com"
GITHUB_API = "https://api.github.com"
RESIDENCY = ".ghe.com"


def api_url_of(github_url: str) -> str:
    """Return the root of the API that belongs to an address that people open, or that address if it is one itself."""
    root = github_url.rstrip("/")
    if (urlsplit(root).hostname or "").startswith("api."):
        return root
    if root == GITHUB:
        return GITHUB_API
    if (subdomain := _subdomain(root)) is not None:
        return f"https://api.{subdomain}{RESIDENCY}"
    return f"{root}/api/v3"


def misplaced(api_url: str) -> str | None:
    """Return the root of the API where this is an address for people of github.com or ghe.com; None where it is not."""
    if (urlsplit(api_url).hostname or "") == urlsplit(GITHUB).hostname:
        return GITHUB_API
    subdomain = _subdomain(api_url)
    return None if subdomain is None else f"https://api.{subdomain}{RESIDENCY}"


def _subdomain(url: str) -> str | None:
    """Return SUBDOMAIN of `https://SUBDOMAIN.ghe.com`; None for another address, also for that of its API."""
    host = urlsplit(url).hostname or ""
    subdomain = host.removesuffix(RESIDENCY)
    return None if subdomain in {host, ""} or "." in subdomain else subdomain
