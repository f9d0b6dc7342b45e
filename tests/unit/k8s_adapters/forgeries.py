"""A generator of tokens that must be refused, from two valid tokens and a seed."""

from __future__ import annotations

import base64
import hmac
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

ISSUER = "https://cluster.example"
AUDIENCE = "ostler-dispatch"
NOW = 1_800_000_000
RSA_KID, EC_KID = "rsa-1", "ec-1"

Json = dict[str, Any]


def claims(pod: str = "small-0000000a", **changes: Any) -> Json:
    """Return the claims of a Pod's projected token. A change to None removes a claim."""
    found = {
        "iss": ISSUER,
        "aud": [AUDIENCE],
        "exp": NOW + 3600,
        "iat": NOW,
        "nbf": NOW,
        "sub": f"system:serviceaccount:runners:{pod}",
        "kubernetes.io": {
            "namespace": "runners",
            "serviceaccount": {"name": pod, "uid": "s"},
            "pod": {"name": pod, "uid": f"uid-of-{pod}"},
        },
        **changes,
    }
    return {name: value for name, value in found.items() if value is not None}


def encoded(content: object) -> str:
    """Return bytes, or anything else as JSON, in base64url without padding."""
    raw = content if isinstance(content, bytes) else json.dumps(content, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """The signing keys of a cluster, and the key of a stranger."""

    first: rsa.RSAPrivateKey
    second: ec.EllipticCurvePrivateKey
    stranger: rsa.RSAPrivateKey

    @classmethod
    def make(cls) -> ClusterKeys:
        """Generate new keys."""
        return cls(
            rsa.generate_private_key(public_exponent=65537, key_size=2048),
            ec.generate_private_key(ec.SECP256R1()),
            rsa.generate_private_key(public_exponent=65537, key_size=2048),
        )

    def published(self) -> Json:
        """Return the key set as the API server publishes it."""
        return {
            "keys": [
                RSAAlgorithm.to_jwk(self.first.public_key(), as_dict=True) | {"kid": RSA_KID, "alg": "RS256"},
                ECAlgorithm.to_jwk(self.second.public_key(), as_dict=True) | {"kid": EC_KID, "alg": "ES256"},
            ]
        }

    def sign(self, content: Json, *, headers: Json | None = None) -> str:
        """Return a token that the cluster's first key signed."""
        return jwt.encode(content, self.first, algorithm="RS256", headers={"kid": RSA_KID, **(headers or {})})

    def sign_quickly(self, content: Json, *, headers: Json | None = None) -> str:
        """Return a token that the cluster's second key signed, for a twentieth of the CPU."""
        text = json.dumps(content).encode()  # PyJWT would not sign claims of a wrong type
        return jwt.PyJWS().encode(text, self.second, algorithm="ES256", headers={"kid": EC_KID, **(headers or {})})


class Forger:
    """A generator of all kinds of invalid tokens in turn. One seed and key set gives the same kinds in one order."""

    def __init__(self, keys: ClusterKeys, *, seed: int) -> None:
        self.dice = random.Random(seed)  # noqa: S311
        self.keys = keys
        self.good = [keys.sign(claims()), keys.sign(claims("small-0000000b"))]
        self.public = self._forms_of_the_public_key()
        self.kinds: list[Callable[[], str]] = [
            self.flipped,
            self.cut,
            self.edited,
            self.other_algorithm,
            self.keyed_with_the_public_key,
            self.changed_claims,
            self.signed_by_a_stranger,
            self.other_key_id,
            self.deep_or_huge,
            self.doubled_members,
            self.signed_but_not_for_us,
            self.differently_written,
            self.spliced,
            self.special_headers,
        ]

    def tokens(self, count: int) -> Iterator[tuple[str, str]]:
        """Yield `count` pairs of a kind's name and a token that is not one of the valid tokens."""
        made = 0
        while made < count:
            kind = self.kinds[made % len(self.kinds)]
            token = kind()
            if token not in self.good:
                made += 1
                yield kind.__name__, token

    def flipped(self) -> str:
        """Flip one to four bits."""
        raw = bytearray(self._any().encode())
        for _ in range(self.dice.randint(1, 4)):
            raw[self.dice.randrange(len(raw))] ^= 1 << self.dice.randrange(8)
        return raw.decode("latin-1")

    def cut(self) -> str:
        """Remove some characters at either end."""
        token = self._any()
        at = self.dice.randrange(len(token))
        return self.dice.choice((token[:at], token[at + 1 :], token[:at] + token[at + 1 :]))

    def edited(self) -> str:
        """Repeat, insert or exchange characters."""
        token = self._any()
        one, other = sorted(self.dice.sample(range(len(token)), 2))
        return self.dice.choice(
            (
                token[:one] + token[one:other] * 2 + token[other:],
                token[:one] + self.dice.choice("AZaz09-_.=\n ,;{é\0") + token[one:],
                token[:one] + token[other] + token[one + 1 : other] + token[one] + token[other + 1 :],
            )
        )

    def other_algorithm(self) -> str:
        """Name another algorithm, with the old signature, without one, or with noise."""
        header, body, signature = self._parts()
        names: list[Any] = [
            "none",
            "None",
            "NONE",
            "nOnE",
            "",
            None,
            0,
            [],
            {},
            "HS256",
            "HS384",
            "HS512",
            "RS384",
            "RS512",
        ]
        names += ["PS256", "PS512", "ES256", "ES384", "ES256K", "EdDSA", "RSA-OAEP", "rs256", "RS256 ", ["RS256"]]
        header["alg"] = self.dice.choice(names)
        return f"{encoded(header)}.{body}.{self.dice.choice((signature, '', 'AAAA', self._noise()))}"

    def keyed_with_the_public_key(self) -> str:
        """Sign with the text of the public key as an HMAC secret."""
        header, _, _ = self._parts()
        digest = self.dice.choice(("256", "384", "512"))
        header["alg"] = f"HS{digest}"
        content = f"{encoded(header)}.{encoded(self._tempting())}"
        return f"{content}.{encoded(hmac.digest(self.dice.choice(self.public), content.encode(), f'sha{digest}'))}"

    def changed_claims(self) -> str:
        """Change the claims and keep the signature."""
        header, _, signature = self._parts()
        return f"{encoded(header)}.{encoded(self._tempting())}.{self.dice.choice((signature, '', self._noise()))}"

    def signed_by_a_stranger(self) -> str:
        """Sign with an own key, which the header might contain."""
        header: Json = {"alg": "RS256", "typ": "JWT", "kid": self.dice.choice((RSA_KID, EC_KID))}
        jwk = RSAAlgorithm.to_jwk(self.keys.stranger.public_key(), as_dict=True)
        header |= self.dice.choice(
            (
                {},
                {"jwk": jwk},
                {"jku": "https://evil.example/jwks"},
                {"x5u": "https://evil.example/x5"},
                {"x5c": ["AA=="]},
            )
        )
        # The signature is that of other claims most of the time: signing each would take minutes.
        return f"{encoded(header)}.{encoded(self._tempting())}.{self._strangers_signature()}"

    def other_key_id(self) -> str:
        """Name another key, or something that is no key."""
        header, body, signature = self._parts()
        ids: list[Any] = [EC_KID, "unknown", "", None, 0, True, [], [RSA_KID], {"kid": RSA_KID}, "../../dev/null", "\0"]
        ids += ["' OR 1=1 --", RSA_KID + " ", RSA_KID.upper(), "k" * 4000, "https://evil.example", "é"]
        header["kid"] = self.dice.choice(ids)
        if self.dice.random() < 0.1:
            del header["kid"]
        return f"{encoded(header)}.{body}.{signature}"

    def deep_or_huge(self) -> str:
        """Nest or fill header or claims, beyond the limit in some tokens."""
        _, body, signature = self._parts()
        depth = self.dice.choice((10, 500, 2000, 5000, 20_000))
        piece = self.dice.choice(
            (
                b"[" * depth,
                b"[" * (depth // 2) + b"]" * (depth // 2),
                b'{"a":' * (depth // 5) + b"1" + b"}" * (depth // 5),
                b'{"alg":"RS256","kid":"rsa-1","x":' + b"9" * depth + b"}",
                b'{"alg":"RS256","kid":"rsa-1","x":"' + b"x" * depth + b'"}',
            )
        )
        if self.dice.random() < 0.5:
            return f"{encoded(piece)}.{body}.{signature}"
        return f"{encoded({'alg': 'RS256', 'kid': RSA_KID})}.{encoded(piece)}.{signature}"

    def doubled_members(self) -> str:
        """Repeat a member of the JSON with another value."""
        header, body, signature = self._parts()
        text = json.dumps(header)[1:]
        first = self.dice.choice(('{"alg":"none",', '{"kid":"unknown",', '{"alg":"HS256",', '{"alg":"RS256",'))
        double = self.dice.choice((first + text, "{" + text[:-1] + "," + first[1:-1] + "}"))
        if self.dice.random() < 0.5:
            return f"{encoded(double.encode())}.{body}.{self.dice.choice((signature, ''))}"
        content = json.dumps(claims())
        content = '{"exp":1,' + content[1:-1] + f',"exp":{NOW + 9999}' + "}"
        return f"{encoded(header)}.{encoded(content.encode())}.{signature}"

    def signed_but_not_for_us(self) -> str:
        """Let the cluster sign a token that is not for us: another issuer, audience or time, or no Pod."""
        later, earlier = NOW + self.dice.randint(2, 10**6), NOW - self.dice.randint(0, 10**6)
        bound = claims()["kubernetes.io"]
        bad: list[Json] = [
            {"iss": self.dice.choice(["https://elsewhere.example", ISSUER + "/", ISSUER.upper(), [ISSUER], 1, None])},
            {"aud": self.dice.choice(["https://kubernetes.default.svc", [], [AUDIENCE + " "], [None], 7, {}, None])},
            {"exp": self.dice.choice([earlier, NOW, 0, -1, "2999", True, [], {}, None])},
            {"nbf": self.dice.choice([later, str(NOW), [], {}, True])},
            {"exp": 1e300},
            {"kubernetes.io": self.dice.choice([None, "runners", [], 7, {}, {**bound, "pod": None}])},
            {"kubernetes.io": {**bound, self.dice.choice(list(bound)): self.dice.choice([7, {}, [], ""])}},
            {"kubernetes.io": {**bound, "pod": {"name": self.dice.choice(["", 7, None]), "uid": "u"}}},
            {"kubernetes.io": {**bound, "pod": {"name": "n", "uid": self.dice.choice(["", 7, None])}}},
        ]
        return self.keys.sign_quickly(claims(**self.dice.choice(bad)))

    def differently_written(self) -> str:
        """Encode a valid token in another way that a careless decoder reads as the same."""
        token = self._any()
        head, _, signature = token.rpartition(".")
        last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        spare = signature[:-1] + last[last.index(signature[-1]) ^ self.dice.randint(1, 15)]
        at = self.dice.randrange(len(signature))
        junk = self.dice.choice("!@#$%^&*()\n\r\t =,:é")
        return self.dice.choice(
            (
                f"{head}.{spare}",
                f"{head}.{signature[:at]}{junk}{signature[at:]}",
                f"{token}{'=' * self.dice.randint(1, 4)}",
                f"{self.dice.choice((' ', chr(10), chr(0), chr(0xFEFF)))}{token}",
                f"{token}{self.dice.choice((' ', chr(10), '.', '.AAAA', '..'))}",
                token.replace(".", self.dice.choice(("..", ". ", ",", "%2E"))),
                token.replace("-", "+").replace("_", "/") + "=",
            )
        )

    def spliced(self) -> str:
        """Combine parts of several tokens."""
        pieces = [part for token in self.good for part in token.split(".")]
        return ".".join(self.dice.choice(pieces) for _ in range(self.dice.choice((2, 3, 3, 3, 4, 5))))

    def special_headers(self) -> str:
        """Use features that the format allows and no client needs."""
        header, body, signature = self._parts()
        header |= self.dice.choice(
            (
                {"b64": False, "crit": ["b64"]},
                {"crit": ["exp"]},
                {"crit": []},
                {"zip": "DEF"},
                {"enc": "A256GCM", "alg": "dir"},
                {"cty": "JWT"},
                {"typ": self.dice.choice(["JWE", 7, None, {}])},
            )
        )
        return f"{encoded(header)}.{self.dice.choice((body, ''))}.{signature}"

    def _any(self) -> str:
        return self.dice.choice(self.good)

    def _parts(self) -> tuple[Json, str, str]:
        header, body, signature = self._any().split(".")
        return json.loads(base64.urlsafe_b64decode(header + "==")), body, signature

    def _tempting(self) -> Json:
        pod = f"small-{self.dice.randrange(2**32):08x}"
        return self.dice.choice(
            (
                claims(pod),
                claims(exp=NOW + 10**8),
                claims(aud=[AUDIENCE, "all"]),
                claims(extra=pod),
                {},
                {"exp": NOW + 1},
            )
        )

    def _noise(self) -> str:
        return encoded(self.dice.randbytes(self.dice.choice((1, 32, 64, 256))))

    def _strangers_signature(self) -> str:
        if self.dice.random() < 0.05:
            return jwt.encode(self._tempting(), self.keys.stranger, algorithm="RS256").rpartition(".")[2]
        return encoded(self.dice.randbytes(256))

    def _forms_of_the_public_key(self) -> list[bytes]:
        public = self.keys.first.public_key()
        forms = [
            public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
            public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
            public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.PKCS1),
            json.dumps(self.keys.published()["keys"][0]).encode(),
            self.keys.published()["keys"][0]["n"].encode(),
            public.public_numbers().n.to_bytes(256, "big"),
            RSA_KID.encode(),
            b"\0",
        ]
        return [*forms, *(form.strip() for form in forms[:1])]
