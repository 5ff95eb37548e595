"""Decide whether the agent claims to be done. The place of the marker in its final answer counts, not the prose.

If nothing verifies the work, the last line with words must be the marker alone with nothing leading up to it, or end
with the marker after a full stop. If a check verifies it, the marker may be alone on any line, or end the last line
after a punctuation mark. Reading takes time linear in the length of the answer.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise

from msgspec import Struct

from ralph.core.model import Run, Turn
from ralph.core.text import clean, one_line

TextSpan = tuple[int, int]

NOT_LAST = "it is not on the last line"
_NOT_ALONE = "it is not alone on its line"
_NOT_EXACT = "it is not spelled exactly"

_MAX_JUDGED = 20  # occurrences of the marker that are judged: an answer may have thousands
_STOPS = (".", "!", "。", "！", "．", "।", "۔")
_COLONS = (":", "：")
_ENDS = (*_STOPS, "?", "？", "؟")
_BREAKS = (*_ENDS, *_COLONS, ",", ";", "，", "、", "；", "،", "–", "—")
_LEADS = (*_COLONS, "-", "–", "—", "−", "→", "->", "=>")
_ORNAMENT = " #\t\u00a0\u3000\u200b\ufeff\ufe0f*_`✅✔☑🎉🎊🥳🚀✨👍🙌💯🏁"
_CLOSING = "\"'”’»」』)]）"
_QUOTATION_MARKS = frozenset("\"'‘’“”„«»‹›「」『』＂")
_STRUCK = ("del", "s", "strike", "q", "blockquote")
_ITEM = re.compile(
    r"[\s*_`]*(?:[-*+•‣◦▪●○·–—]\s|[-+•]$|・|\[[ xX]\]|[☐☒⬜]|[①-⑳]|\d\ufe0f?\u20e3"
    r"|[(（]?(?:\d{1,3}|[a-zA-Z]|[ivx]{1,4})[.)）](?=\s|[*_`]|$)|[(（]?[\d一二三四五六七八九十]{1,3}[、．）])"
)
_FENCE = re.compile(r"[ \t]*(`{3,}(?=[^`]*$)|~{3,})")


class Claim(Struct, frozen=True):
    """A way to say "done". `kind` names the rule, and `text` is what it looks for; `checks`, `green` and `person` have
    none."""

    kind: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.text}" if self.text else self.kind

    @property
    def marker(self) -> str:
        """The text that the agent has to write."""
        is_tag = self.kind in ("promise", "response")
        return f"<{self.kind}>{self.text}</{self.kind}>" if is_tag else self.text

    @property
    def deed(self) -> str:
        """What the agent has to do to make the claim, for a message to a person."""
        return f"create the file {self.text}" if self.kind == "file" else f"write {self.marker} alone on the last line"

    @property
    def request(self) -> str:
        """What the agent has to do to make the claim, for a prompt."""
        return self.deed if self.kind == "file" else f"{self.deed}, after an empty line"


ACCEPTED = Claim("person")
"""A person has accepted test and protected files as they are, and the checks pass. It counts in every run."""


class Reading(Struct, frozen=True):
    """How answers are read.

    `strict`: a claim of the kind `word` counts only on a line by itself. `anywhere`: a marker counts wherever it is.
    `verified`: a check verifies the work, so the place of the marker matters less.
    """

    strict: bool = False
    anywhere: bool = False
    verified: bool = False


class FoundMarker(Struct, frozen=True):
    """A marker with the words around it, and its place. `doubt` says why it is not a claim; "" if it is one."""

    words: str = ""
    doubt: str = ""
    span: TextSpan = (0, 0)


def find_claim(claim: Claim, run: Run, reading: Reading = Reading()) -> FoundMarker | None:
    """Find the claim in the run's last turn or in its workspace. A failed turn cannot claim."""
    if claim.kind == "file":
        return FoundMarker() if run.seen.done_file else None
    last = run.last
    if claim == ACCEPTED:
        return FoundMarker() if last and last.accepted and last.checks and last.is_green else None
    if last is None or run.retries:
        return None
    if claim.kind in ("checks", "green"):
        holds = last.checks and last.is_green if claim.kind == "checks" else run.has_nothing_to_add
        return FoundMarker() if holds else None
    if last.turn.failure is not None:
        return None
    if claim.kind == "turn":
        return FoundMarker()
    candidates = [find_marker(claim, last.turn.text, reading, last.turn.echoes)]
    candidates += [find_marker(claim, message, reading) for message in reversed(last.turn.earlier)]
    markers = [marker for marker in candidates if marker]
    return next((marker for marker in markers if not marker.doubt), markers[0] if markers else None)


def find_claims(claims: Iterable[Claim], run: Run, reading: Reading) -> list[tuple[Claim, FoundMarker]]:
    """Return the claims whose marker is in the last turn or the workspace, even if it does not count."""
    return [(claim, marker) for claim in claims if (marker := find_claim(claim, run, reading))]


def makes_claim(claim: Claim, text: str, reading: Reading = Reading()) -> bool:
    marker = find_marker(claim, text, reading)
    return marker is not None and not marker.doubt


def find_marker(
    claim: Claim, text: str, reading: Reading = Reading(), echoes: tuple[TextSpan, ...] = ()
) -> FoundMarker | None:
    """Find the claim's marker in an answer, ignoring terminal colours. `echoes` are parts that repeat the prompt."""
    if not text or not claim.text.strip():
        return None
    answer = _Answer(text, reading, echoes)
    if claim.kind == "response":
        return _read_response(claim.text, answer) or _find_misspelled(claim, answer)
    return answer.find(_places(claim, answer.text, reading)) or _find_misspelled(claim, answer)


def find_blocked(word: str, turn: Turn, reading: Reading = Reading()) -> tuple[FoundMarker, str] | None:
    """Find the agent's report that it cannot continue, and its reason. The rules for claims apply."""
    answer, wanted = _Answer(turn.text, reading, turn.echoes), word.strip()
    begins = re.compile(re.escape(wanted) + r"(?![^\W_])", re.IGNORECASE).match
    reports = {span: words for span, words in responses(answer.text) if begins(words)}
    marker = answer.find(reports)
    if not wanted or turn.failure or not marker:
        return None
    return marker, one_line(reports[marker.span][len(wanted) :].lstrip(" :：-–—"), 500)


def responses(text: str) -> Iterator[tuple[TextSpan, str]]:
    """Yield the place of each `<response>` in an answer, and its content."""
    opened = -1
    for tag in re.finditer(r"<(/?)response>", text, re.IGNORECASE):
        if not tag[1]:
            opened = tag.start() if opened < 0 else opened
        elif opened >= 0:
            yield (opened, tag.end()), text[opened + len("<response>") : tag.start()].strip()
            opened = -1


def _read_response(wanted: str, answer: "_Answer") -> FoundMarker | None:
    """Find the claim in an answer. Only the first `<response>` that isn't quoted or inside a sentence counts."""
    wanted = wanted.strip().casefold()
    answers = [(span, words.casefold()) for span, words in responses(answer.text)]
    wanted_spans = [span for span, words in answers if words == wanted]
    first = next((words for span, words in answers[:_MAX_JUDGED] if not answer.doubt(span, verified=True)), wanted)
    if wanted_spans and first != wanted:
        return FoundMarker(answer.quote(wanted_spans[-1]), "another response comes before it")
    return answer.find(wanted_spans)


def _places(claim: Claim, text: str, reading: Reading) -> Iterator[TextSpan]:
    wanted = claim.text
    if claim.kind == "promise":
        yield from _occurrences(claim.marker, text)
    elif claim.kind == "word":  # on a line by itself, or (unless strict) a token between white space
        edges = (r"(?m)^[^\S\n]*+", r"[^\S\n]*+$") if reading.strict else (r"(?<!\S)", r"(?!\S)")
        for match in re.finditer(f"{edges[0]}({re.escape(wanted.strip())}){edges[1]}", text):
            yield match.span(1)
    elif claim.kind == "tag":
        yield from (span for span in _occurrences(wanted, text) if _is_whole(text, span))
    elif claim.kind == "suffix":  # the end of the answer, in any case
        text = text.rstrip()
        if not reading.anywhere:
            text = text.rstrip(_ORNAMENT + "~\n").removesuffix(".").rstrip(_ORNAMENT)
        span = (len(text) - len(wanted), len(text))
        if span[0] >= 0 and text[span[0] :].casefold() == wanted.casefold() and _is_whole(text, span):
            yield span


def _find_misspelled(claim: Claim, answer: "_Answer") -> FoundMarker | None:
    """Find a marker that is almost right (`stop`, `STOP.`), so that ralph can correct an honest agent that would repeat
    it."""
    line = next((line.strip() for line in reversed(answer.lines) if _has_words(line)), "")
    words, wanted = _letters(line[-2000:]), _letters(claim.marker)
    if words == wanted != "" or ("<" in claim.marker and words.endswith(wanted)):
        return FoundMarker(one_line(line), _NOT_EXACT)
    text = answer.text
    for span in _last(span for span in _occurrences(claim.marker, text) if _is_whole(text, span)):
        if not _QUOTATION_MARKS.intersection(_neighbours(text, span)):
            return FoundMarker(answer.quote(span), _NOT_EXACT)
    return None


class _Answer:
    """An answer of the agent, and the rules for the place of a marker in it."""

    def __init__(self, text: str, reading: Reading, echoes: tuple[TextSpan, ...]) -> None:
        self.text = clean(text)
        self.lines = self.text.split("\n")
        self._reading, self._echoes = reading, echoes
        self._fences = list(_fences(self.lines))
        self._is_json = self.text.strip()[:1] + self.text.strip()[-1:] in ("{}", "[]")

    def find(self, spans: Iterable[TextSpan]) -> FoundMarker | None:
        """Return the last marker that is a claim, else the last one; None if there are no places."""
        markers = [
            FoundMarker(self.quote(span), self.doubt(span, self._reading.verified), span) for span in _last(spans)
        ]
        return next((marker for marker in markers if not marker.doubt), markers[0] if markers else None)

    def quote(self, span: TextSpan) -> str:
        """Return the marker and the words around it in one line, short enough for a message."""
        before, after = self.text[: span[0]].rpartition("\n")[2], self.text[span[1] :].partition("\n")[0]
        return one_line(f"{before[-90:]}{self.text[slice(*span)]}{after[:60]}", 400)

    def doubt(self, span: TextSpan, verified: bool) -> str:
        """Return why the marker at `span` is not a claim; "" if it is one. `verified`: a check verifies the work."""
        if self._reading.anywhere:
            return ""
        if any(first <= span[0] < end for first, end in self._echoes):
            return "it repeats the prompt"
        start, end = _with_tags(self.text, span)
        first, last = self.text.count("\n", 0, start), self.text.count("\n", 0, end)
        before, after = self.text[:start].rpartition("\n")[2], self.text[end:].partition("\n")[0]
        if self._is_json or before.lstrip().startswith((">", "|")) or before.count("~~") % 2:
            return "it is quoted"
        if _ITEM.match(before) or (before[:2].isspace() and self._continues_item(first)):
            return "it is in a list"
        if self._is_in_longer_block(first, last):
            return "it is part of a longer code block"
        is_last = not any(map(_has_words, self.lines[last + 1 :]))
        if not is_last and not verified:
            return NOT_LAST
        if after.strip(_ORNAMENT) not in ("", ".", "。"):
            return _NOT_ALONE
        lead = before.rstrip(_ORNAMENT)
        if not lead:
            return "the line above leads up to it" if not verified and self._is_led_up(first) else ""
        follows = lead.endswith(_BREAKS if verified else _STOPS) and not lead.endswith("..") and _has_words(lead)
        return "" if is_last and follows else _NOT_ALONE

    def _is_in_longer_block(self, first: int, last: int) -> bool:
        """Return whether these lines are in a code block that has words on other lines as well."""
        blocks = [(opening, closing) for opening, closing in self._fences if opening < first < closing]
        others = [self.lines[opening + 1 : first] + self.lines[last + 1 : closing] for opening, closing in blocks]
        return any(_has_words(line) for lines in others for line in lines)

    def _continues_item(self, line: int) -> bool:
        """Return whether an indented line belongs to the list item above it."""
        above = [
            text for text in self.lines[max(line - 50, 0) : line] if not text[:2].isspace() or _ITEM.match(text[:40])
        ]
        return bool(above) and _ITEM.match(above[-1][:40]) is not None

    def _is_led_up(self, line: int) -> bool:
        """Return whether the text above leads up to the marker: the previous line with words ends with a colon or dash,
        or the line directly above doesn't end a sentence."""
        fences = {opening for opening, _ in self._fences}
        worded = (at for at in range(line - 1, -1, -1) if at not in fences and _has_words(self.lines[at]))
        if (above := next(worded, None)) is None:
            return False
        lead = self.lines[above].rstrip(_ORNAMENT)
        is_apart = "" in map(str.strip, self.lines[above + 1 : line])
        return lead.endswith(_LEADS) or not (is_apart or lead.rstrip(_CLOSING).endswith(_ENDS))


def _fences(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each code block. An unclosed fence doesn't begin one."""
    opened, mark = -1, ""
    for at, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if opened < 0:
            opened, mark = at, fence[1]
        elif fence[1].startswith(mark) and not _has_words(line):
            yield opened, at
            opened = -1


def _with_tags(text: str, span: TextSpan) -> TextSpan:
    """Return `span` with the tags around it, unless they strike it out or quote it; `<COMPLETE>` is a tag as well."""
    start, end = span
    opening = re.search(r"<(\w{1,40})>$", text[max(start - 42, 0) : start])
    if opening and opening[1].lower() not in _STRUCK and text.startswith(f"</{opening[1]}>", end):
        return start - len(opening[0]), end + len(opening[0]) + 1
    if text[start - 1 : start] == "<" and (closing := re.match(r" ?/?>", text[end : end + 3])):
        return start - 1, end + closing.end()
    return span


def _last(spans: Iterable[TextSpan]) -> list[TextSpan]:
    """Return the last `_MAX_JUDGED` places, in reverse order."""
    return [*reversed(deque(spans, _MAX_JUDGED))]


def _occurrences(marker: str, text: str) -> Iterator[TextSpan]:
    return (match.span() for match in re.finditer(re.escape(marker), text))


def _neighbours(text: str, span: TextSpan) -> str:
    return text[max(span[0] - 1, 0) : span[0]] + text[span[1] : span[1] + 1]


def _is_whole(text: str, span: TextSpan) -> bool:
    """Return whether no letter, digit, underscore or hyphen touches the place."""
    return not any(char.isalnum() or char in "_-" for char in _neighbours(text, span))


def _has_words(text: str) -> bool:
    return any(map(str.isalnum, text))


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


_MAX_LINE = 2000  # characters of a line that are compared with the prompt


def find_echoes(text: str, prompt: str) -> tuple[TextSpan, ...]:
    """Return the parts of an answer that repeat two or more consecutive lines of the prompt, or the whole prompt.

    Punctuation, indentation and lines without words are ignored.
    """
    answer = clean(text)
    asked = [words for _, words in _lines(prompt)]
    if asked and asked == [words for _, words in islice(_lines(answer), len(asked) + 1)]:
        return ((0, len(text)),)
    neighbours = {*pairwise(asked)}
    pairs = pairwise(_lines(answer))
    repeated = ((line[0], other[0]) for line, other in pairs if (line[1], other[1]) in neighbours)
    return tuple(dict.fromkeys(span for pair in repeated for span in pair))


def _lines(text: str) -> Iterator[tuple[TextSpan, str]]:
    """Yield the span and the letters of each line with words in it."""
    for line in re.finditer(r"[^\n]++", text):
        if words := _letters(line[0][:_MAX_LINE]):
            yield line.span(), words
