"""How is Claude Code run without a person, and what does its stream say?"""

from ralph.agents import keys, wire
from ralph.agents.blocks import BlockReader, error_in, tokens_in
from ralph.agents.options import given, model, optional
from ralph.agents.protocol import Invocation, Login, Parser, Request
from ralph.agents.reader import Trouble
from ralph.agents.wire import Table
from ralph.core.model import Usage

NAME = "claude"
INSTALL = "npm install -g @anthropic-ai/claude-code"
KEYS = keys(NAME)
RESUMES = True
HELP = ("--help",)
LOGIN = Login(
    "run `claude` and type /login",
    "CLAUDE_CONFIG_DIR",
    "~/.claude",
    (".credentials.json",),
    ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"),
)

_BYPASS = "--dangerously-skip-permissions"
_BY_MODEL = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
_UNFINISHED = {
    "error_max_turns": "it used all the turns it was allowed",
    "error_max_budget_usd": "it used all the money it was allowed",
}


def invocation(request: Request) -> Invocation:
    output = ("stream-json", "--verbose") if request.stream else ("text",)
    argv = [*request.command, "-p", "--output-format", *output]
    argv += model(request, "--model")
    if request.max_turns:
        argv += ["--max-turns", str(request.max_turns)]
    if request.session:
        argv += ["--resume", request.session]
    if not given(request, _BYPASS, "--permission-mode"):
        # Without yolo edits in the workspace go through, and other commands where the user's settings allow them; in
        # its default mode it could not even write a file.
        argv += [_BYPASS] if request.yolo else optional(request, "--permission-mode", "acceptEdits")
    argv += request.flags
    # As root it refuses to bypass permissions unless it is told that it runs in a sandbox.
    env = {"IS_SANDBOX": "1"} if request.root and _BYPASS in argv else {}
    return Invocation(tuple(argv), env=env)


def parser(request: Request) -> Parser:
    return _Claude(request)


class _Claude(BlockReader):
    AGENT = NAME

    def usage_in(self, result: Table) -> Usage:
        """`usage` leaves sub-agents out, and `total_cost_usd` counts a resumed session from its beginning: newer
        versions say by model what was used since the last result."""
        since = result.get("model_usage_since_last_result")
        if not isinstance(since, dict):
            return tokens_in(wire.table(result, "usage"), wire.amount(result, "total_cost_usd"))
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
