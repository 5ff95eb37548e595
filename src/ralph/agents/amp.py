"""Amp: how to run it headless, and how to read its stream."""

from ralph.agents import wire
from ralph.agents.claude import BlockReader, error_in
from ralph.agents.protocol import Invocation, Login, SandboxNeeds, Trouble, TurnRequest
from ralph.agents.wire import Table
from ralph.core.model import Exit

NAME = "amp"
INSTALL = "npm install -g @sourcegraph/amp"
RESUMES = True
LOGIN = Login("run `amp login`", "XDG_DATA_HOME", "~/.local/share", ("amp/secrets.json",))

SANDBOX = SandboxNeeds(
    state="~/.local/share/amp",
    variable="XDG_DATA_HOME",
    within="amp",
    fixed=("plugins", "toolboxes"),
    shown=("~/.config/amp", "~/.config/AGENTS.md", "~/.amp"),
    hosts=("ampcode.com", "*.ampcode.com"),
    urls=("AMP_URL",),
)

_ALLOW = "--dangerously-allow-all"


def invocation(request: TurnRequest) -> Invocation:
    argv = [*request.command]
    if request.session:
        argv += ["threads", "continue", request.session]
    if request.stream:
        argv.append("--stream-json")
    # Without this it stops at the first command that is not on its own list of harmless ones; it has no other mode.
    argv.append(_ALLOW)
    argv += request.model_option("--mode", "-m")  # its modes choose the model
    return Invocation((*argv, *request.flags_without(_ALLOW, "--stream-json", "-x"), "-x"))


class _Amp(BlockReader):
    def verdict(self, ended: Exit) -> Trouble | None:
        """Detect a missing login: without a key, Amp opens a login page and waits until ralph ends the turn."""
        if not self._understood and "Starting login flow" in self._plain.text:
            return Trouble("no API key: run `amp login` or set AMP_API_KEY", kind="fatal")
        return self.trouble

    def trouble_in(self, result: Table) -> Trouble:
        message = error_in(result) or wire.text(result, "result") or wire.text(result, "subtype")
        return Trouble(message, kind="ordinary" if message.startswith("User cancelled") else None)


parser = _Amp
