"""Why did a turn fail? What an agent says of its own trouble, its exit code and its error output become one Failure."""

import re

from ralph.agents.reader import Trouble
from ralph.agents.resets import resets_at
from ralph.agents.wire import TABLE, read, text
from ralph.agents.wire import table as tables
from ralph.core.model import Exit, Failure, FailureKind
from ralph.core.text import clean, head, one_line, tail

_REASON = 300
_LAST_LINES = 10
_LONGEST = 4000  # characters of a message that are looked at

_STATUS = re.compile(
    r'(?:^|\bstatus(?: code)?:? |\bAPI Error: |\bHTTP |"code": ?|\berror: |\brejected \()([45]\d\d)\b', re.IGNORECASE
)

# Words of error messages. They are looked for in what is known to be an error: a field of the agent's stream, or a line
# that begins like an error in the output of a process that failed. Never in an answer.
_LIMIT = (
    r"hit your (?:\w+ ){0,2}limit",
    r"(?:usage|session|hour|daily|weekly|monthly|request|token) limit (?:has been )?(?:reached|exceeded|hit)",
    r"limit reached\|\d+",
    r"rate[ _-]limit(?:ed|_error|_exceeded| error| exceeded| reached| hit)",
    r"exceed(?:ed|s)?\b.{0,40}\brate limit",
    r"too many requests",
    r"quota exceeded|exceeded your current quota|insufficient_quota|out of (?:credits|quota)",
    r"credit balance is too low|resource_exhausted|usage_limit_reached",
)
_FATAL = (
    r"(?:invalid|incorrect|missing|no) (?:or missing )?(?:external )?(?:x-)?api[ _-]?key",
    r"api[ _-]?key (?:is )?(?:invalid|missing|not (?:set|found|valid|configured))",
    r"authentication[ _](?:failed|error|required)|failed to authenticate|unauthorized|unauthenticated",
    r"no auth(?:entication)? (?:type|method|information)|set an auth method",
    r"not (?:logged|signed) in|please (?:log|sign) ?in|run /login|login required|token (?:has )?expired",
    r"permission_error|permission_denied|not_found_error",
    r"model: \S+\Z|issue with the selected model|(?:unknown|invalid|no such) model",
    r"model\b.{0,80}\b(?:not found|does not exist|not supported)",
    r"unknown (?:option|argument|flag)s?|unexpected argument|unrecognized (?:option|argument)s?|no such option",
    r"no (?:saved )?(?:conversation|session|thread|rollout)s?\b.{0,40}\b(?:found|matched)|session\b.{0,80}\bnot found",
    r"invalid session",
    r"session id\b.{0,80}\balready in use",
    r"not (?:running in|inside) a trusted|not trusted|untrusted",
    r"cannot be used with root",
)
_TRANSIENT = (
    r"overloaded|overloaded_error|internal server error|bad gateway|gateway time-?out|server_error",
    r"service (?:is )?(?:temporarily |currently )?unavailable",
    r"ECONN(?:REFUSED|RESET|ABORTED)|ETIMEDOUT|ENOTFOUND|EAI_AGAIN|ENETUNREACH",
    r"API Error: terminated|socket hang up|fetch failed|error sending request|request timed out|network error",
    r"connection (?:error|refused|reset|failed|closed|lost|timed out)",
    r"(?:cannot|could not|unable to|failed to) connect",
    r"stream (?:closed|disconnected|ended before|ended without)|missing finish_reason",
)
_ERROR_LINE = (
    r"(?:[\w.:-]+ ){0,3}[\w.]*(?:error|fatal|exception)",
    r"(?:failed|invalid|incorrect|unknown|unexpected|unrecognized|authentication|unauthorized)",
    r"(?:quota|too many|not|no|credit|rate|session|model|please set)",
    r"you.ve hit|[\w ]{0,30}\blimit reached|[\w-]+ cannot be used|request failed with status",
)
# A passing fault also stands at the beginning of a line without the word "error": "503 Service Unavailable".
_BEFORE_FAULT = (
    r"(?:HTTP |[45]\d\d |connect |getaddrinfo |the (?:\w+ )?(?:model|server|service|API) is (?:currently )?)*"
)


def _any(words: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(words)})\b", re.IGNORECASE)


_KINDS: tuple[tuple[FailureKind, re.Pattern[str]], ...] = (
    ("limit", _any(_LIMIT)),
    ("fatal", _any(_FATAL)),
    ("transient", _any(_TRANSIENT)),
)
_BEGINS_AS_ERROR = re.compile(rf'[\W_]*(?:{"|".join(_ERROR_LINE)})\b|\{{.*"type": ?"error"', re.IGNORECASE)
_BEGINS_AS_FAULT = re.compile(rf"\W*{_BEFORE_FAULT}(?:{'|'.join(_TRANSIENT)}|too many requests)\b", re.IGNORECASE)
_REFUSED = re.compile(r"(?:error: )?unknown (?:option|argument|flag)s?\b", re.IGNORECASE)
_ONLY_AN_ERROR = re.compile(r"(?:(?:API )?Error: |Prompt is too long\b)[^\n]*\Z")


def failure(trouble: Trouble | None, notice: str, ended: Exit) -> Failure:
    """The failure of a turn that did not end well. A process that ralph ended failed by that, unless the agent had
    already said something worse."""
    told = _of(trouble, ended.at) if trouble else None
    if told and (told.kind != "ordinary" or not ended.ended_by):
        return told
    if ended.ended_by:
        heard = f"; last heard: {_short(notice)}" if notice else ""
        return Failure("ordinary", f"ended by ralph: {ended.ended_by}{heard}")
    stated = stated_in(ended.stderr)
    if stated:
        return _of(stated, ended.at)
    return Failure("ordinary", _exit(ended))


def stated_in(output: str) -> Trouble | None:
    """The trouble that the last lines of a failed process's output state, if any."""
    lines = clean(tail(output, _LAST_LINES * _LONGEST)).strip().split("\n")
    first, lines = lines[0], lines[-_LAST_LINES:]
    for line in reversed(lines):
        if (_BEGINS_AS_ERROR.match(line) or _BEGINS_AS_FAULT.match(line)) and kind_of(line) != "ordinary":
            return Trouble(line.strip())
    if _REFUSED.match(first):
        return Trouble(first)  # a page of help is behind it
    return Trouble(lines[0]) if len(lines) == 1 and _ONLY_AN_ERROR.match(lines[0]) else None


def kind_of(message: str, status: int | None = None) -> FailureKind:
    """The kind of failure that an error message, or its HTTP status, stands for."""
    message = head(message, _LONGEST)
    found = None if status else _STATUS.search(message)
    named: FailureKind = next((kind for kind, words in _KINDS if words.search(message)), "ordinary")
    if found and found[1] == "404" and "model" not in message.lower():
        return "ordinary"  # some page was not found: only a missing model is hopeless
    status = int(found[1]) if found else status
    if status is None:
        return named
    if status in (402, 429) or named == "limit":
        return "limit"
    if status in (401, 403, 404) or (status == 400 and named == "fatal"):
        return "fatal"
    return "transient" if status >= 500 or status == 408 else "ordinary"


def _of(trouble: Trouble, now: float) -> Failure:
    kind = trouble.kind or kind_of(trouble.message, trouble.status)
    moment = (trouble.resets_at or resets_at(head(trouble.message, _LONGEST), now)) if kind == "limit" else None
    return Failure(kind, _short(_inner(trouble.message)) or "the agent reported an error", moment)


def _inner(message: str) -> str:
    """The words in an error that is JSON, or has JSON at its end."""
    before, brace, rest = message.partition("{")
    table = read((brace + rest[: rest.rfind("}") + 1]).encode(errors="replace"), TABLE) if brace else None
    words = text(tables(table, "error"), "message") or text(table, "message") if table else ""
    return f"{before.strip(' [')} {words}".strip() if words else message


def _exit(ended: Exit) -> str:
    if ended.code is None:
        code = "no exit code"
    elif ended.code < 0:
        code = f"killed by signal {-ended.code}"
    else:
        code = f"exit code {ended.code}"
    last = next((line for line in reversed(clean(tail(ended.stderr, _LONGEST)).split("\n")) if line.strip()), "")
    return f"{code}: {_short(last)}" if last else code


def _short(message: str) -> str:
    return one_line(clean(message), _REASON)
