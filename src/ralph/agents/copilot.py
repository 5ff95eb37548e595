"""GitHub Copilot CLI: how to run it headless, and how to read its stream."""

from collections.abc import Iterable

from ralph.agents import wire
from ralph.agents.prices import priced
from ralph.agents.protocol import Invocation, Login, SandboxNeeds, Trouble, TurnRequest
from ralph.agents.reader import Reader
from ralph.agents.wire import Table
from ralph.core.events import AgentEvent, AgentProgress, AgentUnknown
from ralph.core.model import Exit, Turn, Usage

NAME = "copilot"
INSTALL = "npm install -g @github/copilot"
RESUMES = True
LOGIN = Login(
    "run `copilot` and type /login", "XDG_CONFIG_HOME", "~/.config", ("gh/hosts.yml",), ("GH_TOKEN", "GITHUB_TOKEN")
)

SANDBOX = SandboxNeeds(
    state="~/.copilot",
    variable="COPILOT_HOME",
    fixed=(
        *("settings.json", "mcp-config.json", "lsp-config.json", "permissions-config.json", "copilot-instructions.md"),
        *("agents", "hooks", "installed-plugins", "instructions", "skills", "pkg"),
    ),
    shown=("~/.config/gh",),
    hosts=("api.githubcopilot.com", "*.githubcopilot.com", "api.github.com"),
    urls=("COPILOT_PROVIDER_BASE_URL",),
)

_USAGE_FILE = "--usage-output-file"


def invocation(request: TurnRequest) -> Invocation:
    argv = [*request.command, "--no-auto-update"]
    argv += ["--output-format", "json"] if request.stream else ["-s"]
    # Allow all tools in both modes, because nobody can answer a question; without yolo, paths and hosts are restricted.
    argv.append("--allow-all" if request.yolo else "--allow-all-tools")
    if request.looks_only:
        argv += ["--deny-tool", "write"]
    argv += [*request.model_option("--model"), *request.folder_options("--add-dir")]
    if request.session:
        argv.append(f"--resume={request.session}")
    if request.scratch:
        argv += [_USAGE_FILE, _usage_file(request)]  # the stream has no token counts
    return Invocation((*argv, *request.flags))


def _usage_file(request: TurnRequest) -> str:
    return f"{request.scratch}/copilot-usage.json"


class _Copilot(Reader):
    ALLOW_LIST = "--agent-arg=--add-dir=DIR for a folder"
    SILENT = frozenset(
        {"user.message", "assistant.message_delta", "assistant.message_start", "assistant.reasoning"}
        | {"assistant.reasoning_delta", "assistant.tool_call_delta", "assistant.turn_end", "assistant.idle"}
        | {"tool.shell_output", "tool.execution_partial_result", "model.call_start", "model.call_finished"}
        | {"model.call_final_result", "session.skills_loaded", "session.mcp_servers_loaded", "session.tools_updated"}
        | {"session.background_tasks_changed", "session.custom_agents_updated", "session.mode_notice_delivered"}
        | {"agent.interrupted", "assistant.turn_retry", "hook.start", "hook.end"}
    )

    def turn(self, ended: Exit) -> Turn:
        total, names = Usage(), ("inputTokens", "outputTokens", "cacheReadTokens")
        if self.request.scratch:
            for metrics in wire.table(wire.read_object(_usage_file(self.request)), "modelMetrics").values():
                used = wire.table(metrics, "usage") if isinstance(metrics, dict) else {}
                total = total.plus(wire.usage(used, names, whole_input=True))
            self.usage = priced(self.since(total), self.model)
        return super().turn(ended)

    def on_assistant_turn_start(self, table: Table) -> None:
        self.steps = (self.steps or 0) + 1

    def on_assistant_message(self, table: Table) -> Iterable[AgentEvent]:
        data = wire.table(table, "data")
        if data.get("parentToolCallId") or table.get("agentId"):
            return ()  # text of a sub-agent
        self.model = self.model or wire.text(data, "model")
        return self.says(wire.text(data, "content"))

    def on_tool_execution_start(self, table: Table) -> Iterable[AgentEvent]:
        data = wire.table(table, "data")
        return self.starts(wire.text(data, "toolCallId"), wire.text(data, "toolName"), data.get("arguments"))

    def on_tool_execution_complete(self, table: Table) -> Iterable[AgentEvent]:
        data = wire.table(table, "data")
        ok = data.get("success") is True and not wire.table(data, "shellExecution").get("exitCode")
        call, error = wire.text(data, "toolCallId"), wire.table(data, "error")
        output = wire.text(wire.table(data, "result"), "content") or wire.text(error, "message")
        return self.ends(call, ok, output, is_denied=error.get("code") == "denied")

    def on_model_call_failure(self, table: Table) -> Iterable[AgentEvent]:
        data = wire.table(table, "data")
        words = (data.get("statusCode"), wire.text(data, "errorType") or wire.text(data, "errorMessage"))
        self.notice = " ".join(str(word) for word in words if word)
        return (AgentProgress(f"a call of the model failed: {self.notice}"),)

    def on_session_info(self, table: Table) -> Iterable[AgentEvent]:
        data = wire.table(table, "data")
        message = wire.text(data, "message") or wire.text(data, "reason")
        return (AgentProgress(message),) if message else (AgentUnknown(wire.text(table, "type")),)

    on_session_autopilot_stopped = on_session_info

    def on_session_error(self, table: Table) -> Iterable[AgentEvent]:
        data = wire.table(table, "data")
        message, kind = wire.text(data, "message"), wire.text(data, "errorType")
        named = {"authentication": 401, "rate_limit": 429}.get(kind)
        self.trouble = Trouble(message or kind, wire.status(data, "statusCode") or named)
        return (AgentProgress(message or kind),)

    def on_abort(self, table: Table) -> None:
        self.trouble = Trouble("it was interrupted", kind="ordinary")

    def on_result(self, table: Table) -> None:
        self.session, self.is_over = wire.text(table, "sessionId") or self.session, True
        if wire.count(table, "exitCode") and self.trouble is None:
            self.trouble = Trouble(f"it ended with exit code {wire.count(table, 'exitCode')}", kind="ordinary")


parser = _Copilot
