"""What does the page about settings say? It is written from the struct, so that it cannot be out of date."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

import msgspec

from ralph.core import events, work_events
from ralph.settings.layers import PRESETS
from ralph.settings.shape import REVIEWS, Settings, format_duration, format_size
from ralph.settings.source import bare_kind, described, is_struct, notes

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
        bare, name = bare_kind(field.type), prefix + field.encode_name
        if get_origin(bare) is tuple:
            bare, name = bare_kind(get_args(bare)[0]), f"{name}[]"
        elif get_origin(bare) is dict:
            bare, name = bare_kind(get_args(bare)[1]), f"{name}.NAME"
        if is_struct(bare):
            yield name, bare
            yield from _objects(bare, f"{name}.")


def _table(title: str, kind: Any, text: str) -> str:
    lines = [f"## {title}\n\n{text}| key | takes | default | meaning |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(kind):
        note = next(note for note in notes(field.type) if note.description)
        meaning = note.description or ""
        if note.examples:
            meaning += f" Example: `{_json(note.examples[0])}`."
        lines.append(
            f"| `{field.encode_name}` | {_takes(field.type)} | {_default(field)} | {meaning} |".replace("  ", " ")
        )
    return "\n".join(lines) + "\n"


def _takes(kind: Any) -> str:
    return described(kind).partition(" such as")[0].replace('"', "`")


def _default(field: Any) -> str:
    if field.required:
        return "(needed)"
    return "" if field.default is msgspec.NODEFAULT else _value(field.default, described(field.type))


def _value(value: Any, words: str) -> str:
    """A value as one would write it, given the words for what its field takes."""
    if value in (None, "", ()) or is_struct(type(value)):
        return ""
    if words.startswith("a duration"):
        return f"`{format_duration(value)}`"
    if words.startswith("a size"):
        return f"`{format_size(value)}`"
    return f"{len(value)} reviews" if value is REVIEWS else f"`{_json(value)}`"


def _presets() -> str:
    """What each preset says, beside the defaults of the others."""
    lines = [
        "## Presets",
        "",
        f"| | {' | '.join(f'`{name}`' for name in PRESETS)} |",
        "|---" * (len(PRESETS) + 1) + "|",
    ]
    for field in msgspec.structs.fields(Settings):
        key, words = field.encode_name, described(field.type)
        if any(key in row for row in PRESETS.values()):
            cells = (_value(row.get(key, field.default), words) for row in PRESETS.values())
            lines.append(f"| `{key}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode().replace("|", "\\|")


DIALECT = "https://json-schema.org/draft/2020-12/schema"


def settings_schema() -> dict[str, Any]:
    """The JSON Schema of a settings file."""
    definitions = msgspec.json.schema(Settings)["$defs"]
    for definition in definitions.values():
        optional = set(definition["properties"]) - set(definition["required"])
        definition["properties"] |= {name: _or_null(definition["properties"][name]) for name in optional}
    top = definitions.pop("Settings")
    top["properties"] = {"$schema": {"type": "string", "description": "Where this schema is."}, **top["properties"]}
    return {"$schema": DIALECT, **top, "title": "Settings of ralph", "$defs": definitions}


def events_schema() -> dict[str, Any]:
    """The JSON Schema of one line of `--json` and of the journal."""
    names = {**events.NAMES, **work_events.NAMES}
    references, definitions = msgspec.json.schema_components(tuple(names))
    envelope = {
        "timestamp": {"type": "string", "format": "date-time"},
        "run": {"type": "string", "description": "The id of the run."},
        "seq": {"type": "integer", "minimum": 0, "description": "The number of the event in its run."},
    }
    return {
        "$schema": DIALECT,
        "title": "An event of ralph",
        "type": "object",
        "properties": {"type": {"enum": list(names.values())}, **envelope, "data": {"type": "object"}},
        "required": ["type", *envelope, "data"],
        "oneOf": [
            {"properties": {"type": {"const": name}, "data": reference}}
            for name, reference in zip(names.values(), references, strict=True)
        ],
        "$defs": definitions,
    }


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    """The same field, or null to take back what a lower layer says."""
    about: dict[str, Any] = {key: field.pop(key) for key in ("description", "examples", "default") if key in field}
    if about.get("default", 0) in (None, "", (), [], {}):
        del about["default"]
    options = [*map(_or_text, field.pop("anyOf", None) or [field])]
    if {"type": "null"} not in options:
        options.append({"type": "null"})
    return {**about, "anyOf": options}


def _or_text(option: dict[str, Any]) -> dict[str, Any]:
    """A number that has a pattern may be written as text."""
    is_number = "pattern" in option and option["type"] != "string"
    return {**option, "type": [option["type"], "string"]} if is_number else option
