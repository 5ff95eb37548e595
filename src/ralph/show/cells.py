"""How much room does text take on a terminal, and how is it made to fit? Widths are never underestimated."""

from functools import lru_cache


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
