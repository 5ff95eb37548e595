"""How is text from outside made safe to show and to quote? Control characters go, cuts never split a character."""

CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
CONTROLS |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F))


def clean(text: str) -> str:
    """`text` without escape sequences and other control characters; line ends become plain newlines."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b" in text or "\x9b" in text or "\x9d" in text:
        text = _without_escapes(text)
    return text if text.isprintable() else text.translate(CONTROLS)


def _without_escapes(text: str) -> str:
    import re

    pattern = (
        r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI
        r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS and kin
        r"|\x1b[ -/]*[0-~]?"
    )
    return re.sub(pattern, "", text)


def head(text: str, limit: int, mark: str = "") -> str:
    """The first `limit` characters, then `mark` if anything was cut."""
    return text if len(text) <= limit else text[:limit] + mark


def tail(text: str, limit: int, mark: str = "") -> str:
    """The last `limit` characters, after `mark` if anything was cut."""
    return text if len(text) <= limit else mark + (text[-limit:] if limit > 0 else "")


def one_line(text: str, limit: int = 200) -> str:
    """`text` as one short line for a list or a status."""
    return head(" ".join(text.split()), limit, "…")
