"""Did the agent say that it is done? Finds the marker in its final answer; `wording` says whether its place counts."""

import re
from collections import deque
from collections.abc import Iterator

from msgspec import Struct

from ralph.core.model import Run, Turn
from ralph.core.text import clean, one_line
from ralph.core.wording import ECHOED, NOT_EXACT, AnswerText, TextSpan, is_whole, letters, occurrences, text_end

_MOST = 20  # occurrences of a marker that are judged: an answer may consist of nothing else
NOT_FIRST = "another response comes before it"
_QUOTATION_MARKS = frozenset("\"'‘’“”„«»‹›「」『』＂")


class Claim(Struct, frozen=True):
    """A way to say "done": `kind` names the rule, `text` the words that it looks for (`checks`, `green`: none)."""

    kind: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.text}" if self.text else self.kind

    @property
    def marker(self) -> str:
        """The text that the agent has to write, for people."""
        is_tag = self.kind in ("promise", "response")
        return f"<{self.kind}>{self.text}</{self.kind}>" if is_tag else self.text

    @property
    def deed(self) -> str:
        """The action that makes the claim, for people."""
        return f"create the file {self.text}" if self.kind == "file" else f"write {self.marker} alone on the last line"

    @property
    def request(self) -> str:
        """The same as a prompt asks for it."""
        return self.deed if self.kind == "file" else f"{self.deed}, after an empty line"


class Reading(Struct, frozen=True):
    """How answers are read. `strict`: a word counts only on a line by itself. `anywhere`: the seeds' literal rules,
    wherever the marker is. `verified`: a check verifies the work, so the place of the claim matters less."""

    strict: bool = False
    anywhere: bool = False
    verified: bool = False


class Sighting(Struct, frozen=True):
    """A marker that was found: the line that contains it and, if it is not a claim, why not."""

    words: str = ""
    doubt: str = ""


def sighted(claim: Claim, run: Run, reading: Reading = Reading()) -> Sighting | None:
    """Find the claim in the latest facts of the run. A failed turn cannot claim."""
    if claim.kind == "file":
        return Sighting() if run.seen.done_file else None
    last = run.last
    if last is None or run.retries:
        return None
    if claim.kind in ("checks", "green"):
        holds = last.checks and last.is_green if claim.kind == "checks" else run.has_nothing_to_add
        return Sighting() if holds else None
    if last.turn.failure is not None:
        return None
    return Sighting() if claim.kind == "turn" else _read_turn(claim, last.turn, reading)


def _read_turn(claim: Claim, turn: Turn, reading: Reading) -> Sighting | None:
    """Look for the claim in the final answer, then in the turn's earlier messages, the latest first."""
    found = read(claim, turn.text, reading, turn.echoes)
    for message in () if found and not found.doubt else reversed(turn.earlier):
        if (earlier := read(claim, message, reading)) and not earlier.doubt:
            return earlier
        found = found or earlier
    return found


def stated(claim: Claim, text: str, reading: Reading = Reading()) -> bool:
    """Whether an answer makes the claim."""
    found = read(claim, text, reading)
    return found is not None and not found.doubt


def read(claim: Claim, text: str, reading: Reading = Reading(), echoes: tuple[TextSpan, ...] = ()) -> Sighting | None:
    """Find the claim in an answer, ignoring terminal colours. `echoes` are parts that repeat the prompt."""
    if not text or not claim.text.strip():
        return None
    answer = AnswerText(clean(text))
    if claim.kind == "response":
        return _read_response(claim.text, answer, reading, echoes) or _near_miss(claim, answer)
    spans = _last(_places(claim, answer, reading))
    if not spans:
        return _near_miss(claim, answer)
    return _best([(span, _doubt(answer, span, reading, echoes)) for span in spans], answer)


def _best(found: list[tuple[TextSpan, str]], answer: AnswerText) -> Sighting:
    """The place that counts; else the last one."""
    span, why = next(((span, why) for span, why in found if not why), found[0])
    return Sighting(_around(answer, span), why)


def _doubt(answer: AnswerText, span: TextSpan, reading: Reading, echoes: tuple[TextSpan, ...]) -> str:
    if reading.anywhere:
        return ""
    if any(first <= span[0] < last for first, last in echoes):
        return ECHOED
    return answer.doubt(span, reading.verified)


def _last(spans: Iterator[TextSpan]) -> list[TextSpan]:
    """The last places, from the end."""
    return [*reversed(deque(spans, _MOST))]


def _read_response(wanted: str, answer: AnswerText, reading: Reading, echoes: tuple[TextSpan, ...]) -> Sighting | None:
    """The first `<response>` that could count decides what the answer says."""
    wanted = wanted.strip().casefold()
    said = [(span, words.casefold()) for span, words in responses(answer.text)]
    meant = [span for span, words in said if words == wanted]
    if not meant:
        return None
    loosely = Reading(anywhere=reading.anywhere, verified=True)
    first = next((words for span, words in said[:_MOST] if not _doubt(answer, span, loosely, echoes)), wanted)
    if first != wanted:
        return Sighting(_around(answer, meant[-1]), NOT_FIRST)
    return _best([(span, _doubt(answer, span, reading, echoes)) for span in meant[: -_MOST - 1 : -1]], answer)


def blocked(word: str, turn: Turn, reading: Reading = Reading()) -> tuple[Sighting, str] | None:
    """Find the agent's report that it cannot continue, and its reason. The rules for claims apply."""
    answer, wanted = AnswerText(clean(turn.text)), word.strip().casefold()
    begins = re.compile(re.escape(wanted) + r"(?![^\W_])", re.IGNORECASE).match
    said = [(span, words) for span, words in responses(answer.text) if begins(words)]
    if not wanted or not said or turn.failure:
        return None
    tried = [(_doubt(answer, span, reading, turn.echoes), span, words) for span, words in said[: -_MOST - 1 : -1]]
    why_not, span, words = next((one for one in tried if not one[0]), tried[0])
    return Sighting(_around(answer, span), why_not), one_line(words[len(word.strip()) :].lstrip(" :：-–—"), 500)


def responses(text: str) -> Iterator[tuple[TextSpan, str]]:
    """Where each `<response>` of an answer is, and what it contains."""
    opened = -1
    for tag in re.finditer(r"<(/?)response>", text, re.IGNORECASE):
        if not tag[1]:
            opened = tag.start() if opened < 0 else opened
        elif opened >= 0:
            yield (opened, tag.end()), text[opened + len("<response>") : tag.start()].strip()
            opened = -1


def _places(claim: Claim, answer: AnswerText, reading: Reading) -> Iterator[TextSpan]:
    """Where the words of a claim are, as its kind looks for them."""
    wanted, text = claim.text, answer.text
    if claim.kind == "promise":
        yield from occurrences(claim.marker, text)
    elif claim.kind == "word":  # on a line by itself, or (unless strict) a token between white space
        edges = (r"(?m)^[^\S\n]*+", r"[^\S\n]*+$") if reading.strict else (r"(?<!\S)", r"(?!\S)")
        for match in re.finditer(f"{edges[0]}({re.escape(wanted.strip())}){edges[1]}", text):
            yield match.span(1)
    elif claim.kind == "tag":
        yield from (span for span in occurrences(wanted, text) if is_whole(text, span))
    elif claim.kind == "suffix":  # the end of the answer, in any case
        end = len(text.rstrip()) if reading.anywhere else text_end(text)
        span = (end - len(wanted), end)
        if span[0] >= 0 and text[slice(*span)].casefold() == wanted.casefold() and is_whole(text, span):
            yield span


def _near_miss(claim: Claim, answer: AnswerText) -> Sighting | None:
    """A marker that is almost right (`stop`, `STOP.`) is reported: an honest agent would repeat it forever."""
    line, wanted = answer.last_line.strip(), letters(claim.marker)
    if (said := letters(line[-2000:])) == wanted != "" or ("<" in claim.marker and said.endswith(wanted)):
        return Sighting(one_line(line), NOT_EXACT)
    for span in _last(span for span in occurrences(claim.marker, answer.text) if is_whole(answer.text, span)):
        if not _QUOTATION_MARKS.intersection(answer.text[span[0] - 1 : span[0]] + answer.text[span[1] : span[1] + 1]):
            return Sighting(_around(answer, span), NOT_EXACT)
    return None


def _around(answer: AnswerText, span: TextSpan) -> str:
    """The words around a marker, short enough to quote in a line."""
    line, text = "\n".join(answer.lines[answer.lines_of(span)]), answer.text
    if len(line) <= 200:
        return one_line(line)
    before, behind = text[max(span[0] - 90, 0) : span[0]], text[span[1] : span[1] + 60]
    return one_line(f"…{before.rpartition(chr(10))[2]}{text[slice(*span)]}{behind.partition(chr(10))[0]}…", 400)


KINDS = ("word", "response", "suffix", "promise", "tag", "file", "checks")
