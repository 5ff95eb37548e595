"""Which tool calls are in a reply? Those of the protocol, those that a model wrote into its text, mended where a small
model broke their arguments, or answered with an error that it can act on."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from msgspec import Struct, ValidationError, convert
from msgspec.structs import fields, replace
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

LONGEST_ARGUMENTS = 1_000_000

_FENCE = re.compile(r"\A\s*+```\w*+\s*+(.*?)\n?```\s*+\Z", re.DOTALL)
_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^```(?:bash|sh|shell)[ \t]*+\n((?:(?!```).*\n)*+)```[ \t]*+$", re.MULTILINE)
_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_TRAILING = re.compile(r'("(?:[^"\\]|\\.)*+"?)|,(\s*[}\]])')  # a comma before a closing bracket, outside strings
_OTHER_NAMES = {
    "command": ("cmd", "script"),
    "path": ("file", "filename", "file_path", "filepath"),
    "content": ("text", "contents"),
    "old": ("old_string", "old_text"),
    "new": ("new_string", "new_text"),
}
_MEANT = {other: name for name, others in _OTHER_NAMES.items() for other in others}


class Call(Struct, frozen=True):
    """One use of a tool. `given`: its arguments as an object; `asked`: the same as a struct of the tool's kind, or in
    words for the model why it cannot be run. What is not `native` stood in the model's text, and is answered there."""

    id: str
    tool: str
    given: Mapping[str, Any]
    asked: Struct | str
    native: bool = True


Kinds = Mapping[str, type[Struct]]


def text_of(reply: ModelResponse) -> str:
    """What the model says to people."""
    return "\n".join(part.content for part in reply.parts if isinstance(part, TextPart) and part.content)


def calls_in(reply: ModelResponse, kinds: Kinds) -> list[Call]:
    """Every tool call in a reply, in its order. Each is run or answered with an error: none gets lost."""
    native = [part for part in reply.parts if isinstance(part, ToolCallPart)]
    if native:
        return [_call(part.tool_call_id, part.tool_name, part.args, kinds) for part in native]
    text = text_of(reply)
    outside = _FENCED.sub("", text)  # what is fenced is quoted, unless the model says nothing else
    found = [words for words in _TAGGED.findall(outside if outside.strip() else text) if words]
    return [_from_text(made_up(), words, kinds) for words in found]


def made_up() -> str:
    return f"text_{uuid4().hex[:12]}"


def commands_in(text: str) -> list[str]:
    """The fenced commands in a reply of a model that has no tool calling."""
    return [found.strip() for found in _COMMAND.findall(text) if found.strip()]


def _from_text(name: str, words: str, kinds: Kinds) -> Call:
    said = mended(words)
    if not isinstance(said, dict) or not isinstance(said.get("name"), str):
        trouble = 'what stands in <tool_call> cannot be read: write one JSON object {"name": …, "arguments": {…}}'
        return Call(name, "", {}, trouble, native=False)
    given: Any = next((said[name] for name in ("arguments", "parameters", "input") if name in said), {})
    return replace(_call(name, said["name"], given, kinds), native=False)


def _call(name: str, tool: str, said: Any, kinds: Kinds) -> Call:
    kind = kinds.get(tool.strip())
    if kind is None:
        return Call(name, tool, {}, f"there is no tool {tool!r}; the tools are: {', '.join(kinds)}")
    if isinstance(said, str) and len(said) > LONGEST_ARGUMENTS:
        size = f"{len(said):,} characters of arguments are too long (at most {LONGEST_ARGUMENTS:,})"
        return Call(name, tool, {}, f"{size}: nothing was done. Write long files in pieces")
    found = _unwrapped(mended(said) if isinstance(said, str) and said.strip() else said or {}, kind)
    given = found if isinstance(found, dict) else {}
    try:
        return Call(name, tool.strip(), given, convert(found, kind, strict=False))
    except ValidationError as error:
        wants = ", ".join(f"{field.encode_name}{'' if field.required else ' (optional)'}" for field in fields(kind))
        return Call(name, tool, given, f"{tool} was not run: {error}. Its arguments are a JSON object with: {wants}")


def _unwrapped(arguments: Any, kind: type[Struct]) -> Any:
    """Arguments under their own names, out of the envelope that some models put around them."""
    if isinstance(arguments, dict) and len(arguments) == 1:
        [(envelope, inner)] = arguments.items()
        inner = mended(inner) if isinstance(inner, str) else inner
        if envelope in ("arguments", "parameters", "input") and isinstance(inner, dict):
            arguments = inner
    if not isinstance(arguments, dict):
        return arguments
    own = kind.__struct_fields__
    return {name if name in own else _MEANT.get(name.lower(), name): value for name, value in arguments.items()}


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
