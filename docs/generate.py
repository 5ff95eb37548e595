"""Writes the reference from the code: `python docs/generate.py`, or `--check` to see whether it is up to date."""

import sys
from pathlib import Path

from ralph.core import events, work_events
from ralph.run import options
from ralph.settings.reference import settings_reference

FOLDER = Path(__file__).parent / "reference"


def options_reference() -> str:
    lines = ["# Options", "", "Written by `make docs` from the table in `src/ralph/run/options.py`.", ""]
    for command, rows in options.COMMANDS.items():
        lines += [f"## ralph {command}", ""]
        group = ""
        for row in rows:
            if row.group != group:
                group = row.group
                lines += ["", f"### {group}", "", "| option | meaning |", "|---|---|"]
            value = "[=WORD]" if row.kind == "maybe" else f" {row.metavar}" if row.metavar else ""
            names = ", ".join(row.names) + value
            lines.append(f"| `{names.replace('|', chr(92) + '|')}` | {row.help.replace('|', chr(92) + '|')} |")
        lines.append("")
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"


def events_reference() -> str:
    lines = [
        "# Events",
        "",
        "Written by `make docs` from `src/ralph/core/events.py` and `work_events.py`. Every line of `--json` and the",
        "journal is one object:",
        '`{"type", "timestamp", "run", "seq", "data"}`. `ralph schema events` prints the JSON Schema.',
        "",
        "| type | data | |",
        "|---|---|---|",
    ]
    for kind, name in {**events.NAMES, **work_events.NAMES}.items():
        meaning = " ".join((kind.__doc__ or "").split())
        fields = ", ".join(f"`{field}`" for field in kind.__struct_fields__)
        lines.append(f"| `{name}` | {fields} | {meaning} |")
    return "\n".join(lines) + "\n"


PAGES = {"options.md": options_reference, "settings.md": settings_reference, "events.md": events_reference}


def main(arguments: list[str]) -> int:
    stale = [name for name, page in PAGES.items() if not _is_current(name, page())]
    if "--check" in arguments:
        for name in stale:
            print(f"docs/reference/{name} is out of date: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        (FOLDER / name).write_text(PAGES[name]())
    return 0


def _is_current(name: str, text: str) -> bool:
    path = FOLDER / name
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
