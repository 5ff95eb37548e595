"""Make text from outside safe to display and to quote. Control characters are removed; cuts never split a character."""

import re
import shlex
from collections.abc import Callable, Sequence

# In UTF-8, which is looked through many times as fast as what it stands for. Of each expression the first byte is
# looked for first.
_OBEYED = bytes(code for code in range(0x20) if chr(code) not in "\t\n\r")
_HIDDEN = (
    b"\x7f",
    b"\xc2[\x80-\x9f]",  # the eight-bit control characters
    b"\xd8\x9c",  # this and the next two reorder what is read, or end a line
    b"\xe2(?:\x80[\x8e\x8f\xa8-\xae]|\x81[\xa6-\xaf])",
    b"\xef\xbf[\xb9-\xbb]",
    b"\xf3\xa0[\x80\x81][\x80-\xbf]",  # tags: text that no person sees
)
_LITTLE = 8_192
_LINE_ENDS = ("\u2028".encode(), "\u2029".encode())
_EIGHT_BITS = {b"\xc2\x9b": b"\x1b[", b"\xc2\x9c": b"\x1b\\", b"\xc2\x9d": b"\x1b]"}
_ESCAPE = (
    rb"\x1b(?:\[[0-?]*+[ -/]*+[@-~]"  # CSI
    rb"|[\]PX^_][^\x07\x1b\r\n]*+(?:\x07|\x1b\\)?"  # OSC, DCS and the like
    rb"|[ -/]*+[0-~]?)"
)
_ESCAPES = rb"%b(?>(?:%b){0,99})" % (_ESCAPE, _ESCAPE)


def clean(text: str) -> str:
    """Return `text` without escape sequences and control characters, with plain newlines, in valid Unicode."""
    if text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable():
        return text
    data = as_shown(text.encode("utf-8", "surrogatepass")).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        return data.decode()
    except UnicodeDecodeError:  # halves of a character that belong together become one again, a lone half U+FFFD
        units = data.decode("utf-8", "surrogatepass").encode("utf-16-le", "surrogatepass")
        return units.decode("utf-16-le", "replace")


def as_shown(data: bytes) -> bytes:
    """Return the visible part of UTF-8 bytes: no escape sequences, no control characters except newlines."""
    if b"\xc2" in data:
        for eight, seven in _EIGHT_BITS.items():
            data = data.replace(eight, seven)
    if b"\x1b" in data:
        data = b"".join(re.split(_ESCAPES, data))  # in two thirds of the time that `sub` takes
    # To ask for each takes half the time of one `translate`, but not where there is little to look through.
    if len(data) < _LITTLE or any(code in data for code in _OBEYED):
        data = data.translate(None, _OBEYED)
    return _without_hidden(data, lambda found: b"\n" if found[0] in _LINE_ENDS else b"")


def escaped(lines: bytes) -> bytes:
    """Return equivalent JSON in which every character that ends a line, commands a terminal or reorders text is
    escaped. The JSON standard allows them unescaped.
    """
    return _without_hidden(lines, lambda found: in_units(found[0].decode()).encode())


def in_units(char: str) -> str:
    """Return the JSON escape of a character: one or two 16-bit units."""
    digits = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{digits[at : at + 4]}" for at in range(0, len(digits), 4))


def _without_hidden(data: bytes, instead: "Callable[[re.Match[bytes]], bytes]") -> bytes:
    if data.isascii() and b"\x7f" not in data:
        return data

    for hidden in _HIDDEN:  # one expression for all of them takes ten times as long
        if hidden[:1] in data and re.search(hidden, data):
            return re.sub(b"|".join(_HIDDEN), instead, data)
    return data


def head(text: str, limit: int, mark: str = "") -> str:
    """Return the first `limit` characters, then `mark` if anything was cut."""
    return text if len(text) <= limit else text[: max(limit, 0)] + mark


def tail(text: str, limit: int, mark: str = "") -> str:
    """Return the last `limit` characters, after `mark` if anything was cut."""
    return text if len(text) <= limit else mark + (text[-limit:] if limit > 0 else "")


def whole_words(text: str, limit: int, mark: str = "") -> str:
    """Return `head` without the word that it would cut in two, unless that is half of the text. Cut like this before
    keys are redacted: half a key is not recognised as one.
    """
    if len(text) <= limit:
        return text
    shown = text[: max(limit, 0)]
    if not text[limit].isspace() and not text[limit - 1].isspace():
        words = shown.rsplit(None, 1)
        if len(words) > 1 and 2 * len(words[0]) >= limit:
            shown = words[0]
    return shown + mark


def both_ends(text: str, limit: int, mark: str) -> str:
    """Return the first and the last words of a long text with `mark` between them, cut like `whole_words`."""
    if len(text) <= limit:
        return text
    half, end = limit // 2, text[-(limit // 2) :]
    kept = end.split(None, 1)[-1] if not text[-half - 1].isspace() and not end[0].isspace() else end
    return whole_words(text, half) + mark + (kept if 2 * len(kept) >= half else end)


def one_line(text: str, limit: int = 200) -> str:
    """Return any text as one short line for a list or a status."""
    return whole_words(" ".join(clean(text).split(None, limit)), limit, "…")  # the row is full


def short(text: str, limit: int) -> str:
    """Return `one_line` of a text that may be very long, reading only its beginning."""
    return one_line(text[: 4 * limit], limit)


LONGEST_COMMAND = 1 << 17  # Linux refuses a longer argument, and to split a text takes more time than it is long


def shell_words(line: str) -> tuple[str, ...]:
    """Return the words of a command line as a shell would split them; raise ValueError if it is malformed."""

    if len(line) > LONGEST_COMMAND:
        raise ValueError(f"it has {len(line):,} characters, and no system takes so many")
    return tuple(shlex.split(line))


def money(usd: float) -> str:
    """Return `$5.76`; sums under a dime keep four digits, so that a cheap turn does not look free."""
    if 0 < usd < 0.00005:
        return "<$0.0001"
    digits = f"{usd:.4f}" if 0 < usd < 0.1 else f"{usd:.2f}"
    return "$" + (digits.removesuffix("00") if 0 < usd < 0.1 else digits)


def plural(number: int, noun: str) -> str:
    """Return `1 line`, `45 lines`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Sequence[str], most: int = 20) -> str:
    """Return names on one line, at most as many as a person would read."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(one_line(clean(name)) for name in names[:most]) + more


def nickname(run_id: str) -> str:
    """Return the short form of a run's id."""
    return run_id.rpartition("-")[2]
