"""Make text from outside safe to display and to quote. Control characters are removed; cuts never split a character."""

import re
from collections.abc import Sequence

_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # CSI
    r"|(?:\x1b[\]PX^_]|\x9d)[^\x07\x1b\x9c\r\n]*+(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS and the like
    r"|\x1b[ -/]*+[0-~]?"
)
_LINE_END = re.compile("\r\n?|[\u2028\u2029]")
_HIDDEN = re.compile(
    "["
    "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # control characters
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f"  # these reorder what is read, or end a line
    "\ufff9-\ufffb\U000e0000-\U000e007f"  # annotations and tags: text that no person sees
    "]"
)


def clean(text: str) -> str:
    """Return `text` without escape sequences and control characters, with plain newlines, in valid Unicode."""
    if text.isprintable():
        return text
    if not text.isascii():  # join halves of a character (surrogates); a lone half becomes U+FFFD
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _HIDDEN.sub("", _LINE_END.sub("\n", _ESCAPE.sub("", text)))


def escaped(lines: bytes) -> bytes:
    """Return equivalent JSON in which every character that ends a line, commands a terminal or reorders text is
    escaped. The JSON standard allows them unescaped.
    """
    text = lines.decode("utf-8", "surrogateescape")
    return _HIDDEN.sub(lambda match: json_escape(match[0]), text).encode("utf-8", "surrogateescape")


def json_escape(char: str) -> str:
    """Return the escape of a character in JSON: one or two units of 16 bits."""
    digits = char.encode("utf-16-be").hex()
    return "".join(f"\\u{digits[at : at + 4]}" for at in range(0, len(digits), 4))


def head(text: str, limit: int, mark: str = "") -> str:
    """Return the first `limit` characters, then `mark` if anything was cut."""
    return text if len(text) <= limit else text[: max(limit, 0)] + mark


def tail(text: str, limit: int, mark: str = "") -> str:
    """Return the last `limit` characters, after `mark` if anything was cut."""
    return text if len(text) <= limit else mark + (text[-limit:] if limit > 0 else "")


def whole_words(text: str, limit: int, mark: str = "") -> str:
    """Return `head` without the word that it would cut in two, unless that word is half of the text.

    Use this to cut text whose keys are redacted later: half of a key is not recognised as one.
    """
    if len(text) <= limit:
        return text
    start = text[: max(limit, 0)]
    if not text[limit].isspace() and not text[limit - 1].isspace():
        words = start.rsplit(None, 1)
        if len(words) > 1 and 2 * len(words[0]) >= limit:
            start = words[0]
    return start + mark


def both_ends(text: str, limit: int, mark: str) -> str:
    """Return the first and the last words of a long text with `mark` between them, cut like `whole_words`."""
    if len(text) <= limit:
        return text
    half, end = limit // 2, text[-(limit // 2) :]
    last = end.split(None, 1)[-1] if not text[-half - 1].isspace() and not end[0].isspace() else end
    return whole_words(text, half) + mark + (last if 2 * len(last) >= half else end)


def one_line(text: str, limit: int = 200) -> str:
    """Return any text as one short line for a list or a status."""
    return whole_words(" ".join(clean(text).split(None, limit)), limit, "…")


def short(text: str, limit: int) -> str:
    """Return `one_line` of a text that may be very long, reading only its beginning."""
    return one_line(text[: 4 * limit], limit)


def money(usd: float) -> str:
    """Return `$5.76`. Sums below $0.10 have four digits, so that a cheap turn does not look free."""
    if 0 < usd < 0.00005:
        return "<$0.0001"
    digits = f"{usd:.4f}" if 0 < usd < 0.1 else f"{usd:.2f}"
    return "$" + (digits.removesuffix("00") if 0 < usd < 0.1 else digits)


def plural(number: int, noun: str) -> str:
    """Return `1 line`, `45 lines`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Sequence[str], most: int = 20) -> str:
    """Return names on one line; of more than `most`, say only how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(one_line(name) for name in names[:most]) + more


def nickname(run_id: str) -> str:
    return run_id.rpartition("-")[2]
