"""How are a few values kept as YAML without a YAML library? One `key: value` a line, which any YAML parser reads."""

import re

import msgspec

Scalar = str | int | None

# What may stand without quotes: nothing that YAML would take for a number, a date, a truth value or its own syntax.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./+-]*\Z")
_TAKEN = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"))


def dump(values: dict[str, Scalar]) -> str:
    return "".join(f"{key}: {_written(value)}\n" for key, value in values.items())


def parse(text: str) -> dict[str, str]:
    """The values as text. Raises ValueError for a line that is no `key: value`."""
    values = {}
    for line in text.split("\n"):
        if line.strip() in ("", "---") or line.startswith("#"):
            continue
        key, colon, value = line.partition(":")
        if not colon or not key.replace("_", "").isalnum():
            raise ValueError(f"not a `key: value`: {line[:80]!r}")
        values[key] = _read(value.strip())
    return values


def _written(value: Scalar) -> str:
    if value is None:
        return "null"
    if not isinstance(value, str):
        return str(value)
    if _PLAIN.match(value) and value.lower() not in _TAKEN:
        return value
    return '"' + "".join(map(_quoted, value)) + '"'


def _quoted(character: str) -> str:
    """Escapes that JSON and YAML have in common: so that what is written by one rule is read by either."""
    if character in '"\\':
        return "\\" + character
    if character.isprintable() or character > "\uffff":
        return character
    if "\ud800" <= character <= "\udfff":
        return "\ufffd"
    return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character) or f"\\u{ord(character):04x}"


def _read(value: str) -> str:
    if value.startswith('"'):
        return msgspec.json.decode(value, type=str)
    if value.startswith("'"):
        return value[1:-1].replace("''", "'")
    return value
