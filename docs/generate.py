"""Writes the reference from the code: `python docs/generate.py`, or `--check` to see whether it is up to date."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from ralph.core import events, work_events
from ralph.run import options
from ralph.settings.load import PRESETS
from ralph.settings.schema import Settings, format_duration, format_size
from ralph.settings.validate import bare_type, describe_type, is_struct, metas_of

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
            meaning = row.describe(options.PRESET_OF.get(command, "guardrails"))
            lines.append(f"| `{names.replace('|', chr(92) + '|')}` | {meaning.replace('|', chr(92) + '|')} |")
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


INTRODUCTION = """\
# Settings

Settings are read from these places; a later one wins:

1. the preset's defaults ([below](#presets))
2. `$XDG_CONFIG_HOME/ralph/settings.json` (`~/.config/ralph/settings.json`), yours for every project
3. `.ralph/settings.json`, the project's; `ralph init` writes it
4. `.ralph/settings.local.json`, yours for this project
5. the file given with `-c` to `ralph loop`
6. the command line

Objects are merged key by key; texts, numbers and lists replace what was there; `null` takes back what a lower place
says.
An unknown key or a wrong value is an error that names the file, the line and what is valid.

Three short forms: `"agent": "claude"` means `{"command": "claude"}`, a check may be just its command
(`"checks": ["make test"]`), and `guardrails` is read as `checks`. Both names in one file are an error.

A duration is a number of seconds or a text such as `"90s"`, `"5m"`, `"1h30m"` or `"2d"`. A size is a number of bytes or
a text such as `"512kB"`, `"32MB"` (powers of 1000) or `"1GiB"` (powers of 1024).
"""


def settings_reference() -> str:
    """The reference of all settings, as Markdown."""
    sections = [INTRODUCTION, _table("Every setting", Settings, "")]
    sections += [_table(f"`{name}`", kind, f"{kind.__doc__}\n\n") for name, kind in _objects(Settings, "")]
    return "\n".join([*sections, _presets()])


def _objects(kind: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """The structs inside a struct, by the name under which they stand."""
    for field in msgspec.structs.fields(kind):
        bare, name = bare_type(field.type), prefix + field.encode_name
        if get_origin(bare) is tuple:
            bare, name = bare_type(get_args(bare)[0]), f"{name}[]"
        elif get_origin(bare) is dict:
            bare, name = bare_type(get_args(bare)[1]), f"{name}.NAME"
        if is_struct(bare):
            yield name, bare
            yield from _objects(bare, f"{name}.")


def _table(title: str, kind: Any, text: str) -> str:
    lines = [f"## {title}\n\n{text}| key | takes | default | meaning |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(kind):
        note = next(note for note in metas_of(field.type) if note.description)
        meaning = note.description or ""
        if note.examples:
            meaning += f" Example: `{_json(note.examples[0])}`."
        lines.append(
            f"| `{field.encode_name}` | {_takes(field.type)} | {_default(field)} | {meaning} |".replace("  ", " ")
        )
    return "\n".join(lines) + "\n"


def _takes(kind: Any) -> str:
    return describe_type(kind).partition(" such as")[0].replace('"', "`")


def _default(field: Any) -> str:
    if field.required:
        return "(needed)"
    return "" if field.default is msgspec.NODEFAULT else _value(field.default, describe_type(field.type))


def _value(value: Any, words: str) -> str:
    """A value as one would write it, given the words for what its field takes."""
    if value in (None, "", ()) or is_struct(type(value)):
        return ""
    if words.startswith("a duration"):
        return f"`{format_duration(value)}`"
    if words.startswith("a size"):
        return f"`{format_size(value)}`"
    return f"`{_json(value)}`"


def _presets() -> str:
    """What each preset says, beside the defaults of the others."""
    lines = [
        "## Presets",
        "",
        f"| | {' | '.join(f'`{name}`' for name in PRESETS)} |",
        "|---" * (len(PRESETS) + 1) + "|",
    ]
    for field in msgspec.structs.fields(Settings):
        key, words = field.encode_name, describe_type(field.type)
        if any(key in row for row in PRESETS.values()):
            cells = (_value(row.get(key, field.default), words) for row in PRESETS.values())
            lines.append(f"| `{key}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode().replace("|", "\\|")


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
