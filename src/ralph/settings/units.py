"""How do people write times, sizes and claims? `1h30m` is 5400 seconds, `32MB` is 32 million bytes, `word:STOP` a claim."""

from typing import Any, ClassVar, Self

from ralph.errors import UserError

NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
DURATION_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
DURATION = "".join(f"(?:{NUMBER}{unit})?" for unit in DURATION_UNITS)
SIZE_UNITS = {"": 1, "b": 1}
SIZE_UNITS |= {f"{prefix}{b}": 1000**power for power, prefix in enumerate("kmgt", 1) for b in ("", "b")}
SIZE_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}
LONGEST = 36500 * 86400.0  # a hundred years; much more overflows the system's timers
LARGEST = 1 << 62


class Seconds(float):
    """A length of time, 0 included."""

    described: ClassVar[str] = 'a duration such as 90, "90s", "5m" or "1h30m"'
    schema: ClassVar[dict[str, Any]] = {"type": ["number", "string"], "minimum": 0, "pattern": r"^\s*[0-9]"}

    @classmethod
    def read(cls, value: object) -> Self:
        """The time that a file or a command line gives as a number of seconds or as text; else a ValueError."""
        seconds = _seconds(value.strip().lower()) if isinstance(value, str) else value
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST:
            raise ValueError(cls.described)
        return cls(seconds)


class SomeSeconds(Seconds):
    """A length of time that is not nothing."""

    described = 'a duration above 0 such as 90, "90s", "5m" or "1h30m"'
    schema: ClassVar[dict[str, Any]] = {"type": ["number", "string"], "exclusiveMinimum": 0, "pattern": r"^\s*[0-9]"}

    @classmethod
    def read(cls, value: object) -> Self:
        seconds = super().read(value)
        if seconds == 0:
            raise ValueError(cls.described)
        return seconds


class Bytes(int):
    """A size."""

    described: ClassVar[str] = 'a size such as 500000, "512kB", "32MB" or "1GiB"'
    schema: ClassVar[dict[str, Any]] = {"type": ["integer", "string"], "minimum": 0, "pattern": r"^\s*[0-9]"}

    @classmethod
    def read(cls, value: object) -> Self:
        """The size that a file or a command line gives as a number of bytes or as text; else a ValueError."""
        size = _size(value.strip().lower()) if isinstance(value, str) else value
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= LARGEST:
            raise ValueError(cls.described)
        return cls(size)


class ClaimText(str):
    """A claim as `KIND:TEXT`, or `checks` alone."""

    described: ClassVar[str] = (
        '"KIND:TEXT" with KIND one of word, response, suffix, promise, tag, file (or "checks" alone)'
    )
    schema: ClassVar[dict[str, Any]] = {
        "type": "string",
        "pattern": r"^((word|response|suffix|promise|tag|file):\s*\S[\s\S]*|checks)$",
    }

    @classmethod
    def read(cls, value: object) -> Self:
        """The claim that a file or a command line gives; a ValueError if it could never be made."""
        from ralph.core.claims import KINDS

        if isinstance(value, str):
            kind, colon, text = value.partition(":")
            if value == "checks" or (kind in KINDS and kind != "checks" and colon and text.strip()):
                return cls(value)
        raise ValueError(cls.described)


def read_custom(kind: Any, value: object) -> Any:
    """What msgspec asks for when a field has one of the types above."""
    return kind.read(value)


def parse_duration(text: str) -> float:
    """The seconds in `90`, `90s`, `5m`, `1h30m` or `2d`."""
    try:
        return float(Seconds.read(text))
    except ValueError as error:
        raise UserError(f'expected {error}, got "{text}"') from None


def parse_size(text: str) -> int:
    """The bytes in `500000`, `512kB`, `32MB` or `1GiB` (kB, MB, GB: powers of 1000; KiB, MiB, GiB: powers of 1024)."""
    try:
        return int(Bytes.read(text))
    except ValueError as error:
        raise UserError(f'expected {error}, got "{text}"') from None


def format_duration(seconds: float) -> str:
    """The shortest text that `parse_duration` reads back, to the millisecond."""
    left = round(seconds * 1000)
    parts = []
    for unit, size in DURATION_UNITS.items():
        count, left = divmod(left, round(size * 1000))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_size(size: int) -> str:
    """The shortest text that `parse_size` reads back."""
    for unit, scale in (("GB", 1000**3), ("MB", 1000**2), ("kB", 1000)):
        if size and size % scale == 0:
            return f"{size // scale}{unit}"
    return str(size)


def _seconds(text: str) -> float | None:
    import re

    if re.fullmatch(NUMBER, text):
        return float(text)
    match = re.fullmatch(DURATION, text)
    if not text or match is None:
        return None
    return sum(float(number) * unit for number, unit in zip(match.groups(), DURATION_UNITS.values(), strict=True) if number)


def _size(text: str) -> int | None:
    import re

    match = re.fullmatch(NUMBER + r"\s?([a-z]*)", text)
    if match is None or match[2] not in SIZE_UNITS or len(match[1]) > 20:
        return None
    return int(float(match[1]) * SIZE_UNITS[match[2]]) if "." in match[1] else int(match[1]) * SIZE_UNITS[match[2]]
