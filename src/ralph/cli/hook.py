"""`ralph hook`: keep an agent in its own session until its promise is kept."""

import os
import sys
from pathlib import Path

import msgspec

from ralph.cli.table import DIRECTORY, JSON, Values, command, command_group, folder_of
from ralph.core.text import escaped, one_line
from ralph.errors import UserError
from ralph.files import locked
from ralph.hooks import hosts, loops, starting
from ralph.hooks.hosts import Host, Scope
from ralph.hooks.stop import main
from ralph.options.option import Option, as_settings

HELP = """Keep an agent in its session until its promise is kept.

`ralph hook install claude` gives Claude Code /ralph-loop, /ulw-loop and /cancel-ralph; likewise codex and gemini. The
other commands are for scripts and other terminals."""


SESSION = Option("--session ID", "The session (default: that of the calling agent).")
SCOPES = (
    Option("--project", "For you in this project (default)."),
    Option("--shared", "For everyone in this project, shared by git."),
    Option("--user", "For all your projects."),
    DIRECTORY,
)


@command(*SCOPES, words="AGENT")
def install(values: Values, words: list[str]) -> int:
    """Add hooks and slash commands to an agent."""
    host, scope, workspace = _host_and_scope(values, words)
    written = hosts.install(host, scope, workspace, os.environ)
    for path in written:
        print(f"wrote {path}")
    if not written:
        print(f"{host.name} already has its hooks")
    for note in host.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0


@command(*SCOPES, words="AGENT")
def uninstall(values: Values, words: list[str]) -> int:
    """Remove them."""
    host, scope, workspace = _host_and_scope(values, words)
    changes = hosts.uninstall(host, scope, workspace, os.environ)
    for path, what in changes:
        print(f"{path}: {what}")
    if not changes:
        print(f"{host.name} has no hooks from ralph here")
    return 0


def _host_and_scope(values: Values, words: list[str]) -> tuple[Host, Scope, Path]:
    """Return the host, the scope and the workspace that the command line names."""
    if len(words) != 1:
        raise UserError("no agent named", "for example: ralph hook install claude")
    host = hosts.find_host(words[0])
    scope: Scope = "user" if values.get("user") else "shared" if values.get("shared") else "project"
    return host, scope if scope in host.scopes() else "project", folder_of(values)


@command(
    SESSION,
    DIRECTORY,
    Option("--agent NAME", "The agent whose session it is."),
    Option("--transcript FILE", "The session's transcript so far."),
    *starting.OPTIONS,
    words="TASK",
)
def start(values: Values, words: list[str]) -> int:
    """Start a loop in a session."""
    if len(words) != 1:
        raise UserError(f"expected one task, got {len(words)}", 'quote it: ralph hook start --session ID "TASK"')
    session, agent = _session(values), values.get("agent", "")
    loop, contract = starting.start(
        folder_of(values),
        session,
        words[0],
        as_settings(starting.OPTIONS, values),
        agent=agent,
        transcript=values.get("transcript") or starting.transcript_of(session, agent, os.environ),
        force=bool(values.get("force")),
    )
    print(contract, end="")
    print(f"loop started: {_summary(loop)}", file=sys.stderr)
    return 0


@command(words="[AGENT]")
def stop(values: Values, words: list[str]) -> int:
    """Answer an agent that wants to stop (JSON on stdin)."""
    return main(["stop", *words])


@command(SESSION, Option("--all", "Every loop in the workspace."), DIRECTORY)
def cancel(values: Values, words: list[str]) -> int:
    """End a loop at once."""
    root, everything = str(folder_of(values)), bool(values.get("all"))
    named = "" if everything else _session(values)
    active = [loop for loop in loops.list_loops(root) if loop.status == loops.ACTIVE and named in ("", loop.session)]
    if not active:
        where = f"{root} in session {named}" if named else root
        raise UserError(f"no loop is active in {where}", "`ralph hook status` lists all")
    if len(active) > 1 and not named and not everything:
        raise UserError("several loops are active here", "name one with --session ID, or give --all")
    for loop in active:
        with locked(Path(root, loops.FOLDER)):
            if loop.is_active():
                starting.cancel(loop)
                print(f"{one_line(loop.session)}  {one_line(loop.status)}")
    return 0


@command(SESSION, DIRECTORY, JSON)
def status(values: Values, words: list[str]) -> int:
    """List the loops of the workspace."""
    workspace, session, json = folder_of(values), values.get("session", ""), values.get("json")
    listed = [loop for loop in loops.list_loops(str(workspace)) if session in ("", loop.session)]
    for loop in listed:
        print(escaped(msgspec.json.encode(loop)).decode() if json else _summary(loop))
    if not listed and not json:
        print("no loop here" + (f" in session {session}" if session else ""), file=sys.stderr)
    return 0


def _session(values: Values) -> str:
    """Return the session given with --session, else that of the agent that calls this command."""
    return values.get("session") or loops.session_of({})


def _summary(loop: loops.Loop) -> str:
    place = f"{loop.iteration} of {loop.max_iterations} continuations"
    return f"{one_line(loop.session)}  {one_line(loop.status)}  {place}  {one_line(loop.task, 80)}"


hook = command_group("hook", HELP, install, uninstall, start, stop, cancel, status)
