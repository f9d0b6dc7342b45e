"""Local page that sends the App's manifest to GitHub and receives GitHub's code for the new App.

The page listens on 127.0.0.1. It refuses a request with another host name, which prevents DNS rebinding. It accepts
only one code, and only with the random state from its own request to GitHub. The states are compared in constant time.
"""

from __future__ import annotations

import hmac
import html
import secrets
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

CALLBACK = "/callback"

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:42rem;margin:4rem auto;padding:0 1rem;color:#1f2328}"
    "button{font:inherit;padding:.5rem 1rem;border:0;border-radius:.4rem;background:#1f883d;color:#fff;cursor:pointer}"
    "pre{background:#f6f8fa;padding:1rem;border-radius:.4rem;overflow:auto}"
)
_BEGIN = """
<h1>Make Ostler's GitHub App</h1>
<p>GitHub will show you the App and ask you to create it. It gets these permissions and receives these events:</p>
<pre>{manifest}</pre>
<form action="{target}" method="post">
<input type="hidden" name="manifest" value="{manifest}">
<button type="submit">Go on to GitHub</button>
</form>
"""
_END = "<h1>GitHub made the App</h1><p>Go back to the terminal. You can close this page.</p>"
_REFUSED = "<h1>This is not the expected answer of GitHub</h1><p>Begin again from the address in the terminal.</p>"


class Page:
    """The local page. GitHub redirects the operator to `callback_url`. Raises OSError if the port is in use."""

    def __init__(self, *, port: int) -> None:
        self.state = secrets.token_urlsafe(32)
        self._begin = ""
        self._target = ""
        self._code: str | None = None
        self._came = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="setup-page", daemon=True)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}/"
        self.callback_url = f"http://127.0.0.1:{self.port}{CALLBACK}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self, *, manifest: str, target: str) -> None:
        """Set the form of the page. The form posts `manifest` to the URL `target`."""
        self._target = target
        self._begin = _BEGIN.format(manifest=html.escape(manifest), target=html.escape(target))

    def wait(self, seconds: float) -> str | None:
        """Wait for GitHub's code and return it, or None if none arrives within `seconds`."""
        self._came.wait(seconds)
        return self._code

    def answer(self, path: str, host: str | None) -> tuple[HTTPStatus, str]:
        """Return status and content for a GET request. `host` is the Host header, or None if the request has none."""
        if host != urlsplit(self.url).netloc:
            return HTTPStatus.MISDIRECTED_REQUEST, _REFUSED
        parts = urlsplit(path)
        if parts.path == "/":
            return HTTPStatus.OK, self._begin
        if parts.path != CALLBACK:
            return HTTPStatus.NOT_FOUND, _REFUSED
        query = parse_qs(parts.query)
        state, code = query.get("state", [""])[0], query.get("code", [""])[0]
        right = hmac.compare_digest(state.encode("utf-8", "replace"), self.state.encode())
        if not right or not code or self._came.is_set():
            return HTTPStatus.BAD_REQUEST, _REFUSED
        self._code = code
        self._came.set()
        return HTTPStatus.OK, _END

    def policy(self) -> str:
        """Return the Content-Security-Policy. It allows only inline styles and a form that posts to GitHub."""
        parts = urlsplit(self._target)
        return (
            "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'; "
            f"form-action {parts.scheme}://{parts.netloc}"
        )

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, content = page.answer(self.path, self.headers.get("Host"))
                body = (
                    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Ostler</title>'
                    f"<style>{_STYLE}</style>{content}</html>"
                ).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("Referrer-Policy", "no-referrer")
                self.send_header("Content-Security-Policy", page.policy())
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log nothing, because a request line contains the code."""

        return Handler
