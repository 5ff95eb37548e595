"""Claude Code: how to run it headless, and how to read its stream."""

import re
from collections.abc import Iterable
from typing import ClassVar

from ralph.agents import wire
from ralph.agents.prices import priced
from ralph.agents.protocol import Invocation, Login, SandboxNeeds, Trouble, TurnRequest
from ralph.agents.reader import Reader
from ralph.agents.wire import Table
from ralph.core.events import AgentEvent, AgentProgress, AgentText, AgentUnknown, TodoItem, TodoUpdated
from ralph.core.model import Exit, Turn, Usage

_QUIET = frozenset(
    {"hook_started", "hook_response", "hook_progress", "task_started", "task_updated", "task_progress"}
    | {"task_notification", "thinking_tokens", "ui_invalidate", "files_persisted"}
)
_TASK_TOOLS = ("TaskCreate", "TaskUpdate")
_MOST_TASKS = 200


class BlockReader(Reader):
    """A parser of streams with content blocks. Subclasses say how their result line reports usage and errors."""

    SILENT = frozenset({"stream_event", "keep_alive", "tool_progress"})
    NOTICES: ClassVar[tuple[str, ...]] = ()  # how texts begin that the program wrote, not the model
    DENIALS: ClassVar[tuple[str, ...]] = ()  # how errors of tools begin that the agent was not allowed to use

    def __init__(self, request: TurnRequest) -> None:
        super().__init__(request)
        self.resets_at: float | None = None
        self._reply = ""  # the id of the latest reply
        self._counted = Usage()  # of all replies so far, in case the turn is cut off before its result line
        self._tasks: dict[str, TodoItem] = {}

    def turn(self, ended: Exit) -> Turn:
        if self.usage == Usage():
            self.usage = priced(self._counted, self.model)
        return super().turn(ended)

    def usage_in(self, result: Table) -> Usage:
        """Return the usage of the turn from its result line."""
        return tokens_in(wire.table(result, "usage"), wire.amount(result, "total_cost_usd"))

    def trouble_in(self, result: Table) -> Trouble:
        """Return the error in a result line."""
        return Trouble(error_in(result) or wire.text(result, "result"))

    def on_assistant(self, table: Table) -> Iterable[AgentEvent]:
        message = wire.table(table, "message")
        self._note_session(table)
        self._count(message)
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else wire.rows(message, "content")
        is_notice = table.get("is_api_error_message") is True or message.get("model") == "<synthetic>"
        parent = wire.text(table, "parent_tool_use_id")
        events = [event for block in blocks for event in self._block(block, parent, is_notice)]
        texts = [event.text for event in events if isinstance(event, AgentText)]
        if len(texts) > 1:
            self._said = "\n".join(texts)
        return events

    def _note_session(self, table: Table) -> None:
        self.session = wire.text(table, "session_id") or self.session

    def _block(self, block: Table, parent: str, is_notice: bool) -> Iterable[AgentEvent]:
        if block.get("type") == "tool_use":
            return self.starts(wire.text(block, "id"), wire.text(block, "name"), block.get("input"), parent)
        text = wire.text(block, "text") if block.get("type") == "text" else ""
        if text and (
            parent or is_notice or text.startswith(self.NOTICES)
        ):  # a sub-agent's text is not the agent's answer
            return (AgentProgress(text),)
        return self.says(text)

    def _count(self, message: Table) -> None:
        """Count the usage of a reply once: each of its lines repeats it."""
        reply = wire.text(message, "id")
        if not reply or reply != self._reply:
            self._reply, self._counted = reply, self._counted.plus(tokens_in(wire.table(message, "usage")))

    def on_user(self, table: Table) -> Iterable[AgentEvent]:
        events: list[AgentEvent] = []
        for block in wire.rows(wire.table(table, "message"), "content"):
            if block.get("type") != "tool_result":
                continue
            call, text = wire.text(block, "tool_use_id"), wire.text(block, "content")
            ok = block.get("is_error") is not True
            if not text:
                parts = wire.rows(block, "content")
                text = "\n".join(wire.text(part, "text") or f"[{wire.text(part, 'type')}]" for part in parts)
            tool = self._open.get(call, "")
            events += self.ends(call, ok, text, is_denied=not ok and text.startswith(self.DENIALS))
            if ok and tool in _TASK_TOOLS:
                events += self._task(wire.table(table, "tool_use_result"))
        return events

    def _task(self, result: Table) -> Iterable[AgentEvent]:
        """Update the todo list with the one task that each tool result contains."""
        task, change = wire.table(result, "task"), wire.table(result, "statusChange")
        name = (wire.text(task, "id") or wire.text(result, "taskId"))[:100]
        old = self._tasks.get(name, TodoItem(f"task {name}"))
        row = {"content": wire.text(task, "subject") or old.text, "status": wire.text(change, "to")}
        if not name or (name not in self._tasks and len(self._tasks) >= _MOST_TASKS):
            return ()
        self._tasks[name] = wire.todo_item(row)
        if row["status"] == "deleted":
            del self._tasks[name]
        return (TodoUpdated(tuple(self._tasks.values())),)

    def on_system(self, table: Table) -> Iterable[AgentEvent]:
        subtype = wire.text(table, "subtype")
        self._note_session(table)
        if subtype in _QUIET:
            return ()
        if subtype == "init" or not subtype:
            self.model = wire.text(table, "model") or self.model
            return (AgentProgress(f"session {self.session or '?'} {self.model}".rstrip(), routine=True),)
        if subtype == "status":
            return (AgentProgress("compacting the context"),) if table.get("status") == "compacting" else ()
        if subtype in ("api_retry", "retry"):
            return self._retry(table)
        if subtype == "permission_denied":
            return self.denied(wire.text(table, "tool_use_id"), wire.text(table, "tool_name"))
        progress = (
            {"compact_boundary": "the context was compacted", "model_fallback": "another model takes over"}.get(subtype)
            or wire.text(table, "content")
            or wire.text(table, "text")
        )
        return (AgentProgress(progress),) if progress else (AgentUnknown(f"system/{subtype}"[:100]),)

    def _retry(self, table: Table) -> Iterable[AgentEvent]:
        if table.get("subtype") == "retry":
            self._said = ""  # the request is repeated, so the text so far is not the reply
        details = table if table.get("attempt") else wire.table(table, "data")
        words = (table.get("error_status"), wire.text(table, "error"))
        reason = " ".join(str(word) for word in words if word)
        number, most = (
            wire.count(details, "attempt"),
            wire.count(details, "max_retries") or wire.count(details, "maxRetries"),
        )
        self.notice = f"retrying{f' ({number} of {most})' if number else ''}{f': {reason}' if reason else ''}"
        return (AgentProgress(self.notice),)

    def on_rate_limit_event(self, table: Table) -> Iterable[AgentEvent]:
        info = wire.table(table, "rate_limit_info")
        if info.get("status") == "rejected":
            self.resets_at = wire.moment(info, "resetsAt")
            return (AgentProgress("usage limit reached"),)
        used = wire.amount(info, "utilization")
        kind = wire.text(info, "rateLimitType").replace("_", " ") or "usage"
        return (AgentProgress(f"{used:.0%} of the {kind} limit used"),) if used is not None else ()

    def on_result(self, table: Table) -> Iterable[AgentEvent]:
        self._note_session(table)
        self.steps, self.is_over = wire.count(table, "num_turns") or self.steps, True
        if table.get("is_error") is True or wire.text(table, "subtype").startswith("error"):
            self.trouble = self.trouble_in(table)
        else:
            # The result is empty after a hook refused to let the agent stop: the last text is the answer.
            self.final = wire.text(table, "result") or ("" if self._working else self._said)
            self.trouble = None
        events: list[AgentEvent] = []
        for denial in wire.rows(table, "permission_denials"):  # older versions report denials only here
            tool_input = wire.table(denial, "tool_input")
            events += self.denied(wire.text(denial, "tool_use_id"), wire.text(denial, "tool_name"), tool_input)
        return [*events, *self.pays(self.usage_in(table))]


def tokens_in(usage: Table, cost: float | None = None) -> Usage:
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return wire.usage(usage, names, cost)


def error_in(result: Table) -> str:
    """Return the error of a result line: a string in one dialect, an object in another."""
    return wire.text(result, "error") or wire.text(wire.table(result, "error"), "message")


NAME = "claude"
INSTALL = "npm install -g @anthropic-ai/claude-code"
RESUMES = True
LOGIN = Login(
    "run `claude` and type /login",
    "CLAUDE_CONFIG_DIR",
    "~/.claude",
    (".credentials.json",),
    ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"),
)

_LONGEST_PROJECT = 200


def _project_folder(workspace: str) -> str:
    """Return where Claude Code 2.1 keeps the sessions of a workspace; empty if it would shorten the name by a hash."""
    name = re.sub(r"[^a-zA-Z0-9]", "-", workspace)
    return f"projects/{name}" if len(name) <= _LONGEST_PROJECT else ""


SANDBOX = SandboxNeeds(
    state="~/.claude",
    variable="CLAUDE_CONFIG_DIR",
    fixed=(
        *("settings.json", "settings.local.json", "remote-settings.json", "CLAUDE.md", "rules", "keybindings.json"),
        *("agents", "commands", "hooks", "output-styles", "plugins", "skills", "workflows", "local", "ide"),
        *("agent-memory", "chrome", "cowork_plugins", "daemon", "daemon.json", "jobs", "loop.md", "memory"),
        ".config.json",  # an old name of .claude.json, which counts first
        ".claude.json",  # in CLAUDE_CONFIG_DIR if that is set, else in the home folder, from where it is copied
    ),
    # A session runs its shell snapshot and its environment before every command, restores files from the history and
    # the backups, and follows plans, tasks, messages of a team, and the memory of its project.
    private=("shell-snapshots", "session-env", "projects", "file-history", "backups", "plans", "tasks", "teams"),
    project=_project_folder,
    shown=("~/.local/share/claude",),
    copied=("~/.claude.json",),
    hosts=("api.anthropic.com", "console.anthropic.com", "platform.claude.com", "claude.ai"),
    urls=("ANTHROPIC_BASE_URL", "ANTHROPIC_BEDROCK_BASE_URL", "ANTHROPIC_VERTEX_BASE_URL"),
)

_BYPASS = "--dangerously-skip-permissions"
_NO_SANDBOX = '{"sandbox":{"enabled":false}}'
_BY_MODEL = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
_UNFINISHED = {
    "error_max_turns": "it used all the turns it was allowed",
    "error_max_budget_usd": "it used all the money it was allowed",
}


def invocation(request: TurnRequest) -> Invocation:
    output = ("stream-json", "--verbose") if request.stream else ("text",)
    argv = [*request.command, *request.folder_options("--add-dir"), "-p", "--output-format", *output]
    argv += request.model_option("--model")
    if request.max_turns:
        argv += ["--max-turns", str(request.max_turns)]
    if request.budget is not None and not request.has_option("--max-budget-usd"):
        argv += ["--max-budget-usd", f"{request.budget:.4f}"]
    if request.session:
        argv += ["--resume", request.session]
    if not request.has_option(_BYPASS, "--permission-mode"):
        # Without yolo, allow edits in the workspace and the commands that the user's settings allow: in its default
        # mode it could not even write a file.
        mode = "plan" if request.looks_only else "acceptEdits"
        argv += [_BYPASS] if request.yolo else ["--permission-mode", mode]
    if request.sandboxed and not request.has_option("--settings"):
        argv += ["--settings", _NO_SANDBOX]
    argv += request.flags
    # As root it refuses to bypass permissions unless it is told that it runs in a sandbox.
    env = {"IS_SANDBOX": "1"} if request.root and _BYPASS in argv else {}
    return Invocation(tuple(argv), env=env)


class _Claude(BlockReader):
    ALLOW_LIST = "permissions.allow in .claude/settings.json"

    def usage_in(self, result: Table) -> Usage:
        """Return the usage by model if there is one: `usage` omits sub-agents, and `total_cost_usd` includes earlier
        turns of the session."""
        since = result.get("model_usage_since_last_result")
        if not isinstance(since, dict):
            return super().usage_in(result)
        total = self.usage.plus(Usage(cost_usd=0.0))
        for used in since.values():
            if isinstance(used, dict):
                total = total.plus(wire.usage(used, _BY_MODEL, wire.amount(used, "costUSD")))
        return total

    def trouble_in(self, result: Table) -> Trouble:
        subtype, ended = wire.text(result, "subtype"), wire.text(result, "terminal_reason")
        if subtype in _UNFINISHED:
            return Trouble(_UNFINISHED[subtype], kind="ordinary")
        if ended.startswith("aborted"):
            return Trouble(f"it was interrupted ({ended})", kind="ordinary")
        errors = result.get("errors")
        first = errors[0] if isinstance(errors, list) and errors and isinstance(errors[0], str) else ""
        message = wire.text(result, "result") or first or error_in(result) or subtype
        status = wire.status(result, "api_error_status")
        no_answer = ended == "api_error" and status is None and result.get("api_error") == "connection_failed"
        return Trouble(message, status, "transient" if no_answer else None, self.resets_at)


parser = _Claude
