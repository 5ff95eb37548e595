"""Any other program as an agent: the user's command line. Its output shows whether it prints a known stream."""

import re
from collections.abc import Iterable
from functools import cached_property
from os.path import expanduser, isfile

from ralph.agents import iter_unescaped, module, needs_shell, split, wire
from ralph.agents.protocol import Invocation, Parser, Trouble, TurnRequest
from ralph.agents.reader import Reader
from ralph.agents.wire import Table
from ralph.core.events import AgentEvent
from ralph.core.model import Exit, Turn, Usage
from ralph.errors import UserError

NAME = "command"
INSTALL = ""
RESUMES = False
LOGIN = None
SANDBOX = None

_LONGEST_WORD = (1 << 17) - 1  # Linux refuses a longer argument
_PLACEHOLDER = re.compile(r"\{prompt(?:_file)?\}")
_PARAMETERS = {"{prompt}": "${1}", "{prompt_file}": "${2}"}


def invocation(request: TurnRequest) -> Invocation:
    """Pass the prompt on stdin unless the command line has a placeholder for it."""
    line = request.command[0]
    if len(request.command) > 1:
        words = request.command
    elif isfile(line):
        words = (line,)
    elif needs_shell(line):
        if request.flags:
            raise UserError(
                "flags cannot be added to a shell command line",
                f"put {' '.join(request.flags)!r} into the agent's command instead",
            )
        return Invocation(_script(line, request), stdin="empty" if has_placeholder((line,)) else "prompt")
    else:
        words = split(line)
    return invoke_directly((expanduser(words[0]), *words[1:], *request.flags), request)


def invoke_directly(words: tuple[str, ...], request: TurnRequest) -> Invocation:
    """Fill in the placeholders; without one, the prompt comes on stdin."""
    if any("{prompt}" in word for word in words):
        _must_fit(request.prompt)
    values = {"{prompt}": request.prompt, "{prompt_file}": request.prompt_file}
    # In one pass, because placeholders in the values stay.
    argv = tuple(_PLACEHOLDER.sub(lambda match: values[match[0]], word) for word in words)
    return Invocation(argv, stdin="empty" if has_placeholder(words) else "prompt")


def _script(line: str, request: TurnRequest) -> tuple[str, ...]:
    """Return the argv of a shell that runs `line`. The prompt is an argument, so the shell can't run it as code."""
    if "{prompt}" in line:
        _must_fit(request.prompt)
    quotes = {index: quote for index, _, quote in iter_unescaped(line)}

    def parameter(match: re.Match[str]) -> str:
        if match.start() not in quotes:
            return match[0]
        number = _PARAMETERS[match[0]]
        return {"": f'"{number}"', '"': number, "'": f"'\"{number}\"'"}[quotes[match.start()]]

    return (
        "sh",
        "-c",
        _PLACEHOLDER.sub(parameter, line),
        "sh",
        request.prompt if "{prompt}" in line else "",
        request.prompt_file,
    )


def _must_fit(prompt: str) -> None:
    hint = "use {prompt_file}, or let the agent read stdin"
    if len(prompt.encode(errors="replace")) > _LONGEST_WORD:
        raise UserError("the prompt is too long for an argument", hint)
    if "\0" in prompt:
        raise UserError("the prompt contains a NUL character, which an argument cannot", hint)


def has_placeholder(words: Iterable[str]) -> bool:
    return any(_PLACEHOLDER.search(word) for word in words)


def parser(request: TurnRequest) -> Parser:
    return Sniffer(request)


class Sniffer:
    """Reads plain text (`text`), the stream of a known agent (its name), or plain text until a stream begins (`auto`).

    If more plain lines than stream lines follow, the stream was only an example: everything is plain text.
    """

    def __init__(self, request: TurnRequest, stream: str = "auto") -> None:
        self._request = request
        self._sniffing = stream == "auto"
        self._reader: Parser = _Text(request) if stream in ("auto", "text") else module(stream).parser(request)
        self._text: Parser | None = None  # reads everything as plain text, in case the stream is only an example
        self._balance = 0
        self.skipped = self.tool_errors = 0
        self.spent: Usage | None = None

    @cached_property
    def _prompt_lines(self) -> frozenset[str]:
        """Return the lines of the prompt. An issue, diff or log in it may look like an agent's stream."""
        return frozenset(map(str.strip, self._request.prompt.split("\n")))

    @property
    def is_heard(self) -> bool:
        return self._reader.is_heard

    @property
    def is_waiting(self) -> bool:
        return self._reader.is_waiting

    def feed(self, line: bytes) -> Iterable[AgentEvent]:
        if self._sniffing and line.startswith(b"{"):
            dialect = dialect_of(wire.read(line) or {})
            if dialect is not None and line.decode("utf-8", "replace").strip() not in self._prompt_lines:
                self._text, self._sniffing = self._reader, False
                self._reader = module(dialect).parser(self._request)
        if self._text is not None:
            events = self._text.feed(line)
            self._balance += 1 if line.startswith(b"{") else -1 if line.strip() else 0
            if self._balance < 0:
                self._reader, self._text = self._text, None
                return events
        events = self._reader.feed(line)
        self.skipped, self.tool_errors = self._reader.skipped, self._reader.tool_errors
        return events

    def turn(self, ended: Exit) -> Turn:
        return self._reader.turn(ended)


class _Text(Reader):
    TELLS_TOOLS = False

    def feed(self, line: bytes) -> Iterable[AgentEvent]:
        return self._plain.feed(line)

    def verdict(self, ended: Exit) -> Trouble | None:
        """Treat two exit codes of the shell as fatal: 127, not found, and 126, not executable."""
        if ended.code in (126, 127) and len(self.request.command) == 1 and needs_shell(self.request.command[0]):
            return Trouble(ended.stderr.strip() or f"exit code {ended.code}", kind="fatal")
        return None


def dialect_of(table: Table) -> str | None:
    """Return the known agent that prints lines like this one; None if there is none."""
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
