"""Cline: how to run it headless, and how to read its stream."""

from collections.abc import Iterable
from typing import Any

from ralph.agents import wire
from ralph.agents.prices import priced
from ralph.agents.protocol import Invocation, Login, SandboxNeeds, Trouble, TurnRequest
from ralph.agents.reader import Reader
from ralph.agents.wire import Table
from ralph.core.events import AgentEvent, AgentProgress

NAME = "cline"
INSTALL = "npm install -g cline"
RESUMES = False
LOGIN = Login("run `cline auth`", "CLINE_DIR", "~/.cline", ("data/settings/providers.json",))

SANDBOX = SandboxNeeds(
    state="~/.cline",
    variable="CLINE_DIR",
    fixed=(
        *("agents", "hooks", "plugins", "rules", "skills", "workflows"),
        *("data/settings/cline_mcp_settings.json", "data/settings/global-settings.json"),
    ),
    hosts=("api.cline.bot",),
)

# Cline needs an argument of at least two words, and appends its stdin to that.
_LEAD = "This is the task:"


def invocation(request: TurnRequest) -> Invocation:
    """Build the command line. Use the stream in text mode as well: its plain text is full of tool output.

    Cline approves its own tools in every mode.
    """
    argv = [*request.command, "--json", *request.model_option("-m", "--model")]
    return Invocation((*argv, *request.flags_without("--json"), _LEAD))


class _Cline(Reader):
    SILENT = frozenset({"hook_event"})

    def on_agent_event(self, table: Table) -> Iterable[AgentEvent]:
        event = wire.table(table, "event")
        handler = self.handler(wire.text(event, "type"), "event")
        return (handler(event) or ()) if handler and not table.get("parentAgentId") else ()

    def event_iteration_start(self, event: Table) -> None:
        self.steps = wire.count(event, "iteration") or self.steps

    def event_content_start(self, event: Table) -> Iterable[AgentEvent]:
        if event.get("contentType") != "tool":
            return ()
        return self.starts(wire.text(event, "toolCallId"), wire.text(event, "toolName"), event.get("input"))

    def event_content_end(self, event: Table) -> Iterable[AgentEvent]:
        if event.get("contentType") == "text":
            return self.says(wire.text(event, "text"))
        if event.get("contentType") != "tool":
            return ()
        output, ok = _output(event.get("output"))
        is_denied = "requires approval in a TTY session" in wire.text(event, "error")
        return self.ends(wire.text(event, "toolCallId"), ok and not event.get("error"), output, is_denied=is_denied)

    def event_usage(self, event: Table) -> None:
        self.usage = wire.usage(event, ("totalInputTokens", "totalOutputTokens"))

    def event_error(self, event: Table) -> Iterable[AgentEvent]:
        message = wire.text(wire.table(event, "error"), "message")
        if event.get("recoverable") is not True:
            self.trouble = Trouble(message, kind="fatal" if event.get("errorClass") == "auth" else None)
        return (AgentProgress(message),)

    def on_error(self, table: Table) -> None:
        self.trouble = self.trouble or Trouble(wire.text(table, "message"))

    def on_run_aborted(self, table: Table) -> None:
        if not self.is_over:
            self.trouble = Trouble("it was interrupted", kind="ordinary")

    def on_run_result(self, table: Table) -> Iterable[AgentEvent]:
        self.is_over = True
        if table.get("finishReason") == "completed":
            self.final, self.trouble = wire.text(table, "text"), None
        elif self.trouble is None:
            self.trouble = Trouble(wire.text(table, "text") or wire.text(table, "finishReason"))
        self.model = self.model or wire.text(wire.table(table, "model"), "id")
        used = wire.table(table, "aggregateUsage") or wire.table(table, "usage")
        names = ("inputTokens", "outputTokens", "cacheReadTokens", "cacheWriteTokens")
        return self.pays(priced(wire.usage(used, names, wire.amount(used, "totalCost")), self.model))


def _output(value: Any) -> tuple[str, bool]:
    """Return the output of a tool, and whether all of it succeeded."""
    if isinstance(value, str):
        return value, True
    items = value if isinstance(value, list) else [value]
    results = [item for item in items if isinstance(item, dict)]
    texts = [wire.text(result, "result") or wire.text(result, "error") for result in results]
    return "\n".join(texts), all(result.get("success") is not False for result in results)


parser = _Cline
