"""Deploy rule of poll addresses: web must still serve the address that idle Pods poll, with a CA that they trust.

Until an idle Pod is replaced, it polls the address that it was created with. The check sends no poll. It reads
`OSTLER_DISPATCH_URL` of the deployed processes, the Service with the name in the address, the port of web, and the
settings that enable polls on this port. If the deployed objects do not show that web serves an address, the address is
not checked. For example, an address might belong to an Ingress or a load balancer.

The names of the CAs are in annotations that the chart writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from deploys.deploys import Danger, Refusal
from deploys.manifests import Manifests

_ADDRESS = "OSTLER_DISPATCH_URL"
_PUBLIC, _POLLS, _BOTH = "OSTLER_WEB_PORT", "OSTLER_WEB_POLLS_PORT", "OSTLER_WEB_PUBLIC_POLLS"
_TLS, _CERTIFICATE, _PLAIN = "OSTLER_WEB_POLLS_TLS_PORT", "OSTLER_WEB_POLLS_TLS_CERT", "OSTLER_WEB_PLAIN_POLLS"
_SIGNER, _TRUSTS = "ostler.dev/signer", "ostler.dev/trusts"
_NO = frozenset({"false", "0", "no", "off", "f", "n"})


def judge_polls(before: Manifests | None, after: Manifests) -> Iterable[Refusal]:
    """Yield a refusal for each address that idle Pods poll and that the new manifests no longer serve.

    Also yield a refusal for each CA that signs web's new certificate although idle Pods do not trust the CA. If the
    deployed objects name no trusted CA, the CAs are not checked.
    """
    if before is None:
        return
    for address in sorted(_addresses(before)):
        if _is_served(before, address) and not _is_served(after, address):
            yield Refusal(
                Danger.IDLE_STRANDS,
                (),
                (
                    f"Idle Pods poll {address}, but web serves no polls there after the deploy. These Pods get no job "
                    "until they are replaced."
                ),
                (
                    "Deploy the new address, and continue to serve the old address (web.publicPolls and web.tls of the "
                    "chart). Remove the old address in a later deploy, when no Pod polls it any more."
                ),
            )
    trusted = _said(before, _TRUSTS)
    for signer in sorted(_said(after, _SIGNER) - trusted) if trusted else ():
        yield Refusal(
            Danger.IDLE_STRANDS,
            (),
            f"CA {signer} signs the new certificate of web, and idle Pods trust only {', '.join(sorted(trusted))}.",
            (
                f"Add {signer} to web.tls.ownCA.trusted of the chart, and deploy this change. Sign the certificate "
                "with the new CA only in a later deploy."
            ),
        )


def _addresses(manifests: Manifests) -> set[str]:
    return {
        value
        for each in manifests.objects.values()
        for container in _containers(each.body)
        if (value := _environment(container).get(_ADDRESS))
    }


def _said(manifests: Manifests, annotation: str) -> set[str]:
    """Return the names of CAs in an annotation of ConfigMaps and Secrets. The annotation separates names by commas."""
    found: set[str] = set()
    for each in manifests.objects.values():
        if each.body.get("kind") in {"ConfigMap", "Secret"}:
            annotations = (each.body.get("metadata") or {}).get("annotations") or {}
            found |= set(filter(None, str(annotations.get(annotation, "")).split(",")))
    return found


def _is_served(manifests: Manifests, address: str) -> bool:
    url = urlsplit(address)
    name, _, rest = (url.hostname or "").partition(".")
    namespace = rest.partition(".")[0]
    wanted = url.port or (443 if url.scheme == "https" else 80)
    service = manifests.objects.get(("Service.", namespace, name))
    if service is None:
        return False
    spec = service.body.get("spec") or {}
    targets = [each.get("targetPort", wanted) for each in spec.get("ports") or () if each.get("port") == wanted]
    return any(
        _serves_polls(container, target, by_tls=url.scheme == "https")
        for each in manifests.objects.values()
        if each.key[1] == namespace and _selects(spec.get("selector") or {}, each.body)
        for container in _containers(each.body)
        for target in targets
    )


def _serves_polls(container: Mapping[str, Any], target: Any, *, by_tls: bool) -> bool:
    named = {each.get("name"): each.get("containerPort") for each in container.get("ports") or ()}
    port = str(named.get(target) or target)
    settings = _environment(container)
    if by_tls:
        return port == settings.get(_TLS) and bool(settings.get(_CERTIFICATE))
    if port == settings.get(_PUBLIC):
        # A version of Ostler without a separate port for polls serves polls on the public port.
        return _POLLS not in settings or settings.get(_BOTH, "true").lower() not in _NO
    return port == settings.get(_POLLS) and settings.get(_PLAIN, "true").lower() not in _NO


def _selects(selector: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    labels = ((_template(body).get("metadata") or {}).get("labels")) or {}
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


def _containers(body: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (_template(body).get("spec") or {}).get("containers") or ()


def _template(body: Mapping[str, Any]) -> Mapping[str, Any]:
    found = (body.get("spec") or {}).get("template") if body.get("kind") in {"Deployment", "StatefulSet"} else None
    return found if isinstance(found, Mapping) else {}


def _environment(container: Mapping[str, Any]) -> dict[str, str]:
    return {each["name"]: str(each["value"]) for each in container.get("env") or () if "value" in each}
