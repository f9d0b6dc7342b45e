"""The HTTP interface: authentication, routing of requests, and the form of the answers."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from lab.apiserver import discovery, execs, lists, managed_fields, patches, tables
from lab.apiserver.creation import timestamp
from lab.apiserver.kinds import NAMESPACE, POD, SERVICE_ACCOUNT, Json, Kind
from lab.apiserver.objects import Objects
from lab.apiserver.refusals import (
    Refused,
    bad_request,
    forbidden,
    method_not_allowed,
    no_such_resource,
    not_acceptable,
    success,
    too_large,
    unauthorized,
    unsupported_media_type,
)
from lab.apiserver.store import Store, Stored
from lab.apiserver.tokens import ISSUER, BadToken, Tokens, User

_LARGEST_BODY = 3 * 1024 * 1024
_MASTERS = "system:masters"
_SERVICE_ACCOUNTS = "system:serviceaccounts"
_ANONYMOUS = User(name="system:anonymous", groups=("system:unauthenticated",))
_VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.3", "platform": "embedded"}
_JWKS = "application/jwk-set+json"
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_EDITS: dict[str, Callable[[Any, Any], Any]] = {
    "application/merge-patch+json": patches.merge,
    "application/json-patch+json": patches.apply_operations,
}
_REVIEWS = "authentication.k8s.io"


@dataclass(frozen=True, kw_only=True)
class Target:
    """Resource that a path names. `name` and `subresource` are empty if the path does not contain them."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class ApiServer:
    """The embedded API server as an ASGI app."""

    def __init__(self, *, folder: Path) -> None:
        """Read the keys and tokens from a folder."""
        self.store = Store()
        self.objects = Objects(self.store)
        self.tokens = Tokens(objects=self.objects, folder=folder)
        for name in ("default", "kube-node-lease"):
            self.objects.create(NAMESPACE, "", {"metadata": {"name": name}})

    def app(self) -> Starlette:
        """Return the ASGI app."""
        methods = [*_VERBS]
        return Starlette(
            routes=[
                WebSocketRoute("/{path:path}", self._connect),
                Route("/{path:path}", self._guard(self._serve), methods=methods),
            ]
        )

    async def _connect(self, websocket: WebSocket) -> None:
        """Serve a request for a WebSocket. Only exec requests use a WebSocket."""
        try:
            user = self._user(websocket)
            target = _target(websocket.url.path)
            if target is None or (target.plural, target.subresource) != (POD.plural, "exec"):
                raise no_such_resource()
            # Newer versions of the real server demand both verbs, because a WebSocket begins with a GET.
            for verb in ("get", "create"):
                self._authorize(user, target, verb)
            await execs.forward(websocket, self.objects, namespace=target.namespace, name=target.name)
        except Refused as refused:
            await websocket.send_denial_response(_json(refused.body(), status=int(refused.status)))

    def _guard(self, serve: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                return await serve(request)
            except Refused as refused:
                return _json(refused.body(), status=int(refused.status))

        return guarded

    async def _serve(self, request: Request) -> Response:
        user = self._user(request)
        path = request.url.path
        target = _target(path)
        if target is None:
            return self._plain(request, user, path)
        self._authorize(user, target, _verb(request, target))
        if not (target.group == _REVIEWS or self.objects.serves(target.group, target.version)):
            return PlainTextResponse("404 page not found\n", status_code=404)
        body = await _body(request)
        if target.group == _REVIEWS:
            return self._review(request, user, target, body)
        kind = self.objects.kind(target.group, target.version, target.plural)
        if request.method == "GET" and kind == POD and target.subresource == "log":
            query = request.query_params
            return await execs.read_log(self.objects, query, namespace=target.namespace, name=target.name)
        if target.subresource:
            return self._subresource(request, kind, target, body)
        answer = self._object if target.name else self._collection
        return answer(request, kind, target, body)

    def _user(self, request: HTTPConnection) -> User:
        header = request.headers.get("authorization", "")
        if not header:
            return _ANONYMOUS
        word, _, token = header.partition(" ")
        if word.lower() != "bearer":
            return _ANONYMOUS
        try:
            return self.tokens.user_of(token.strip(), audiences=[ISSUER])
        except BadToken:
            raise unauthorized() from None

    def _authorize(self, user: User, target: Target, verb: str) -> None:
        """Raise `Refused` unless the user is an administrator, or is authenticated and asks for a SelfSubjectReview."""
        if _MASTERS in user.groups or (target.plural == "selfsubjectreviews" and user is not _ANONYMOUS):
            return
        resource = f"{target.plural}/{target.subresource}" if target.subresource else target.plural
        scope = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
        why = f'User "{user.name}" cannot {verb} resource "{resource}" in API group "{target.group}" {scope}'
        details = {"name": target.name, "group": target.group, "kind": target.plural}
        qualified = f"{target.plural}.{target.group}" if target.group else target.plural
        raise forbidden(qualified, {key: value for key, value in details.items() if value}, target.name, why)

    def _plain(self, request: Request, user: User, path: str) -> Response:
        """Answer a path that names no resource. Raises `Refused`."""
        if path in {"/readyz", "/livez", "/healthz"}:
            return PlainTextResponse("ok")
        if path == "/version":
            return _json(_VERSION)
        keys = path in {"/openid/v1/jwks", "/.well-known/openid-configuration"}
        resources = discovery.answer(path, self.objects.kinds) if request.method == "GET" else None
        allowed = user is not _ANONYMOUS if resources else keys and _SERVICE_ACCOUNTS in user.groups
        if _MASTERS not in user.groups and not allowed:
            raise forbidden("", {}, "", f'User "{user.name}" cannot {_VERBS[request.method]} path "{path}"')
        if path == "/openid/v1/jwks":
            accepted = request.headers.get("accept", "*/*")
            if not any(each in accepted for each in (_JWKS, "*/*", "application/*")):
                raise not_acceptable(_JWKS, details={})
            return _json(self.tokens.keys(), media_type=_JWKS)
        if keys:
            return _json(
                {
                    "issuer": ISSUER,
                    "jwks_uri": f"https://{request.url.netloc}/openid/v1/jwks",
                    "response_types_supported": ["id_token"],
                    "subject_types_supported": ["public"],
                    "id_token_signing_alg_values_supported": ["RS256"],
                }
            )
        if resources:
            return _json(resources)
        return PlainTextResponse("404 page not found\n", status_code=404)

    def _review(self, request: Request, user: User, target: Target, body: bytes) -> Response:
        if target.plural == "tokenreviews" and request.method == "POST":
            return _json(self.tokens.review(_object(body)), status=201)
        if target.plural == "selfsubjectreviews" and request.method == "POST":
            head = {"kind": "SelfSubjectReview", "apiVersion": f"{_REVIEWS}/v1"}
            status = {"userInfo": user.body()}
            return _json({**head, "metadata": {"creationTimestamp": timestamp()}, "status": status}, status=201)
        raise no_such_resource()

    def _collection(self, request: Request, kind: Kind, target: Target, body: bytes) -> Response:
        query = request.query_params
        if request.method == "POST":
            partial = _wants_partial(request)
            return _stored(
                self.objects.create(kind, target.namespace, _object(body), manager=_manager(request)),
                partial=partial,
                status=201,
            )
        if request.method != "GET":
            raise method_not_allowed()
        if _is_watch(request):
            partial = _wants_partial(request)
            lists.check_watch(kind, query)
            lines = _not_empty(lists.watch(self.store, kind, target.namespace, query, partial=partial))
            return StreamingResponse(lines, media_type="application/json")
        partial = _wants_partial(request, "PartialObjectMetadataList")
        page = lists.list_page(
            self.store, kind, target.namespace, query, partial=partial, table=not partial and _wants_table(request)
        )
        return Response(page, media_type="application/json")

    def _object(self, request: Request, kind: Kind, target: Target, body: bytes) -> Response:
        place, partial = (kind, target.namespace, target.name), _wants_partial(request)
        if request.method == "GET":
            stored = self.objects.get(*place)
            if not partial and _wants_table(request):
                return Response(tables.table(kind, {}, [stored]), media_type="application/json")
            return _stored(stored, partial=partial)
        if request.method == "PATCH":
            return _stored(
                self.objects.change(*place, _edit(request, body), manager=_manager(request)), partial=partial
            )
        if request.method == "PUT":
            return _stored(self.objects.replace(*place, _object(body), manager=_manager(request)), partial=partial)
        if request.method != "DELETE":
            raise method_not_allowed()
        last = self.objects.delete(*place, _delete_options(request, body))
        if kind.returns_deleted or last.terminating:
            return _stored(last, partial=partial)
        return _json(success(kind, target.name, last.uid))

    def _subresource(self, request: Request, kind: Kind, target: Target, body: bytes) -> Response:
        place, partial = (kind, target.namespace, target.name), _wants_partial(request)
        if target.subresource == "status" and kind.status:
            if request.method == "GET":
                return _stored(self.objects.get(*place), partial=partial)
            if request.method == "PATCH":
                edit, manager = _edit(request, body), _manager(request)
                return _stored(self.objects.change(*place, edit, status=True, manager=manager), partial=partial)
            raise method_not_allowed()
        if kind == POD and target.subresource == "ephemeralcontainers":
            if request.method == "GET":
                return _stored(self.objects.get(*place), partial=partial)
            if request.method == "PATCH":
                edit = _edit(request, body)
                return _stored(self.objects.add_containers(target.namespace, target.name, edit), partial=partial)
            raise method_not_allowed()
        if request.method in {"GET", "POST"} and kind == POD and target.subresource == "exec":
            raise execs.refuse(self.objects, request.query_params, namespace=target.namespace, name=target.name)
        if request.method == "POST" and kind == POD and target.subresource == "binding":
            self.objects.bind(target.namespace, target.name, _object(body))
            head = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
            return _json({**head, "status": "Success", "code": 201}, status=201)
        if request.method == "POST" and kind == SERVICE_ACCOUNT and target.subresource == "token":
            return _json(self.tokens.request(target.namespace, target.name, _object(body)), status=201)
        raise no_such_resource()


def _target(path: str) -> Target | None:
    """Return the resource that a path under /api or /apis names, or None for any other path."""
    words = path.strip("/").split("/")
    if words[:2] == ["api", "v1"]:
        group, version, rest = "", "v1", words[2:]
    elif words[0] == "apis" and len(words) > 3:  # noqa: PLR2004 - apis/group/version/resource
        group, version, rest = words[1], words[2], words[3:]
    else:
        return None
    if rest[0:1] == ["namespaces"] and len(rest) > 2 and rest[2] not in {"status", "finalize"}:  # noqa: PLR2004
        namespace, rest = rest[1], rest[2:]
    else:
        namespace = ""
    if not 1 <= len(rest) <= 3:  # noqa: PLR2004 - resource/name/subresource
        return None
    plural, name, subresource = (*rest, "", "")[:3]
    if not namespace and plural == NAMESPACE.plural:  # an unnamespaced path about namespaces has no scope
        namespace = ""
    return Target(group=group, version=version, plural=plural, namespace=namespace, name=name, subresource=subresource)


async def _body(request: Request) -> bytes:
    """Return the body. Raises `Refused` as soon as the body exceeds the limit."""
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > _LARGEST_BODY:
            raise too_large(_LARGEST_BODY)
        pieces.append(piece)
    return b"".join(pieces)


def _object(body: bytes) -> Json:
    try:
        content = json.loads(body)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise bad_request("the object provided is unrecognized: couldn't get version/kind; json parse error")
    return content


def _edit(request: Request, body: bytes) -> Callable[[Json], Any]:
    """Return a function that applies the body of a PATCH to an object. Raises `Refused`."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip()
    apply = _EDITS.get(media_type)
    if apply is None:
        raise unsupported_media_type()
    try:
        patch = json.loads(body)
    except ValueError as error:
        raise bad_request(f"error decoding patch: {error}") from None
    if apply is patches.merge and not isinstance(patch, dict):
        raise bad_request("error decoding patch: json: cannot unmarshal into Go value of type map[string]interface {}")
    return lambda content: apply(content, patch)


def _manager(request: Request) -> str:
    return managed_fields.manager_of(request.query_params.get("fieldManager"), request.headers.get("user-agent", ""))


def _delete_options(request: Request, body: bytes) -> Json:
    if body:
        return _object(body)
    options: Json = dict(request.query_params)
    if "gracePeriodSeconds" in options:
        options["gracePeriodSeconds"] = int(options["gracePeriodSeconds"])
    return options


def _verb(request: Request, target: Target) -> str:
    verb = _VERBS[request.method]
    if verb == "get" and not target.name:
        return "watch" if _is_watch(request) else "list"
    return verb


def _is_watch(request: Request) -> bool:
    return request.query_params.get("watch") in {"1", "true"}


def _wants_partial(request: Request, kind: str = "PartialObjectMetadata") -> bool:
    """Return whether the answer is to contain metadata only.

    Raises `Refused` if the Accept header asks for other kinds only. Whole objects answer a request that asks for a
    table and accepts plain JSON too, as kubectl does.
    """
    accepted = re.search(r"as=([A-Za-z]+)", request.headers.get("accept", ""))
    if accepted is not None and accepted.group(1) != kind and not _wants_table(request):
        raise not_acceptable("application/json")
    return accepted is not None and accepted.group(1) == kind


def _wants_table(request: Request) -> bool:
    return "as=Table;v=v1;g=meta.k8s.io" in request.headers.get("accept", "")


async def _not_empty(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for line in lines:
        if line:
            yield line


def _stored(stored: Stored, *, partial: bool, status: int = 200) -> Response:
    return Response(stored.partial if partial else stored.whole, status_code=status, media_type="application/json")


def _json(content: Any, *, status: int = 200, media_type: str = "application/json") -> Response:
    return Response(json.dumps(content).encode(), status_code=status, media_type=media_type)
