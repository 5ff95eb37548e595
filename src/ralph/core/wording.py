"""Decide by the place of a marker in an answer whether it is a claim. The words around it don't matter.

If nothing verifies the work, the last line with words must be the marker alone with nothing leading up to it, or end
with the marker after a full stop. If a check verifies it, the marker may be alone on any line, or end the last line
after a punctuation mark. Everything here takes time linear in the length of the answer.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate

TextSpan = tuple[int, int]

NOT_LAST = "it is not on the last line"
NOT_ALONE = "it is not alone on its line"
LED_UP = "the line above leads up to it"
QUOTED = "it is quoted"
LISTED = "it is in a list"
FENCED = "it is part of a longer code block"
ECHOED = "it repeats the prompt"
NOT_EXACT = "it is not spelled exactly"

_LINE = 4096  # characters of a line that are looked at, on each side of the marker
_STOPS = (".", "!", "。", "！", "．", "।", "۔")
_COLONS = (":", "：")
_ENDS = (*_STOPS, "?", "？", "؟")
_BREAKS = (*_ENDS, *_COLONS, ",", ";", "，", "、", "；", "،", "–", "—")
_LEADS = (*_COLONS, "-", "–", "—", "−", "→", "->", "=>")
_ORNAMENT = " #\t\u00a0\u3000\u200b\ufeff\ufe0f*_`✅✔☑🎉🎊🥳🚀✨👍🙌💯🏁"
_CLOSING = "\"'”’»」』)]）"
_STRUCK = ("del", "s", "strike", "q", "blockquote")
_ITEM = re.compile(
    r"[\s*_`]*(?:[-*+•‣◦▪●○·–—]\s|[-+•]$|・|\[[ xX]\]|[☐☒⬜]|[①-⑳]|\d\ufe0f?\u20e3"
    r"|[(（]?(?:\d{1,3}|[a-zA-Z]|[ivx]{1,4})[.)）](?=\s|[*_`]|$)|[(（]?[\d一二三四五六七八九十]{1,3}[、．）])"
)
_FENCE = re.compile(r"[ \t]*(`{3,}(?=[^`]*$)|~{3,})")


class AnswerText:
    """An answer, line by line."""

    def __init__(self, text: str) -> None:
        self.text, self.lines = text, text.split("\n")
        self._starts = [0, *accumulate(len(line) + 1 for line in self.lines)]
        self._worded = [at for at, line in enumerate(self.lines) if has_words(line)]
        self._fences = list(_fences(self.lines))
        self._is_json = text.strip()[:1] + text.strip()[-1:] in ("{}", "[]")

    @property
    def last_line(self) -> str:
        """Return the last line with words in it."""
        return self.lines[self._worded[-1]] if self._worded else ""

    def lines_of(self, span: TextSpan) -> slice:
        """Return the lines that contain `span`."""
        return slice(bisect_right(self._starts, span[0]) - 1, bisect_left(self._starts, span[1]))

    def doubt(self, span: TextSpan, verified: bool) -> str:
        """Return why the marker at `span` is not a claim; "" if it is one. `verified`: a check verifies the work."""
        span = _with_tags(self.text, span)
        lines = self.lines_of(span)
        before = self.text[max(self._starts[lines.start], span[0] - _LINE) : span[0]]
        after = self.text[span[1] : min(self._starts[lines.stop] - 1, span[1] + _LINE)].strip(_ORNAMENT)
        said, is_last = before.rstrip(_ORNAMENT), not self._count_worded(lines.stop, len(self.lines))
        if excluded := self._exclusion(lines, before):
            return excluded
        if not is_last and not verified:
            return NOT_LAST
        if after not in ("", ".", "。"):
            return NOT_ALONE
        if not said:
            return LED_UP if not verified and self._is_led_up(lines.start) else ""
        follows = said.endswith(_BREAKS if verified else _STOPS) and not said.endswith("..") and has_words(said)
        return "" if is_last and follows else NOT_ALONE

    def _exclusion(self, lines: slice, before: str) -> str:
        """Return why a marker in this place never counts."""
        if self._is_json or before.lstrip().startswith((">", "|")) or before.count("~~") % 2:
            return QUOTED
        if _ITEM.match(before) or (before[:2].isspace() and self._continues_item(lines.start)):
            return LISTED
        own = self._count_worded(lines.start, lines.stop)
        blocks = ((first, end) for first, end in self._fences if first < lines.start < end)
        return FENCED if any(self._count_worded(first + 1, end) > own for first, end in blocks) else ""

    def _count_worded(self, first: int, end: int) -> int:
        """Return the number of lines with words from `first` up to, but not including, `end`."""
        return bisect_left(self._worded, end) - bisect_left(self._worded, first)

    def _continues_item(self, line: int) -> bool:
        """Return whether an indented line belongs to the list item above it."""
        above = [one for one in self.lines[max(line - 50, 0) : line] if not one[:2].isspace() or _ITEM.match(one[:40])]
        return bool(above) and _ITEM.match(above[-1][:40]) is not None

    def _is_led_up(self, line: int) -> bool:
        """Return whether the line above with words ends with a colon or dash or, directly above, doesn't end a
        sentence.
        """
        fences = {first for first, _ in self._fences}
        above = next((at for at in reversed(self._worded[: bisect_left(self._worded, line)]) if at not in fences), -1)
        said = self.lines[above].rstrip(_ORNAMENT) if above >= 0 else "."
        is_apart = "" in map(str.strip, self.lines[above + 1 : line])
        return said.endswith(_LEADS) or not (is_apart or said.rstrip(_CLOSING).endswith(_ENDS))


def _fences(lines: list[str]) -> Iterator[tuple[int, int]]:
    """Return the first and last line of each code block. An unclosed fence doesn't begin one."""
    opened, mark = -1, ""
    for at, line in enumerate(lines):
        fence = _FENCE.match(line) if "```" in line or "~~~" in line else None
        if fence is None:
            continue
        if opened < 0:
            opened, mark = at, fence[1]
        elif fence[1].startswith(mark) and not has_words(line):
            yield opened, at
            opened = -1


def _with_tags(text: str, span: TextSpan) -> TextSpan:
    """Return `span` with the tags around it, unless they strike it out or quote it; `<COMPLETE>` is a tag as well."""
    start, end = span
    opening = re.search(r"<(\w{1,40})>$", text[max(start - 42, 0) : start])
    if opening and opening[1].lower() not in _STRUCK and text.startswith(f"</{opening[1]}>", end):
        return opening.start() + max(start - 42, 0), end + len(opening[1]) + 3
    if text[start - 1 : start] == "<" and (closing := re.match(r" ?/?>", text[end : end + 3])):
        return start - 1, end + closing.end()
    return span


def text_end(text: str) -> int:
    """Return the end of a text without trailing emphasis, fence, emoji and full stop."""
    return len(text.rstrip(_ORNAMENT + "~\n").removesuffix(".").rstrip(_ORNAMENT))


def is_whole(text: str, span: TextSpan) -> bool:
    """Return whether no letter, digit, underscore or hyphen touches the span."""
    around = text[max(span[0] - 1, 0) : span[0]] + text[span[1] : span[1] + 1]
    return not any(char.isalnum() or char in "_-" for char in around)


def has_words(text: str) -> bool:
    return any(map(str.isalnum, text))


def letters(text: str) -> str:
    """Return the letters and digits of a text in lower case."""
    return "".join(filter(str.isalnum, text)).casefold()


def occurrences(marker: str, text: str) -> Iterator[TextSpan]:
    """Return where `marker` occurs verbatim in `text`."""
    return (found.span() for found in re.finditer(re.escape(marker), text))
