"""Codex: how to run it headless, and how to read its stream."""

from collections.abc import Iterable

from ralph.agents import wire
from ralph.agents.prices import priced
from ralph.agents.protocol import Invocation, Login, SandboxNeeds, Trouble, TurnRequest
from ralph.agents.reader import Reader
from ralph.agents.wire import Table, todo_items
from ralph.core.events import AgentEvent, AgentProgress, AgentUnknown, TodoUpdated
from ralph.core.model import Exit

NAME = "codex"
INSTALL = "npm install -g @openai/codex"
RESUMES = True
LOGIN = Login("run `codex login`", "CODEX_HOME", "~/.codex", ("auth.json",))

SANDBOX = SandboxNeeds(
    state="~/.codex",
    variable="CODEX_HOME",
    fixed=(
        *("config.toml", "hooks.json", "AGENTS.md", "AGENTS.override.md", "prompts", "rules", "skills", "plugins"),
        *(".env", "agents", "automations", "hooks", "managed_config.toml", "packages"),
    ),
    # A session runs its shell snapshot before every command, has programs in tmp on its PATH, and follows memories.
    private=("shell_snapshots", "tmp", ".tmp", "memories"),
    hosts=("api.openai.com", "chatgpt.com", "auth.openai.com"),
    urls=("OPENAI_BASE_URL",),
)

_BYPASS = "--dangerously-bypass-approvals-and-sandbox"
_NO_REPO = "--skip-git-repo-check"
_TOOLS = {
    "command_execution": "shell",
    "file_change": "edit",
    "web_search": "web_search",
    "mcp_tool_call": "mcp",
    "collab_tool_call": "agent",
}


def invocation(request: TurnRequest) -> Invocation:
    """Build the command line. Options go before `resume`, because that subcommand accepts hardly any."""
    argv = [*request.command, "exec", *_permissions(request), *request.folder_options("--add-dir"), _NO_REPO]
    answer_file = ""
    if request.stream:
        argv.append("--json")
    elif request.scratch:
        answer_file = f"{request.scratch}/answer.md"
        argv += ["-o", answer_file]
    argv += [*request.model_option("-m", "--model"), *request.flags_without("exec", "e", "--json", _NO_REPO)]
    if request.session:
        argv += ["resume", request.session]
    return Invocation((*argv, "-"), answer_file=answer_file)


def _permissions(request: TurnRequest) -> list[str]:
    if request.has_option(_BYPASS, "--sandbox", "-s", "--full-auto", "--approve-for-me"):
        return []
    if request.yolo:
        return [_BYPASS]
    if request.sandboxed:
        return ["--sandbox", "danger-full-access"]
    if request.looks_only:
        return ["--sandbox", "read-only"]
    # It may edit and run anything inside the workspace; its own sandbox blocks the rest.
    return ["--sandbox", "workspace-write"]


class _Codex(Reader):
    ALLOW_LIST = "sandbox_workspace_write in ~/.codex/config.toml"

    def on_thread_started(self, table: Table) -> Iterable[AgentEvent]:
        self.session = wire.text(table, "thread_id") or None
        return (AgentProgress(f"session {self.session or '?'}", routine=True),)

    def verdict(self, ended: Exit) -> Trouble | None:
        """Return the last error only if the exit code says that the turn failed; otherwise it was only a notice."""
        if self.trouble is None and ended.code and self.notice and not ended.ended_by:
            return Trouble(self.notice)
        return self.trouble

    def on_turn_started(self, table: Table) -> None:
        self.is_over = False

    def on_item_started(self, table: Table) -> Iterable[AgentEvent]:
        item = wire.table(table, "item")
        kind = wire.text(item, "type")
        if kind in _TOOLS:
            return self.starts(wire.text(item, "id"), _tool(item), _arguments(item))
        return self._todo(item)

    def on_item_updated(self, table: Table) -> Iterable[AgentEvent]:
        return self._todo(wire.table(table, "item"))

    def on_item_completed(self, table: Table) -> Iterable[AgentEvent]:
        item = wire.table(table, "item")
        kind = wire.text(item, "type")
        if kind == "agent_message":
            return self.says(wire.text(item, "text"))
        if kind in _TOOLS:
            return self._end_tool(item)
        if kind == "error":
            return self.on_error(item)
        if kind in ("reasoning", "todo_list"):
            return self._todo(item)
        return (AgentUnknown(f"item/{kind}"[:100]),)

    def _end_tool(self, item: Table) -> Iterable[AgentEvent]:
        call = wire.text(item, "id")
        events = [] if call in self._open else self.starts(call, _tool(item), _arguments(item))
        error = wire.text(wire.table(item, "error"), "message")
        ok = item.get("status") not in ("failed", "declined") and not error and not item.get("exit_code")
        output = wire.text(item, "aggregated_output") or error
        # Where its own sandbox refuses to write, the error is that of a read-only disk.
        is_confined = not self.request.yolo and not self.request.sandboxed
        is_held_back = not ok and is_confined and "Read-only file system" in output
        return events + self.ends(call, ok, output, is_denied=item.get("status") == "declined" or is_held_back)

    def _todo(self, item: Table) -> Iterable[AgentEvent]:
        items = todo_items(item) if item.get("type") == "todo_list" else None
        return () if items is None else (TodoUpdated(items),)

    def on_error(self, table: Table) -> Iterable[AgentEvent]:
        """Treat an error as a notice, because successful turns report some as well."""
        self.notice = wire.text(table, "message")
        return (AgentProgress(self.notice),)

    def on_turn_completed(self, table: Table) -> Iterable[AgentEvent]:
        self.trouble, self.is_over = None, True
        names = ("input_tokens", "output_tokens", "cached_input_tokens", "cache_write_input_tokens")
        # A resumed thread reports the usage of all its turns.
        total = wire.usage(wire.table(table, "usage"), names, whole_input=True)
        return self.pays(priced(self.since(total), self.model))

    def on_turn_failed(self, table: Table) -> None:
        self.trouble = Trouble(wire.text(wire.table(table, "error"), "message") or self.notice or "the turn failed")


def _tool(item: Table) -> str:
    return wire.text(item, "tool") or _TOOLS[wire.text(item, "type")]


def _arguments(item: Table) -> object:
    if item.get("type") == "file_change":
        return {"files": item.get("changes")}
    command = wire.text(item, "command")
    if (inner := command.removeprefix("/bin/bash -lc ")) != command:  # the shell that Codex wraps around it
        command = inner[1:-1] if len(inner) > 1 and inner[0] == inner[-1] and inner[0] in "'\"" else inner
    return item.get("arguments") or {"command": command, "query": item.get("query")}


parser = _Codex
