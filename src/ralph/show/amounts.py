"""How are times, sums and counts said in as few characters as a person needs?"""


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
