"""Access control: which requests are admitted, and what a browser may do.

Every request is checked in this order: is it meant for this server (Host), is it well-formed, was it sent by one of our
pages (Sec-Fetch-Site, Origin), does it belong to a session, and does the session's level allow it.
"""

import re
import secrets
import time
from collections.abc import Mapping
from enum import IntEnum

from msgspec import Struct
from starlette.datastructures import Headers

from ralph.core.text import one_line
from ralph.store.serving import hash_secret

MAX_BODY = 1 << 16  # bytes
SESSION_LIFETIME = 30 * 86400.0  # seconds
COOKIE = "ralph"
FORM = "application/x-www-form-urlencoded"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::[0-9]{1,5})?")


class Level(IntEnum):
    """What a link allows; each level includes the ones before it."""

    LOOK = 1
    STEER = 2
    START = 3

    def __str__(self) -> str:
        return self.name.lower()


LEVELS = {str(level): level for level in Level}


class RequestRefused(Exception):
    """A request that is not served, with the HTTP status and the reason."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class BrowserSession(Struct, frozen=True):
    level: Level
    until: float


class Access:
    """The access rules of one server.

    `site` is the unguessable first part of every path. `names` maps host names other than loopback to their scheme.
    `cap` is the highest level that any link gets. `address` is shown to clients that use another name. Sessions are
    stored by the hash of their secret.
    """

    def __init__(
        self,
        site: str,
        names: Mapping[str, str],
        cap: Level,
        sessions: dict[str, BrowserSession],
        address: str,
    ) -> None:
        self.site = site or secrets.token_urlsafe(12)
        self._schemes = {**dict.fromkeys(LOOPBACK, "http"), **names}
        self._cap = cap
        self._address = address
        self.sessions = sessions

    @property
    def base(self) -> str:
        return f"/{self.site}/"

    def admit(self, method: str, path: str, headers: Headers) -> None:
        """Raise `RequestRefused` unless the request is meant for us, well-formed, and sent by one of our pages."""
        origin = self.origin(headers)
        if "Transfer-Encoding" in headers:
            raise RequestRefused(400, "Transfer-Encoding is not supported: send Content-Length")
        length = headers.get("Content-Length", "")
        if method != "POST" and length.strip("0"):
            raise RequestRefused(400, "only POST requests may have a body")
        if not path.startswith(self.base) or "%" in path:  # our addresses need no quoting
            raise RequestRefused(404, "not found")
        is_ours = all(site in ("same-origin", "none") for site in headers.getlist("Sec-Fetch-Site"))
        is_navigation = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
        if not is_ours and not (method == "GET" and is_navigation):  # links on other sites may lead here
            raise RequestRefused(403, "another web site sent this request")
        if method == "GET":
            return
        if method != "POST":
            raise RequestRefused(405, "method not allowed: use GET or POST")
        origins = headers.getlist("Origin")
        if origins != [origin]:
            got = one_line(", ".join(origins), 100) or "none"
            raise RequestRefused(403, f"another web site sent this request: expected Origin {origin}, got {got}")
        types = headers.getlist("Content-Type")
        if len(types) != 1 or types[0].partition(";")[0].strip().lower() != FORM:
            raise RequestRefused(415, f"expected Content-Type {FORM}")
        if not length:
            raise RequestRefused(411, "Content-Length is missing")
        if len(length) > 9 or int(length) > MAX_BODY:
            raise RequestRefused(413, f"request too large: at most {MAX_BODY >> 10} KB")

    def origin(self, headers: Headers) -> str:
        """Return the origin in the Host header. Any port is accepted, because a tunnel may end at any port."""
        hosts = headers.getlist("Host")
        match = HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        scheme = self._schemes.get(match[1]) if match else None
        if not match or not scheme:
            raise RequestRefused(421, f"unknown Host header: use {self._address} or add --name")
        return f"{scheme}://{match[0]}"

    def enter(self, level: Level) -> tuple[str, BrowserSession]:
        """Start a session; return its secret, which is not stored, and the session."""
        token = secrets.token_urlsafe(32)
        session = BrowserSession(self.cap_level(level), time.time() + SESSION_LIFETIME)
        self.sessions = {key: browser for key, browser in self.sessions.items() if browser.until > time.time()}
        self.sessions[hash_secret(token)] = session
        return token, session

    def session(self, headers: Headers) -> tuple[str, BrowserSession]:
        """Return the hash of the session's secret, and the session. Raise `RequestRefused` if there is none.

        Another server on this host may have set a cookie with the same name, so every cookie is tried.
        """
        for header in headers.getlist("Cookie"):
            for pair in header.split(";"):
                name, _, token = pair.strip().partition("=")
                session = self.sessions.get(hash_secret(token)) if name == COOKIE else None
                if session and session.until > time.time():
                    return hash_secret(token), BrowserSession(self.cap_level(session.level), session.until)
        raise RequestRefused(401, "this browser has no access: open a link from `ralph serve --link`")

    def cap_level(self, level: Level) -> Level:
        return min(level, self._cap)

    def cookie(self, token: str, origin: str) -> str:
        secure = "; Secure" if origin.startswith("https:") else ""
        return f"{COOKIE}={token}; HttpOnly; SameSite=Lax; Path={self.base}; Max-Age={SESSION_LIFETIME:.0f}{secure}"
