"""What in a text looks like a key? It is struck out before anything is written, shown or quoted.

Every expression is linear: what may be tried again from each of many places is bounded, or breaks off where the next
try could begin. One line of 64 KB took 44 seconds once.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from ralph.core.text import as_shown, in_units

Redact = Callable[[bytes], bytes]

MARK = b"[redacted]"
_SHORTEST_VALUE = 12
_LONGEST_BLOCK = 16_384
_LONGEST_KEY, _STEP = 4_096, 512
_LONGEST_WORD = 256  # of what stands before or behind a cut; half of a longer key opens nothing
_OF_KEYS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+/=.~-"
_ESCAPES = {code: f"\\u{code:04x}" for code in range(0x20)} | str.maketrans(
    {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
)
_SECRET_NAMES = (
    *("API_KEY", "ACCESS_KEY", "SECRET_KEY", "SECRET", "TOKEN", "PASSWORD", "PASSWD", "PASSPHRASE", "PRIVATE_KEY"),
    *("SECRET_KEY_BASE", "_PAT", "_PASS", "_PWD"),
)
_ADDRESSES = ("_URL", "_URI", "_DSN")
# A name with one of these words in it is that of a key, too (OPENAI_KEY, API_TOKEN_2, NPM_AUTH, DEPLOY_KEY_BASE64) …
_SECRET_WORDS = frozenset({
    "KEY", "KEYS", "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASS", "PWD", "PAT", "PASSPHRASE",
    "AUTH", "COOKIE", "CREDENTIAL", "CREDENTIALS", "CREDS", "JWT", "WEBHOOK",
})  # fmt: skip
# … unless it goes on to say what else it is.
_NO_SECRETS = frozenset({
    "FILE", "PATH", "DIR", "SOCK", "ID", "NAME", "USER", "TYPE", "MODE", "METHOD", "HOST", "REGION", "EXPIRES",
    "PREFIX", "SUFFIX", "DOMAIN", "SERVER", "ENDPOINT", "HEADER", "ISSUER", "AUDIENCE", "REALM", "SCOPE", "SCOPES",
    "PROVIDER", "BACKEND", "ALGORITHM", "FORMAT", "URL", "URI", "DSN",
})  # fmt: skip

# Each hint begins with a byte that is rare in text, and only then looks behind: three times as fast as asking for the
# prefixes one by one. That the byte stands nowhere is known thirty times as fast again, by memchr. A hint may be wrong;
# only `_keys` decides.
_HINTS = (
    rb"_(?=[A-Za-z0-9_-]{16})"
    rb"(?:(?<=gh[pousr]_)|(?<=npm_)|(?<=hf_)|(?<=github_pat_)|(?<=[rs]k_live_)|(?<=[rs]k_test_)|(?<=gsk_)|(?<=_v1_)"
    rb"|(?<=dckr_pat_)|(?<=whsec_)|(?<=shp[acps][ats]_)|(?<=pcsk_)|(?<=lin_api_)|(?<=sbp_)|(?<=r8_))",
    rb"-(?=[A-Za-z0-9_-]{10})(?:(?<=sk-)|(?<=glpat-)|(?<=gl[dr]t-)|(?<=xox[abeprs]-)|(?<=xapp-)|(?<=xai-)|(?<=pplx-)"
    rb"|(?<=tvly-)|(?<=pypi-)|(?<=GOCSPX-)|(?<=SECRET-KEY-))",
    rb"A(?:KIA|SIA|Iza)[A-Za-z0-9_-]{16}",
    rb"J(?<=eyJ)[A-Za-z0-9_-]{8}",
)

# A key begins after anything but a letter or digit, or after an escape of JSON (`\nsk-…`) or of a terminal (`[0msk-…`).
_START = rb"(?:(?<![A-Za-z0-9_])|(?<=\\[bfnrt])|(?<=[0-9]m))"
# What tells the `sk-` of a key from that of a style sheet: a stretch without a dash, with digits or longer than words.
_RANDOM = rb"(?=[A-Za-z0-9]{24}|(?=[A-Za-z]{0,23}[0-9])[A-Za-z0-9]{16})"
_BEGIN = rb"-----BEGIN [A-Z0-9 ]{0,40}?PRIVATE KEY(?: BLOCK)?-----"
_END = _BEGIN.replace(b"BEGIN", b"END")
_WHOLE_BLOCK = rb"(?>(?:[^-]|-(?!----(?:BEGIN|END) )){0,%d})%b" % (_LONGEST_BLOCK, _END)
# Of a key that is cut off: its headers, if it has any, and its lines. Where words follow, it is only talked about.
_BETWEEN = (
    rb"(?:[\s>|]|\xe2\x86\x92|\\{1,8}(?:[nrt]|u2192))"  # marks of a quotation, and those behind the numbers of lines
)
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
    """`data` with everything that looks like a key struck out."""
    return _keys().sub(MARK, data) if _is_suspect(data) else data


def redact_text(text: str) -> str:
    return _in_text(redact, text)


class Redactor:
    """Strikes out what looks like a key, and the values that are known to be secret here."""

    def __init__(self, known: Iterable[bytes] = ()) -> None:
        self._known = sorted(known, key=len, reverse=True)

    def __call__(self, data: bytes) -> bytes:
        data = self._struck(data)
        read = _as_read(data)
        if read is data or self.finds_no_key(read):
            return data
        return self._struck(read)

    def _struck(self, data: bytes) -> bytes:
        for value in self._known:
            if value in data:
                data = data.replace(value, MARK)
        return redact(data)

    def finds_nothing(self, lines: bytes) -> bool:
        """Whether a quick look tells that nothing in these lines of JSON, `escaped`, has to be struck out."""
        if not self.finds_no_key(lines):
            return False
        if b"\\" not in lines or not re.search(_HIDING, lines):
            return True
        plain = b"".join(re.split(_COLOURS, lines))
        return not re.search(_HIDING, plain) and self.finds_no_key(plain)

    def finds_no_key(self, data: bytes) -> bool:
        """Whether a quick look tells that there is no key, unless something is hidden in it."""
        for value in self._known:
            if value in data:
                return False
        return not _is_suspect(data)

    def text(self, text: str) -> str:
        return _in_text(self, text)


def _as_read(data: bytes) -> bytes:
    """The data as a person or a program reads it: without escapes that JSON has no need of, and without what a terminal
    obeys or nobody sees. Any of these may stand in the middle of a key."""
    if data.rfind(b"\\u00") >= 0:
        data = re.sub(_NEEDLESS, lambda found: bytes((int(found[0][-2:], 16),)), data)
    return as_shown(data)


_NEEDLESS = rb"\\u00(?:2[013-9A-Fa-f]|[346][0-9A-Fa-f]|5[0-9ABD-Fabd-f]|7[0-9A-Ea-e])"  # all but quotes and backslashes
# As JSON writes them: what is not shown, or may not be, and the colours among it.
_HIDING, _COLOURS = rb"\\[bfu]", rb"\\u001b\[[0-9;:]*+[A-Za-z]"


def secret_values(environment: Mapping[str, str]) -> frozenset[bytes]:
    """The values in `environment` that their names call secret, and each line of one that has several: as they are, and
    as JSON (in ASCII, too), addresses, base64 and hexadecimal write them. By its head alone no private key is known."""
    secret = [value for name, value in environment.items() if _is_of_a_secret(name.upper(), value)]
    secret += [key for name, value in environment.items() if name.upper().endswith(_ADDRESSES) for key in _login(value)]
    lines = [line.strip() for value in secret for line in value.splitlines()]
    texts = {*secret, *(line for line in lines if not line.startswith("-----"))}
    long = [text for text in texts if len(text) >= _SHORTEST_VALUE]
    forms = {form.encode("utf-8", "surrogateescape") for text in long for form in (text, *_in_json(text))}
    plain = [text.encode("utf-8", "surrogateescape") for text in long]
    in_hex = (form.encode() for value in plain for form in (value.hex(), value.hex().upper()))
    return frozenset(forms.union(in_hex, *map(_in_base64, plain), *map(_in_an_address, plain)))


def _is_of_a_secret(name: str, value: str) -> bool:
    if name.endswith(_SECRET_NAMES):
        return True
    words = name.split("_")
    is_open = words[-1] in _NO_SECRETS and "WEBHOOK" not in words  # that is an address which is a key itself
    is_place = value.startswith(("/", "~"))
    return len(words) > 1 and not is_open and not is_place and not _SECRET_WORDS.isdisjoint(words)


def _in_an_address(value: bytes) -> set[bytes]:
    """How it looks in what a browser or `curl` is given: some leave slashes as they are, some write digits small, and
    a form has a plus for a space."""
    parts = [bytes((one,)) if one in _UNRESERVED else b"%%%02X" % one for one in value]
    large, small = b"".join(parts), b"".join(part.lower() if part[:1] == b"%" else part for part in parts)
    found = {form for one in (large, small) for form in (one, one.replace(b"%2F", b"/").replace(b"%2f", b"/"))}
    return {form for one in found for form in (one, one.replace(b"%20", b"+"))}


_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def _in_base64(value: bytes) -> set[bytes]:
    """How it looks in base64, wherever in a longer text it stands: less the characters at its ends, which depend on
    what is around it. A login for the web is written like this."""
    from binascii import b2a_base64

    found = set()
    for before in range(3):
        written = b2a_base64(bytes(before) + value, newline=False)
        inner = written[-(-before * 8 // 6) : (before + len(value)) * 8 // 6]
        found |= {inner, inner.replace(b"+", b"-").replace(b"/", b"_")}
    return found


def _login(url: str) -> tuple[str, ...]:
    """What stands between the user and the host of an address, as it is written and as it is meant; and all three,
    for it may be too short to be told from a word."""
    _, slashes, rest = url.partition("://")
    whole = rest.partition("/")[0]
    user, at, _ = whole.rpartition("@")
    password = user.partition(":")[2]
    if not slashes or not at or not password:
        return ()
    from urllib.parse import unquote

    return password, unquote(password), whole


def _in_json(text: str) -> tuple[str, str]:
    written = text.translate(_ESCAPES)
    return written, "".join(char if char <= "~" else in_units(char) for char in written)


def settled(data: bytes, strike: Redact = redact) -> int:
    """How much of the beginning of `data` can be redacted without knowing what follows it."""
    end = data.rfind(b"\n") + 1
    if end == 0 and len(data) > _LONGEST_BLOCK:
        end = _between_keys(data, len(data) - _LONGEST_KEY, strike)
    if b"V" in data and b"PRIVATE KEY" in data:
        begin = data.rfind(b"-----BEGIN ", 0, end)
        if begin >= 0 and data.find(b"-----END ", begin, end) < 0 and len(data) - begin < _LONGEST_BLOCK:
            return begin
    return end


def _between_keys(data: bytes, end: int, strike: Redact) -> int:
    """The last place up to `end` where a line without an end can be cut, and no key in two: what is struck out of the
    parts is what is struck out of the whole."""
    for at in range(end, max(end - 2 * _LONGEST_KEY, 0), -_STEP):
        before, behind = data[max(at - _LONGEST_KEY, 0) : at], data[at : at + _LONGEST_KEY]
        if strike(before + behind) == strike(before) + strike(behind):
            return at
    return end


def after_half_a_key(data: bytes) -> int:
    """Where in a text whose beginning was cut off the rest of what may be a key ends."""
    return _word_length(data[:_LONGEST_WORD])


def before_half_a_key(data: bytes) -> int:
    """Where in a text whose end was cut off the beginning of what may be a key begins."""
    return len(data) - _word_length(data[: -_LONGEST_WORD - 1 : -1])


def _word_length(data: bytes) -> int:
    """How long it begins with what keys are made of; nothing where that has no end: it is no key then."""
    length = len(data) - len(data.lstrip(_OF_KEYS))
    return length if length < _LONGEST_WORD else 0


def _is_suspect(data: bytes) -> bool:
    # From its end Python searches bytes in a third or a fifth of the time that `in` takes, and all that is written
    # and logged passes here.
    if data.rfind(b"earer ") >= 0 or (b"V" in data and data.rfind(b"PRIVATE KEY") >= 0):
        return True
    for first, hint in _hints():  # noqa: SIM110 - `any` takes as long as the search, and this is asked of every line
        if first in data and hint.search(data):
            return True
    return False


@cache
def _hints() -> tuple[tuple[bytes, re.Pattern[bytes]], ...]:
    return tuple((hint[:1], re.compile(hint)) for hint in _HINTS)


@cache
def _keys() -> re.Pattern[bytes]:
    return re.compile(b"|".join(_KEYS))


def _in_text(strike: Redact, text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    clean = strike(data)
    return text if clean is data else clean.decode("utf-8", "surrogatepass")
