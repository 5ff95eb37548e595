"""How are times, sums and counts said in as few characters as a person needs?"""

from functools import lru_cache


def duration(seconds: float) -> str:
    """`0.04s`, `1.2s`, `45s`, `6m7s`, `1h4m`, `2d3h`."""
    if seconds < 0.095:
        return f"{max(seconds, 0.0):.2f}s" if seconds >= 0.005 else "0s"
    if seconds < 9.95:
        return f"{seconds:.1f}s".replace(".0", "")
    whole = round(seconds)
    for size, big, small in ((86400, "d", "h"), (3600, "h", "m"), (60, "m", "s")):
        if whole >= size:
            rest = whole % size // _SECONDS[small]
            return f"{whole // size}{big}{rest}{small}" if rest else f"{whole // size}{big}"
    return f"{whole}s"


_SECONDS = {"h": 3600, "m": 60, "s": 1}


def money(usd: float) -> str:
    """`$5.76`; sums under a dime keep four digits, so that a cheap turn does not look free."""
    if 0 < usd < 0.00005:
        return "<$0.0001"
    digits = f"{usd:.4f}" if 0 < usd < 0.1 else f"{usd:.2f}"
    return "$" + (digits.removesuffix("00") if 0 < usd < 0.1 else digits)


def count(number: int) -> str:
    """`950`, `45K`, `1.2M`."""
    for size, unit in ((1_000_000_000, "B"), (1_000_000, "M"), (1000, "K")):
        if number >= size * 0.9995:
            scaled = number / size
            return f"{scaled:.0f}{unit}" if scaled >= 9.95 else f"{scaled:.1f}{unit}".replace(".0", "")
    return str(number)


def plural(number: int, noun: str) -> str:
    """`1 line`, `45 lines`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def moment(at: float, seconds: float) -> str:
    """The time of day `at` (epoch seconds); with its weekday where it is more than half a day away."""
    import time

    try:
        return time.strftime("%H:%M" if seconds < 43_200 else "%a %H:%M", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "an unknown time"


def width(text: str) -> int:
    """The columns that `text` takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


@lru_cache(4096)
def _cells(char: str) -> int:
    if char < "\u0300":
        return 1
    from unicodedata import category, east_asian_width

    if char == "\ufe0f":  # asks for the emoji form of what stands before it, which is one column wider
        return 1
    if east_asian_width(char) in "WF":
        return 2
    return 0 if category(char) in ("Mn", "Me", "Cf") else 1


def cut(text: str, columns: int, mark: str = "…") -> str:
    """As much of `text` as fits, ending in `mark` if anything is missing."""
    if len(text) * 2 <= columns or width(text) <= columns:
        return text
    head, _ = _split(text, columns - width(mark))
    return head + mark if columns >= width(mark) else ""


def _split(text: str, columns: int) -> tuple[str, str]:
    """The longest beginning that fits, and the rest."""
    if text.isascii():
        end = max(columns, 0)
        return text[:end], text[end:]
    used = 0
    for place, char in enumerate(text):
        used += _cells(char)
        if used > columns:
            return text[:place], text[place:]
    return text, ""


def wrap(line: str, columns: int) -> list[str]:
    """`line` as rows that fit, broken between words where possible; later rows keep its indentation."""
    if len(line) * 2 <= columns or width(line) <= columns:
        return [line]
    body = line.lstrip(" ")
    indent = " " * min(len(line) - len(body), columns // 2)
    hanging = indent + ("  " if body.startswith(("- ", "* ")) else "")
    rows: list[str] = []
    row, room = indent, columns - len(indent)
    is_empty = True
    for word in body.split(" "):
        need = width(word) + (not is_empty)
        if need <= room:
            row, room, is_empty = row + (word if is_empty else " " + word), room - need, False
            continue
        if not is_empty:
            rows.append(row)
        row, room = hanging, columns - len(hanging)
        piece, rest = _split(word, max(room, 2))
        while rest:
            rows.append(row + piece)
            piece, rest = _split(rest, max(room, 2))
        row, room, is_empty = row + piece, room - width(piece), False
    return [*rows, row]
