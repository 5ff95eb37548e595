"""Did the agent say that it is done? Finds the marker in its final answer, and tells a claim from talk about one; a
promise is the marker of a session's own loop, and what is said until it is kept."""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise

from msgspec import Struct

from ralph.core.model import Run, Turn
from ralph.core.text import clean, one_line
from ralph.core.wording import (
    ECHOED,
    NOT_TO_THE_LETTER,
    QUOTED,
    STRUCK,
    TextSpan,
    doubt,
    letters,
    nearly,
    occurrences,
    stands_in,
    undressed_end,
)

WROTE = "You wrote"

NO_WORK = (
    "Promise detected, but no tool calls/work were performed; "
    "you must actually complete the task before emitting the promise."
)

LOOK_AGAIN = (
    "This is claim {said} of {times} that are needed in a row.\n"
    "Look at all that was asked and at what is there with fresh eyes, and try it out. If anything is missing or wrong, "
    "mend it; if there is nothing to change, change nothing, and claim again."
)


def marker_of(promise: str) -> str:
    """What the agent has to write, to the letter."""
    return f"<promise>{promise}</promise>"


def wording_message(marker: str, words: str, doubt: str) -> str:
    """What the agent is told about a claim that was seen and not believed."""
    return (
        f'{WROTE} "{words}", which is no claim: {doubt}. When the work is done: to claim, put it alone on the last '
        f"line, {marker} and nothing else, below an empty line, and let no sentence lead up to it."
    )


def blocked_message(marker: str, words: str, doubt: str) -> str:
    """What the agent is told that seems to say that it cannot go on."""
    return (
        f'{WROTE} "{words}", which ends nothing: {doubt}. If you cannot go on, put it alone on the last line: {marker}'
    )


def promise_contract(task: str, marker: str) -> str:
    return (
        f"{task}\n\n"
        "Strict requirements for ending this task:\n"
        f"- Only when the task is fully done, output exactly this, alone on the last line: {marker}\n"
        "- It must match exactly: no white space inside the tag, no other wording, no variants.\n"
        "- If the task is not fully done, do not output it. Do not output it to get out of the loop.\n"
        "- You must do the work with your tools first: a promise without work is rejected.\n"
    )


def promise_continuation(task: str, marker: str, objections: Iterable[str], ultrawork: bool = False) -> str:
    why = "\n\n".join(objections)
    opening, promise = f"{why}\n\n", f"promise {marker}"
    if not why:
        opening = f"You attempted to end the loop, but you did not output the completion promise {marker}. "
        promise = "promise"
    told = (
        f"{opening}Continue working on the original task below. "
        f"Only output the {promise} when the task is fully complete.\n\nOriginal task:\n{task}"
    )
    return f"ultrawork\n\n{told}" if ultrawork else told


_LONGEST_LINE = 2000
_LONGEST_TAG = 40
_END = 1 << 16
_MOST = 20  # places of a marker that are looked at: an answer may be made of nothing else

NOT_FIRST = "another response stands before it"


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
        return f"create the file {self.text}" if self.kind == "file" else f"write {self.marker} alone on the last line"


class Reading(Struct, frozen=True):
    """How strictly answers are read. `strict`: a word counts only on a line by itself. `anywhere`: the literal rule
    alone, whatever its sentence says. `verified`: a check or a tasks file tells whether the work is done, so that the
    claim need not be unmistakable."""

    strict: bool = False
    anywhere: bool = False
    verified: bool = False


class Sighting(Struct, frozen=True):
    """A claim as it was found: the words that hold it and, where they are not believed, why not."""

    words: str = ""
    doubt: str = ""


def sighted(claim: Claim, run: Run, reading: Reading = Reading()) -> Sighting | None:
    """The claim in the run's newest facts. What a failed turn says is not believed."""
    if claim.kind == "file":
        return Sighting() if run.seen.done_file else None
    last = run.last
    if last is None or run.retries:
        return None
    if claim.kind == "checks":
        return Sighting() if last.checks and last.is_green else None
    if last.turn.failure is not None:
        return None
    return Sighting() if claim.kind == "turn" else read(claim, last.turn.text, reading, last.turn.echoes)


def stated(claim: Claim, text: str, reading: Reading = Reading()) -> bool:
    found = read(claim, text, reading)
    return found is not None and not found.doubt


def read(claim: Claim, text: str, reading: Reading = Reading(), echoes: tuple[TextSpan, ...] = ()) -> Sighting | None:
    """The claim in an answer, read as a person sees it: without colours. `echoes` are parts that repeat the prompt."""
    if not text or not claim.text.strip():
        return None
    text = clean(text)
    if claim.kind == "response":
        return _read_response(claim.text, text, reading, echoes) or _nearly(claim, text)
    spans = _last(_places(claim, text, reading))
    if not spans:
        return _nearly(claim, text)
    bare = claim.kind != "promise"
    return _best([(span, _doubt(text, span, reading, echoes, bare)) for span in spans], text)


def _best(found: list[tuple[TextSpan, str]], text: str) -> Sighting:
    """The place that is believed; else the last one."""
    span, why = next(((span, why) for span, why in found if not why), found[0])
    return Sighting(_around(text, span), why)


def _doubt(text: str, span: TextSpan, reading: Reading, echoes: tuple[TextSpan, ...], bare: bool = False) -> str:
    if reading.anywhere:
        return ""
    if any(first <= span[0] < last for first, last in echoes):
        return ECHOED
    return doubt(text, span, verified=reading.verified, bare=bare)


def _last(spans: Iterator[TextSpan]) -> list[TextSpan]:
    """The last places, from the end."""
    return [*reversed(deque(spans, _MOST))]


def _read_response(wanted: str, text: str, reading: Reading, echoes: tuple[TextSpan, ...]) -> Sighting | None:
    """The first response counts: what only talks about one is none."""
    wanted = wanted.strip().casefold()
    answers = [(span, said.casefold()) for span, said in responses(text)]
    meant = [span for span, said in answers if said == wanted]
    if not meant:
        return None
    loosely = Reading(reading.strict, reading.anywhere, verified=True)
    for span, said in answers[:_MOST]:
        if said != wanted and not _doubt(text, span, loosely, echoes):
            return Sighting(_around(text, meant[-1]), NOT_FIRST)
        if said == wanted and not _doubt(text, span, loosely, echoes):
            break
    return _best([(span, _doubt(text, span, reading, echoes)) for span in meant[: -_MOST - 1 : -1]], text)


def blocked(word: str, turn: Turn, reading: Reading = Reading()) -> tuple[Sighting, str] | None:
    """Where the agent says that it cannot go on, worded like a claim, and why that is."""
    text, wanted = clean(turn.text), word.strip().casefold()
    said = [(span, answer) for span, answer in responses(text) if _begins(answer.casefold(), wanted)]
    if not wanted or not said or turn.failure:
        return None
    tried = [(_doubt(text, span, reading, turn.echoes), span, answer) for span, answer in said[: -_MOST - 1 : -1]]
    why_not, span, answer = next((one for one in tried if not one[0]), tried[0])
    return Sighting(_around(text, span), why_not), one_line(answer[len(word.strip()) :].lstrip(" :：-–—"), 500)


def _begins(answer: str, wanted: str) -> bool:
    """Whether an answer begins with the word as a whole."""
    return answer.startswith(wanted) and not answer[len(wanted) : len(wanted) + 1].isalnum()


def responses(text: str) -> Iterator[tuple[TextSpan, str]]:
    """Where each `<response>` of an answer stands, and what is in it."""
    if "<" not in text:  # as in most
        return
    opened = -1
    for tag in re.finditer(r"<(/?)response>", text, re.IGNORECASE):
        if not tag[1]:
            opened = tag.start() if opened < 0 else opened
        elif opened >= 0:
            yield (opened, tag.end()), text[opened + len("<response>") : tag.start()].strip()
            opened = -1


def _places(claim: Claim, text: str, reading: Reading) -> Iterator[TextSpan]:
    """Where the words of a claim stand, as its kind looks for them."""
    wanted = claim.text
    if claim.kind == "promise":
        yield from occurrences(marker_of(wanted), text)
    elif claim.kind == "word":  # on a line by itself, or (unless strict) a token between white space
        edges = (r"(?m)^[^\S\n]*+", r"[^\S\n]*+$") if reading.strict else (r"(?<!\S)", r"(?!\S)")
        for match in re.finditer(f"{edges[0]}({re.escape(wanted.strip())}){edges[1]}", text):
            yield match.span(1)
    elif claim.kind == "tag":  # a whole word: neither letters, digits nor hyphens may touch it
        yield from (_with_tags(text, span) for span in occurrences(wanted, text) if _is_whole(text, span))
    elif claim.kind == "suffix":  # at the very end, in capitals or not
        end = len(text.rstrip()) if reading.anywhere else undressed_end(text)
        span = (end - len(wanted), end)
        if span[0] >= 0 and text[span[0] : end].casefold() == wanted.casefold() and _is_whole(text, span):
            yield span


def _with_tags(text: str, span: TextSpan) -> TextSpan:
    """Tags around a word belong to it, unless they strike it out or quote it."""
    name = text[max(span[0] - _LONGEST_TAG, 0) : span[0]].rpartition("<")[2]
    closing = f"</{name}"
    is_tagged = name.endswith(">") and name[:-1].isalnum() and f"<{name.lower()}" not in STRUCK
    is_tagged = is_tagged and text.startswith(closing, span[1])
    return (span[0] - len(name) - 1, span[1] + len(closing)) if is_tagged else span


def _is_whole(text: str, span: TextSpan) -> bool:
    around = text[max(span[0] - 1, 0) : span[0]] + text[span[1] : span[1] + 1]
    return not any(char.isalnum() or char in "_-" for char in around)


def _nearly(claim: Claim, text: str) -> Sighting | None:
    """Whatever was seen and does not count is said: in another dress at the end, or to the letter where its kind does
    not look for it, as the word in "STOP. All of it works."."""
    if line := nearly(claim.marker, text):
        return Sighting(one_line(line), NOT_TO_THE_LETTER)
    spans = _last(span for span in occurrences(claim.marker, text) if _is_whole(text, span))
    meant = next((span for span in spans if doubt(text, span) != QUOTED), None)
    return Sighting(_around(text, meant), NOT_TO_THE_LETTER) if meant else None


def _around(text: str, span: TextSpan) -> str:
    """The words that hold a marker, as they can be quoted in a line."""
    line = stands_in(text, span)
    if len(line) <= 200:
        return one_line(line)
    before, behind = text[max(span[0] - 90, 0) : span[0]], text[span[1] : span[1] + 60]
    return one_line(f"…{before.rpartition(chr(10))[2]}{text[span[0] : span[1]]}{behind.partition(chr(10))[0]}…", 400)


def echoes(text: str, prompt: str) -> tuple[TextSpan, ...]:
    """Which parts of an answer repeat the prompt: two lines or more that follow each other there as well, or all of it.
    Signs, indentation and lines without words do not count."""
    said = clean(text)
    if len(prompt) > 2 * _END:  # its instructions are at one of its ends
        prompt = f"{prompt[:_END]}\n{prompt[-_END:]}"
    asked = [words for _, words in _lines(prompt)]
    if asked and asked == [words for _, words in islice(_lines(said), len(asked) + 1)]:
        return ((0, len(text)),)
    neighbours = {*pairwise(asked)}
    pairs = pairwise(_lines(said))
    repeated = ((one[0], other[0]) for one, other in pairs if (one[1], other[1]) in neighbours)
    return tuple(dict.fromkeys(span for pair in repeated for span in pair))


def _lines(text: str) -> Iterator[tuple[TextSpan, str]]:
    """Every line with words in it, one after the other: where it is, and its letters."""
    for line in re.finditer(r"[^\n]++", text):
        if words := letters(line[0][:_LONGEST_LINE]):
            yield line.span(), words


KINDS = ("word", "response", "suffix", "promise", "tag", "file", "checks")
