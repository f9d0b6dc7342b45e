"""The OpenID provider of people: what Ostler asks it, and which ID tokens Ostler accepts.

Source: OpenID Connect Core 1.0, "Authentication using the Authorization Code Flow" and "ID Token Validation"; RFC 7636
for PKCE. Proxies and private certificate authorities are those of `ostler.egress`. Every call runs in the thread of the
caller.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote_plus, urlencode

import jwt
import orjson
import urllib3

from github_adapters.calls.http import connections
from ostler import egress
from ostler.errors import ConfigurationError, OstlerError
from ostler.reasons import reason_and_cure
from ostler.secrets import Secret
from ostler.settings import Settings

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a private key of the provider. `none`, and signatures with a shared secret, are never accepted."""
CALL_TIMEOUT = 3.0
"""Seconds for one call. A login makes up to four, so it ends before the process that has to stop."""
MOST_BYTES = 2**20
MOST_KEYS = 32
PIECE = 2**16
REREAD_AFTER = 300.0
"""Seconds after which the provider's configuration and keys are read again. New keys are read at once."""
REREAD_KEYS_AFTER = 10.0
"""Least time between two reads of the keys, in seconds. A token with an unknown key causes a read."""
LEEWAY = 60.0
"""Largest difference between the clocks of the provider and of this machine, in seconds."""


class ProviderFailed(OstlerError):
    """The provider did not answer, or its answer cannot be used. The message names the cause for an operator."""


class NotAccepted(OstlerError):
    """The provider or Ostler refuses this login. The message names the cause for the person."""


@dataclass(frozen=True, slots=True)
class Person:
    """A person who has logged in at the provider. `subject` is unique among all providers, and `name` may change."""

    subject: str
    name: str
    groups: frozenset[str]


class Provider:
    """An OpenID provider. Threads may share it. Raises `ConfigurationError` if the proxy's settings cannot be used."""

    def __init__(self, settings: Settings, *, environment: Mapping[str, str] = os.environ) -> None:
        if settings.oidc_issuer is None or settings.oidc_client_id is None or settings.oidc_redirect_url is None:
            raise ConfigurationError("OSTLER_OIDC_ISSUER: must be set for a login through an OpenID provider")
        self._issuer = settings.oidc_issuer
        self._client_id = settings.oidc_client_id
        self._client_secret = settings.oidc_client_secret
        self._redirect_url = settings.oidc_redirect_url
        self._claim = settings.oidc_groups_claim
        self._scopes = settings.oidc_scopes
        self._pool = connections(egress.proxy_for(self._issuer, environment), environment)
        self._lock = threading.Lock()
        self._configuration: tuple[float, Mapping[str, Any]] | None = None
        self._keys: tuple[float, Sequence[Mapping[str, Any]]] | None = None

    def login_url(self, *, state: str, nonce: str, verifier: Secret) -> str:
        """Return the address at the provider that begins a login. Raises `ProviderFailed`."""
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.reveal().encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._redirect_url,
            "scope": self._scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        address = self._endpoint("authorization_endpoint")
        return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"

    def person(self, *, code: Secret, nonce: str, verifier: Secret) -> Person:
        """Exchange the code of a login for the person's ID token, and return the person.

        Raises `ProviderFailed`, or `NotAccepted` if the code or the ID token is not valid.
        """
        form = {
            "grant_type": "authorization_code",
            "code": code.reveal(),
            "redirect_uri": self._redirect_url,
            "code_verifier": verifier.reveal(),
        }
        headers = {}
        if self._client_secret is None:
            form["client_id"] = self._client_id
        else:
            login = f"{quote_plus(self._client_id)}:{quote_plus(self._client_secret.reveal())}"
            headers = urllib3.make_headers(basic_auth=login)
        answer = self._call("POST", self._endpoint("token_endpoint"), form=form, headers=headers)
        if not isinstance(answer.get("id_token"), str):
            raise ProviderFailed("the provider's answer has no ID token; the client must have the scope `openid`")
        return self._person(answer["id_token"], nonce)

    def _person(self, token: str, nonce: str) -> Person:
        claims = self._verified(token)
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise NotAccepted("the ID token belongs to another login; log in again")
        if claims.get("azp", self._client_id) != self._client_id:
            raise NotAccepted("the ID token was issued for another client")
        groups = claims.get(self._claim)
        if isinstance(groups, str):
            groups = [groups]
        if not isinstance(groups, list):
            raise NotAccepted(
                f"the ID token has no claim `{self._claim}` with your groups; an operator can add the claim at the "
                "provider, or name another claim in OSTLER_OIDC_GROUPS_CLAIM"
            )
        name = next(
            (claims[each] for each in ("preferred_username", "email", "name") if claims.get(each)), claims["sub"]
        )
        return Person(f"{self._issuer} {claims['sub']}", str(name), frozenset(str(each) for each in groups))

    def _verified(self, token: str) -> Mapping[str, Any]:
        """Return the claims of a token that one of the provider's keys has signed, for this client, at this time.

        If no key of the last read has signed the token, the keys are read once more. Raises `NotAccepted`.
        """
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise NotAccepted(f"the ID token of the provider is not valid: {error}") from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise NotAccepted("the ID token is not signed with a private key of the provider")
        for again in (False, True):
            for each in self._read_keys(again=again):
                if key_id is not None and each.get("kid") != key_id:
                    continue
                with suppress(jwt.InvalidSignatureError, jwt.PyJWKError, jwt.InvalidKeyError):
                    return self._claims(token, jwt.PyJWK(dict(each), algorithm=algorithm), algorithm)
        raise NotAccepted("the ID token is signed with a key that the provider does not publish")

    def _claims(self, token: str, key: jwt.PyJWK, algorithm: str) -> Mapping[str, Any]:
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._client_id,
                issuer=self._issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except (jwt.InvalidSignatureError, jwt.InvalidKeyError):
            raise
        except jwt.PyJWTError as error:
            raise NotAccepted(f"the ID token of the provider is not valid: {error}") from None
        return claims

    def _read_keys(self, *, again: bool) -> Sequence[Mapping[str, Any]]:
        """Return the provider's keys for signatures, as JWKs."""
        with self._lock:
            read = self._keys
        now = time.monotonic()
        if read is not None and now - read[0] < (REREAD_KEYS_AFTER if again else REREAD_AFTER):
            return read[1]
        answer = self._call("GET", self._endpoint("jwks_uri")).get("keys")
        keys = [each for each in answer if isinstance(each, dict)] if isinstance(answer, list) else []
        keys = [each for each in keys if each.get("use") in {None, "sig"} and each.get("kty") != "oct"][:MOST_KEYS]
        if not keys:
            raise ProviderFailed("the provider publishes no key for signatures")
        with self._lock:
            self._keys = (now, keys)
        return keys

    def _endpoint(self, name: str) -> str:
        """Return an address from the provider's configuration."""
        with self._lock:
            read = self._configuration
        now = time.monotonic()
        if read is None or now - read[0] >= REREAD_AFTER:
            found = self._call("GET", f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
            if found.get("issuer") != self._issuer:
                raise ProviderFailed(
                    f"OSTLER_OIDC_ISSUER is {self._issuer!r}, but the provider calls itself {found.get('issuer')!r}; "
                    "write the provider's own name into the setting"
                )
            read = (now, found)
            with self._lock:
                self._configuration = read
        address = read[1].get(name)
        # A provider with TLS must not send people, or the client's secret, to an address without it.
        if not isinstance(address, str) or not address.startswith(("https://", f"{self._issuer.split(':')[0]}://")):
            raise ProviderFailed(f"the provider's configuration has no usable {name}")
        return address

    def _call(
        self,
        method: str,
        url: str,
        *,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        """Return the JSON object of an answer. Raises `ProviderFailed`, or `NotAccepted` if a code is refused."""
        kind = {} if form is None else {"Content-Type": "application/x-www-form-urlencoded"}
        try:
            response = self._pool.request(
                method,
                url,
                body=None if form is None else urlencode(form),
                headers={"Accept": "application/json", "User-Agent": "ostler", **(headers or {}), **kind},
                timeout=urllib3.Timeout(total=CALL_TIMEOUT),
                redirect=False,
                retries=False,
                preload_content=False,
            )
            try:
                body = _read(response, until=time.monotonic() + CALL_TIMEOUT)
            finally:
                response.close()
        except urllib3.exceptions.HTTPError as error:
            raise ProviderFailed(f"the OpenID provider did not answer: {reason_and_cure(error)}") from None
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = None
        if form is not None and response.status == HTTPStatus.BAD_REQUEST and isinstance(answer, dict):
            if answer.get("error") == "invalid_grant":
                raise NotAccepted("the provider does not accept this login any more; log in again")
            raise ProviderFailed(f"the OpenID provider refused the login: {str(answer.get('error'))[:100]}")
        if form is not None and response.status == HTTPStatus.UNAUTHORIZED:
            raise ProviderFailed(
                "the OpenID provider does not accept Ostler as a client (401); check OSTLER_OIDC_CLIENT_ID and "
                "OSTLER_OIDC_CLIENT_SECRET"
            )
        if response.status != HTTPStatus.OK or not isinstance(answer, dict):
            raise ProviderFailed(f"the OpenID provider answered {response.status} without a usable JSON object")
        return answer


def _read(response: urllib3.BaseHTTPResponse, *, until: float) -> bytes:
    """Return the body of an answer. Raises `ProviderFailed` if it is too large or too slow."""
    body = b""
    while piece := response.read1(PIECE, decode_content=True):
        body += piece
        if len(body) > MOST_BYTES or time.monotonic() > until:
            raise ProviderFailed(f"the answer of the OpenID provider has more than {MOST_BYTES} bytes, or is too slow")
    return body
