"""Is a marker stated, or only talked about? Its place in the answer decides first, the words around it second.

Where nothing verifies the work, the claim must be unmistakable: alone on the last line, or ending it after a full stop
or colon. Where a check or a tasks file does, it may stand anywhere that its sentence states it. Nothing here takes
longer than the text is long: there is no expression that could try again, and little is looked at around a marker.
"""

import re
from collections.abc import Iterator

TextSpan = tuple[int, int]

NOT_LAST = "it is not on the last line"
NOT_ALONE = "it is not alone on the last line"
QUOTED = "it is quoted"
LISTED = "it is an item of a list"
ECHOED = "it repeats the prompt"
TALK = "its sentence only talks about it"
TAKEN_BACK = "it is taken back"
NOT_TO_THE_LETTER = "it is not written to the letter"

_NEAR = 600  # characters on each side that can be one sentence with a marker
_LINE = 4096  # characters of a line, on each side
_SIGNS = bytes(code for code in range(128) if not chr(code).isalnum())

_STOPS, _COLONS, _QUESTIONS = ".!。！．।۔", (":", "："), "?？؟"
_ENDS = (*_STOPS, *_QUESTIONS, "…", ";", "；")
_ENDS_ANYWHERE = "。！？؟।"  # no space follows these
_EMPHASIS = " \t\u00a0\u3000\u200b\ufeff*_`"
_OPENING, _CLOSING = "[(<{【（#", "])>}】）"
_QUOTES = ('"', "'", "‘", "’", "“", "”", "„", "«", "»", "‹", "›", "「", "」", "『", "』", "＂")
_PAIRS = ("“”", "«»", "‹›", "「」", "『』")
_QUOTATION = re.compile(r"[\"`“„«][^\"`“”„«»]*+[\"`“”»]|(?<=\s)'[^']*+'(?!\w)")
_BULLETS = ("- ", "* ", "+ ", "• ", "‣ ", "◦ ", "▪ ", "● ", "○ ", "· ", "– ", "— ", "-\t", "*\t", "•\t", "・")
_SHORT = frozenset(["ex", "eg", "ie", "ej", "vs", "cf", "bspw", "bzw", "resp", "approx", "np", "напр", "см", "т"])
_ROMAN = frozenset(["ii", "iii", "iv", "vi", "vii", "viii", "ix"])
_FENCES = ("```", "~~~")
STRUCK = ("<del>", "<s>", "<strike>", "<q>", "<blockquote>")
_PROMPTS = ("$ ", ">>> ")  # what a command printed stands below it
_UNFINISHED = (
    *("not yet", "not done", "not finished", "not complete", "n't done", "n't finished", "unfinished", "noch nicht"),
    *("not quite", "n't do so", "cannot do so", "n't honestly", "cannot honestly", "n't sign off", "n't say it"),
    *("nicht fertig", "pas encore", "pas fini", "pas terminé", "todavía no", "aún no", "ainda não", "non ancora"),
    *("nog niet", "ещё не", "еще не", "jeszcze nie", "henüz", "还没", "尚未", "未完成", "まだ", "아직", "ليس بعد"),
)
# Of what was, or of none that is: the words for "not" in these deny nothing.
_DENIES_NOTHING = (
    *("没有未完成", "没有尚未", "无未完成", "以前不能", "之前不能", "以前无法", "之前无法", "原来不能"),
    *("예전에", "이전에"),
    *("no unfinished", "nothing unfinished", "none unfinished", "no incomplete", "keine unfertigen", "nichts unfertig"),
    *("nothing is unfinished", "nothing is left unfinished", "left nothing unfinished", "not left anything unfinished"),
    *("nothing was left unfinished",),
)
# Signs that say the opposite, or that something is still to come.
_AGAINST = frozenset("❌❎✖✗✘☒☐⬜⬛⚠🔲🔳🚫⛔⏳⌛🔜❓❔⏸🚧👎🙅🔴🟡🟥🟨🤔🔄💬💭🤞🤷🕐🕑🕒🕓🕔🕕🕖🕗🕘🕙🕚🕛")


class MarkerPlace:
    """Where a marker stands: its line, and what is before and behind it there."""

    def __init__(self, text: str, span: TextSpan) -> None:
        self.text, (self.start, self.end) = text, span
        self.first = text.rfind("\n", 0, self.start) + 1
        last = text.find("\n", self.end)
        self.last = len(text) if last < 0 else last
        self.before = text[max(self.first, self.start - _LINE) : self.start]
        self.after = text[self.end : min(self.last, self.end + _LINE)]

    @property
    def is_alone(self) -> bool:
        return (
            ".." not in self.after
            and _is_ornament(self.before, _OPENING)
            and _is_ornament(self.after, _CLOSING + _STOPS)
        )

    @property
    def is_quoted(self) -> bool:
        """In quotation marks, in a quotation, in a table, struck out, or a part of a block of code."""
        before = self.before
        if before.lstrip().startswith((">", "|")) or before.rstrip().lower().endswith(STRUCK):
            return True
        if "<!--" in before or self._is_in_comment():
            return True
        if before.startswith(("    ", "\t")) and has_words(before) and not _is_item(before):
            return True
        if before.count("~~") % 2 or before.count('"') % 2:
            return True
        if before.rstrip("*_`").endswith(_QUOTES) or self.after.lstrip("*_`").startswith(_QUOTES):
            return True
        if "„" not in before and any(before.count(pair[0]) > before.count(pair[1]) for pair in _PAIRS):
            return True
        return self._is_in_block()

    def _is_in_comment(self) -> bool:
        begins, ends = (self.text.rfind(sign, 0, self.start) for sign in ("<!--", "-->"))
        return begins > ends and self.text.find("-->", self.end) >= 0

    def _is_in_block(self) -> bool:
        """Whether it stands between fences, and not alone. A fence that nothing closes is a slip of the pen."""
        closes = self.text.find("```", self.end)
        if closes < 0 or self.text.count("```", 0, self.start) % 2 == 0:
            return False
        above = self.text[self.text.rfind("```", 0, self.start) + 3 : self.start]
        return has_words(above.partition("\n")[2] if "\n" in above else above) or has_words(
            self.text[self.end : closes]
        )

    @property
    def is_item(self) -> bool:
        if _is_item(self.before):
            return True
        above = self._line_above()
        is_below = self.before[:2].isspace() and "\n" not in self.text[above[1] + 1 : self.first]
        return is_below and _is_item(self.text[above[0] : above[1]])

    def is_announced(self, strictly: bool) -> bool:
        """Whether the words above lead up to it, and say that it is not stated."""
        first, last = self._line_above()
        if last + 1 == self.first and self.text.startswith(_PROMPTS, first):
            return True
        line = self.text[max(first, last - _NEAR) : last].rstrip(_EMPHASIS)
        sentence = _without_empty_denials(sentence_before(self.text, last))
        if line.endswith(_ENDS) or not sentence:
            return _denies(sentence) or _asks(sentence) or self._is_drafted()
        is_row = _is_item(line) or line.lstrip().startswith("|")
        if is_row and not line.endswith(_COLONS) and "\n\n" in self.text[last : self.first]:
            return False  # a list or a table that is over leads up to nothing
        from ralph.core.talk import announces, dangles, plans

        if line.endswith(_COLONS):
            return announces(sentence, strictly)
        if line.startswith("#"):
            return plans(line)
        return _denies(sentence) or (dangles(sentence) and announces(sentence, strictly))

    def _is_drafted(self) -> bool:
        """Whether its whole paragraph is one that the line above leads up to: "I would then write:"."""
        from ralph.core.talk import announces

        paragraph = self.text.rfind("\n\n", 0, self.first)
        above = self.text[max(0, paragraph - _NEAR) : max(0, paragraph)].rstrip(_EMPHASIS + "\n")
        is_prose = not _is_item(self.text[paragraph + 2 : paragraph + 14]) and self.first - paragraph < 2 * _NEAR
        leads = above.endswith(_COLONS) and announces(sentence_before(above, len(above)), strictly=False)
        return is_prose and leads

    def _line_above(self) -> TextSpan:
        """The nearest line above that has words in it; a fence is put around the marker, whatever it is called."""
        for first, last in _lines_above(self.text, self.first):
            line = self.text[max(first, last - _NEAR) : last]
            if has_words(line) and not line.startswith(_FENCES):
                return first, last
        return 0, 0


def doubt(text: str, span: TextSpan, *, verified: bool = False, bare: bool = False) -> str:
    """Why the marker at `span` is no claim; empty if it is one. `verified`: something else than words tells whether the
    work is done. `bare`: the marker is a word that may also be an ordinary part of a sentence."""
    place = MarkerPlace(text, span)
    if place.is_quoted:
        return QUOTED
    why = _mistakable(place)
    return _unstated(place, bare) if why and verified else why


def _mistakable(place: MarkerPlace) -> str:
    """Why the place of a marker leaves room for doubt."""
    if has_words(place.text, place.last):
        return NOT_LAST
    if place.is_item:
        return LISTED
    if place.is_alone:
        return TALK if place.is_announced(strictly=True) else ""
    said = _unadorned(place.before)
    is_end = _is_ornament(place.after, _CLOSING + _STOPS) and ".." not in place.after
    if not is_end or not has_words(said) or not said.endswith((*_STOPS, *_COLONS)) or said.endswith(".."):
        return NOT_ALONE
    if said.endswith(".") and _counts_or_shortens(said[:-1]):
        return LISTED
    sentence = _without_empty_denials(sentence_before(place.text, place.start - len(place.before) + len(said)))
    if not said.endswith(_COLONS):
        return TALK if _denies(sentence) else ""
    from ralph.core.talk import announces

    return TALK if announces(sentence) else ""


def _unstated(place: MarkerPlace, bare: bool) -> str:
    """Why a marker is no claim even where something else verifies the work."""
    from ralph.core.talk import announces, discusses, goes_on, plans, retracts

    if retracts(place.text[place.end : place.end + 4 * _NEAR]):
        return TAKEN_BACK
    if place.before.rstrip(_EMPHASIS + "\ufe0f")[-1:] in _AGAINST:  # the sign right in front says the opposite
        return TALK
    is_open = any(box in place.before for box in ("[ ]", "☐", "⬜"))
    if place.is_item and (is_open or plans(_above_list(place))):
        return LISTED
    if place.is_alone:
        is_part = goes_on(place.text[place.end : place.end + _NEAR])
        return TALK if is_part or place.is_announced(strictly=False) else ""
    said = _without_empty_denials(_unfinished(place))
    follows = _sentence_after(place.text, place.end)
    if not bare and follows[:1] == " " and follows[1:2].isupper():
        follows = ""  # after a marker there often is no full stop
    if said.endswith(_COLONS) and not has_words(follows):
        return TALK if announces(said, strictly=False) else ""
    return TALK if discusses(said, follows, bare) else ""


def _unfinished(place: MarkerPlace) -> str:
    """What stands before a marker in its own sentence."""
    said = _unadorned(place.before)
    is_over = said.endswith(_ENDS) and not _counts_or_shortens(said[:-1])
    return "" if is_over else sentence_before(place.text, place.start)


def sentence_before(text: str, end: int) -> str:
    """The sentence that ends at `end`, be it in the middle; its beginning may stand on an earlier line."""
    window = text[max(0, end - _NEAR) : end]
    for at in range(len(window.rstrip()) - 2, -1, -1):
        char, rest = window[at], window[at + 1 :]
        if char in _ENDS_ANYWHERE or (char in _ENDS and rest[:1].isspace() and not _counts_or_shortens(window[:at])):
            return rest.strip()
        if char == "\n" and (rest[:1] == "\n" or _is_item(rest[:12]) or rest.startswith(("#", ">", "|"))):
            return rest.strip()
    return window.strip()


def _sentence_after(text: str, end: int) -> str:
    """What follows in the same sentence, with the sign that ends it."""
    window = text[end : end + _NEAR]
    for at, char in enumerate(window):
        rest = window[at + 1 :]
        if char in _ENDS_ANYWHERE or (char in _ENDS and not rest[:1].strip()):
            return window[: at + 1]
        if char == "\n" and (rest[:1] == "\n" or _is_item(rest[:12]) or rest.startswith(("#", ">", "|", "```"))):
            return window[:at]
    return window


def _above_list(place: MarkerPlace) -> str:
    """The line that a list stands under."""
    for first, last in _lines_above(place.text, place.first):
        line = place.text[first : min(last, first + _NEAR)]
        if line.strip() and not _is_item(line) and not line.startswith((" ", "\t")):
            return line
    return ""


def _lines_above(text: str, first: int) -> Iterator[TextSpan]:
    """The lines above the one that begins at `first`, from below: not more than a person would look at."""
    for _ in range(200):
        if first <= 0:
            return
        last = first - 1
        first = text.rfind("\n", 0, last) + 1
        yield first, last


def _without_empty_denials(sentence: str) -> str:
    for phrase in _DENIES_NOTHING:
        if phrase in sentence.lower():
            sentence = sentence.lower().replace(phrase, "")
    return sentence


def _denies(sentence: str) -> bool:
    """Whether a short sentence in front of a marker says that the work is not done, and does not only quote that."""
    if len(sentence) >= 60:
        return False
    said = _QUOTATION.sub("", sentence.lower())
    return any(phrase in said for phrase in _UNFINISHED)


def _asks(sentence: str) -> bool:
    """Whether a sentence in front of a marker asks if it may be said."""
    if not sentence.endswith(tuple(_QUESTIONS)):
        return False
    from ralph.core.talk import is_about_saying

    return is_about_saying(sentence)


def _is_item(line: str) -> bool:
    """Whether a line begins like one of a list: with a bullet, a box, a number or a letter."""
    line = line.lstrip()[:12]
    if line.startswith((*_BULLETS, "[ ]", "[x]", "[X]")) or line.rstrip() in ("-", "+", "•"):
        return True
    line = line.lstrip(_EMPHASIS + "(（")
    number = line[: len(line) - len(line.lstrip("0123456789①②③④⑤⑥⑦⑧⑨⑩一二三四五六七八九十"))]
    rest = line[len(number) :]
    if number and (
        rest.startswith((". ", ")", "）", "、", "．", "️⃣", "⃣", ".\t")) or rest in (".", "") or number[0] in "①②③④⑤⑥⑦⑧⑨"
    ):
        return True
    return line[:1].isalpha() and line[1:3] == ") "


def _is_ornament(text: str, allowed: str) -> bool:
    """Whether a text has nothing but emphasis, brackets, a rule or a cheerful sign in it."""
    if len(text.strip()) > 2 and len(set(text.strip())) == 1 and text.strip()[0] in "-=~*_#+":
        return True
    return all(char in _EMPHASIS or char in allowed or _is_cheer(char) for char in text)


def undressed_end(text: str) -> int:
    """Where a text ends, if emphasis, a fence and cheerful signs behind it are left aside."""
    end = len(text)
    while end and (text[end - 1].isspace() or text[end - 1] in _EMPHASIS + "~" or _is_cheer(text[end - 1])):
        end -= 1
    return end


def _is_cheer(char: str) -> bool:
    code = ord(char)
    is_sign = (
        0x1F000 <= code <= 0x1FAFF or 0x2600 <= code <= 0x27BF or 0x2B00 <= code <= 0x2BFF or code in (0x200D, 0xFE0F)
    )
    return is_sign and char not in _AGAINST


def _unadorned(text: str) -> str:
    """`text` without emphasis, opening brackets and signs at its end."""
    end = len(text)
    while end and (text[end - 1] in _EMPHASIS or text[end - 1] in _OPENING or _is_cheer(text[end - 1])):
        end -= 1
    return text[:end]


def _counts_or_shortens(text: str) -> bool:
    """Whether a full stop behind `text` ends no sentence: it is a number that begins one, or a word cut short."""
    before, _, word = text[-40:].replace("\n", " ").rpartition(" ")
    word = word.strip("(*_`").lower()
    if word.isdigit():
        return not before.strip() or before.rstrip().endswith((*_ENDS, *_COLONS, ","))
    return (
        word in _SHORT
        or word in _ROMAN
        or ("." in word and not word[-1:].isdigit())
        or (len(word) == 1 and word.isalpha() and word.isascii())
    )


def has_words(text: str, start: int = 0) -> bool:
    """Whether there is a letter or a digit, from `start` on."""
    return any(any(map(str.isalnum, text[at : at + _LINE])) for at in range(start, len(text), _LINE))


def stands_in(text: str, span: TextSpan) -> str:
    """The line, or the lines, that hold `span`."""
    place = MarkerPlace(text, span)
    return text[place.first : place.last]


def nearly(marker: str, text: str) -> str:
    """The last line, if it is or ends with the marker in another dress: an honest agent would repeat it for ever."""
    line = next((line for line in reversed(text[-4 * _NEAR :].split("\n")) if has_words(line)), "").strip()
    said, wanted = letters(line), letters(marker)
    if said == wanted != "" or ("<" in marker and said.endswith(wanted)):
        return line
    ended = line.rstrip("".join({char for char in line[-8:] if not char.isalnum() and char not in _QUOTES}))
    before = ended.removesuffix(marker)
    return line if wanted and before != ended and not (before[-1:].isascii() and before[-1:].isalnum()) else ""


def letters(text: str) -> str:
    if text.isascii():  # as most lines of an answer and a prompt, all of which are compared
        return text.encode().translate(None, _SIGNS).decode().lower()
    return "".join(filter(str.isalnum, text)).casefold()


def occurrences(marker: str, text: str) -> Iterator[TextSpan]:
    """Where `marker` stands in `text`, to the letter."""
    start = text.find(marker)
    while start >= 0:
        end = start + len(marker)
        yield start, end
        start = text.find(marker, end)
