"""Did the agent say that it is done? Finds a claim in its final answer, and tells a claim from talk about one."""

import re
from collections.abc import Callable, Iterator

from msgspec import Struct

from ralph.core.model import Run
from ralph.core.promise import is_promised, marker_of
from ralph.core.text import clean
from ralph.core.wording import Span, is_plain_statement


class Claim(Struct, frozen=True):
    """A way to say "done": `kind` names the rule, `text` the words that it looks for."""

    kind: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.text}" if self.text else self.kind

    @property
    def marker(self) -> str:
        """What the agent has to write, as a person would show it."""
        if self.kind == "promise":
            return marker_of(self.text)
        return f"<response>{self.text}</response>" if self.kind == "response" else self.text

    @property
    def deed(self) -> str:
        """What the agent has to do to make the claim."""
        return f"create the file {self.text}" if self.kind == "file" else f"write {self.marker} on a line by itself"


class Reading(Struct, frozen=True):
    """How strictly answers are read. `strict`: a word counts only on a line by itself.
    `anywhere`: the literal rule alone, without the filter for sentences that deny, promise or condition."""

    strict: bool = False
    anywhere: bool = False


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
    """Whether `text` states the claim, by the literal rule of its kind and as a plain statement. It is read as a person
    would see it: without colours."""
    if not claim.text.strip():
        return False
    text = clean(text)
    if claim.kind == "response":
        return _first_response_is(claim.text, text, reading)
    if claim.kind == "promise":
        return is_promised(claim.text, text, reading.anywhere)
    spans = _FINDERS[claim.kind](claim.text, text, reading) if claim.text in text else ()
    return any(reading.anywhere or is_plain_statement(text, span) for span in spans)


def _first_response_is(wanted: str, text: str, reading: Reading) -> bool:
    if "</" not in text:  # as in most answers
        return False
    for match in re.finditer(r"<response>(.*?)</response>", text, re.IGNORECASE | re.DOTALL):
        if reading.anywhere or is_plain_statement(text, match.span()):
            return match[1].strip().casefold() == wanted.strip().casefold()
    return False


def _words(wanted: str, text: str, reading: Reading) -> Iterator[Span]:
    """On a line by itself, or (unless strict) a token between white space."""
    edges = (r"(?m)^[^\S\n]*", r"[^\S\n]*$") if reading.strict else (r"(?<!\S)", r"(?!\S)")
    return (match.span(1) for match in re.finditer(f"{edges[0]}({re.escape(wanted)}){edges[1]}", text))


def _tags(wanted: str, text: str, _: Reading) -> Iterator[Span]:
    """A whole word: neither letters, digits nor hyphens may touch it."""
    return (match.span() for match in re.finditer(rf"(?<![\w-]){re.escape(wanted)}(?![\w-])", text))


def _suffixes(wanted: str, text: str, _: Reading) -> Iterator[Span]:
    match = re.search(rf"(?<![\w-]){re.escape(wanted)}\s*\Z", text)
    if match:
        yield match.start(), match.start() + len(wanted)


_FINDERS: dict[str, Callable[[str, str, Reading], Iterator[Span]]] = {
    "word": _words,
    "tag": _tags,
    "suffix": _suffixes,
}

KINDS = ("word", "response", "suffix", "promise", "tag", "file", "checks")
