"""Qwen Code: how to run it headless, and how to read its stream."""

from msgspec.structs import replace

from ralph.agents import wire
from ralph.agents.claude import BlockReader, error_in, tokens_in
from ralph.agents.prices import priced
from ralph.agents.protocol import Invocation, Login, SandboxNeeds, Trouble, TurnRequest
from ralph.agents.wire import Table
from ralph.core.model import Exit, Usage

NAME = "qwen"
INSTALL = "npm install -g @qwen-code/qwen-code"
RESUMES = True
LOGIN = Login("run `qwen` and type /auth", "QWEN_HOME", "~/.qwen", ("oauth_creds.json",))

SANDBOX = SandboxNeeds(
    state="~/.qwen",
    variable="QWEN_HOME",
    fixed=(
        *("settings.json", "QWEN.md", ".env", "trustedFolders.json", "agents", "commands", "extensions", "hooks"),
        "skills",
    ),
    hosts=("portal.qwen.ai", "chat.qwen.ai"),
    urls=("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"),
)

_LIMITS = {53: "it used all the turns it was allowed", 55: "it used up its own budget"}


def invocation(request: TurnRequest) -> Invocation:
    argv = [*request.command]
    if not request.has_option("-o", "--output-format"):
        argv += ["-o", "stream-json" if request.stream else "text"]
    if not request.has_option("-y", "--yolo", "--approval-mode"):
        # Without yolo, allow edits but no commands: the next mode allows everything.
        mode = "plan" if request.looks_only else "auto-edit"
        argv += ["-y"] if request.yolo else ["--approval-mode", mode]
    argv += request.model_option("-m", "--model")
    if request.max_turns:
        argv += ["--max-session-turns", str(request.max_turns)]
    if request.session:
        argv += ["--resume", request.session]
    return Invocation((*argv, *request.flags), env={"QWEN_SANDBOX": "false"} if request.sandboxed else {})


class _Qwen(BlockReader):
    ALLOW_LIST = "tools.allowed in .qwen/settings.json"

    NOTICES = ("[API Error: ",)
    DENIALS = ("Qwen Code requires permission",)

    def verdict(self, ended: Exit) -> Trouble | None:
        """Read the exit code: there is no result line when Qwen ends the turn at its own limits."""
        if self.trouble is None and ended.code in _LIMITS:
            return Trouble(_LIMITS[ended.code], kind="ordinary")
        return self.trouble

    def usage_in(self, result: Table) -> Usage:
        """Subtract earlier turns of a resumed session; its input tokens include cached ones."""
        total = tokens_in(wire.table(result, "usage"))
        fresh = replace(total, input_tokens=max(total.input_tokens - total.cache_read_tokens, 0))
        return priced(self.since(fresh), self.model)

    def trouble_in(self, result: Table) -> Trouble:
        message = error_in(result) or wire.text(result, "result")
        return Trouble(message.removeprefix("[").removesuffix("]"))


parser = _Qwen
