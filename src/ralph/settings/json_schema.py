"""The JSON Schemas of settings files and of events, for editors and other programs."""

from typing import Any

import msgspec

from ralph.core import events, work_events
from ralph.settings.schema import Settings

DIALECT = "https://json-schema.org/draft/2020-12/schema"
TEXT = {"type": "string", "pattern": r"\S"}


def settings_schema() -> dict[str, Any]:
    """Return the JSON Schema of a settings file."""
    definitions = msgspec.json.schema(Settings)["$defs"]
    for definition in definitions.values():
        optional = set(definition["properties"]) - set(definition["required"])
        definition["properties"] |= {name: _or_null(definition["properties"][name]) for name in optional}
    top = definitions.pop("Settings")
    properties = top["properties"]
    properties["agent"]["anyOf"].insert(0, TEXT)  # `"agent": "claude"`
    commands = properties["checks"]["anyOf"][0]
    commands["items"] = {"anyOf": [TEXT, commands["items"]]}  # `"checks": ["make test"]`
    properties["guardrails"] = {**properties["checks"], "description": "Another name for `checks`."}
    top["properties"] = {"$schema": {"type": "string", "description": "Where this schema is."}, **properties}
    return {"$schema": DIALECT, **top, "title": "Settings of ralph", "$defs": definitions}


def events_schema() -> dict[str, Any]:
    """Return the JSON Schema of one line of `--json` and of the journal."""
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
    """Allow null for a field, which removes the value of a lower layer."""
    about: dict[str, Any] = {key: field.pop(key) for key in ("description", "examples", "default") if key in field}
    if about.get("default", 0) in (None, "", (), [], {}):
        del about["default"]
    options = [*map(_or_text, field.pop("anyOf", None) or [field])]
    if {"type": "null"} not in options:
        options.append({"type": "null"})
    return {**about, "anyOf": options}


def _or_text(option: dict[str, Any]) -> dict[str, Any]:
    """Allow text for a number that has a pattern."""
    is_number = "pattern" in option and option["type"] != "string"
    return {**option, "type": [option["type"], "string"]} if is_number else option
