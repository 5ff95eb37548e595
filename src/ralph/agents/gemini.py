"""Gemini CLI: how to run it headless, and how to read its stream."""

from collections.abc import Iterable

from ralph.agents import wire
from ralph.agents.prices import priced
from ralph.agents.protocol import Invocation, Login, SandboxNeeds, Trouble, TurnRequest
from ralph.agents.reader import Clipping, Reader
from ralph.agents.wire import Table
from ralph.core.events import AgentEvent, AgentProgress, AgentText
from ralph.core.model import Exit, FailureKind, Usage

NAME = "gemini"
INSTALL = "npm install -g @google/gemini-cli"
RESUMES = True
LOGIN = Login(
    "run `gemini` and log in",
    "GEMINI_CLI_HOME",
    "~",
    (".gemini/oauth_creds.json", ".gemini/gemini-credentials.json"),
    ("GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA"),
)

SANDBOX = SandboxNeeds(
    state="~/.gemini",
    variable="GEMINI_CLI_HOME",
    within=".gemini",
    fixed=(
        *("settings.json", "GEMINI.md", ".env", "trustedFolders.json", "agents", "commands", "extensions", "hooks"),
        *("policies", "skills"),
    ),
    hosts=("generativelanguage.googleapis.com", "cloudcode-pa.googleapis.com", "oauth2.googleapis.com"),
    urls=("GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL"),
)

_EXITS: dict[int, tuple[str, FailureKind]] = {
    42: ("it was given bad input, or a session that does not exist", "fatal"),
    53: ("it used all the turns it was allowed", "ordinary"),
    55: ("it does not trust this folder", "fatal"),
}
_REFUSED, _LOOPING = "Agent execution blocked", "Loop detected"


def invocation(request: TurnRequest) -> Invocation:
    """Build the command line. Use the stream in text mode as well: its plain text joins all messages of a turn."""
    argv = [*request.command]
    if not request.has_option("-o", "--output-format"):
        argv += ["-o", "stream-json"]
    if not request.has_option("-y", "--yolo", "--approval-mode"):
        # Without yolo, allow edits; the model then has no tool for commands, and the next mode allows everything. The
        # default mode has no tool that needs approval.
        mode = "default" if request.looks_only else "auto_edit"
        argv += ["-y"] if request.yolo else ["--approval-mode", mode]
    argv += [*request.model_option("-m", "--model"), *request.folder_options("--include-directories")]
    if request.session:
        argv += ["--resume", request.session]
    # The user trusts the folder by running ralph in it. Older versions lack the option.
    env = {"GEMINI_CLI_TRUST_WORKSPACE": "true"}
    return Invocation((*argv, *request.flags), env=env | {"GEMINI_SANDBOX": "false"} if request.sandboxed else env)


class _Gemini(Reader):
    """Reads parts of messages. Those of a reply that broke off are kept, because nothing in the stream marks them."""

    ALLOW_LIST = "tools.allowed in .gemini/settings.json"

    def __init__(self, request: TurnRequest) -> None:
        super().__init__(request)
        self._reply = Clipping()
        self._line = Clipping()  # the unfinished last line

    def verdict(self, ended: Exit) -> Trouble | None:
        """Read the exit code, which is the HTTP status modulo 256 after an API error. There is no answer without a
        result line: after a signal, Gemini exits with 0."""
        if self.trouble is None and ended.code in _EXITS:
            return Trouble(_EXITS[ended.code][0], kind=_EXITS[ended.code][1])
        if self.trouble is None and not self.is_over and ended.code is not None and 144 <= ended.code < 256:
            return Trouble(f"API error {ended.code + 256}", status=ended.code + 256)
        self.final = self._reply.text if self.is_over else ""
        return self.trouble

    def on_init(self, table: Table) -> Iterable[AgentEvent]:
        self.session = wire.text(table, "session_id") or None
        self.model = wire.text(table, "model") or self.model
        return (AgentProgress(f"session {self.session or '?'} {self.model}".rstrip(), routine=True),)

    def on_message(self, table: Table) -> Iterable[AgentEvent]:
        text = wire.text(table, "content")
        if table.get("role") != "assistant" or not text:
            return ()
        self._reply.add(text)
        whole, newline, rest = text.rpartition("\n")
        self._line.add(whole)
        texts = (AgentText(self._line.text),) if newline else ()
        if newline:
            self._line.clear()
        self._line.add(rest)
        return texts

    def _rest(self) -> list[AgentEvent]:
        """Report the text after the last newline, when no more of the message can follow."""
        rest = self._line.text
        self._line.clear()
        return [AgentText(rest)] if rest else []

    def on_tool_use(self, table: Table) -> Iterable[AgentEvent]:
        self._reply.clear()
        name = wire.text(table, "tool_name")
        return self._rest() + self.starts(wire.text(table, "tool_id"), name, table.get("parameters"))

    def on_tool_result(self, table: Table) -> Iterable[AgentEvent]:
        call, error = wire.text(table, "tool_id"), wire.table(table, "error")
        tool, output = self._open.get(call, ""), wire.text(table, "output") or wire.text(error, "message")
        kind = wire.text(error, "type")
        # Without yolo it has no shell tool, and no access outside the workspace.
        is_withheld = kind == "tool_not_registered" and tool == "run_shell_command"
        is_outside = bool(kind) and output.startswith("Path not in workspace")
        is_denied = is_withheld or is_outside or kind == "policy_violation"
        return self.ends(call, table.get("status") == "success", output, is_denied=is_denied)

    def on_error(self, table: Table) -> Iterable[AgentEvent]:
        message = wire.text(table, "message")
        if message.startswith(_REFUSED):
            self._reply.clear()  # a hook made it continue
            self.trouble = None
        elif message.startswith(_LOOPING):
            self.trouble = Trouble(message, kind="ordinary")
        elif table.get("severity") == "error":
            self.trouble = Trouble(message)
        return [*self._rest(), AgentProgress(message)]

    def on_result(self, table: Table) -> Iterable[AgentEvent]:
        self.is_over = True
        if table.get("status") == "error":
            message = wire.text(wire.table(table, "error"), "message")
            if message or self.trouble is None:
                self.trouble = Trouble(message or "it ended with an error")
        stats = wire.table(table, "stats")
        cached = wire.count(stats, "cached")
        fresh = wire.count(stats, "input") or max(wire.count(stats, "input_tokens") - cached, 0)
        spent = Usage(input_tokens=fresh, output_tokens=wire.count(stats, "output_tokens"), cache_read_tokens=cached)
        return [*self._rest(), *self.pays(priced(spent, self.model))]


parser = _Gemini
