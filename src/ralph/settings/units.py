"""How does one write times and sizes? `1h30m` is 5400 seconds, `32MB` is 32 million bytes."""

from re import fullmatch

from ralph.errors import UserError

NUMBER = r"([0-9]{1,20}(?:\.[0-9]{1,20})?)"
DURATION_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
DURATION = "".join(f"(?:{NUMBER}{unit})?" for unit in DURATION_UNITS)
SIZE_UNITS = {"": 1, "b": 1}
SIZE_UNITS |= {prefix + b: 1000**power for power, prefix in enumerate("kmgt", 1) for b in ("", "b")}
SIZE_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}

LONGEST = 36500 * 86400.0  # a hundred years; much more overflows the system's timers
LARGEST = 1 << 60


def parse_duration(text: str) -> float:
    """The seconds in `90`, `90s`, `5m`, `1h30m` or `2d`."""
    plain = text.strip().lower()
    if fullmatch(NUMBER, plain):
        seconds = float(plain)
    elif plain and (match := fullmatch(DURATION, plain)):
        parts = zip(match.groups(), DURATION_UNITS.values(), strict=True)
        seconds = sum(float(number) * unit for number, unit in parts if number)
    else:
        raise UserError(f'"{text}" is not a duration', "write 90, 90s, 5m, 1h30m or 2d")
    if seconds > LONGEST:
        raise UserError(f'"{text}" is too long a time')
    return seconds


def parse_size(text: str) -> int:
    """The bytes in `500000`, `512kB`, `32MB` or `1GiB`: kB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024."""
    match = fullmatch(NUMBER + r"\s?([a-z]*)", text.strip().lower())
    if match is None or match[2] not in SIZE_UNITS:
        raise UserError(f'"{text}" is not a size', "write 500000, 512kB, 32MB or 1GiB")
    scale = SIZE_UNITS[match[2]]
    size = int(float(match[1]) * scale) if "." in match[1] else int(match[1]) * scale
    if size > LARGEST:
        raise UserError(f'"{text}" is too large a size')
    return size


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
    for unit in ("GB", "MB", "kB"):
        scale = SIZE_UNITS[unit.lower()]
        if size and size % scale == 0:
            return f"{size // scale}{unit}"
    return str(size)
