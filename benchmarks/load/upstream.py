"""Minimal API server that answers at once. It serves only the issuer, its keys, token reviews and stamps.

It replaces a cluster if only Ostler's own cost matters. `GET /_calls` returns the number of the other calls of each
endpoint.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt.algorithms import RSAAlgorithm

from benchmarks.load.tokens import ISSUER, KEY_ID

_POD_UID = "authentication.kubernetes.io/pod-uid"
_CLAIM = "ostler.dev/claim"


class Upstream:
    """The server's routes."""

    def __init__(self, public_key: bytes) -> None:
        found = load_pem_public_key(public_key)
        if not isinstance(found, RSAPublicKey):
            raise TypeError("--public-key must be an RSA key")
        key = RSAAlgorithm.to_jwk(found, as_dict=True)
        self._keys = {"keys": [{**key, "kid": KEY_ID, "alg": "RS256", "use": "sig"}]}
        self.calls: Counter[str] = Counter()

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        return app

    async def answer(self, request: web.Request) -> web.Response:
        """Answer any call. An unknown path gets status 404."""
        if request.path == "/_calls":
            return web.json_response(self.calls)
        self.calls[f"{request.method} {re.sub(r'/pods/[^/]+', '/pods/{name}', request.path)}"] += 1
        if request.path == "/.well-known/openid-configuration":
            return web.json_response({"issuer": ISSUER})
        if request.path == "/openid/v1/jwks":
            return web.json_response(self._keys)
        if request.path.endswith("/tokenreviews"):
            return await self._review(request)
        if request.method == "PATCH":
            operations = json.loads(await request.text())
            metadata = {"uid": operations[0]["value"], "annotations": {_CLAIM: operations[2]["value"]}}
            return web.json_response({"metadata": metadata})
        return web.json_response(
            {"message": f"this server does not simulate {request.method} {request.path}"}, status=404
        )

    async def _review(self, request: web.Request) -> web.Response:
        spec = (await request.json())["spec"]
        uid = jwt.decode(spec["token"], options={"verify_signature": False})["kubernetes.io"]["pod"]["uid"]
        status = {"authenticated": True, "audiences": spec["audiences"], "user": {"extra": {_POD_UID: [uid]}}}
        return web.json_response({"status": status}, status=201)


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load.upstream", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--public-key", type=Path, required=True)
    arguments = parser.parse_args()
    web.run_app(
        Upstream(arguments.public_key.read_bytes()).app(),
        host="127.0.0.1",
        port=arguments.port,
        print=None,
        access_log=None,
    )


if __name__ == "__main__":
    main()
