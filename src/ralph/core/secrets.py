"""Redact keys before anything is written, shown or put into a prompt.

A key is known by its form (`sk-ant-…`, a PEM block) or because it is the value of a variable such as `MY_TOKEN`. Every
expression must be linear in the length of its text: a line of 64 KB once took 44 seconds.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from urllib.parse import quote, quote_plus, unquote

import msgspec

from ralph.core.text import json_escape

Redact = Callable[[bytes], bytes]

MARK = b"[redacted]"
_SHORTEST_VALUE = 12
_LONGEST_BLOCK = 16_384
_LONGEST_KEY, _STEP = 4_096, 512
_LONGEST_WORD = 256  # characters that are dropped on each side of a cut: they may be half of a key
_KEY_CHARS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+/=.~-"
_SECRET_NAMES = (
    *("API_KEY", "ACCESS_KEY", "SECRET_KEY", "SECRET", "TOKEN", "PASSWORD", "PASSWD", "PASSPHRASE", "PRIVATE_KEY"),
    *("SECRET_KEY_BASE", "_PAT", "_PASS", "_PWD"),
)
_ADDRESSES = ("_URL", "_URI", "_DSN")
# A variable with one of these words in its name is secret (OPENAI_KEY, API_TOKEN_2, NPM_AUTH, DEPLOY_KEY_BASE64),
_SECRET_WORDS = frozenset({
    "KEY", "KEYS", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASS", "PWD", "PAT", "PASSPHRASE",
    "AUTH", "COOKIE", "CREDENTIAL", "CREDENTIALS", "CREDS", "JWT", "WEBHOOK",
})  # fmt: skip
# unless its last word says that it is something else (KEY_FILE, TOKEN_TYPE).
_NO_SECRETS = frozenset({
    "FILE", "PATH", "DIR", "SOCK", "ID", "NAME", "USER", "TYPE", "MODE", "METHOD", "HOST", "REGION", "EXPIRES",
    "PREFIX", "SUFFIX", "DOMAIN", "SERVER", "ENDPOINT", "HEADER", "ISSUER", "AUDIENCE", "REALM", "SCOPE", "SCOPES",
    "PROVIDER", "BACKEND", "ALGORITHM", "FORMAT", "URL", "URI", "DSN",
})  # fmt: skip

# Text without any of these hints has no keys. Each starts with a byte that is rare in text and then looks behind, which
# is much faster than searching for each prefix. `_keys` finds the keys themselves.
_HINTS = (
    re.compile(
        rb"_(?=[A-Za-z0-9_-]{16})(?:(?<=gh[pousr]_)|(?<=npm_)|(?<=hf_)|(?<=github_pat_)|(?<=[rs]k_live_)|(?<=[rs]k_test_)"
        rb"|(?<=gsk_)|(?<=_v1_)|(?<=dckr_pat_)|(?<=whsec_)|(?<=shp[acps][ats]_)|(?<=pcsk_)|(?<=lin_api_)|(?<=sbp_)|(?<=r8_))"
    ),
    re.compile(
        rb"-(?=[A-Za-z0-9_-]{10})(?:(?<=sk-)|(?<=glpat-)|(?<=gl[dr]t-)|(?<=xox[abeprs]-)|(?<=xapp-)|(?<=xai-)|(?<=pplx-)"
        rb"|(?<=tvly-)|(?<=pypi-)|(?<=GOCSPX-)|(?<=SECRET-KEY-))"
    ),
    re.compile(rb"A(?:KIA|SIA|Iza)[A-Za-z0-9_-]{16}"),
    re.compile(rb"J(?<=eyJ)[A-Za-z0-9_-]{8}"),
)

# A key starts after anything but a letter or digit, or after an escape of JSON (`\nsk-…`) or of a terminal (`[0msk-…`).
_START = rb"(?:(?<![A-Za-z0-9_])|(?<=\\[bfnrt])|(?<=[0-9]m))"
# Tells the `sk-` of a key from a CSS class: a part without a dash that has digits, or is longer than a word.
_RANDOM = rb"(?=[A-Za-z0-9]{24}|(?=[A-Za-z]{0,23}[0-9])[A-Za-z0-9]{16})"
_BEGIN = rb"-----BEGIN [A-Z0-9 ]{0,40}?PRIVATE KEY(?: BLOCK)?-----"
_END = _BEGIN.replace(b"BEGIN", b"END")
_WHOLE_BLOCK = rb"(?>(?:[^-]|-(?!----(?:BEGIN|END) )){0,%d})%b" % (_LONGEST_BLOCK, _END)
# A PEM block that is cut off: headers, if any, and lines of base64. If words follow, the text only mentions a key.
_BETWEEN = rb"(?:[\s>|]|\xe2\x86\x92|\\{1,8}(?:[nrt]|u2192))"  # quotation marks of Markdown, arrows after line numbers
_HALF_A_BLOCK = (
    rb"(?=(?>(?:[\s>|0-9]++|%b)*)(?:[A-Z][A-Za-z-]{1,30}: |[A-Za-z0-9+/=]{16}|\Z))"
    rb'(?>(?:%b{0,8}[A-Z][A-Za-z-]{1,30}: [^"\\\r\n]{0,200})*)(?>(?:[A-Za-z0-9+/=\s>|]++|%b)*)' % ((_BETWEEN,) * 3)
)
_KEYS = (
    rb"sk-(?:ant|proj|svcacct|admin|or-v1|lf)-[A-Za-z0-9_-]{10,}",
    _START + rb"sk-(?:[A-Za-z0-9]{1,23}[-_]){0,5}?" + _RANDOM + rb"[A-Za-z0-9_-]++",
    _START + rb"[rs]k_(?:live|test)_(?=[A-Za-z]*+[0-9])[A-Za-z0-9]{16,}",
    rb"gh[pousr]_[A-Za-z0-9]{20,}",
    rb"github_pat_[A-Za-z0-9_]{20,}",
    rb"gl(?:pa|d|r)t-[A-Za-z0-9_-]{20,}",
    rb"x(?:ox[abeprs]|app)-(?=[A-Za-z-]{0,40}[0-9])[A-Za-z0-9-]{10,}",
    rb"(?:npm|hf)_[A-Za-z0-9]{30,}",
    _START + rb"(?:gsk|do[por]_v1|whsec|shp(?:at|ca|pa|ss)|pcsk|lin_api|sbp|r8)_" + _RANDOM + rb"[A-Za-z0-9_]++",
    _START + rb"(?:dckr_pat_|pypi-AgE|xai-|pplx-|tvly-|GOCSPX-|AGE-SECRET-KEY-1)"
    rb"(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9_.-]{20,}+",
    _START + rb"A(?:KI|SI)A[A-Z0-9]{16}(?![A-Za-z0-9])",
    _START + rb"AIza[A-Za-z0-9_-]{30,}",
    rb"eyJ[A-Za-z0-9_-]{8,400}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*+",
    rb"(?<=[Bb]earer )(?=[A-Za-z._~+/=-]*+[0-9])[A-Za-z0-9._~+/=-]{20,}+",
    rb"%b(?:%b|%b)" % (_BEGIN, _WHOLE_BLOCK, _HALF_A_BLOCK),
)


def redact(data: bytes) -> bytes:
    """Return `data` without what looks like a key."""
    return _keys().sub(MARK, data) if _is_suspect(data) else data


def redact_text(text: str) -> str:
    return _in_text(redact, text)


class Redactor:
    """Redacts what looks like a key, and values that are known to be secret."""

    def __init__(self, secrets: Iterable[bytes] = ()) -> None:
        self._known = sorted(secrets, key=len, reverse=True)

    def __call__(self, data: bytes) -> bytes:
        for value in self._known:
            if value in data:
                data = data.replace(value, MARK)
        return redact(data)

    def finds_nothing(self, data: bytes) -> bool:
        """Return True if the text certainly contains no key. This is a quick check: False means that it may."""
        return not any(value in data for value in self._known) and not _is_suspect(data)

    def text(self, text: str) -> str:
        return _in_text(self, text)


def secret_values(environment: Mapping[str, str]) -> frozenset[bytes]:
    """Return the secret values in `environment`, judged by the names of their variables, in every form to look for.

    The forms are the plain value, each of its lines, and both as written in JSON and in URLs.
    """
    secret = [value for name, value in environment.items() if _is_secret(name.upper(), value)]
    secret += [key for name, value in environment.items() if name.upper().endswith(_ADDRESSES) for key in _login(value)]
    lines = [line.strip() for value in secret for line in value.splitlines()]
    texts = {*secret, *(line for line in lines if not line.startswith("-----"))}
    return frozenset(form for text in texts if len(text) >= _SHORTEST_VALUE for form in _forms(text))


def _forms(text: str) -> set[bytes]:
    """Return a value as it is written in plain text, in JSON and in URLs."""
    plain = text.encode("utf-8", "surrogateescape")
    in_json = msgspec.json.encode(plain.decode("utf-8", "replace"))[1:-1].decode()
    in_ascii_json = "".join(char if char <= "~" else json_escape(char) for char in in_json)
    in_urls = (quote(plain, safe=""), quote(plain), quote_plus(plain))
    return {plain, *(form.encode() for form in (in_json, in_ascii_json, *in_urls))}


def _is_secret(name: str, value: str) -> bool:
    if name.endswith(_SECRET_NAMES):
        return True
    words = name.split("_")
    is_public = words[-1] in _NO_SECRETS and "WEBHOOK" not in words  # the URL of a webhook is itself a key
    is_path = value.startswith(("/", "~"))
    return len(words) > 1 and not is_public and not is_path and not _SECRET_WORDS.isdisjoint(words)


def _login(url: str) -> tuple[str, ...]:
    """Return the password in a URL, quoted and unquoted, and user, password and host together.

    A short password alone looks like a word.
    """
    _, slashes, rest = url.partition("://")
    whole = rest.partition("/")[0]
    user, at, _ = whole.rpartition("@")
    password = user.partition(":")[2]
    if not slashes or not at or not password:
        return ()
    return password, unquote(password), whole


def redactable_length(data: bytes, redactor: Redact = redact) -> int:
    """Return how many bytes at the start of `data` can be redacted without knowing what follows."""
    end = data.rfind(b"\n") + 1
    if end == 0 and len(data) > _LONGEST_BLOCK:
        end = _between_keys(data, len(data) - _LONGEST_KEY, redactor)
    if b"V" in data and b"PRIVATE KEY" in data:
        begin = data.rfind(b"-----BEGIN ", 0, end)
        if begin >= 0 and data.find(b"-----END ", begin, end) < 0 and len(data) - begin < _LONGEST_BLOCK:
            return begin
    return end


def _between_keys(data: bytes, end: int, redactor: Redact) -> int:
    """Return the last position up to `end` where an endless line can be cut without cutting a key in two."""
    for at in range(end, max(end - 2 * _LONGEST_KEY, 0), -_STEP):
        before, behind = data[max(at - _LONGEST_KEY, 0) : at], data[at : at + _LONGEST_KEY]
        if redactor(before + behind) == redactor(before) + redactor(behind):
            return at
    return end


def after_half_a_key(data: bytes) -> int:
    """Return where the second half of a possible key ends in a text whose beginning was cut off."""
    return _word_length(data[:_LONGEST_WORD])


def before_half_a_key(data: bytes) -> int:
    """Return where the first half of a possible key starts in a text whose end was cut off."""
    return len(data) - _word_length(data[: -_LONGEST_WORD - 1 : -1])


def _word_length(data: bytes) -> int:
    """Return the length of the key-like word at the start; 0 if it is too long to be a key."""
    length = len(data) - len(data.lstrip(_KEY_CHARS))
    return length if length < _LONGEST_WORD else 0


def _is_suspect(data: bytes) -> bool:
    # This runs on everything that is logged; `rfind` is three to five times as fast as `in`.
    if data.rfind(b"earer ") >= 0 or (b"V" in data and data.rfind(b"PRIVATE KEY") >= 0):
        return True
    return any(hint.pattern[:1] in data and hint.search(data) for hint in _HINTS)


@cache
def _keys() -> re.Pattern[bytes]:
    return re.compile(b"|".join(_KEYS))


def _in_text(redactor: Redact, text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    clean = redactor(data)
    return text if clean is data else clean.decode("utf-8", "surrogatepass")
