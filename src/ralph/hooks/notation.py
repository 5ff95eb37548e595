"""How is JSON read and written by a process that lives for milliseconds? With the C parts of `json` alone: to import
the package around them would take as long as all the rest of a stop hook."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class _Manner:
    """What the C scanner wants to be told: everything as usual, and control characters are forgiven."""

    strict = False
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float

    def __init__(self) -> None:
        self.memo: dict[str, str] = {}


def _c_parts() -> "tuple[Callable[[str], Any], Callable[[Any], str]]":
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    scan = make_scanner(_Manner())  # type: ignore[arg-type]
    encode = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)

    def read(text: str) -> "Any":
        text = text.strip(" \t\r\n")
        try:
            value, end = scan(text, 0)
        except (StopIteration, SystemError):  # the latter where the scanner looks for an error class of the package
            raise ValueError("not JSON") from None
        if end != len(text):
            raise ValueError("more than one JSON value")
        return value

    def write(value: "Any") -> str:
        return "".join(encode(value, 0))

    return read, write


def _refuse(value: object) -> str:
    raise TypeError(f"not JSON: {type(value).__name__}")


try:
    loads, dumps = _c_parts()
except ImportError:  # an interpreter without the C parts: right all the same, but slow
    import json

    loads, dumps = json.loads, json.dumps


def table(data: bytes) -> "dict[str, Any]":
    """The JSON object in `data`. Anything else is a ValueError."""
    try:
        value = loads(data.decode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value
