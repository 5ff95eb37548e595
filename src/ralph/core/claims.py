"""Did the agent say that it is done? Finds a claim in its final answer, and tells a claim from talk about one."""

import re
from collections.abc import Callable, Iterator

from msgspec import Struct

from ralph.core.model import Run


class Claim(Struct, frozen=True):
    """A way to say "done": `kind` names the rule, `text` the words that it looks for."""

    kind: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.text}" if self.text else self.kind

    @property
    def marker(self) -> str:
        """What the agent has to write, as a person would show it."""
        wrapped = {"response": "<response>{}</response>", "promise": "<promise>{}</promise>"}
        return wrapped.get(self.kind, "{}").format(self.text)


class Reading(Struct, frozen=True):
    """How strictly answers are read. `strict`: a word counts only on a line by itself.
    `anywhere`: the literal rule alone, without the filter for sentences that deny, promise or condition."""

    strict: bool = False
    anywhere: bool = False


Span = tuple[int, int]


def claimed(claim: Claim, run: Run, reading: Reading = Reading()) -> bool:
    """Whether the run's newest facts state `claim`. What a failed turn says is not believed."""
    if claim.kind == "file":
        return run.seen.done_file
    last = run.last
    if last is None or run.retries:
        return False
    if claim.kind == "checks":
        return bool(last.checks) and last.is_green
    if claim.kind == "turn":
        return last.turn.failure is None
    return last.turn.failure is None and stated(claim, last.turn.text, reading)


def stated(claim: Claim, text: str, reading: Reading = Reading()) -> bool:
    """Whether `text` states the claim, by the literal rule of its kind and as a plain statement."""
    if not claim.text.strip():
        return False
    if claim.kind == "response":
        return _first_response_is(claim.text, text, reading)
    spans = _FINDERS[claim.kind](claim.text, text, reading)
    return any(reading.anywhere or is_plain_statement(text, span) for span in spans)


def _first_response_is(wanted: str, text: str, reading: Reading) -> bool:
    for match in re.finditer(r"<response>(.*?)</response>", text, re.IGNORECASE | re.DOTALL):
        if reading.anywhere or is_plain_statement(text, match.span()):
            return match[1].strip().casefold() == wanted.strip().casefold()
    return False


def _words(wanted: str, text: str, reading: Reading) -> Iterator[Span]:
    """On a line by itself, or (unless strict) a token between white space."""
    edges = (r"(?m)^[^\S\n]*", r"[^\S\n]*$") if reading.strict else (r"(?<!\S)", r"(?!\S)")
    return (match.span(1) for match in re.finditer(f"{edges[0]}({re.escape(wanted)}){edges[1]}", text))


def _promises(wanted: str, text: str, _: Reading) -> Iterator[Span]:
    return (match.span() for match in re.finditer(re.escape(f"<promise>{wanted}</promise>"), text))


def _tags(wanted: str, text: str, _: Reading) -> Iterator[Span]:
    """A whole word: neither letters, digits nor hyphens may touch it."""
    return (match.span() for match in re.finditer(rf"(?<![\w-]){re.escape(wanted)}(?![\w-])", text))


def _suffixes(wanted: str, text: str, _: Reading) -> Iterator[Span]:
    match = re.search(rf"(?<![\w-]){re.escape(wanted)}\s*\Z", text)
    if match:
        yield match.start(), match.start() + len(wanted)


_FINDERS: dict[str, Callable[[str, str, Reading], Iterator[Span]]] = {
    "word": _words,
    "promise": _promises,
    "tag": _tags,
    "suffix": _suffixes,
}

KINDS = ("word", "response", "suffix", "promise", "tag", "file", "checks")


# A marker is talked about, not stated, when the clause that holds it denies ("not", "never"), promises ("will",
# "going to"), asks, commands ("output X") or conditions ("if", "once"); or when a condition follows it ("X only when").
_TALK_BEFORE = re.compile(
    r"\b(?:not|never|cannot|nor|neither|will|shall|would|should|must|could|can|may|might|if|when|once|until|till|unless"
    r"|whether|only|before|instead\s+of|rather\s+than|going\s+to|about\s+to|plan\s+to|intend\s+to|unable|refuse"
    r"|premature|hardly|barely|far\s+from|yet\s+to|no\s+longer|remains?\s+to"
    r"|to\s+(?:output|emit|print|say|write|type|reply|respond|return|send|declare|claim|be|see))\b"
    r"|n't\b|'(?:ll|d)\b|\b(?:isn|won|don|can|doesn|didn|wasn|aren|haven|hasn|shouldn|wouldn|couldn)t\b|\bno\W*$",
    re.IGNORECASE,
)
_TALK_AFTER = re.compile(
    r"^\W*(?:[\w'-]+\W+){0,4}?(?:only|when|whenever|once|if|until|till|unless|after|as\s+soon\s+as|yet|later|soon"
    r"|provided|not|is\s+false|would|will|cannot|can't|isn't|wasn't)\b",
    re.IGNORECASE,
)
_COMMAND = re.compile(
    r"^\W*(?:please\s+|then\s+|and\s+|just\s+)*"
    r"(?:output|emit|print|say|write|type|reply|respond|return|send|use|include|append|add|end)\b",
    re.IGNORECASE,
)
_NEW_CLAUSE = re.compile(r"[;—–]|\s-\s|,?\s*\b(?:but|so|therefore|thus|hence|however|now)\b,?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?…]['\")\]*`]*(?=\s|$)|\n\s*\n|\n\s*(?=[-*+#>|]|\d+[.)]\s)")
_DECORATION = " \t`*_\"'"


def is_plain_statement(text: str, span: Span) -> bool:
    """Whether the marker at `span` stands on a line of its own, or in a sentence that simply states it."""
    start, end = span
    line_start, line_end = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    if not (text[line_start:start] + text[end:line_end]).strip(_DECORATION):
        return True
    before, after, question = _sentence_around(text, start, end)
    if question or _COMMAND.search(_last_clause(before)):
        return False
    return not (_TALK_BEFORE.search(_last_clause(before)) or _TALK_AFTER.search(after))


def _sentence_around(text: str, start: int, end: int) -> tuple[str, str, bool]:
    """What stands in the marker's sentence before and after it, and whether the sentence is a question."""
    window = text[max(0, start - 600) : start].replace("’", "'")
    ends = [match.end() for match in _SENTENCE_END.finditer(window)]
    before = window[ends[-1] if ends else 0 :]
    rest = text[end : end + 600].replace("’", "'")
    stop = _SENTENCE_END.search(rest)
    after = rest[: stop.start()] if stop else rest
    question = stop is not None and rest[stop.start() : stop.end()].startswith("?")
    return before, after, question


def _last_clause(before: str) -> str:
    """The part of a sentence that still governs what comes next: "I could not lint, but all is done: X" states X."""
    breaks = list(_NEW_CLAUSE.finditer(before))
    return before[breaks[-1].end() :] if breaks else before
