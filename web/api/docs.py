"""Documentation pages of the API. People can read about the calls there and try them.

The pages load nothing from other hosts. The files of Swagger UI come from the package `fastapi-swagger`. No other part
of that package is used.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Ostler API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" type="image/png" href="docs/favicon.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="api"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/init.js"></script>
</body>
</html>
"""
_INIT = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#api",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  tryItOutEnabled: true,
  displayRequestDuration: true,
  validatorUrl: null
});
"""
_ASSETS = {
    "swagger-ui-bundle.js": ("swagger-ui-bundle.js", "text/javascript"),
    "swagger-ui.css": ("swagger-ui.css", "text/css"),
    "favicon.png": ("favicon-32x32.png", "image/png"),
}


def router() -> APIRouter:
    """Return the routes of the pages. The files of the pages are read once, when this function is called."""
    routes = APIRouter(include_in_schema=False)
    resources = files("fastapi_swagger") / "resources"
    assets = {name: ((resources / file).read_bytes(), kind) for name, (file, kind) in _ASSETS.items()}
    assets["init.js"] = (_INIT.encode(), "text/javascript")

    @routes.get("/docs")
    async def page() -> Response:
        return HTMLResponse(_PAGE, headers={"Content-Security-Policy": _CSP, "X-Content-Type-Options": "nosniff"})

    for name, (content, kind) in assets.items():
        routes.add_api_route(f"/docs/{name}", _file(content, kind))
    return routes


def _file(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def serve() -> Response:
        return Response(
            content, media_type=kind, headers={"Cache-Control": "max-age=3600", "X-Content-Type-Options": "nosniff"}
        )

    return serve
