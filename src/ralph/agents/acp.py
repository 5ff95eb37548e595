"""Agents that support the Agent Client Protocol: `acp:NAME` from the table below, or `acp: COMMAND …`.

ralph starts its own client (`ralph.acp`), which starts the agent and prints the lines that this module reads.
"""

import re
import shlex
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from shutil import which
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ralph.agents import wire
from ralph.agents.prices import priced
from ralph.agents.protocol import Invocation, Login, SandboxNeeds, Trouble, TurnRequest
from ralph.agents.reader import Reader
from ralph.agents.wire import Table
from ralph.core.events import AgentEvent, AgentProgress, AgentUnknown, TodoUpdated
from ralph.core.model import Exit, Usage
from ralph.errors import UserError

PREFIX = "acp:"


class AcpAgent(Struct, frozen=True):
    """How to start an agent in ACP mode, and how to install it."""

    command: str
    install: str


AGENTS = {
    "claude": AcpAgent("claude-agent-acp", "npm install -g @agentclientprotocol/claude-agent-acp"),
    "codex": AcpAgent("codex-acp", "npm install -g @agentclientprotocol/codex-acp"),
    "opencode": AcpAgent("opencode acp", "npm install -g opencode-ai"),
    "gemini": AcpAgent("gemini --acp", "npm install -g @google/gemini-cli"),
    "qwen": AcpAgent("qwen --acp", "npm install -g @qwen-code/qwen-code"),
    "copilot": AcpAgent("copilot --acp", "npm install -g @github/copilot"),
    "kimi": AcpAgent("kimi acp", "npm install -g @moonshot-ai/kimi-code"),
    "pi": AcpAgent("pi-acp", "npm install -g pi-acp"),
    "vibe": AcpAgent("vibe-acp", "pipx install mistral-vibe"),
    "cline": AcpAgent("cline --acp", "npm install -g cline"),
    "auggie": AcpAgent("auggie --acp", "npm install -g @augmentcode/auggie"),
    "droid": AcpAgent("droid exec --output-format acp", "npm install -g droid"),
    "goose": AcpAgent("goose acp", "see goose's documentation"),
    "cursor": AcpAgent("cursor-agent acp", "see Cursor's documentation"),
    "junie": AcpAgent("junie --acp=true", "see Junie's documentation"),
}

NAME = "acp"
INSTALL = ""
RESUMES = True
LOGIN: Login | None = None
SANDBOX: SandboxNeeds | None = None


def start_words(agent: str) -> tuple[str, ...]:
    """Return the command line that starts `acp:NAME` or `acp: COMMAND …`."""
    name = agent.removeprefix(PREFIX)
    if name in AGENTS:
        return tuple(shlex.split(AGENTS[name].command))
    if name.startswith(" ") and name.strip():
        try:
            return tuple(shlex.split(name))
        except ValueError as error:
            raise UserError(f"cannot parse {agent!r}: {error}", "quote the words as a shell would") from None
    near = get_close_matches(name, AGENTS, 1)
    advice = f"did you mean {PREFIX}{near[0]}?" if near else f"use one of: {', '.join(AGENTS)}."
    raise UserError(
        f"unknown ACP agent: {name or 'no name'}", f'{advice} A command works as well: --agent "acp: COMMAND"'
    )


def find_installed(path: str | None = None) -> list[str]:
    """Return the agents of the table whose program is on PATH, as `acp:NAME`."""
    return [f"{PREFIX}{name}" for name, agent in AGENTS.items() if which(agent.command.split()[0], path=path)]


def install_hint(agent: str) -> str:
    """Return the command that installs the agent; "" for a command of the user."""
    agent_data = AGENTS.get(agent.removeprefix(PREFIX))
    return agent_data.install if agent_data else ""


def invocation(request: TurnRequest) -> Invocation:
    policy = "read-only" if request.looks_only else "yolo" if request.yolo or request.sandboxed else "default"
    argv = [sys.executable, "-P", "-m", "ralph.acp", "--policy", policy]
    argv += ["--model", request.model] if request.model else []
    argv += ["--session", request.session] if request.session else []
    argv += [word for folder in request.folders for word in ("--add-dir", folder)]
    return Invocation((*argv, "--", *start_words(request.command[0]), *request.flags))


# Chunks that are notices or errors of the program, not text of the model (Copilot, pi).
_NOTICE = re.compile(r"Info: |Retrying \(attempt|Retry finished")
_BANNER = re.compile(r"pi v[\d.]+\n---\n")
_EXIT_CODE = re.compile(r"exit code:? (\d+)\D{0,20}\Z", re.IGNORECASE)
_KINDS = {"rate_limit": "limit", "server_error": "transient", "max_output_tokens": "ordinary"}
_CODES = {-32000: "fatal", 401: "fatal", 403: "fatal", -31002: "fatal", -31001: "limit"}
_STOPPED = {
    "max_tokens": "it reached its output limit",
    "max_turn_requests": "it reached its own limit of requests",
    "refusal": "the model refused to answer",
    "cancelled": "it cancelled the turn",
}


class _AcpReader(Reader):
    def __init__(self, request: TurnRequest) -> None:
        super().__init__(request)
        self._message: list[str] = []
        self._message_id: object = None
        self._has_message_ids = False
        self._title = ""
        self._calls: dict[str, Table] = {}
        self._outputs: dict[str, str] = {}
        self._cost: float | None = None
        self._summed = Usage()
        self._is_broken = False  # Codex reported that its thread has failed
        self._error_message = ""  # an error that came as a message of the agent

    def on_agent(self, table: Table) -> Iterable[AgentEvent]:
        info = wire.table(table, "info")
        self._title = f"{wire.text(info, 'title') or wire.text(info, 'name')} {wire.text(info, 'version')}".strip()
        return (AgentProgress(self._title or "an ACP agent", routine=True),)

    def on_session(self, table: Table) -> None:
        self.session = wire.text(table, "id") or None

    def on_session_lost(self, table: Table) -> Iterable[AgentEvent]:
        return (AgentProgress(f"cannot resume the session ({wire.text(table, 'reason')}): started a new one"),)

    def on_prose(self, table: Table) -> None:
        self.notice = wire.text(table, "text")

    def on_unknown(self, table: Table) -> Iterable[AgentEvent]:
        return (AgentUnknown(wire.text(table, "method")[:100]),)

    def on_update(self, table: Table) -> Iterable[AgentEvent]:
        update = wire.table(table, "update")
        kind = wire.text(update, "sessionUpdate")
        handler = self.handler(kind, "update")
        return handler(update) or () if handler else (AgentUnknown(kind[:100]),)

    def update_agent_message_chunk(self, update: Table) -> Iterable[AgentEvent]:
        self._summed = self._summed.plus(_tokens(wire.table(wire.table(update, "_meta"), "usage")))
        text = wire.text(wire.table(update, "content"), "text")
        if not text:
            return ()
        message_id = update.get("messageId")
        if message_id is None and not self._has_message_ids:
            if _BANNER.fullmatch(text):
                return ()
            if _NOTICE.match(text):  # a model call failed and is retried: the text before it is not an answer
                events = self._flush()
                self.notice, self._said = text, ""
                return [*events, AgentProgress(text)]
            if text.startswith("Error: "):
                self._error_message = text.removeprefix("Error: ")
                return self._flush()
        events = self._flush() if message_id != self._message_id else []
        self._message_id, self._has_message_ids = message_id, self._has_message_ids or message_id is not None
        self._message.append(text)
        return events

    def update_agent_thought_chunk(self, update: Table) -> None:
        """Report nothing: the update only shows that the agent is alive."""

    def update_tool_call(self, update: Table) -> Iterable[AgentEvent]:
        call = wire.text(update, "toolCallId")
        merged = self._calls.setdefault(call, {"is_open": False})
        merged.update({name: value for name, value in update.items() if value not in (None, [], {}, "")})
        meta = wire.table(update, "_meta")
        for name in ("terminal_output", "terminal_output_delta"):
            self._outputs[call] = (self._outputs.get(call, "") + wire.text(wire.table(meta, name), "data"))[-100_000:]
        events = self._flush()
        status = wire.text(update, "status")
        is_over = status in ("completed", "failed")
        says_what = wire.summary(merged.get("rawInput"))  # opencode names the folder before the command
        if not merged["is_open"] and (says_what or is_over or status == "in_progress"):
            events += self._start(call, merged)
        if is_over:
            events += self._end(call, merged)
        return events

    update_tool_call_update = update_tool_call

    def on_permission(self, table: Table) -> Iterable[AgentEvent]:
        call = wire.table(table, "toolCall")
        events = [*self.update_tool_call({**call, "status": "in_progress"})]
        if table.get("allowed") is not True:
            events += self.denied(wire.text(call, "toolCallId"), _summary(call) or _name(call))
        return events

    def _start(self, call: str, data: Table) -> list[AgentEvent]:
        data["is_open"] = True
        diff = next((part for part in wire.rows(data, "content") if part.get("type") == "diff"), {})
        raw_input = data.get("rawInput") if isinstance(data.get("rawInput"), dict) else {}
        if diff:
            edited = {"path": diff.get("path"), "oldText": diff.get("oldText") or "", "newText": diff.get("newText")}
            return self.starts(call, _name(data), edited)
        return self.starts(call, _name(data), raw_input if wire.summary(raw_input) else _summary(data))

    def _end(self, call: str, data: Table) -> list[AgentEvent]:
        output = _output(data) or self._outputs.pop(call, "")
        raw = wire.table(data, "rawOutput")
        codes = (
            raw.get("exit_code"),
            wire.table(raw, "metadata").get("exit"),
            wire.table(wire.table(data, "_meta"), "terminal_exit").get("exit_code"),
        )
        exit_line = _EXIT_CODE.search(output[-200:]) if data.get("kind") == "execute" else None
        ok = data.get("status") == "completed" and not any(codes) and not (exit_line and int(exit_line[1]))
        self._calls.pop(call, None)
        return self.ends(call, ok, output)

    def update_plan(self, update: Table) -> Iterable[AgentEvent]:
        return (*self._flush(), TodoUpdated(tuple(map(wire.todo_item, wire.rows(update, "entries")[:200]))))

    def update_usage_update(self, update: Table) -> None:
        cost = wire.table(update, "cost")
        amount = wire.amount(cost, "amount") if cost.get("currency") == "USD" else None
        if amount is not None:  # the cost of the whole session
            before = self.request.usage_before.cost_usd if self.request.session else None
            self._cost = max(amount - (before or 0.0), 0.0)
            self.spent = replace(self.usage, cost_usd=self._cost)

    def update_session_info_update(self, update: Table) -> Iterable[AgentEvent]:
        codex = wire.table(wire.table(update, "_meta"), "codex")
        self._is_broken = self._is_broken or wire.table(codex, "threadStatus").get("type") == "systemError"
        error = wire.table(codex, "error")
        if not error:
            return ()
        info = wire.table(error, "codexErrorInfo")
        statuses = [str(wire.count(wire.table(info, name), "httpStatusCode") or "") for name in info]
        words = ["stream disconnected"] if "responseStreamDisconnected" in info else []
        self.notice = " ".join(filter(None, [*statuses[:1], *words, wire.text(error, "message")]))
        return (AgentProgress(f"retrying: {self.notice}"),)

    def update_notice(self, update: Table) -> Iterable[AgentEvent]:
        self.notice = wire.text(update, "message") or wire.text(update, "text")
        return (AgentProgress(self.notice),) if self.notice else ()

    def _flush(self) -> list[AgentEvent]:
        """Report the message that consists of the chunks so far."""
        text, self._message = "".join(self._message), []
        return [*self.says(text.strip("\n"))]

    def on_response(self, table: Table) -> Iterable[AgentEvent]:
        last_id = self._message_id
        events = self._flush()
        self.is_over = True
        meta = wire.table(wire.table(table, "_meta"), "quota")
        usage = wire.table(table, "usage")
        tokens = _tokens(usage) if usage else _tokens(wire.table(meta, "token_count"))
        if not tokens.tokens:
            tokens = self._summed
        if self.request.session and self._title.startswith("Mistral Vibe"):  # it reports the whole session
            tokens = self.since(tokens)
        stop = wire.text(table, "stopReason")
        # The last message is really an error (Copilot, Codex).
        is_error = self._is_broken or (self._has_message_ids and last_id is None and not usage)
        if self._error_message or is_error:
            self.trouble = Trouble(self._error_message or self.notice or self._said or "its thread failed")
        elif stop in _STOPPED:
            why = "a tool was not allowed" if stop == "cancelled" and self._denied else _STOPPED[stop]
            self.trouble = Trouble(why, kind="ordinary")
        elif not self._said and self.notice.startswith("Retry"):
            self.trouble = Trouble(f"every call of the model failed: {self.notice}", kind="transient")
        elif not self._said and not self.tool_calls and not self._denied:
            self.trouble = Trouble(self.notice or "it answered nothing", kind="ordinary")
        return [*events, *self.pays(priced(replace(tokens, cost_usd=self._cost), self.model))]

    def on_error(self, table: Table) -> None:
        data = table.get("data")
        details: Any = data if isinstance(data, str) else ""
        kind = None
        if isinstance(data, dict):
            details = wire.text(data, "details") or wire.text(data, "message")
            named = wire.text(data, "errorKind")
            kind = "fatal" if named.startswith("authentication") else _KINDS.get(named)
        code = table.get("code")
        kind = kind or _CODES.get(code) if isinstance(code, int) else kind
        message = ": ".join(filter(None, (wire.text(table, "message"), details)))
        if code == -32000:
            message = f"{message} (log in with the agent itself, in a terminal)"
        self.trouble = Trouble(message, kind=kind)  # type: ignore[arg-type]

    def verdict(self, ended: Exit) -> Trouble | None:
        self._flush()
        if self.trouble is None and ended.ended_by and self.notice:  # it printed nothing while it waited for a limit
            return Trouble(self.notice)
        return self.trouble


def _name(call: Table) -> str:
    """Return the tool's name, which agents put in different places."""
    meta = wire.table(call, "_meta")
    places = (call, wire.table(meta, "claudeCode"), meta)
    names = [wire.text(place, key) for place in places for key in ("name", "toolName", "tool_name")]
    return next(filter(None, names), "") or wire.text(call, "kind") or "tool"


def _summary(call: Table) -> str:
    """Return the command or path of a call, else its title."""
    words = wire.summary(call.get("rawInput"))
    paths = [wire.text(place, "path") for place in wire.rows(call, "locations")]
    return words or next(filter(None, paths), "") or wire.text(call, "title")


def _output(call: Table) -> str:
    raw = call.get("rawOutput")
    if isinstance(raw, str) and raw:
        return raw
    if isinstance(raw, dict):
        for name in ("output", "content", "stdout"):
            if text := wire.text(raw, name):
                return text
    blocks = [wire.table(part, "content") for part in wire.rows(call, "content") if part.get("type") == "content"]
    return "\n".join(filter(None, (wire.text(block, "text") for block in blocks)))


def _tokens(usage: Table) -> Usage:
    """Return the tokens of a turn. If the total shows that the input includes cached tokens, they are subtracted."""
    names = ("inputTokens", "outputTokens", "cachedReadTokens", "cachedWriteTokens")
    if "input_tokens" in usage:
        names = ("input_tokens", "output_tokens", "cached_tokens", "")
    total = wire.count(usage, "totalTokens")
    spent = sum(wire.count(usage, name) for name in (*names[:2], "thoughtTokens"))
    return wire.usage(usage, names, whole_input=bool(total) and total == spent)


parser = _AcpReader
