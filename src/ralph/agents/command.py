"""How is any other program run as an agent? By the user's own command line; its output says which dialect it speaks."""

from collections.abc import Iterable, Iterator, Sequence
from os.path import expanduser, isfile
from typing import Literal, Protocol

from msgspec.structs import replace

from ralph.agents import known, module, wire
from ralph.agents.protocol import AgentModule, BoxNeeds, Invocation, Login, Parser, TurnRequest
from ralph.agents.reader import Reader, Trouble
from ralph.agents.wire import TABLE, Table, read
from ralph.core.events import AgentEvent
from ralph.core.model import Exit, Turn, Usage
from ralph.errors import UserError

NAME = "command"
INSTALL = ""
KEYS: tuple[str, ...] = ()
RESUMES = False
HELP: tuple[str, ...] = ()
LOGIN = None
BOX = None


def invocation(request: TurnRequest) -> Invocation:
    """The prompt is on stdin unless the command line has a place for it."""
    line = request.command[0]
    if len(request.command) > 1:
        words = request.command
    elif isfile(line):
        words = (line,)
    elif needs_shell(line):
        return _by_shell(request, line)
    else:
        words = split(line)
    words = (expanduser(words[0]), *words[1:], *request.flags)
    placed = any("{prompt}" in word or "{prompt_file}" in word for word in words)
    argv = filled(words, request.prompt, request.prompt_file)
    return Invocation(argv, stdin="empty" if placed else "prompt")


def _by_shell(request: TurnRequest, line: str) -> Invocation:
    if request.flags:
        raise UserError(
            "flags cannot be added to a shell command line",
            f"write {' '.join(request.flags)!r} into the agent's command, where it belongs",
        )
    placed = "{prompt}" in line or "{prompt_file}" in line
    argv = script(line, request.prompt, request.prompt_file)
    return Invocation(argv, stdin="empty" if placed else "prompt")


def parser(request: TurnRequest) -> Parser:
    return Sniffer(request, NAME)


class Sniffer:
    """Reads plain text (`text`), the stream of a known agent (its name), or the one until the other begins (`auto`)."""

    def __init__(self, request: TurnRequest, agent: str, stream: str = "auto") -> None:
        self._request, self._agent = request, agent
        self._sniffing = stream == "auto"
        self._reader: Parser = _Text(request) if stream in ("auto", "text") else module(stream).parser(request)
        self.skipped = self.tool_errors = 0
        self.spent: Usage | None = None

    def feed(self, line: bytes) -> Iterable[AgentEvent]:
        if self._sniffing and line.startswith(b"{"):
            dialect = dialect_of(read(line, TABLE) or {})
            if dialect is not None:
                self._reader, self._sniffing = module(dialect).parser(self._request), False
        events = self._reader.feed(line)
        self._count()
        return events

    def feed_all(self, lines: Sequence[bytes]) -> Sequence[AgentEvent]:
        if self._sniffing and any(line.startswith(b"{") for line in lines):
            return [event for line in lines for event in self.feed(line)]
        events = self._reader.feed_all(lines)
        self._count()
        return events

    def _count(self) -> None:
        if not isinstance(self._reader, _Text):
            self.skipped, self.tool_errors = self._reader.skipped, self._reader.tool_errors

    def turn(self, ended: Exit) -> Turn:
        return replace(self._reader.turn(ended), agent=self._agent)


class _Text(Reader):
    def feed(self, line: bytes) -> Iterable[AgentEvent]:
        return self._plain.feed(line)

    def feed_all(self, lines: Sequence[bytes]) -> list[AgentEvent]:
        return self._plain.feed_all(lines)

    def verdict(self, ended: Exit) -> Trouble | None:
        """A shell says by its exit code that a program is not there, or cannot be run."""
        if ended.code in (126, 127) and len(self.request.command) == 1 and needs_shell(self.request.command[0]):
            return Trouble(ended.stderr.strip() or f"exit code {ended.code}", kind="fatal")
        return None


def dialect_of(table: Table) -> str | None:
    """The known agent in whose stream such a line stands."""
    kind = wire.text(table, "type")
    if kind in ("assistant", "user") and "content" in wire.table(table, "message"):
        return "claude"
    if kind in ("system", "result") and ("subtype" in table or "session_id" in table or "result" in table):
        return "claude"
    if kind in ("thread.started", "turn.started", "turn.completed", "turn.failed") or "item" in table:
        return "codex" if kind.startswith(("thread.", "turn.", "item.")) else None
    if "sessionID" in table and kind in ("step_start", "step_finish", "text", "tool_use", "error"):
        return "opencode"
    if (kind == "init" and "session_id" in table) or (kind == "message" and "role" in table):
        return "gemini"
    if (kind == "session" and "cwd" in table) or kind in ("agent_start", "turn_start", "message_end"):
        return "pi"
    if "data" in table and kind.startswith(("session.", "assistant.", "user.", "tool.", "model.")):
        return "copilot"
    return "cline" if kind in ("hook_event", "agent_event", "run_result") else None


_OPERATORS = set("|&;<>`\n")
_LONGEST_WORD = (1 << 17) - 1  # Linux refuses a longer argument


def split(line: str) -> tuple[str, ...]:
    """The words of `line`, as a shell would see them."""
    import shlex

    try:
        return tuple(shlex.split(line))
    except ValueError as error:
        raise UserError(f"the agent's command line cannot be read: {error}", f"check the quotes in: {line}") from error


def needs_shell(line: str) -> bool:
    """Whether `line` holds syntax that only a shell understands, outside quotes."""
    first = line.split(maxsplit=1)[0] if line.strip() else ""
    if "=" in first and first.partition("=")[0].isidentifier():
        return True
    for index, char, quote in _unescaped(line):
        if quote == "'":
            continue
        following = line[index + 1 : index + 2]
        if char == "$" and (following in ("(", "{") or following.isidentifier()):
            return True
        if char == "`" or (not quote and char in _OPERATORS):
            return True
    return False


def filled(words: tuple[str, ...], prompt: str, prompt_file: str) -> tuple[str, ...]:
    """`words` with the prompt, or the path of its file, in place of the placeholders."""
    if any("{prompt}" in word for word in words):
        _must_fit(prompt)
    return tuple(_each(word, {"{prompt}": prompt, "{prompt_file}": prompt_file}) for word in words)


def script(line: str, prompt: str, prompt_file: str) -> tuple[str, ...]:
    """The argv of a shell that runs `line`. Prompt and file are its arguments, so nothing in them can be code."""
    if "{prompt}" in line:
        _must_fit(prompt)
    quotes = {index: quote for index, _, quote in _unescaped(line)}
    parts: list[str] = []
    index = 0
    while index < len(line):
        name = next((name for name in _PARAMETERS if line.startswith(name, index)), None)
        if name is None or index not in quotes:
            parts.append(line[index])
            index += 1
            continue
        quote, parameter = quotes[index], _PARAMETERS[name]
        parts.append({"": f'"{parameter}"', '"': parameter, "'": f"'\"{parameter}\"'"}[quote])
        index += len(name)
    return ("sh", "-c", "".join(parts), "sh", prompt if "{prompt}" in line else "", prompt_file)


_PARAMETERS = {"{prompt}": "${1}", "{prompt_file}": "${2}"}


def _must_fit(prompt: str) -> None:
    hint = "use {prompt_file}, or let the agent read stdin"
    if len(prompt.encode(errors="replace")) > _LONGEST_WORD:
        raise UserError("the prompt is too long for an argument", hint)
    if "\0" in prompt:
        raise UserError("the prompt holds a NUL character, which no argument can", hint)


def _each(word: str, values: dict[str, str]) -> str:
    """Every placeholder replaced once: what stands in a value is not looked at again."""
    name = min((name for name in values if name in word), key=word.index, default=None)
    if name is None:
        return word
    before, _, after = word.partition(name)
    return before + values[name] + _each(after, values)


def _unescaped(line: str) -> Iterator[tuple[int, str, str]]:
    """The characters of `line` that are not escaped, each with the kind of quotes that it stands in."""
    quote = ""
    escaped = False
    for index, char in enumerate(line):
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        else:
            yield index, char, quote


class Description(Protocol):
    """What the settings say about an agent. `resume` and `model` are words that are added when there is a session
    or a model to name; `stream` is `text`, `auto`, or the known agent whose stream it speaks."""

    @property
    def argv(self) -> tuple[str, ...]: ...
    @property
    def prompt(self) -> Literal["stdin", "argument", "file"]: ...
    @property
    def stream(self) -> str: ...
    @property
    def resume(self) -> tuple[str, ...]: ...
    @property
    def model(self) -> tuple[str, ...] | str: ...


def described(name: str, description: Description) -> AgentModule:
    """The agent called `name`, as good as a module."""
    if description.stream not in ("text", "auto", *known()):
        raise UserError(
            f'the agent "{name}" speaks an unknown stream: "{description.stream}"',
            f"use one of: text, auto, {', '.join(known())}",
        )
    return _Described(name, description)


class _Described:
    INSTALL = ""
    KEYS: tuple[str, ...] = ()
    HELP: tuple[str, ...] = ()
    LOGIN: Login | None = None
    BOX: BoxNeeds | None = None

    def __init__(self, name: str, description: Description) -> None:
        self.NAME = name
        self.RESUMES = bool(description.resume)
        self._description = description

    def invocation(self, request: TurnRequest) -> Invocation:
        own = self._description
        words = list(own.argv)
        if request.model:
            words += [word.replace("{model}", request.model) for word in own.model]
        if request.session:
            words += [word.replace("{session}", request.session) for word in own.resume]
        words += request.flags
        placed = any("{prompt}" in word or "{prompt_file}" in word for word in words)
        if not placed and own.prompt != "stdin":
            words.append("{prompt}" if own.prompt == "argument" else "{prompt_file}")
            placed = True
        argv = filled(tuple(words), request.prompt, request.prompt_file)
        return Invocation(argv, stdin="empty" if placed else "prompt")

    def parser(self, request: TurnRequest) -> Parser:
        return Sniffer(request, self.NAME, self._description.stream)
