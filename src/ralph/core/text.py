"""How is text from outside made safe to show and to quote? Control characters go, cuts never split a character."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import re

_LINE_ENDS = {0x2028: "\n", 0x2029: "\n"}
_REMOVED = (
    *(code for code in range(0x20) if chr(code) not in "\n\t"),
    *range(0x7F, 0xA0),  # delete, and the eight-bit control characters
    0x061C,
    *range(0x200E, 0x2010),
    *range(0x202A, 0x202F),  # these four rows reorder what is read
    *range(0x2066, 0x2070),
    *range(0xFFF9, 0xFFFC),
    *range(0xE0000, 0xE0080),  # tags: text that no person sees
)
CONTROLS: dict[int, str | None] = dict.fromkeys(_REMOVED) | _LINE_ENDS
_ESCAPES = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS and the like
    r"|\x1b[ -/]*[0-~]?"
)


def clean(text: str) -> str:
    """`text` without escape sequences and other control characters, with plain newlines, in valid Unicode."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b" in text or "\x9b" in text or "\x9d" in text:
        import re

        text = re.sub(_ESCAPES, "", text)
    text = text.translate(CONTROLS)
    try:
        text.encode()
    except UnicodeEncodeError:  # halves of a character that belong together become one again, a lone half U+FFFD
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def escaped(lines: bytes) -> bytes:
    """JSON that says the same without a character that ends a line or commands a terminal: the standard lets those of
    eight bits, and those that reorder what is read, pass as they are."""
    if lines.isascii() or is_harmless(lines):
        return lines
    import re

    hidden = rb"\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xaf]|\xef\xbf[\xb9-\xbb]"
    hidden += rb"|\xf3\xa0[\x80\x81][\x80-\xbf]"  # tags
    return re.sub(hidden, _as_units, lines)


def _as_units(found: "re.Match[bytes]") -> bytes:
    """As JSON names a character: by its one or two units of sixteen bits."""
    units = found[0].decode().encode("utf-16-be")
    return b"".join(b"\\u" + units[at : at + 2].hex().encode() for at in range(0, len(units), 2))


# What is hidden and begins with 0xE2 in UTF-8, as dashes, quotes and ralph's own dots do: its other two bytes.
_HIDDEN = frozenset(chr(code).encode()[1:] for code in (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x2070)))


def is_harmless(lines: bytes) -> bool:
    """Whether a quick look, which takes a tenth of the time, is enough to tell that nothing is hidden there."""
    if b"\xc2" in lines or b"\xd8" in lines or b"\xef" in lines or b"\xf3" in lines:
        return False
    return not any(rest[:2] in _HIDDEN for rest in lines.split(b"\xe2"))


def head(text: str, limit: int, mark: str = "") -> str:
    """The first `limit` characters, then `mark` if anything was cut."""
    return text if len(text) <= limit else text[: max(limit, 0)] + mark


def tail(text: str, limit: int, mark: str = "") -> str:
    """The last `limit` characters, after `mark` if anything was cut."""
    return text if len(text) <= limit else mark + (text[-limit:] if limit > 0 else "")


def whole_words(text: str, limit: int, mark: str = "") -> str:
    """`head` less the word that it would cut in two, unless that is half of it. What is cut before keys are struck out
    is cut like this: half a key looks like none."""
    shown = head(text, limit, mark)
    if shown is text or text[limit].isspace() or text[limit - 1].isspace():
        return shown
    before = "".join(text[:limit].rsplit(None, 1)[:-1])
    return before + mark if before and 2 * len(before) >= limit else shown


def both_ends(text: str, limit: int, mark: str) -> str:
    """The first and the last words of a long text, `mark` between them; cut like `whole_words`."""
    if len(text) <= limit:
        return text
    half, end = limit // 2, text[-(limit // 2) :]
    kept = end.split(None, 1)[-1] if not text[-half - 1].isspace() and not end[0].isspace() else end
    return whole_words(text, half) + mark + (kept if 2 * len(kept) >= half else end)


def one_line(text: str, limit: int = 200) -> str:
    """`text`, from wherever it comes, as one short line for a list or a status."""
    return whole_words(" ".join(clean(text).split(None, limit)), limit, "…")  # more words have no room


def short(text: str, limit: int) -> str:
    """`one_line` of text that may be very long: of what cannot be shown, little is looked at."""
    return one_line(text[: 4 * limit], limit)


LONGEST_COMMAND = 1 << 17  # Linux refuses a longer argument, and to split a text takes more time than it is long


def shell_words(line: str) -> tuple[str, ...]:
    """The words of a command line, as a shell would see them; a ValueError where it cannot be one."""
    import shlex

    if len(line) > LONGEST_COMMAND:
        raise ValueError(f"it has {len(line):,} characters, and no system takes so many")
    return tuple(shlex.split(line))


def money(usd: float) -> str:
    """`$5.76`; sums under a dime keep four digits, so that a cheap turn does not look free."""
    if 0 < usd < 0.00005:
        return "<$0.0001"
    digits = f"{usd:.4f}" if 0 < usd < 0.1 else f"{usd:.2f}"
    return "$" + (digits.removesuffix("00") if 0 < usd < 0.1 else digits)


def plural(number: int, noun: str) -> str:
    """`1 line`, `45 lines`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Sequence[str], most: int = 20) -> str:
    """Names on one line, as many as a person would read."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(one_line(clean(name)) for name in names[:most]) + more


def nickname(run_id: str) -> str:
    """The part of a run's id that people say."""
    return run_id.rpartition("-")[2]
