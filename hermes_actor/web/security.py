"""Requests that are answered: those of a browser that was given the token, on our own address.

Rules:

1. The ``Host`` must be an address that these pages were started for. A page of another site whose
   name was pointed at this machine (rebinding) sends its own name, and gets nothing.
2. Every request needs the token: in the cookie that the first visit sets, or as a bearer token.
   Both are compared in constant time. A browser that the command starts enters with a code.
3. A change needs an ``Origin`` that is ours and, with the cookie, the CSRF token of these pages.
4. Every answer forbids scripts, styles and requests of other origins, and all inline script.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Access", "EntryCode", "Guard"]

LARGEST_BODY_BYTES = 64 * 1024
"""Largest body of a change: a title and a few names."""

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

_ENTRY_SECONDS = 120.0
"""Time for a browser to start and ask for its first page, on a busy machine."""

_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: with that a browser names no origin of a form.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

_ENTER = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>hermes-actor: token needed</title>
<link rel="stylesheet" href="/static/style.css"></head><body><main><h1>Token needed</h1>
<p>These pages are for the person who started them. Open the address that
<code>hermes-actor web</code> has printed, or enter its token.</p>
<form method="get" action="/"><p><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="off" required>
<button>Enter</button></p></form></main></body></html>"""


class EntryCode:
    """A code for the browser that the command starts itself: good once, and not for long.

    Its address is in the command line of the browser, which every user of the machine can read for
    as long as the browser runs. So it does not hold the token.
    """

    def __init__(self) -> None:
        self.text = secrets.token_urlsafe(32)
        self._until = time.monotonic() + _ENTRY_SECONDS

    def take(self, given: str) -> bool:
        """Return True if *given* is the code, for the first time and in time."""
        is_right = equal(given, self.text) and time.monotonic() < self._until
        if is_right:
            self._until = 0.0
        return is_right


class Access(NamedTuple):
    """The conditions of entry: the token, and the addresses under which these pages are reached."""

    token: str
    hosts: frozenset[str]
    """Values of ``Host``, in small letters, such as ``127.0.0.1:8765``."""
    secure: bool = False
    """Over TLS."""
    entry: EntryCode | None = None

    @property
    def cookie_name(self) -> str:
        """Name of the cookie. Cookies do not know ports, so two servers need two names."""
        place = hashlib.sha256("".join(sorted(self.hosts)).encode()).hexdigest()[:8]
        return f"hermes_actor_{place}"

    def key(self, purpose: str) -> str:
        """Return what only these pages and their visitors know, for one purpose."""
        return hmac.new(self.token.encode(), purpose.encode(), "sha256").hexdigest()

    @property
    def csrf(self) -> str:
        """The token in every form."""
        return self.key("csrf")

    def is_origin(self, origin: str) -> bool:
        """Return True if *origin* is an address of these pages."""
        scheme, _, host = origin.partition("://")
        return scheme == ("https" if self.secure else "http") and host.lower() in self.hosts


def equal(given: str, expected: str) -> bool:
    """Compare in a time that tells nothing about *expected*."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


class BodyTooLarge(ValueError):
    """A body without a length has passed the limit."""


class Guard:
    """ASGI middleware that holds the rules of this module."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
                if not scope["has_entered"]:
                    # A connection that is kept is lost for others: there are a few for all.
                    headers["Connection"] = "close"
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
        else:
            await self._app(scope, _limited(receive), send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that goes no further."""
        headers, access = Headers(scope=scope), self._access
        bearer = headers.get("authorization", "").partition("Bearer ")[2]
        by_bearer = scope["by_bearer"] = bool(bearer) and equal(bearer, access.token)
        has_entered = by_bearer or equal(self._cookie(headers), access.key("cookie"))
        scope["has_entered"] = has_entered
        if headers.get("host", "").lower() not in access.hosts:
            return PlainTextResponse("this host name is not one of these pages\n", 421)
        if scope["path"].startswith("/static/"):
            return None
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("only GET and POST are understood\n", 405)
        if scope["method"] == "POST" and not self._is_ours(headers, by_bearer):
            return PlainTextResponse("a change must come from these pages\n", 403)
        if _number(headers.get("content-length", "0")) > LARGEST_BODY_BYTES:
            return PlainTextResponse("the request is too large\n", 413)
        return None if has_entered else self._first_visit(scope)

    def _is_ours(self, headers: Headers, by_bearer: bool) -> bool:
        origin = headers.get("origin")
        if origin is None:
            # A browser names the origin of every change; a script with the bearer token has none.
            return by_bearer
        return self._access.is_origin(origin)

    def _cookie(self, headers: Headers) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._access.cookie_name)
        except CookieError:
            return ""
        return found.value if found is not None else ""

    def _first_visit(self, scope: Scope) -> Response:
        given = QueryParams(scope["query_string"])
        if scope["method"] != "GET" or not self._may_enter(given):
            if scope["path"].startswith("/api/"):
                return PlainTextResponse("send the token: Authorization: Bearer TOKEN\n", 401)
            return Response(_ENTER, 401, media_type="text/html")
        # Away from the address at once: addresses are kept in histories and shown to others.
        # One slash at its beginning: two would name another host.
        answer = RedirectResponse("/" + scope["path"].lstrip("/\\"), 303)
        answer.set_cookie(
            self._access.cookie_name,
            self._access.key("cookie"),
            httponly=True,
            samesite="strict",
            secure=self._access.secure,
        )
        return answer

    def _may_enter(self, given: QueryParams) -> bool:
        entry, code, token = self._access.entry, given.get("entry", ""), given.get("token", "")
        if token and equal(token, self._access.token):
            return True
        return bool(code) and entry is not None and entry.take(code)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 20 else 2**63


def _limited(receive: Receive) -> Receive:
    """Give a body up to its limit. Raises :class:`BodyTooLarge`."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > LARGEST_BODY_BYTES:
            raise BodyTooLarge("the request is too large")
        return message

    return limited
