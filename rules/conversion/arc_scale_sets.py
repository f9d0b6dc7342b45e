"""Conversion of a runner scale set of actions-runner-controller into a pool.

A scale set is read from the values of its chart, or from the AutoscalingRunnerSet that the chart renders. The object
also has what the chart added for `containerMode`. No value of `githubConfigSecret` gets into the pool or a note (L13).

Source: the chart gha-runner-scale-set 0.9 to 0.15, and its custom resource definition
(`actions.github.com/v1alpha1`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from rules.conversion.arc_pods import (
    ADVICE,
    IMAGE,
    NO_COUNTERPART,
    POD_FIELDS,
    Converted,
    Json,
    NotConvertible,
    admit,
    advice,
    container_of,
    lay_template,
    note_absent,
    note_object,
)
from rules.pools.pod_security import PodSecurity

SCALE_SET = "AutoscalingRunnerSet"
VALUES = "values of gha-runner-scale-set"
_MARKS = frozenset({"githubConfigUrl", "githubConfigSecret", "runnerScaleSetName"})
_CREDENTIALS = ("github_app_id", "github_app_installation_id", "github_app_private_key", "github_token")
_READ = frozenset(
    {
        "annotations",
        "containerMode",
        "githubConfigUrl",
        "githubServerTLS",
        "labels",
        "maxRunners",
        "minRunners",
        "namespaceOverride",
        "proxy",
        "runnerGroup",
        "runnerScaleSetLabels",
        "runnerScaleSetName",
        "scaleSetLabels",
        "template",
    }
)
"""Fields that the code below converts."""

_NEEDLESS: Mapping[str, str] = {
    "controllerServiceAccount": "Ostler has its own workers",
    "listenerMetrics": "docs/metrics.md has the metrics of Ostler",
    "listenerTemplate": "Ostler has no Pods that listen for jobs",
    "resourceMeta": "these objects do not exist in Ostler",
}
_USER: Mapping[str, object] = {"fsGroup": 1001, "runAsGroup": 1001, "runAsUser": 1001}
"""User of GitHub's image, which Ostler sets itself."""
_POD_DEFAULTS: Mapping[str, object] = {"automountServiceAccountToken": False, "restartPolicy": "Never"}
"""Fields of a Pod that Ostler sets itself, with its value."""

_STOCK = "ghcr.io/actions/actions-runner"
_RUN = ["/home/runner/run.sh"]
_DIND = ("init-dind-externals", "dind")
_DIND_VOLUMES = ("work", "dind-sock", "dind-externals")
_DIND_ENV = ("DOCKER_HOST", "DOCKER_GROUP_GID", "RUNNER_WAIT_FOR_DOCKER_IN_SECONDS")
"""Containers, volumes and variables that the chart adds for `dind`. The mode of a pool replaces them."""
_HOOK_PROGRAM = "ACTIONS_RUNNER_CONTAINER_HOOKS"
_HOOK_TEMPLATE = "ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE"
_NEEDS_CONTAINER = "ACTIONS_RUNNER_REQUIRE_JOB_CONTAINER"
_WORK = ("work",)
_HOOKS_ENV = (_HOOK_PROGRAM, "ACTIONS_RUNNER_POD_NAME", "ACTIONS_RUNNER_IMAGE", "ACTIONS_RUNNER_USE_KUBE_SCHEDULER")
"""Volume and variables that the chart adds for `kubernetes`. The mode of a pool replaces them."""

_DAEMON = frozenset(
    {"args", "command", "env", "image", "name", "restartPolicy", "securityContext", "startupProbe", "volumeMounts"}
)
_DAEMON_ARGS = ["dockerd", "--host=unix:///var/run/docker.sock", "--group=$(DOCKER_GROUP_GID)"]
_TLS_VOLUME = "github-server-tls-cert"
_NO_LOGIN = "and jobs can read the environment of their runner; let the proxy identify runners by their addresses"
_WITHHELD = "WITHHELD"
_SHORTEST = 6
"""Minimum length of a credential. A shorter text, such as the number 1, is also part of other values."""


def is_values(item: Json) -> bool:
    """Return whether a document is the values of a scale set."""
    return item.get("kind") is None and not _MARKS.isdisjoint(item)


def convert_scale_set(item: Json) -> Converted:
    """Return the pool of a scale set, with its name as the first label, so that `runs-on: NAME` works unchanged.

    Raises `NotConvertible` if the scale set has no name, and AttributeError, KeyError, TypeError or ValueError if it
    does not have the structure of its kind.
    """
    read, secret = _fields(item)
    inline = list(map(str, secret.values())) if isinstance(secret, dict) else []
    given = _withhold(read, [text.strip() for text in inline if len(text.strip()) >= _SHORTEST])
    credentials = ", ".join(key for key in _CREDENTIALS if inline and secret.get(key)) or "/".join(_CREDENTIALS)
    made, metadata, label = _named(item, given)
    note_object(made, metadata)
    template: Json = given.get("template") or {}
    pod = _present(template.get("spec") or {})
    own = _present(container_of(pod))
    _image(made, own)
    made.spec["runnerLabels"] = list(
        dict.fromkeys((label, *map(str, given.get("scaleSetLabels") or given.get("runnerScaleSetLabels") or ())))
    )
    made.became(
        "runnerScaleSetName", f"runnerLabels; `runs-on: {label}` works unchanged. The pool is named {made.name}"
    )
    _group(made, given)
    _scope(made, str(given.get("githubConfigUrl") or ""), credentials)
    if given != read:
        made.asks("githubConfigSecret", f"one of its values also stands elsewhere; the pool has {_WITHHELD} there")
    _scaling(made, given)
    _mode(made, given, pod, own)
    _proxy(made, given.get("proxy") or {}, own)
    _certificate(made, given.get("githubServerTLS") or {}, pod, own)
    _user(made, pod, own)
    lay_template(made, pod, own, _present(template.get("metadata") or {}))
    note_absent(made, {"resources", "securityContext"} - set(pod) - set(own))
    _rest(made, given, pod)
    return made


def _fields(item: Json) -> tuple[Json, Any]:
    """Return the fields of a scale set without its credentials, and the credentials."""
    given = _present(item if is_values(item) else item["spec"])
    return given, given.pop("githubConfigSecret", None)


def _named(item: Json, given: Json) -> tuple[Converted, Json, str]:
    """Return a pool with its name, the metadata of the scale set, and the name of the scale set."""
    metadata: Json = item.get("metadata") or {}
    if is_values(item):
        names = {"labels": "labels", "annotations": "annotations", "namespaceOverride": "namespace"}
        metadata = {target: given[name] for name, target in names.items() if name in given}
    label = str(given.get("runnerScaleSetName") or metadata.get("name") or "")
    if not label:
        raise NotConvertible(
            "the values of a scale set have no runnerScaleSetName; write the name of their Helm release there"
        )
    name = str(metadata.get("name") or re.sub(r"[^a-z0-9-]+", "-", label.lower()).strip("-"))
    return Converted(VALUES if is_values(item) else SCALE_SET, name), metadata, label


def _user(made: Converted, *parts: Json) -> None:
    """Remove the security context of a Pod and of its runner if it only sets the user that Ostler sets itself."""
    for part in parts:
        if "securityContext" in part and part["securityContext"].items() <= _USER.items():
            del part["securityContext"]
            made.became("securityContext", f"nothing: Ostler sets the user {_USER['runAsUser']} itself")


def _rest(made: Converted, given: Json, pod: Json) -> None:
    """Note the fields that no other function converts."""
    for field in sorted(set(pod) - POD_FIELDS - {"containers"}):
        if pod[field] == _POD_DEFAULTS.get(field):
            made.became(field, "nothing: Ostler sets it itself")
        else:
            made.asks(field, advice(field, None))
    for field in sorted(set(given.get("template") or ()) - {"metadata", "spec"}):
        made.asks(f"template.{field}", NO_COUNTERPART)
    for field in sorted(set(given) - _READ):
        if field in _NEEDLESS:
            made.became(field, f"nothing: {_NEEDLESS[field]}")
        else:
            made.asks(field, advice(field, None))


def _present(given: Json) -> Json:
    """Return the fields of a map that are set. An empty value means the same as an absent field to the chart."""
    return {name: value for name, value in given.items() if value not in (None, "", [], {})}


def _withhold(value: Any, secrets: Collection[str]) -> Any:
    """Return a value of YAML with `WITHHELD` in place of each text that contains a credential."""
    if isinstance(value, dict):
        return {key: _withhold(each, secrets) for key, each in value.items()}
    if isinstance(value, list):
        return [_withhold(each, secrets) for each in value]
    return _WITHHELD if any(secret in str(value) for secret in secrets) else value


def _image(made: Converted, own: Json) -> None:
    image = str(own.pop("image", "") or f"{_STOCK}:latest")
    _, colon, version = image.rpartition("/")[2].partition(":")
    if "@" not in image and (not colon or version == "latest"):
        if image.partition(":")[0] == _STOCK:
            made.became("image", f"{IMAGE} instead of {image}; write the newest version (docs/operations/runners.md)")
            image = IMAGE
        else:
            made.asks("image", f"{image} names no version, and a new image of the same name replaces no Pod")
    else:
        made.became("image", f"image {image} (docs/operations/runner-images.md has what an image needs)")
    made.spec["image"] = image
    if own.pop("command", _RUN) == _RUN:
        made.became("command", "nothing: Ostler starts run.sh")
    else:
        made.asks("command", "Ostler starts run.sh itself; move other work into the image or a hook at the job's start")


def _group(made: Converted, given: Json) -> None:
    if group := given.get("runnerGroup"):
        if str(group).lower() == "default":
            made.became("runnerGroup", "nothing: a pool without runnerGroup is in the default group")
        else:
            made.spec["runnerGroup"] = str(group)
            made.became("runnerGroup", "runnerGroup")


def _scope(made: Converted, address: str, keys: str) -> None:
    """Restrict the pool to the repository of the URL, and note what becomes of the credentials."""
    url = urlsplit(address)
    host, path = url.netloc.rpartition("@")[2], [part for part in url.path.split("/") if part]
    kinds = {1: "organization", 2: "enterprise" if path[:1] == ["enterprises"] else "repository"}
    kind = kinds.get(len(path))
    if kind is None:
        made.asks("githubConfigUrl", "it names no organisation, repository or enterprise; check who may use the pool")
    elif kind == "enterprise":
        made.asks("githubConfigUrl", ADVICE["enterprise"])
    else:
        made.became("githubConfigUrl", f"the {kind} {'/'.join(path)}")
    admit(made, {} if kind is None else {kind: "/".join(path)})
    server = "" if host in {"", "github.com", "www.github.com"} else f" --github-url https://{host}"
    if server:
        made.asks("githubConfigUrl", f"the setting OSTLER_GITHUB_URL must be https://{host}")
    owner = path[0] if path and kind != "enterprise" else "YOUR-ORG"
    made.became(
        "githubConfigSecret",
        f"nothing: Ostler reads none of {keys}; all pools share one GitHub App, and `ostler setup github "
        f"--organization {owner}{server} --webhook-url https://YOUR-HOST/webhooks/github --namespace ostler` makes it "
        "and its Secret with OSTLER_GITHUB_APP_ID, OSTLER_GITHUB_PRIVATE_KEY and OSTLER_WEBHOOK_SECRETS. Revoke the "
        "old credentials after the move (docs/first-run.md)",
    )


def _scaling(made: Converted, given: Json) -> None:
    least = int(given.get("minRunners", 0))
    most = int(given.get("maxRunners", max(least, 10)))
    made.spec["autoscaling"] = {"enabled": True, "minWarm": least, "maxReplicas": most}
    made.became("minRunners", f"autoscaling.minWarm {least}: both count the runners without a job")
    if "maxRunners" in given:
        made.became("maxRunners", f"autoscaling.maxReplicas {most}")
    else:
        made.asks("maxRunners", f"absent, so the scale set has no limit; the pool has autoscaling.maxReplicas {most}")


def _mode(made: Converted, given: Json, pod: Json, own: Json) -> None:
    """Set the container mode, and remove the parts of the Pod that the chart adds for it.

    Without `containerMode`, these parts show the mode: of an object, or of values that spell the parts out.
    """
    mode: Json = given.get("containerMode") or {}
    found = {each["name"]: each for kind in ("initContainers", "containers") for each in pod.get(kind) or ()}
    hooks = any(each["name"] == _HOOK_PROGRAM for each in own.get("env") or ())
    kind = mode.get("type") or ("dind" if "dind" in found else "kubernetes" if hooks else None)
    if kind == "dind":
        _dind(made, pod, own, found.get("dind", {}))
    elif kind in {"kubernetes", "kubernetes-novolume"}:
        _kubernetes(made, pod, own)
    elif kind:
        made.asks("containerMode.type", "unknown; choose spec.containers.mode (docs/operations/docker-in-jobs.md)")
    for field in sorted(set(mode) - {"type"}):
        if field == "kubernetesModeWorkVolumeClaim":
            made.asks(f"containerMode.{field}", "no volume is shared; write its size into resources.ephemeralStorage")
        else:
            made.asks(f"containerMode.{field}", ADVICE["serviceAccountName"])


def _dind(made: Converted, pod: Json, own: Json, daemon: Json) -> None:
    made.spec |= {"containers": {"mode": "dind"}, "security": {"podSecurity": PodSecurity.PRIVILEGED.value}}
    made.asks(
        "containerMode.type",
        "containers.mode dind with podSecurity privileged, which the owner of the cluster must allow for the pool; "
        "containers.mode buildkit is sufficient to build images (docs/operations/docker-in-jobs.md)",
    )
    _daemon(made, daemon)
    for where, field, names in (
        (pod, "volumes", _DIND_VOLUMES),
        (own, "volumeMounts", _DIND_VOLUMES),
        (own, "env", _DIND_ENV),
        (pod, "initContainers", _DIND),
        (pod, "containers", _DIND),
    ):
        _drop(made, where, field, names)


def _kubernetes(made: Converted, pod: Json, own: Json) -> None:
    made.spec["containers"] = {"mode": "kubernetes"}
    made.asks(
        "containerMode.type",
        "containers.mode kubernetes, which the chart must allow (runners.containers.enabled); files are copied "
        "between Pods, and the work folder needs room on the node (docs/operations/container-jobs.md)",
    )
    for where, field, names in (
        (pod, "volumes", _WORK),
        (own, "volumeMounts", _WORK),
        (own, "env", _HOOKS_ENV),
    ):
        _drop(made, where, field, names)
    env = own.get("env", [])
    if any(each["name"] == _HOOK_TEMPLATE for each in env):
        made.asks(
            _HOOK_TEMPLATE,
            "the container hooks reads this file: move the variable and the mount there, below /etc/ostler-hooks "
            "(docs/operations/container-jobs.md)",
        )
    if all(each["name"] != _NEEDS_CONTAINER for each in env):
        own["env"] = [*env, {"name": _NEEDS_CONTAINER, "value": "true"}]
        made.became(_NEEDS_CONTAINER, "true, as in the chart: a job without a container fails")


def _daemon(made: Converted, daemon: Json) -> None:
    """Ask about fields of the Docker daemon that differ from those of the chart."""
    where = "containers[dind]"
    if daemon.get("args") not in (None, _DAEMON_ARGS):
        made.asks(f"{where}.args", "the daemon of Ostler has arguments of its own")
    if not str(daemon.get("image", "docker:dind")).startswith("docker:"):
        made.asks(f"{where}.image", "the image of the daemon is runners.dind.image of the chart")
    for each in daemon.get("env") or ():
        if each["name"] not in _DIND_ENV:
            made.asks(f"{where}.env[{each['name']}]", NO_COUNTERPART)
    for each in daemon.get("volumeMounts") or ():
        if each["name"] not in _DIND_VOLUMES:
            layers = each["mountPath"].startswith("/var/lib/docker")
            advice_of = "containers.cache sizes the volume of layers" if layers else NO_COUNTERPART
            made.asks(f"{where}.volumeMounts[{each['mountPath']}]", advice_of)
    for field in sorted(set(daemon) - _DAEMON):
        sizes = "containers.vcpu and containers.memoryMib are its size"
        made.asks(f"{where}.{field}", sizes if field == "resources" else NO_COUNTERPART)


def _drop(made: Converted, where: Json, field: str, names: Collection[str]) -> None:
    """Remove items of a list that the mode of the pool replaces."""
    old = where.pop(field, [])
    if kept := [each for each in old if each["name"] not in names]:
        where[field] = kept
    if dropped := sorted({each["name"] for each in old} & set(names)):
        made.became(field, f"nothing for {', '.join(dropped)}: containers.mode replaces them")


def _proxy(made: Converted, proxy: Json, own: Json) -> None:
    env = {each["name"]: each for each in own.get("env") or ()}
    values = {f"{kind}_proxy": (proxy.get(kind) or {}).get("url") for kind in ("http", "https")}
    values["no_proxy"] = ",".join(proxy.get("noProxy") or ())
    for name, value in values.items():
        if value and "@" in value:
            made.asks(f"proxy.{name.removesuffix('_proxy')}.url", f"it has a login, {_NO_LOGIN}")
        elif value:
            for each in (name, name.upper()):
                env.setdefault(each, {"name": each, "value": value})
    for kind in ("http", "https"):
        if (proxy.get(kind) or {}).get("credentialSecretRef"):
            made.asks(f"proxy.{kind}.credentialSecretRef", f"it is a login, {_NO_LOGIN}")
    for field in sorted(set(proxy) - {"http", "https", "noProxy"}):
        made.asks(f"proxy.{field}", NO_COUNTERPART)
    if proxy:
        own["env"] = list(env.values())
        made.asks(
            "proxy",
            "variables of the container runner; Ostler's own processes need the proxy too, and the network policy of "
            "runners must allow it (docs/operations/corporate-networks.md)",
        )


def _certificate(made: Converted, tls: Json, pod: Json, own: Json) -> None:
    """Mount the authority of GitHub's certificate as the chart does, unless the template already does."""
    if not tls:
        return
    made.asks(
        "githubServerTLS",
        "Ostler's own processes need the authority in OSTLER_CA_BUNDLE; in runners, NODE_EXTRA_CA_CERTS is for "
        "JavaScript only, and other programs need the image (docs/operations/corporate-networks.md)",
    )
    source, folder = tls["certificateFrom"]["configMapKeyRef"], tls.get("runnerMountPath")
    if folder and all(each["name"] != _TLS_VOLUME for each in pod.get("volumes") or ()):
        key, path = source["key"], f"{str(folder).rstrip('/')}/{source['key']}"
        items = [{"key": key, "path": key}]
        volume = {"name": _TLS_VOLUME, "configMap": {"name": source["name"], "items": items}}
        pod["volumes"] = [*pod.get("volumes", ()), volume]
        mount = {"name": _TLS_VOLUME, "mountPath": path, "subPath": key}
        own["volumeMounts"] = [*own.get("volumeMounts", ()), mount]
        own["env"] = [*own.get("env", ()), {"name": "NODE_EXTRA_CA_CERTS", "value": path}]
