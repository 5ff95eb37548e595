"""Which tool calls are in a reply? Those of the protocol, those that a model wrote into its text, mended where a small
model broke their arguments, or answered with an error that it can act on."""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

LONGEST_ARGUMENTS = 1_000_000

_FENCE = re.compile(r"\A\s*```\w*\s*\n?(.*?)\n?```\s*\Z", re.DOTALL)
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^```(?:bash|sh|shell)[ \t]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_TRAILING = re.compile(r'("(?:[^"\\]|\\.)*")|,(\s*[}\]])')  # a comma before a closing bracket, outside strings
_OTHER_NAMES = {
    "command": ("cmd", "script"),
    "path": ("file", "filename", "file_path", "filepath"),
    "content": ("text", "contents"),
    "old": ("old_string", "old_text"),
    "new": ("new_string", "new_text"),
}
_MEANT = {other: name for name, others in _OTHER_NAMES.items() for other in others}


class Call(Struct, frozen=True):
    """One use of a tool. `trouble`: why it cannot be run, in words for the model. `id` is "" where the call stood in
    the model's text, so that its result goes back as text."""

    id: str
    tool: str
    arguments: Mapping[str, Any]
    trouble: str = ""


Schemas = Mapping[str, Mapping[str, Any]]


def text_of(reply: ModelResponse) -> str:
    """What the model says to people."""
    return "\n".join(part.content for part in reply.parts if isinstance(part, TextPart) and part.content)


def calls_in(reply: ModelResponse, schemas: Schemas) -> list[Call]:
    """Every tool call in a reply, in its order. Each is run or answered with an error: none gets lost."""
    native = [part for part in reply.parts if isinstance(part, ToolCallPart)]
    if native:
        return [_call(part.tool_call_id, part.tool_name, part.args, schemas) for part in native]
    text = text_of(reply)
    outside = _FENCED.sub("", text)  # what is fenced is quoted, unless the model says nothing else
    return [_from_text(found, schemas) for found in _TAGGED.findall(outside if outside.strip() else text) if found]


def commands_in(text: str) -> list[str]:
    """The fenced commands in a reply of a model that has no tool calling."""
    return [found.strip() for found in _COMMAND.findall(text) if found.strip()]


def _from_text(words: str, schemas: Schemas) -> Call:
    said = mended(words)
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        shape = '{"name": …, "arguments": {…}}'
        return Call("", "", {}, f"what stands in <tool_call> cannot be read: it must be one JSON object {shape}")
    given: Any = next((said[name] for name in ("arguments", "parameters", "input") if name in said), {})
    return _call("", said["name"], given, schemas)


def _call(name: str, tool: str, given: Any, schemas: Schemas) -> Call:
    tool = tool.strip()
    if tool not in schemas:
        return Call(name, tool, {}, f"there is no tool {tool!r}; the tools are: {', '.join(schemas)}")
    if isinstance(given, str) and len(given) > LONGEST_ARGUMENTS:
        size = f"{len(given):,} characters of arguments are too long (at most {LONGEST_ARGUMENTS:,})"
        return Call(name, tool, {}, f"{size}: nothing was done. Write long files in pieces")
    arguments = mended(given) if isinstance(given, str) else given
    if arguments is None or arguments == "":
        arguments = {}
    if not isinstance(arguments, dict):
        return Call(name, tool, {}, f"the arguments of {tool} are not a JSON object. {_wants(schemas[tool])}")
    arguments = _unwrapped(arguments, schemas[tool])
    return Call(name, tool, arguments, _fault(tool, arguments, schemas[tool]))


def _unwrapped(arguments: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments under their own names, out of the envelope that some models put around them."""
    fields = schema["properties"]
    for envelope in ("arguments", "parameters", "input"):
        inner = arguments.get(envelope)
        inner = mended(inner) if isinstance(inner, str) else inner
        if len(arguments) == 1 and isinstance(inner, dict):
            arguments = inner
    named = {name if name in fields else _MEANT.get(name.lower(), name): value for name, value in arguments.items()}
    return {name: _as_asked(value, fields[name]["type"]) for name, value in named.items() if name in fields}


def _as_asked(value: Any, kind: str) -> Any:
    """A value as the kind that is asked for, where nothing is lost by it."""
    if kind == "integer" and isinstance(value, str | float):
        try:
            return int(float(value))
        except (ValueError, OverflowError):
            return value
    if kind == "string" and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return value


def _fault(tool: str, arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    kinds: dict[str, type] = {"string": str, "integer": int}
    missing = [name for name in schema["required"] if name not in arguments]
    wrong = [
        name for name, value in arguments.items() if not isinstance(value, kinds[schema["properties"][name]["type"]])
    ]
    if not missing and not wrong:
        return ""
    what = [f"missing: {', '.join(missing)}"] * bool(missing) + [f"of the wrong type: {', '.join(wrong)}"] * bool(wrong)
    return f"{tool} was not run ({'; '.join(what)}). {_wants(schema)}"


def _wants(schema: Mapping[str, Any]) -> str:
    fields = (
        f"{name} ({about['type']}{'' if name in schema['required'] else ', optional'})"
        for name, about in schema["properties"].items()
    )
    return f"It takes: {', '.join(fields)}"


def mended(words: str) -> Any:
    """The JSON that is meant by `words`, or None. Mended are: a fence or text around it, trailing commas, single
    quotes and Python's constants, line breaks inside strings, and JSON that was encoded twice."""
    for attempt in _attempts(words):
        try:
            found = json.loads(attempt, strict=False)
        except (ValueError, RecursionError):
            found = _as_python(attempt)
        if isinstance(found, str) and found.lstrip()[:1] in ("{", "[") and found != words:
            found = mended(found)
        if found is not None:
            return found[0] if isinstance(found, list) and len(found) == 1 and isinstance(found[0], dict) else found
    return None


def _attempts(words: str) -> Iterator[str]:
    yield words
    bare = words.strip()
    if fenced := _FENCE.match(bare):
        bare = fenced[1].strip()
        yield bare
    begin, end = bare.find("{"), bare.rfind("}")
    inner = bare[begin : end + 1] if 0 <= begin < end else ""
    for guess in (bare, inner, f"{bare[begin:]}}}" if begin >= 0 else ""):
        if guess:
            yield guess
            yield _TRAILING.sub(lambda found: found[1] or found[2], guess)


def _as_python(words: str) -> Any:
    try:
        found = ast.literal_eval(words.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None
    return found if isinstance(found, dict | list) else None


def schema(required: Sequence[str], **fields: tuple[str, str]) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments: for each its type and what it is."""
    properties = {name: {"type": kind, "description": about} for name, (kind, about) in fields.items()}
    return {"type": "object", "properties": properties, "required": list(required)}
