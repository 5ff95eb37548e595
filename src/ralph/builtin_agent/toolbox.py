"""The tools of the built-in agent: run a command; read, write or edit a file.

Tool calls come by the protocol or in the model's text. Every call returns text, even if it fails, so that the model can
react.
"""

import json
import os
import re
import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import Annotated, Any
from uuid import uuid4

from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import fields, replace
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from ralph.errors import UNREADABLE
from ralph.process.program import DetachedProcess
from ralph.process.signals import defer_signals

MAX_ARGUMENTS = 1_000_000

_FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^```(?:bash|sh|shell)[ \t]*+\n((?>(?:(?!```).*\n)*))```[ \t]*+$", re.MULTILINE)
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class Call(Struct, frozen=True):
    """One tool call.

    `given` are its arguments as an object. `arguments` are the same as the tool's struct, or an error message for the
    model. A call that isn't `native` was written as text, and its result is returned as text.
    """

    id: str
    tool: str
    given: Mapping[str, Any]
    arguments: Struct | str
    native: bool = True


def text_of(reply: ModelResponse) -> str:
    """Return the text of a reply."""
    return "\n".join(part.content for part in reply.parts if isinstance(part, TextPart) and part.content)


def calls_in(reply: ModelResponse) -> list[Call]:
    """Return every tool call in a reply, in order. Those that can't be run have an error message."""
    native = [part for part in reply.parts if isinstance(part, ToolCallPart)]
    if native:
        return [_call(part.tool_call_id, part.tool_name, part.args) for part in native]
    text = text_of(reply)
    outside = _FENCED.sub("", text)  # a call in a fence is only an example, unless there is nothing else
    commands = map(str.strip, _TAGGED.findall(outside if outside.strip() else text))
    return [_from_text(new_call_id(), words) for words in commands if words]


def new_call_id() -> str:
    return f"text_{uuid4().hex[:12]}"


def commands_in(text: str) -> list[str]:
    """Return the fenced commands in a reply of a model without tool calling."""
    return [command.strip() for command in _COMMAND.findall(text) if command.strip()]


def _from_text(name: str, words: str) -> Call:
    call = parse_json(words)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        trouble = 'the content of <tool_call> is not valid: write one JSON object {"name": …, "arguments": {…}}'
        return Call(name, "", {}, trouble, native=False)
    arguments: Any = next((call[name] for name in ("arguments", "parameters", "input") if name in call), {})
    return replace(_call(name, call["name"], arguments), native=False)


def _call(name: str, tool: str, raw: Any) -> Call:
    kind = TOOLS.get(tool.strip())
    if kind is None:
        return Call(name, tool, {}, f"there is no tool {tool!r}; the tools are: {', '.join(TOOLS)}")
    if isinstance(raw, str) and len(raw) > MAX_ARGUMENTS:
        size = f"{len(raw):,} characters of arguments are too long (at most {MAX_ARGUMENTS:,})"
        return Call(name, tool, {}, f"{size}: nothing was done. Write long files in pieces")
    value = parse_json(raw) if isinstance(raw, str) and raw.strip() else raw or {}
    arguments = value if isinstance(value, dict) else {}
    try:
        return Call(name, tool.strip(), arguments, convert(value, kind, strict=False))
    except ValidationError as error:
        wants = ", ".join(f"{field.encode_name}{'' if field.required else ' (optional)'}" for field in fields(kind))
        return Call(
            name, tool, arguments, f"{tool} was not run: {error}. Its arguments are a JSON object with: {wants}"
        )


def parse_json(text: str) -> Any:
    """Parse JSON, even inside a fence or other text, with line breaks in strings, or encoded twice; None if invalid."""
    for part in (text, text[text.find("{") : text.rfind("}") + 1]):
        with suppress(*UNREADABLE):
            value = json.loads(part, strict=False)
            return parse_json(value) if isinstance(value, str) and value.lstrip().startswith("{") else value
    return None


TIMEOUT, MAX_TIMEOUT = 120, 1800  # seconds for a command: default and maximum
MAX_FILE = 10_000_000


class Bash(Struct):
    """Run a shell command in the workspace. Gives its output and exit code."""

    command: str
    timeout: Annotated[int, Meta(description="seconds until it is ended")] = TIMEOUT


class Read(Struct):
    """Read a text file, or list a folder."""

    path: str
    offset: Annotated[int, Meta(description="the first line, from 1")] = 1
    limit: Annotated[int, Meta(description="how many lines; 0: all")] = 0


class Write(Struct):
    """Create a file, or replace all of its text."""

    path: str
    content: str


class Edit(Struct):
    """Replace one piece of text in a file."""

    path: str
    old: Annotated[str, Meta(description="exactly as in the file, where it must occur once")]
    new: str


TOOLS: dict[str, type[Struct]] = {"bash": Bash, "read": Read, "write": Write, "edit": Edit}


class ToolError(ValueError):
    """A mistake of the model, with a message that helps it."""


class Toolbox:
    """The tools, in a workspace and in the folders `lent`, where they may also write.

    `most` is the number of characters that all calls of one reply may return together. `commands` are the process
    groups of running commands.
    """

    def __init__(self, root: Path, env: Mapping[str, str], most: int, lent: tuple[Path, ...] = ()) -> None:
        self.root, self._env, self.most, self.commands = root.resolve(), dict(env), most, set[int]()
        self.lent = tuple(folder.resolve() for folder in lent)
        self._shell = which("bash") or "/bin/sh"

    def run(self, call: Call, share: int = 1) -> tuple[bool, str]:
        """Run a call; return whether it worked, and its output, cut in the middle if it is longer than its share."""
        try:
            if isinstance(call.arguments, str):
                raise ToolError(call.arguments)
            return True, cut(getattr(self, f"_{call.tool}")(call.arguments), self.most // share)
        except ValueError as error:  # includes a path with a NUL
            return False, cut(str(error), self.most // share)
        except OSError as error:
            return False, f"{error.strerror or error}: {call.given.get('path', '')}"

    def _bash(self, arguments: Bash) -> str:
        # The output goes to a file: with a pipe, ralph would wait for processes left in the background.
        with tempfile.TemporaryFile() as output:
            code, ended = self._run_command(
                arguments.command, min(max(arguments.timeout, 1), MAX_TIMEOUT), output.fileno()
            )
            text = _read_ends(output, self.most)
        if ended or code:
            raise ToolError(f"{text}\n[{ended or f'exit code {code}'}]".lstrip())
        return text or "[no output]"

    def _run_command(self, command: str, seconds: float, output: int) -> tuple[int, str]:
        """Run a command; return its exit code, and the reason if its process group was killed."""
        deadline, words = time.monotonic() + seconds, (self._shell, "-c", command)
        with open(os.devnull) as nothing, defer_signals():  # a signal must not leave a process that nobody knows
            process = DetachedProcess.start(words, self._env, (nothing.fileno(), output, output), cwd=str(self.root))
            self.commands.add(process.pid)
        try:
            while time.monotonic() < deadline and os.fstat(output).st_size <= 20 * MAX_FILE:
                if (code := process.wait(0.1)) is not None:
                    return code, ""
            is_timeout = time.monotonic() >= deadline
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        finally:
            self.commands.clear()
        if is_timeout:
            return 1, f"timeout: killed after {seconds} s. Give a longer timeout, or run it in the background"
        return 1, "killed: it printed too much"

    def _read(self, arguments: Read) -> str:
        file = self._inside(arguments.path)
        if file.is_dir():
            names = sorted(f"{item.name}/" if item.is_dir() else item.name for item in file.iterdir())
            return "\n".join(names) or "[an empty folder]"
        lines = _text(file).split("\n")
        begin = max(arguments.offset, 1) - 1
        if begin and begin >= len(lines):
            raise ToolError(f"{arguments.path} has only {len(lines)} lines")
        chosen = lines[begin : begin + arguments.limit] if arguments.limit > 0 else lines[begin:]
        return "\n".join(chosen) or "[an empty file]"

    def _write(self, arguments: Write) -> str:
        file = self._inside(arguments.path)
        if file.exists() and not file.is_file():
            raise ToolError(f"not a regular file: {arguments.path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(arguments.content.encode("utf-8", "surrogatepass"))
        return f"wrote {len(arguments.content):,} characters to {arguments.path}"

    def _edit(self, arguments: Edit) -> str:
        file = self._inside(arguments.path)
        text = _text(file)
        begin = find_text(arguments.old, text)
        if arguments.new == arguments.old:
            raise ToolError("nothing would change: old and new are the same")
        file.write_bytes(text.replace(arguments.old, arguments.new, 1).encode("utf-8", "surrogateescape"))
        return f"edited {arguments.path}, line {text.count(chr(10), 0, begin) + 1}"

    def _inside(self, path: str) -> Path:
        """Resolve a path. Raise if it is outside the workspace, after following links."""
        target = (self.root / os.path.expanduser(path)).resolve()
        if not any(target == folder or folder in target.parents for folder in (self.root, *self.lent)):
            raise ToolError(f"{path} is outside the workspace {self.root}")
        return target


def _read_ends(file: Any, most: int) -> str:
    """Return the beginning and the end of a file, as text."""
    size = os.fstat(file.fileno()).st_size
    keep = 4 * most  # bytes; a character has at most four
    data = os.pread(file.fileno(), keep, 0)
    if size > keep:
        data += b"\n[...]\n" + os.pread(file.fileno(), keep, max(size - keep, keep))
    return data.decode("utf-8", "replace").strip("\n")


def _text(file: Path) -> str:
    """Read a text file; raise ToolError for anything else."""
    if not file.exists():
        others = sorted(item.name for item in file.parent.iterdir())[:20] if file.parent.is_dir() else []
        raise ToolError(f"no such file: {file}" + (f"; that folder has: {', '.join(others)}" if others else ""))
    if not file.is_file():
        raise ToolError(f"not a regular file: {file}")
    size = file.stat().st_size
    if size > MAX_FILE:
        raise ToolError(f"{file.name} has {size:,} bytes: look into it with bash (grep, head, tail)")
    data = file.read_bytes()
    if b"\0" in data[:8192]:
        raise ToolError(f"{file.name} is a binary file of {size:,} bytes")
    return data.decode("utf-8", "surrogateescape")


def find_text(old: str, text: str) -> int:
    """Return where `old` is in `text`; raise unless it is there exactly once."""
    if not old:
        raise ToolError("old is empty: name the text to replace, or use write for a new file")
    count = text.count(old)
    if count == 1:
        return text.index(old)
    if count > 1:
        raise ToolError(f"old occurs {count} times in the file: include more of the lines around it")
    raise ToolError("old is not in the file: read the lines that you want to change again")


def cut(text: str, most: int) -> str:
    """Return the head and the tail of a text, about `most` characters, and between them how much was left out."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= most:
        return text
    head, tail = most // 3, most - most // 3
    return f"{text[:head]}\n[… {len(text) - most:,} characters left out …]\n{text[-tail:]}"
