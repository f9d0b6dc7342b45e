"""ServiceAccount tokens, and the user behind a bearer token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from jwt.algorithms import RSAAlgorithm

from lab.apiserver.creation import timestamp
from lab.apiserver.kinds import NODE, POD, SERVICE_ACCOUNT, TOKEN_REQUEST, Json
from lab.apiserver.objects import Objects
from lab.apiserver.refusals import Refused, bad_request, bad_value, conflict, invalid
from lab.apiserver.store import Stored

ISSUER = "https://kubernetes.default.svc"
_SHORTEST = 600
_USUAL = 3600
_LEEWAY = 60
"""Seconds for which a Pod's token stays valid after the Pod's deletion timestamp."""
_EXTRA = "authentication.kubernetes.io/"


class BadToken(Exception):
    """The token is not valid. The text gives the reason in the real server's words."""


@dataclass(frozen=True, kw_only=True)
class User:
    """The user who sends a request."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, list[str]] = field(default_factory=dict)
    audiences: tuple[str, ...] = (ISSUER,)

    def body(self) -> Json:
        """Return the user in the form of a review."""
        said: Json = {"username": self.name, "uid": self.uid, "groups": [*self.groups, "system:authenticated"]}
        return said | ({"extra": self.extra} if self.extra else {})


class Tokens:
    """Issues and verifies tokens."""

    def __init__(self, *, objects: Objects, folder: Path) -> None:
        """Read `service-accounts.key` and `tokens.csv` from a folder."""
        self._objects = objects
        key = serialization.load_pem_private_key((folder / "service-accounts.key").read_bytes(), password=None)
        if not isinstance(key, RSAPrivateKey):
            raise TypeError(f"{folder / 'service-accounts.key'} must be an RSA key")
        self._key = key
        self._public = key.public_key()
        public = self._public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        self._key_id = base64.urlsafe_b64encode(hashlib.sha256(public).digest()).rstrip(b"=").decode()
        self._static = _read_static(folder / "tokens.csv")

    def keys(self) -> Json:
        """Return the public keys as a JSON Web Key Set."""
        numbers = json.loads(RSAAlgorithm.to_jwk(self._public))
        key = {"use": "sig", "kty": "RSA", "kid": self._key_id, "alg": "RS256", "n": numbers["n"], "e": numbers["e"]}
        return {"keys": [key]}

    def request(self, namespace: str, account: str, body: Json) -> Json:
        """Return the answered TokenRequest for a ServiceAccount. Raises `Refused`."""
        spec: Json = body.get("spec") or {}
        owner = self._objects.get(SERVICE_ACCOUNT, namespace, account)
        seconds = spec.get("expirationSeconds") or _USUAL
        if seconds < _SHORTEST:
            why = "may not specify a duration less than 10 minutes"
            raise invalid(TOKEN_REQUEST, "", [bad_value("spec.expirationSeconds", seconds, why)])
        audiences = spec.get("audiences") or [ISSUER]
        bound = spec.get("boundObjectRef")
        now = int(time.time())
        claims: Json = {
            "aud": audiences,
            "exp": now + seconds,
            "iat": now,
            "iss": ISSUER,
            "jti": str(uuid.uuid4()),
            "kubernetes.io": {
                "namespace": namespace,
                **(self._bound(namespace, account, bound) if bound else {}),
                "serviceaccount": {"name": account, "uid": owner.uid},
            },
            "nbf": now,
            "sub": f"system:serviceaccount:{namespace}:{account}",
        }
        return {
            "kind": TOKEN_REQUEST.name,
            "apiVersion": TOKEN_REQUEST.api_version,
            "metadata": {"name": account, "namespace": namespace, "uid": owner.uid, "creationTimestamp": timestamp()},
            "spec": {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": bound},
            "status": {
                "token": jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": self._key_id, "typ": None}),
                "expirationTimestamp": timestamp(ahead=seconds),
            },
        }

    def review(self, body: Json) -> Json:
        """Return the answered TokenReview. Raises `Refused` if it contains no token."""
        spec: Json = body.get("spec") or {}
        if not spec.get("token"):
            raise bad_request("token is required for TokenReview in authentication")
        status: Json
        try:
            user = self.user_of(spec["token"], audiences=spec.get("audiences") or [ISSUER])
        except BadToken as error:
            status = {"user": {}, "error": str(error)}
        else:
            status = {"authenticated": True, "user": user.body(), "audiences": list(user.audiences)}
        head = {"kind": "TokenReview", "apiVersion": TOKEN_REQUEST.api_version, "metadata": {}}
        return head | {"spec": spec, "status": status}

    def user_of(self, token: str, *, audiences: list[str]) -> User:
        """Return the user of a token that is valid for one of the audiences. Raises `BadToken`."""
        for known, user in self._static.items():
            if hmac.compare_digest(known.encode(), token.encode("utf-8", "surrogatepass")):
                return user
        try:
            claims: Json = jwt.decode(
                token, self._public, algorithms=["RS256"], issuer=ISSUER, options={"verify_aud": False}
            )
        except jwt.InvalidSignatureError:
            raise _bad("go-jose/go-jose: error in cryptographic primitive") from None
        except jwt.ExpiredSignatureError:
            raise _bad("service account token has expired") from None
        except jwt.PyJWTError:
            raise BadToken("invalid bearer token") from None
        meant = tuple(each for each in audiences if each in claims["aud"])
        if not meant:
            listed, wanted = (json.dumps(each).replace(", ", " ") for each in (claims["aud"], audiences))
            raise _bad(f"token audiences {listed} is invalid for the target audiences {wanted}")
        return self._living(claims, meant)

    def _living(self, claims: Json, audiences: tuple[str, ...]) -> User:
        """Return the user of verified claims.

        Raises `BadToken` if the ServiceAccount or the Pod of the claims is gone.
        """
        bound: Json = claims["kubernetes.io"]
        namespace, account = bound["namespace"], bound["serviceaccount"]
        try:
            owner = self._objects.get(SERVICE_ACCOUNT, namespace, account["name"])
        except Refused as error:
            raise _bad(str(error)) from None
        if owner.uid != account["uid"]:
            raise _bad(f"service account UID ({owner.uid}) does not match claim ({account['uid']})")
        extra = {f"{_EXTRA}credential-id": [f"JTI={claims['jti']}"]}
        if "pod" in bound:
            self._check_pod(namespace, bound["pod"])
        for each in ("node", "pod"):
            for key in ("name", "uid"):
                if key in bound.get(each, {}):
                    extra[f"{_EXTRA}{each}-{key}"] = [bound[each][key]]
        return User(
            name=claims["sub"],
            uid=owner.uid,
            groups=("system:serviceaccounts", f"system:serviceaccounts:{namespace}"),
            extra=extra,
            audiences=audiences,
        )

    def _check_pod(self, namespace: str, claimed: Json) -> None:
        pod = self._objects.store.get(POD, namespace, claimed["name"])
        if pod is None or (pod.terminating and pod.metadata["deletionTimestamp"] < timestamp(ahead=-_LEEWAY)):
            raise _bad("service account token has been invalidated")
        if pod.uid != claimed["uid"]:
            raise _bad(f"pod UID ({pod.uid}) does not match service account pod ref claim ({claimed['uid']})")

    def _bound(self, namespace: str, account: str, reference: Json) -> Json:
        """Return the claims about the Pod that `reference` binds a token to, and about the Pod's node.

        Raises `Refused`.
        """
        if reference.get("kind") != POD.name:
            raise bad_request(f"cannot bind token to a {reference.get('kind')}")
        pod: Stored = self._objects.get(POD, namespace, reference.get("name", ""))
        name = pod.metadata["name"]
        if reference.get("uid", pod.uid) != pod.uid:
            why = (
                f"the UID in the bound object reference ({reference['uid']}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
            raise conflict(POD.name, {"name": name, "kind": POD.name}, name, why)
        spec: Json = pod.content["spec"]
        if spec["serviceAccountName"] != account:
            what = f'cannot bind token for serviceaccount "{account}"'
            raise bad_request(f"{what} to pod running with different serviceaccount name.")
        claims: dict[str, Any] = {}
        if node := spec.get("nodeName"):
            known = self._objects.store.get(NODE, "", node)
            claims["node"] = {"name": node} | ({"uid": known.uid} if known is not None else {})
        return claims | {"pod": {"name": name, "uid": pod.uid}}


def _bad(why: str) -> BadToken:
    return BadToken(f"[invalid bearer token, {why}]")


def _read_static(path: Path) -> dict[str, User]:
    """Return the users of a token file, whose lines have the form token, name, uid, group."""
    users = {}
    for line in path.read_text().splitlines():
        token, name, uid, group = line.split(",")
        users[token] = User(name=name, uid=uid, groups=(group,))
    return users
