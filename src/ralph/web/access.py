"""Who may come in, and how far? Asked of every request before anything else, in a fixed order: is it meant for us, is
it well-formed, does a page of ours send it, who sends it, and is that allowed? Pure but for the clock."""

import re
import secrets
import time
from collections.abc import Mapping
from email.message import Message
from enum import IntEnum

from msgspec import Struct

from ralph.records.serving import hashed

MOST_BODY = 1 << 16
SESSION_LASTS = 30 * 86400.0
COOKIE = "ralph"
FORM = "application/x-www-form-urlencoded"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::[0-9]{1,5})?")


class Level(IntEnum):
    """What a link allows: each level includes those before it."""

    LOOK = 1
    STEER = 2
    START = 3

    def __str__(self) -> str:
        return self.name.lower()


LEVELS = {str(level): level for level in Level}


class NotServed(Exception):
    """A request that is not served, and one sentence that says why."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


class BrowserSession(Struct, frozen=True):
    level: Level
    until: float


class Access:
    """`site` is the unguessable first part of every path, `names` the names beside loopback's by which we are known,
    each with its scheme, `cap` the most that any link allows. Sessions are known by a hash of their secret."""

    def __init__(
        self,
        site: str = "",
        names: Mapping[str, str] | None = None,
        cap: Level = Level.START,
        sessions: Mapping[str, BrowserSession] | None = None,
    ) -> None:
        self.site = site or new_secret(12)
        self._schemes = {**dict.fromkeys(LOOPBACK, "http"), **{k.lower(): v for k, v in (names or {}).items()}}
        self._cap = cap
        self.sessions = dict(sessions or {})

    @property
    def base(self) -> str:
        return f"/{self.site}/"

    def admit(self, method: str, path: str, headers: Message) -> None:
        """Raises unless the request was meant for us, is well-formed, and was sent by a page of ours."""
        origin = self.origin(headers)
        if "Transfer-Encoding" in headers:
            raise NotServed(400, "Say how long it is.")
        lengths = headers.get_all("Content-Length", [])
        if len(lengths) > 1 or not all(length.isascii() and length.isdigit() for length in lengths):
            raise NotServed(400, "Say how long it is, once.")
        if method != "POST" and any(length.strip("0") for length in lengths):
            raise NotServed(400, "Only a form has a body.")
        if not path.startswith(self.base):
            raise NotServed(404, "There is nothing here.")
        # A page of ours asks, or the person: whoever follows a link that stands elsewhere only looks.
        is_ours = all(site in ("same-origin", "none") for site in headers.get_all("Sec-Fetch-Site", []))
        is_navigation = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
        if not is_ours and not (method == "GET" and is_navigation):
            raise NotServed(403, "Another page asked for this.")
        if method != "POST":
            return
        if headers.get_all("Origin", []) != [origin]:
            raise NotServed(403, "Another page asked for this.")
        if len(headers.get_all("Content-Type", [])) != 1 or headers.get_content_type() != FORM:
            raise NotServed(415, "Only forms are taken.")
        if not lengths:
            raise NotServed(411, "Say how long it is.")
        if len(lengths[0]) > 9 or int(lengths[0]) > MOST_BODY:
            raise NotServed(413, "That is too long: 64 KB at most.")

    def origin(self, headers: Message) -> str:
        """The origin that the Host stands for. Its name is what counts: a tunnel may end at any port."""
        hosts = headers.get_all("Host", [])
        found = _HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        scheme = self._schemes.get(found[1]) if found else None
        if not found or not scheme:
            raise NotServed(421, "That is not my name.")
        return f"{scheme}://{found[0]}"

    def enter(self, level: Level) -> tuple[str, BrowserSession]:
        """The secret of a new session, and what it allows. It is told here once, and not kept."""
        token = new_secret(32)
        session = BrowserSession(self.capped(level), time.time() + SESSION_LASTS)
        self.sessions = {key: one for key, one in self.sessions.items() if one.until > time.time()}
        self.sessions[hashed(token)] = session
        return token, session

    def session(self, headers: Message) -> tuple[str, BrowserSession]:
        """The session that a cookie stands for, by the hash of its secret. Another server of this host may have set
        cookies of the same name: any one that is ours counts."""
        for header in headers.get_all("Cookie", []):
            for pair in header.split(";"):
                name, _, token = pair.strip().partition("=")
                found = self.sessions.get(hashed(token)) if name == COOKIE else None
                if found and found.until > time.time():
                    return hashed(token), BrowserSession(self.capped(found.level), found.until)
        raise NotServed(401, "This browser has not been let in. On the machine, `ralph serve --link` prints a link.")

    def capped(self, level: Level) -> Level:
        return min(level, self._cap)

    def cookie(self, token: str, origin: str) -> str:
        secure = "; Secure" if origin.startswith("https:") else ""
        return f"{COOKIE}={token}; HttpOnly; SameSite=Lax; Path={self.base}; Max-Age={SESSION_LASTS:.0f}{secure}"


def refuse_below(wanted: Level, session: BrowserSession) -> None:
    if session.level < wanted:
        raise NotServed(
            403, f"This browser may only {session.level}. `ralph serve --link {wanted}` prints another link."
        )


def new_secret(size: int) -> str:
    return secrets.token_urlsafe(size)
