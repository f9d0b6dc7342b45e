"""Paths that the web process does not have."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from cryptography.fernet import Fernet

from ostler.secrets import Secret
from ostler.settings import Settings
from web.app import build_app


@pytest.mark.parametrize("path", ["/runners/v1/dispatch/", "/webhooks/github/", "/metrics/"])
def test_path_with_trailing_slash_is_not_redirected(path: str) -> None:
    app = build_app(
        Settings(
            database_url="postgresql+psycopg2://unused",
            redis_url=Secret("redis://unused"),
            github_app_id="1",
            github_private_key=Secret("unused"),
            webhook_secrets=(Secret("of-these-tests-alone"),),
            encryption_keys=(Secret(Fernet.generate_key().decode()),),
        )
    )

    async def call() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://evil.example") as client:
            return await client.post(path)

    answer = asyncio.run(call())
    assert answer.status_code == 404
    assert "location" not in answer.headers
