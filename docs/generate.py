"""Write the reference from the code: `python docs/generate.py`, or `--check` to see whether it is up to date."""

import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import click
import msgspec

import ralph
from ralph.cli.table import SECTIONS, CliCommand, find
from ralph.core import backlog_events, events
from ralph.options.option import COMPATIBILITY
from ralph.settings.presets import PRESETS
from ralph.settings.schema import Settings, format_duration, format_size
from ralph.settings.validate import bare_type, describe_type, is_struct, metas_of

FOLDER = Path(__file__).parent / "reference"


SHARED_BY = 3  # an option that this many commands have with the same text is listed once, at the top


def commands_reference() -> str:
    """Render every command once, in the order of `ralph help --all`, and shared options once."""
    sections = {
        title: {name: command for top in names for name, command in _leaves(top)} for title, names in SECTIONS.items()
    }
    commands = {name: command for section in sections.values() for name, command in section.items()}
    seen = Counter(row for command in commands.values() for row in _rows(command))
    shared = {
        row: group for command in commands.values() for row, group in _rows(command).items() if seen[row] >= SHARED_BY
    }
    lines = ["# Commands", "", "Written by `make docs` from the commands themselves.", "", "## Shared options", ""]
    lines += ["Most commands that start an agent have these; `ralph help COMMAND` says which.", ""]
    lines += _option_tables(shared)
    for title, section in sections.items():
        lines += [f"## {title}", ""]
        for name, command in section.items():
            lines += [f"### ralph {name}", "", *_explain(name, command), *_option_tables(_own_rows(command, shared))]
    return "\n".join(lines).rstrip() + "\n"


def _leaves(name: str) -> Iterator[tuple[str, CliCommand]]:
    """Yield a command, or the subcommands of a group, with their full names."""
    found = find(name)
    if isinstance(found, click.Group):
        yield from (
            (f"{name} {sub}", command) for sub, command in found.commands.items() if isinstance(command, CliCommand)
        )
    elif isinstance(found, CliCommand):
        yield name, found


def _rows(command: CliCommand) -> dict[tuple[str, str], str]:
    """Return the options as (spelling, meaning), with the group of each."""
    context = click.Context(command, info_name=command.name)
    rows = {}
    for option in command.options:
        if record := option.get_help_record(context):
            rows[record] = option.group
    return rows


def _own_rows(command: CliCommand, shared: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    return {row: group for row, group in _rows(command).items() if row not in shared}


def _explain(name: str, command: CliCommand) -> list[str]:
    usage = " ".join(["ralph", name, *command.collect_usage_pieces(click.Context(command))])
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    examples = ["```sh", *command.examples, "```", ""] if command.examples else []
    return [f"`{usage}`", "", text, "", *examples]


def _option_tables(rows: Mapping[tuple[str, str], str]) -> list[str]:
    """Return a table for each group of options, those for compatibility last."""
    lines = []
    for group in sorted(dict.fromkeys(rows.values()), key=lambda group: group == COMPATIBILITY):
        lines += [f"| {group or 'Options'} | |", "|---|---|"]
        for (names, meaning), its_group in rows.items():
            if its_group == group:
                lines.append(f"| `{_cell(names)}` | {_cell(meaning)} |")
        lines.append("")
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def python_reference() -> str:
    """Render the public names of the package, from their signatures and docstrings."""
    lines = ["# Python API", "", "Written by `make docs` from the docstrings of `import ralph`.", ""]
    for name in ralph.__all__:
        found = getattr(ralph, name)
        if not callable(found):
            continue
        lines += [f"## {name}", "", "```python", _signature(name, found), "```", "", inspect.getdoc(found) or "", ""]
        for method, function in inspect.getmembers(found, inspect.isfunction) if inspect.isclass(found) else ():
            if not method.startswith("_") and inspect.getdoc(function):
                lines += [f"- `{_signature(method, function)}`: {' '.join((inspect.getdoc(function) or '').split())}"]
        lines.append("")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _signature(name: str, found: Callable[..., object]) -> str:
    """Return the call with its parameters, one per line if there are many."""
    parameters = [_parameter(one) for one in inspect.signature(found).parameters.values() if one.name != "self"]
    line = f"{name}({', '.join(parameters)})"
    return line if len(line) <= 110 else f"{name}(\n    " + ",\n    ".join(parameters) + ",\n)"


def _parameter(parameter: inspect.Parameter) -> str:
    """Return a parameter without module names; a default that has no literal becomes `...`."""
    if repr(parameter.default).startswith("<") and parameter.default is not parameter.empty:
        parameter = parameter.replace(default=...)
    text = re.sub(r"Callable\[\[[^\]]*\bRunFinished\], None\]", "Tell", str(parameter)).replace("Ellipsis", "...")
    return re.sub(r"\b(?:\w+\.)+(\w)", r"\1", text)


def events_reference() -> str:
    lines = [
        "# Events",
        "",
        "Written by `make docs` from `src/ralph/core/events.py` and `backlog_events.py`. Every line of `--json` and",
        "the journal is one object:",
        '`{"type", "timestamp", "run", "seq", "data"}`. `ralph schema events` prints the JSON Schema.',
        "",
        "| type | data | |",
        "|---|---|---|",
    ]
    for kind, name in {**events.NAMES, **backlog_events.NAMES}.items():
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
5. the YAML file given with `-c` to `ralph loop`, or only its section `ralph_loop` if it has one
6. the command line

Objects are merged key by key; texts, numbers and lists replace what was there; `null` takes back what a lower place
says.
An unknown key or a wrong value is an error that names the file, the line and what is valid.

Three short forms: `"agent": "claude"` means `{"command": "claude"}`, a check may be just its command
(`"checks": ["make test"]`), and `guardrails` is read as `checks`.
`{"work": {"setup": "npm ci"}}` is read as `setup`. Both names in one file are an error.

A duration is a number of seconds or a text such as `"90s"`, `"5m"`, `"1h30m"` or `"2d"`. A size is a number of bytes or
a text such as `"512kB"`, `"32MB"` (powers of 1000) or `"1GiB"` (powers of 1024).

## A full example

`.ralph/settings.json` of a project that runs overnight. Start with `agent` and `checks`, and add what you need. The
guides explain each part: [checks](../guides/checks.md), [exams](../guides/exams.md),
[budgets](../guides/budgets.md), [stuck runs](../guides/stuck.md), [worktrees](../guides/worktrees.md), the
[sandbox](../guides/sandbox.md), [notifications](../guides/notify.md).

```json
{
  "agent": {"command": "claude", "model": "sonnet"},
  "maximumIterations": 30,
  "checks": [
    "make test",
    {"command": "make lint", "failAction": "PREPEND", "hint": "Fix lint errors only. Do not change behaviour."}
  ],
  "checkTimeout": "10m",
  "protect": ["tests/**"],
  "exams": [{"command": "python3 ~/exams/cart.py", "hint": "Think of empty carts.", "timeout": "2m"}],
  "reviews": {"agent": "codex"},
  "prove": "report",
  "maxCost": 10,
  "maxTime": "8h",
  "turnTimeout": "45m",
  "stuck": 6,
  "then": ["claude:opus", "codex"],
  "onLimit": "wait",
  "worktree": true,
  "sandbox": {"enabled": true, "net": "pypi.org,files.pythonhosted.org"},
  "setup": "npm ci",
  "work": {"jobs": 4},
  "notify": ["desktop"],
  "scm": {"tasks": ["commit"]}
}
```

`ralph loop "GOAL" --dry-run` shows what follows from your settings, and runs nothing.
"""


def settings_reference() -> str:
    """Render the reference of all settings."""
    sections = [INTRODUCTION, _table("Every setting", Settings, "")]
    sections += [_table(f"`{name}`", kind, f"{kind.__doc__}\n\n") for name, kind in _objects(Settings, "")]
    return "\n".join([*sections, _presets()])


def _objects(kind: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Return the structs inside a struct by the name of their field."""
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
    """Return a value as a user would write it, given the words for what its field takes."""
    if value in (None, "", ()) or is_struct(type(value)):
        return ""
    if words.startswith("a duration"):
        return f"`{format_duration(value)}`"
    if words.startswith("a size"):
        return f"`{format_size(value)}`"
    return f"`{_json(value)}`"


def _presets() -> str:
    """Render the values of each preset next to the defaults of the others."""
    lines = [
        "## Presets",
        "",
        "[Presets](../guides/presets.md) explains when to use which.",
        "",
        f"| | {' | '.join(f'`{name}`' for name in PRESETS)} |",
        "|---" * (len(PRESETS) + 1) + "|",
    ]
    for field in msgspec.structs.fields(Settings):
        key, words = field.encode_name, describe_type(field.type)
        if any(key in preset.defaults for preset in PRESETS.values()):
            cells = (_value(preset.defaults.get(key, field.default), words) for preset in PRESETS.values())
            lines.append(f"| `{key}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode().replace("|", "\\|")


PAGES = {
    "commands.md": commands_reference,
    "python.md": python_reference,
    "settings.md": settings_reference,
    "events.md": events_reference,
}


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
