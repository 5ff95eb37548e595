"""opencode: how to run it headless, and how to read its stream."""

from collections.abc import Iterable
from json import dumps
from os import environ

from ralph.agents import wire
from ralph.agents.protocol import Invocation, Login, SandboxNeeds, Trouble, TurnRequest
from ralph.agents.reader import Clipping, Reader
from ralph.agents.wire import Table
from ralph.core.events import AgentEvent, AgentProgress
from ralph.core.model import Exit

NAME = "opencode"
INSTALL = "npm install -g opencode-ai"
RESUMES = True
LOGIN = Login("run `opencode auth login`", "XDG_DATA_HOME", "~/.local/share", ("opencode/auth.json",))
SANDBOX = SandboxNeeds(
    state="~/.local/share/opencode",
    variable="XDG_DATA_HOME",
    within="opencode",
    fixed=("bin",),
    shown=("~/.opencode",),
    # Copies: it writes into this folder at every start, and exits if it cannot.
    copied=tuple(
        f"~/.config/opencode/{name}" for name in ("opencode.json", "opencode.jsonc", "config.json", "AGENTS.md")
    ),
    hosts=("opencode.ai", "models.dev"),
    urls=("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"),
)
_MAY = "OPENCODE_PERMISSION"


def invocation(request: TurnRequest) -> Invocation:
    """Build the command line. Use the stream in text mode as well: its plain text joins all messages of a turn."""
    argv = [*request.command, "run", "--format", "json"]
    # Edits and commands in the workspace are always allowed. What needs approval is refused, and that ends the turn.
    if request.yolo and not request.has_option("--auto"):
        argv += ["--auto"]
    if request.looks_only and not request.has_option("--agent"):
        argv += ["--agent", "plan"]
    argv += request.model_option("-m", "--model")
    if request.session:
        argv += ["--session", request.session]
    env = {}
    if request.folders and not environ.get(_MAY):  # it has no option for other folders; keep a value that the user set
        env[_MAY] = dumps({"external_directory": {f"{folder}/**": "allow" for folder in request.folders}})
    return Invocation((*argv, *request.flags_without("run")), env=env)


_UNFINISHED = ("tool-calls", "unknown", "length", "error")
_DENIED = ("The user rejected permission", "The user has specified a rule which prevents")


class _OpenCode(Reader):
    TELLS_TOOLS = False
    ALLOW_LIST = "permission in opencode.json"
    SILENT = frozenset({"reasoning"})

    def __init__(self, request: TurnRequest) -> None:
        super().__init__(request)
        self._reply = Clipping()
        self._reason = ""

    def verdict(self, ended: Exit) -> Trouble | None:
        """Detect a refused tool (opencode then exits with 0) and an unknown option (it then prints its help)."""
        self._said = self._reply.text.removesuffix("\n")
        if self.trouble is None and ended.code == 0 and self._reason == "tool-calls":
            return Trouble("it ended after a tool call, without an answer", kind="ordinary")
        if not self._understood and ended.code and "-h, --help" in ended.stderr:
            return Trouble("unknown option: it printed its help", kind="fatal")
        return self.trouble

    def on_step_start(self, table: Table) -> Iterable[AgentEvent]:
        first = self.session is None
        self.session = wire.text(table, "sessionID") or self.session
        self.trouble, self.is_over = None, False
        self._reply.clear()
        return (AgentProgress(f"session {self.session or '?'}", routine=True),) if first else ()

    def on_text(self, table: Table) -> Iterable[AgentEvent]:
        part = wire.table(table, "part")
        text = wire.text(part, "text")
        if not text or part.get("synthetic") is True:
            return ()
        events = self.says(text)
        self._reply.add(f"{text}\n")
        return events

    def on_tool_use(self, table: Table) -> Iterable[AgentEvent]:
        """Report start and end together, because the line comes only when the tool has finished."""
        part = wire.table(table, "part")
        state = wire.table(part, "state")
        call, tool = wire.text(part, "callID"), wire.text(part, "tool")
        ok = state.get("status") == "completed" and not wire.table(state, "metadata").get("exit")
        output = wire.text(state, "output") or wire.text(state, "error")
        denied = self.denied(call, tool) if wire.text(state, "error").startswith(_DENIED) else []
        return self.starts(call, tool, state.get("input")) + denied + self.ends(call, ok, output)

    def on_step_finish(self, table: Table) -> Iterable[AgentEvent]:
        part = wire.table(table, "part")
        self._reason = wire.text(part, "reason")
        self.is_over = self._reason not in _UNFINISHED
        tokens = wire.table(part, "tokens")
        cache = wire.table(tokens, "cache")
        self.steps = (self.steps or 0) + 1
        output = wire.count(tokens, "output") + wire.count(tokens, "reasoning")
        used = {"input": tokens.get("input"), "output": output, "read": cache.get("read"), "write": cache.get("write")}
        self.usage = self.usage.plus(wire.usage(used, ("input", "output", "read", "write"), wire.amount(part, "cost")))
        return self.pays(self.usage)  # after each step, because no line says which one is the last

    def on_error(self, table: Table) -> Iterable[AgentEvent]:
        self.session = wire.text(table, "sessionID") or self.session
        error = wire.table(table, "error")
        data = wire.table(error, "data")
        message = wire.text(data, "message") or wire.text(error, "name") or "error"
        self.trouble = Trouble(message, wire.status(data, "statusCode"))
        return (AgentProgress(message), *self.pays(self.usage))


parser = _OpenCode
