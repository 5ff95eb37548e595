"""Find out why a turn failed: from the agent's own error, its exit code and its error output.

For a usage limit, also find out when it ends. Expressions are applied to at most `_LINE` characters at a time, and
don't backtrack.
"""

import re
from datetime import datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from ralph.agents.protocol import Trouble
from ralph.agents.wire import read, text
from ralph.agents.wire import table as tables
from ralph.core.model import Exit, Failure, FailureKind
from ralph.core.text import clean, head, one_line, tail

_REASON = 300
_LAST_LINES, _LAST_FATAL = 200, 10  # lines at the end of an output that may state why a process failed
_LINE, _OVERLAP = 1000, 200  # characters that are searched at a time
_LONGEST = 4000  # characters of a known error message

_STATUS = (
    r"(?i)(?:^|\bstatus(?: code)?[:=]? ?|\bAPI Error: |\bHTTP(?:/[\d.]{1,3})? |\"code\": ?|\bcode[:=]? |\berror:? "
    r"|\brejected \()([45]\d\d)\b"
)

# Words of error messages. ralph searches for them only in errors: in a field of the agent's stream, or in an output
# line of a failed process that begins like an error or reports a limit or an overload. Never in answers.
_COUNTED = (
    r"(?:rate|usage|session|hour|hourly|daily|weekly|monthly|requests?|tokens?|api|minute|day|messages?|spend(?:ing)?"
    r"|concurrency)"
)
_LIMIT = (
    rf"(?:hit|reached|exceeded) (?:(?:your|its|a|the) )?(?:[\w-]{{1,20}} )?(?:[\w-]{{1,20}} )?{_COUNTED}[ _-]limit",
    r"(?:hit|reached) (?:your|its|a|the) (?:[\w-]{1,20} ){0,2}limit",
    r"exceeded your (?:[\w-]{1,20} ){0,3}allowance",
    rf"{_COUNTED}[ _-]limits? (?:per \w{{1,10}} )?(?:has been |was |have been )?(?:reached|exceeded|hit)",
    r"limit reached\|\d+",
    r"rate[ _-]limit(?:ed|_error|_exceeded|-exceeded| error| exceeded| reached| hit)",
    r"exceed(?:ed|s)?\b.{0,40}\brate limit",
    r"too[ _]many[ _]requests|toomanyrequests",
    r"throttled(?=[:;,.!]|\Z| by | until | for | \()|throttling ?(?:exception|error)|service throttling request",
    r"exhausted your (?:[\w-]{1,20} ){0,2}quota|your quota will reset|please back ?-?off and retry",
    r"quota[ _-](?:has been |was |is )?(?:exceeded|exhausted|reached)|exceed(?:ed|s) (?:your|the) (?:current )?quota",
    r"rate[ _-]limit[:;,.]? retry[ _-]after",
    r"insufficient[ _](?:quota|credits)|out of (?:extra )?(?:credits|quota|usage)",
    r"credit balance is too low|resource(?:_| |)exhausted|resource has been exhausted|usage_limit_reached",
)
_LOST_SESSION = (
    r"no (?:saved )?(?:conversation|session|thread|rollout)s?\b.{0,40}\b(?:found|matched)|session\b.{0,80}\bnot found",
    r"invalid session|session that does not exist",
)
_UNKNOWN_OPTION = (
    r"unknown (?:option|argument|flag)s?|unexpected argument|unrecognized (?:option|argument)s?|no such option",
)
_FATAL = (
    r"(?:invalid|incorrect|missing|no) (?:or missing )?(?:external )?(?:x-)?api[ _-]?key",
    r"api[ _-]?key (?:is )?(?:invalid|missing|not (?:set|found|valid|configured))",
    r"authentication[ _](?:failed|error|required)|failed to authenticate|unauthorized|unauthenticated",
    r"no auth(?:entication)? (?:type|method|information)|set an auth method",
    r"not (?:logged|signed) in|please (?:log|sign) ?in|run /login|login required|token (?:has )?expired",
    r"permission_error|permission_denied|not_found_error",
    r"model: \S{1,100}\Z|issue with the selected model|(?:unknown|invalid|no such) model",
    r"model\b.{0,80}\b(?:not found|does not exist|not supported)",
    *_UNKNOWN_OPTION,
    *_LOST_SESSION,
    r"session id\b.{0,80}\balready in use",
    r"not (?:running in|inside) a trusted|not trusted|untrusted",
    r"cannot be used with root",
)
_TRANSIENT = (
    r"overloaded|overloaded_error|internal server error|bad gateway|gateway time-?out|server_error",
    r"(?:at|over) (?:full |its |maximum )?capacity(?! \d)|service (?:is )?(?:temporarily |currently )?unavailable",
    r"(?:server|model|service|api|provider|backend|system) (?:is |are )?(?:\w{1,12} )?busy",
    r"experiencing (?:very |unusually )?(?:high|heavy) (?:demand|load|traffic)",
    r"ECONN(?:REFUSED|RESET|ABORTED)|ETIMEDOUT|ENOTFOUND|EAI_AGAIN|ENETUNREACH|i/o timeout",
    r"API Error: terminated|socket hang up|fetch failed|error sending request|request timed out|network error",
    r"connection (?:error|refused|reset|failed|closed|lost|timed out)",
    r"(?:cannot|could not|unable to|failed to) connect",
    r"stream (?:closed|disconnected|ended before|ended without)|missing finish_reason",
)
_ERROR_LINE = (
    r"(?:[\w.:-]{1,80}+ ){0,3}[\w.]{0,80}?(?:error|fatal|exception)",
    r"(?:failed|invalid|incorrect|unknown|unexpected|unrecognized|authentication|unauthorized)",
    r"(?:quota|too many|not|no|credit|rate|session|model|please set)",
    r"you.ve (?:hit|reached)|[\w-]{1,40} cannot be used|request failed with status",
)
# Lines that mention a limit but don't report one: code, diffs, tests, package names, descriptions of work.
_CODE = (
    r"^[ \t]*+(?:[-+](?=\S|  )|@@|#|//|diff |index |\d+[:|]|ok\b|not ok\b|E  |(?:import|from|def|class|const) "
    r"|(?:return|raise|assert) )"
    r"|\w\.(?:py|js|ts|go|rs|java|rb|md|tsx?|c|h|cpp):\d|=>|[{;]\s*+\Z|\bPASS(?:ED)?\b|\bFAIL(?:ED)?\b"
)
_ABOUT = (
    r"(?i)\b(?:tests?|specs?|passed|lines|assert\w{0,10}|expects?|mock\w{0,5}|simulat\w{1,5}|package|module|import|library)\b"
    r"|\b(?:add|adds|added|handle[sd]?|handling|implement\w{0,4}|fix|fixed|fixes|document\w{0,3}|support\w{0,3})\b"
    r"|\b(?:if|when|whenever|should|would|refused?|return|returns|raises?|throws?|catch\w{0,3}|says|deprecated)\b"
    r"|==|\(\)|@\d|ratelimit\b|rate-limit\b(?! *+(?:exceeded|error|reached|hit))"
)


def _any(words: tuple[str, ...]) -> str:
    return rf"(?i)\b(?:{'|'.join(words)})(?!\w)"


# These are strings, which `re` compiles when they are first used: few runs need them, and they take 8 ms.
_KINDS: tuple[tuple[FailureKind, str], ...] = (
    ("limit", _any(_LIMIT)),
    ("fatal", _any(_FATAL)),
    ("transient", _any(_TRANSIENT)),
)
_LOST = _any(_LOST_SESSION)
_UNKNOWN = _any(_UNKNOWN_OPTION)
_BEGINS_AS_ERROR = rf'(?i)[\W_]*+(?:{"|".join(_ERROR_LINE)})\b|\{{.*"type": ?"error"'
_WHEN = re.compile(r"\W*+(?:please )?\b(?:retry|retrying|try again|resets?|wait)\b", re.IGNORECASE)
_REFUSED = re.compile(r"(?:error: )?unknown (?:option|argument|flag)s?\b", re.IGNORECASE)
# Some CLIs print one of these errors as their whole answer, with exit code 0.
_ERROR_AS_ANSWER = (
    r"(?i)(?:not logged in|invalid api key)\b.{0,40}\bplease run /login\.?"
    r"|you.ve (?:hit|reached) your (?:[\w-]{1,20} ){0,3}limit *+[·∙•|,.;-]? *+resets? .{1,80}"
)
_ONLY_AN_ERROR = re.compile(r"(?:(?:API )?Error: |Prompt is too long\b)[^\n]*+\Z")


def failure(trouble: Trouble | None, notice: str, ended: Exit) -> Failure:
    """Return why a turn failed.

    If ralph ended the turn, that is the reason, unless the agent had reported a limit, a fatal or a transient error.
    """
    cause = _of(trouble, ended.at) if trouble else None
    if cause and (cause.kind != "ordinary" or not ended.ended_by):
        return cause
    if ended.ended_by:
        heard = f"; last heard: {_short(notice)}" if notice else ""
        return Failure("ordinary", f"ended by ralph: {ended.ended_by}{heard}")
    if stated := stated_in(ended.stderr):
        return _of(stated, ended.at)
    code = "no exit code" if ended.code is None else f"exit code {ended.code}"
    if ended.code is not None and ended.code < 0:
        code = f"killed by signal {-ended.code}"
    last = next((line for line in reversed(clean(tail(ended.stderr, _LONGEST)).split("\n")) if line.strip()), "")
    return Failure("ordinary", f"{code}: {_short(last)}" if last else code)


def stated_in(output: str) -> Trouble | None:
    """Return the error in the last lines of a failed process's output; None if there is none.

    A fatal error counts only in the last ten lines. A limit or a transient error also counts further up, because agents
    continue to print for a while after one.
    """
    lines = clean(tail(output, _LAST_LINES * _LINE)).strip().split("\n")
    first = lines[0]
    for nearness, line in enumerate(reversed(lines[-_LAST_LINES:])):
        for at in range(0, max(len(line) - _OVERLAP, 1), _LINE - _OVERLAP):  # the error may be far from the start
            if _states_trouble(part := line[at : at + _LINE], nearness < _LAST_FATAL):
                return _with_time(part, lines[len(lines) - nearness :])
    is_refused = _REFUSED.match(first)  # a page of help follows
    return Trouble(first) if is_refused or (len(lines) == 1 and _ONLY_AN_ERROR.match(first)) else None


def error_in_answer(answer: str) -> Trouble | None:
    """Return the error, if the whole answer of a process that exited with 0 is one."""
    text = answer.strip()
    return Trouble(text) if len(text) < _REASON and re.fullmatch(_ERROR_AS_ANSWER, text) else None


def error_record(output: str) -> Trouble | None:
    """Return the message of the last line with an error in JSON, such as `{"type":"error","message":…}`."""
    for line in reversed(output.strip().split("\n")[-_LAST_FATAL:]):
        table = read(line.strip().encode(errors="replace")) if '"error"' in line else None
        if table and (message := text(tables(table, "error"), "message") or text(table, "message")):
            return Trouble(message)
    return None


def is_unknown_option(failure: Failure | None) -> bool:
    """Whether a turn failed because the agent's program does not have an option that it was started with."""
    return failure is not None and failure.kind == "fatal" and re.search(_UNKNOWN, failure.reason) is not None


def is_lost_session(failure: Failure | None) -> bool:
    """Whether a turn failed because the session to continue does not exist."""
    return failure is not None and failure.kind == "fatal" and re.search(_LOST, failure.reason) is not None


def _states_trouble(line: str, is_near: bool) -> bool:
    kind = kind_of(re.sub(r"^\W*\d+\b", "", line))  # a number without words is a count, not a status
    if kind == "ordinary" or (kind == "fatal" and not is_near) or re.search(_CODE, line):
        return False
    return bool(re.match(_BEGINS_AS_ERROR, line)) or (kind != "fatal" and not re.search(_ABOUT, line))


def _with_time(line: str, below: list[str]) -> Trouble:
    """Return the line, joined with the next one if only that one says when the limit ends."""
    follows = head(below[0], _LINE).strip() if below else ""
    says_when = _WHEN.match(follows) and not _WHEN.search(line)
    return Trouble(f"{line.strip()} {follows}" if says_when else line.strip())


def kind_of(message: str, status: int | None = None) -> FailureKind:
    """Return the kind of failure, judged by the error message and its HTTP status."""
    message = head(message, _LONGEST)
    match = None if status else re.search(_STATUS, message)
    named: FailureKind = next((kind for kind, words in _KINDS if re.search(words, message)), "ordinary")
    if match and match[1] == "404" and "model" not in message.lower():
        return "ordinary"  # 404 is fatal only if it is about the model
    status = int(match[1]) if match else status
    if status is None:
        return named
    if status in (402, 429) or named == "limit":
        return "limit"
    if status in (401, 403, 404) or (status == 400 and named == "fatal"):
        return "fatal"
    return "transient" if status >= 500 or status == 408 else "ordinary"


_EPOCH = re.compile(r"\|\d{9,13}\b")  # the time in seconds after a limit, which people can't read


def _of(trouble: Trouble, now: float) -> Failure:
    kind = trouble.kind or kind_of(trouble.message, trouble.status)
    moment = (trouble.resets_at or resets_at(head(trouble.message, _LONGEST), now)) if kind == "limit" else None
    words = _EPOCH.sub("", _inner(trouble.message)) if moment else _inner(trouble.message)
    return Failure(kind, _short(words) or "the agent reported an error", moment)


def _inner(message: str) -> str:
    """Return the message inside an error that is JSON or ends with JSON."""
    before, brace, rest = message.partition("{")
    table = read((brace + rest[: rest.rfind("}") + 1]).encode(errors="replace")) if brace else None
    words = text(tables(table, "error"), "message") or text(table, "message") if table else ""
    return f"{before.strip(' [')} {words}".strip() if words else message


def _short(message: str) -> str:
    return one_line(clean(message), _REASON)


_ZONE = r"(?:\s*+\((?P<zone>[\w/+-]{1,40})\))?"
_CLOCK = r"(?P<hour>\d{1,2})(?::(?P<minute>\d\d))?\s*+(?P<half>[ap])\.?m\b\.?"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?(?:,?\s{1,4}(?P<year>\d{4}))?"
_DATE = rf"(?P<month>{'|'.join(_MONTHS)})[a-z]{{0,6}}\.?\s{{1,4}}{_DAY},?\s{{1,4}}(?:at\s{{1,4}})?"
_UNITS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}

_EPOCH_OF_RESET = r"(?i)\bresets?_?at\"?\s*+[:=]\s*+\"?(\d{9,13})(?:\.\d+)?\b|\blimit reached\|(\d{9,13})\b"
_SECONDS = (
    r"(?i)\bresets?_in_seconds\"?\s*+[:=]\s*+\"?(\d{1,9}(?:\.\d{1,9})?)"
    r"|\bretry-after(?:-seconds)?\"?\s*+[:=]\s*+\"?(\d{1,9}(?:\.\d{1,9})?)\b(?![ \t]*+[a-z])"
    r"|\bretryDelay\"?\s*+[:=]\s*+\"?(\d{1,9}(?:\.\d{1,9})?)s\b"
)
# Words before a duration: "retry-after: 60s", "wait 2 minutes", "try again in an hour".
_BEFORE_SPAN = (
    r"(?i)\b(?:try again|retry|retrying|resets?|reset|renews?|available|wait|come back|back off)(?: (?:again|it|now))?"
    r"(?:[ _-](?:in|after|for|time))?\"?\s*+[:=]?\s*+\"?(?:(?:about|at least|approximately|another|~) ?)?"
)
_PART = re.compile(
    r"(\d{1,9}(?:\.\d{1,9})?|an?)\s*+"
    r"(milliseconds?|ms|weeks?|w|days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)(?![a-z])"
    r"[\s,]{0,3}(?:and\s{1,3})?",
    re.IGNORECASE,
)
_MOMENT = (
    rf"(?i)\b(?:resets?(?: (?:at|on))?|try again (?:at|on)|available (?:again )?at)\s{{1,4}}(?:{_DATE})?{_CLOCK}{_ZONE}"
)
_ISO = (
    r"(?i)\b(?:resets?(?: (?:at|on))?|try again (?:at|after)|retry-after:?|resets?_?at\"?\s*+[:=])\s*+\"?"
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?(?:\.\d{1,9})?(?:\s?(?:Z|UTC|[+-]\d\d:?\d\d))?)"
)

JUST_PASSED = 600.0  # seconds; a time of day that is this recent is in the past, not tomorrow
_LONGEST_WAIT = 62 * 86400.0


def resets_at(text: str, now: float) -> float | None:
    """Return when the limit ends according to `text`, in epoch seconds; None if it doesn't say."""
    for moment in (_epoch(text), _after(text, now), _date(text), _clock(text, now)):
        if moment is not None and now - 86400 <= moment <= now + _LONGEST_WAIT:
            return moment
    return None


def _epoch(text: str) -> float | None:
    match = re.search(_EPOCH_OF_RESET, text)
    if not match:
        return None
    number = float(match[1] or match[2])
    return number / 1000 if number > 1e11 else number


def _after(text: str, now: float) -> float | None:
    if match := re.search(_SECONDS, text):
        return now + float(match[1] or match[2] or match[3])
    for before in re.finditer(_BEFORE_SPAN, text):
        if span := _span(text, before.end()):
            return now + span
    return None


def _span(text: str, at: int) -> float:
    """Return the duration that begins at `at`: `1h30m`, `2 days, 3 hours and 4 minutes`."""
    total = 0.0
    while part := _PART.match(text, at):
        number, unit = (1.0 if part[1].lower().startswith("a") else float(part[1])), part[2].lower()
        total += number * (_UNITS["ms"] if unit.startswith(("ms", "milli")) else _UNITS[unit[0]])
        at = part.end()
    return total


def _date(text: str) -> float | None:
    match = re.search(_ISO, text)
    try:
        return datetime.fromisoformat(re.sub(" ?UTC", "+00:00", match[1])).timestamp() if match else None
    except (ValueError, OverflowError):
        return None


def _clock(text: str, now: float) -> float | None:
    match = re.search(_MOMENT, text)
    if not match or not 1 <= int(match["hour"]) <= 12:
        return None
    here = datetime.fromtimestamp(now, _zone(match["zone"]))
    hour = int(match["hour"]) % 12 + (12 if match["half"].lower() == "p" else 0)
    try:
        then = here.replace(hour=hour, minute=int(match["minute"] or 0), second=0, microsecond=0, fold=0)
        if match["month"]:
            then = then.replace(
                year=int(match["year"] or here.year),
                month=_MONTHS.index(match["month"].lower()) + 1,
                day=int(match["day"]),
            )
            if not match["year"] and then.timestamp() < now - 86400:
                then = then.replace(year=then.year + 1)
        elif then.timestamp() < now - JUST_PASSED:
            then += timedelta(days=1)
        return then.timestamp()
    except (ValueError, OverflowError):
        return None


def _zone(name: str | None) -> tzinfo | None:
    try:
        return ZoneInfo(name) if name else None
    except (ValueError, OSError, KeyError):
        return None
