"""pi: how to run it headless, and how to read its stream."""

from collections.abc import Iterable

from ralph.agents import wire
from ralph.agents.protocol import Invocation, Login, SandboxNeeds, Trouble, TurnRequest
from ralph.agents.reader import Reader
from ralph.agents.wire import Table
from ralph.core.events import AgentEvent, AgentProgress

NAME = "pi"
INSTALL = "npm install -g @mariozechner/pi-coding-agent"
RESUMES = True
LOGIN = Login("run `pi` and type /login", "PI_CODING_AGENT_DIR", "~/.pi/agent", ("auth.json", "models.json"))
SANDBOX = SandboxNeeds(
    state="~/.pi/agent",
    variable="PI_CODING_AGENT_DIR",
    fixed=(
        *("settings.json", "models.json", "keybindings.json", "AGENTS.md", "SYSTEM.md", "APPEND_SYSTEM.md", "bin"),
        *("extensions", "git", "npm", "prompts", "skills", "themes", "tools"),
    ),
    urls=("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"),
)


def invocation(request: TurnRequest) -> Invocation:
    """Build the command line. pi asks for no permissions: its tools always run."""
    argv = [*request.command, "-p", "--mode", "json" if request.stream else "text"]
    argv += request.model_option("--model")
    if request.session:
        argv += ["--session", request.session]
    return Invocation((*argv, *request.flags))


class _Pi(Reader):
    # Each update repeats the whole message so far, so reading all of them would take quadratic time.
    SILENT = frozenset(
        {"agent_start", "turn_start", "turn_end", "message_start", "message_update", "tool_execution_update"}
        | {"queue_update", "compaction_end"}
    )

    def on_session(self, table: Table) -> Iterable[AgentEvent]:
        self.session = wire.text(table, "id") or None
        return (AgentProgress(f"session {self.session or '?'}", routine=True),)

    def on_message_end(self, table: Table) -> Iterable[AgentEvent]:
        message = wire.table(table, "message")
        if message.get("role") != "assistant":
            return ()
        self.steps = (self.steps or 0) + 1
        usage = wire.table(message, "usage")
        cost = wire.amount(wire.table(usage, "cost"), "total")
        self.usage = self.usage.plus(wire.usage(usage, ("input", "output", "cacheRead", "cacheWrite"), cost))
        ended = wire.text(message, "stopReason")
        self.is_over = ended == "stop"
        if ended in ("error", "aborted"):
            # It exits with 0 anyway, and an aborted reply is not an answer.
            message_text = wire.text(message, "errorMessage")
            self.trouble = Trouble(message_text or ended, kind="ordinary" if ended == "aborted" else None)
            return ()
        self.trouble = None
        texts = [wire.text(block, "text") for block in wire.rows(message, "content") if block.get("type") == "text"]
        return self.says("\n".join(text for text in texts if text))

    def on_tool_execution_start(self, table: Table) -> Iterable[AgentEvent]:
        return self.starts(wire.text(table, "toolCallId"), wire.text(table, "toolName"), table.get("args"))

    def on_tool_execution_end(self, table: Table) -> Iterable[AgentEvent]:
        blocks = wire.rows(wire.table(table, "result"), "content")
        output = "\n".join(wire.text(block, "text") for block in blocks)
        return self.ends(wire.text(table, "toolCallId"), table.get("isError") is not True, output)

    def on_agent_end(self, table: Table) -> Iterable[AgentEvent]:
        """Note the end of the turn. The line comes before each automatic retry as well."""
        self.is_over = True
        return () if self.trouble else self.pays(self.usage)

    def on_auto_retry_start(self, table: Table) -> Iterable[AgentEvent]:
        self.notice, self.trouble, self.is_over = wire.text(table, "errorMessage"), None, False
        number, most = wire.count(table, "attempt"), wire.count(table, "maxAttempts")
        return (AgentProgress(f"retrying ({number} of {most}): {self.notice}"),)

    def on_auto_retry_end(self, table: Table) -> None:
        if table.get("success") is False:
            self.trouble = Trouble(wire.text(table, "finalError") or self.notice)

    def on_compaction_start(self, table: Table) -> Iterable[AgentEvent]:
        return (AgentProgress("compacting the context"),)


parser = _Pi
