"""The table of results, the same on the screen and in RESULTS.md."""

import os
import platform
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.samples import Row, Sample

RESULTS = Path(__file__).parent / "RESULTS.md"
TITLES = ("measure", "ralph", "noise", "compared with", "budget", "")


def shown(rows: Sequence[Row]) -> str:
    """Render the table as aligned Markdown."""
    lines = [TITLES, *(_cells(row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(TITLES))]
    rule = tuple("-" * width for width in widths)
    return "\n".join(_line(line, widths) for line in (lines[0], rule, *lines[1:]))


def remarks() -> Iterator[str]:
    """Notes below the table."""
    yield "Contenders took turns in one run: read the ratios, which are medians over the rounds."
    yield "Noise is half the interquartile range of ralph's own values."
    yield "Other loops are compared in docs/reference/comparison.md."


def report(rows: Sequence[Row]) -> None:
    """Write RESULTS.md."""
    lines = [
        "# What was measured",
        "",
        f"Written by `make bench` on {time.strftime('%Y-%m-%d %H:%M')}, on {_machine()}.",
        "Each number is explained in [docs/reference/performance.md](../docs/reference/performance.md).",
        "",
        shown(rows),
        "",
        *remarks(),
    ]
    RESULTS.write_text("\n".join(lines) + "\n")


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return f"| {' | '.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))} |"


def _cells(row: Row) -> tuple[str, ...]:
    ratios = (f"{row.ralph.times(one):.2f} × {name} ({_value(one, row.unit)})" for name, one in row.rivals.items())
    met = row.wanted.is_met(row) if row.wanted else None
    return (
        row.measure,
        _value(row.ralph, row.unit),
        f"± {row.ralph.noise:.0%}" if row.ralph.noise else "",
        ", ".join(ratios),
        row.wanted.words(row.unit) if row.wanted else "",
        {True: "✓", False: "✗", None: ""}[met],
    )


def _value(sample: Sample, unit: str) -> str:
    value = sample.median
    digits = 0 if value >= 100 or value == int(value) else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}".rstrip()


def _machine() -> str:
    model = next((line.split(":")[1].strip() for line in _cpu() if line.startswith("model name")), platform.machine())
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{os.cpu_count()} × {model}, {system}, load {os.getloadavg()[0]:.1f}"


def _cpu() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
