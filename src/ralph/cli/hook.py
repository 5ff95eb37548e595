"""`ralph hook`: how is an agent kept from stopping in its own session, until its promise is kept?"""

import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from ralph.cli.commands import CONTEXT, click_option, simple
from ralph.core.text import clean, one_line
from ralph.errors import UserError
from ralph.hooks import install as installing
from ralph.hooks import loops, starting
from ralph.hooks.hosts import Host, Scope
from ralph.records.files import locked

HELP = """Keep an agent in its session until its promise is kept.

`ralph hook install claude` gives Claude Code /ralph-loop, /ulw-loop and /cancel-ralph; likewise codex, gemini, qwen and
copilot. The other commands are for scripts, and for looking in from another terminal."""


def command() -> click.Command:
    name = click.Argument(["name"], metavar="AGENT")
    session = click.Option(["--session"], default="", metavar="ID", help="The session; by default the one around us.")
    where = click.Option(["-C", "--directory"], default=".", metavar="DIR", help="The workspace.")
    task = click.Argument(["words"], nargs=-1, metavar="TASK", required=True)
    agent = click.Option(["--agent"], default="", metavar="NAME", help="The agent whose session it is.")
    transcript = click.Option(["--transcript"], default="", metavar="FILE", help="The session's transcript so far.")
    json = click.Option(["--json"], is_flag=True, help="One JSON object a line.")
    everything = click.Option(["--all", "everything"], is_flag=True, help="Every loop of the workspace.")
    scopes = [
        click.Option(
            ["--project", "scope"], flag_value="project", default=True, help="For you in this project (default)."
        ),
        click.Option(["--shared", "scope"], flag_value="shared", help="For all who work in this project, by git."),
        click.Option(["--user", "scope"], flag_value="user", help="For all projects of yours."),
    ]
    rows: list[click.Parameter] = [click_option(option) for option in starting.OPTIONS]
    host = click.Argument(["words"], nargs=-1, metavar="[AGENT]")
    group = click.Group("hook", help=HELP, context_settings=CONTEXT, no_args_is_help=False)
    group.add_command(simple("install", install, name, *scopes, where, help="Put hooks and commands into an agent."))
    group.add_command(simple("uninstall", uninstall, name, *scopes, where, help="Take them out again."))
    group.add_command(
        simple("start", start, session, where, agent, transcript, *rows, task, help="Start a loop in a session.")
    )
    group.add_command(simple("stop", stop, host, help="Answer a host whose agent wants to stop (JSON on stdin)."))
    group.add_command(simple("cancel", cancel, session, everything, where, help="End a loop at once."))
    group.add_command(simple("status", status, session, where, json, help="Show the loops of the workspace."))
    return group


def install(name: str, scope: Scope, directory: str) -> int:
    host = installing.find_host(name)
    scope = scope if scope in host.scopes() else "project"
    written = installing.install(host, scope, _workspace(directory), os.environ)
    for path in written:
        print(f"wrote {path}")
    if not written:
        print(f"{name} has its hooks already")
    for note in host.notes:
        print(f"note: {note}", file=sys.stderr)
    _say_if_silenced(host, _workspace(directory))
    return 0


def uninstall(name: str, scope: Scope, directory: str) -> int:
    host = installing.find_host(name)
    scope = scope if scope in host.scopes() else "project"
    done = installing.uninstall(host, scope, _workspace(directory), os.environ)
    for path, what in done:
        print(f"{path}: {what}")
    if not done:
        print(f"{name} has no hooks of ralph's here")
    return 0


def start(session: str, directory: str, agent: str, transcript: str, words: tuple[str, ...], **given: Any) -> int:
    """The contract goes to stdout: whoever starts a loop by hand gives it to the agent."""
    if len(words) > 1:
        raise UserError(f"too many words: {words[1]!r}", "quote a task of several words")
    values = {key: list(v) if isinstance(v, tuple) else v for key, v in given.items() if v is not None and v != ()}
    values = {key: v for key, v in values.items() if v is not False}
    loop, contract = starting.start(
        _workspace(directory),
        _session(session),
        words[0],
        starting.overrides(values),
        agent=agent,
        transcript=transcript or starting.transcript_of(_session(session), agent, os.environ),
        force=bool(values.get("force")),
    )
    print(contract, end="")
    print(f"loop started: {_summary(loop)}", file=sys.stderr)
    return 0


def stop(words: tuple[str, ...]) -> int:
    from ralph.hooks.stop import main

    return main(["stop", *words])


def cancel(session: str, everything: bool, directory: str) -> int:
    root = str(_workspace(directory))
    active = [loop for loop in loops.recorded(root) if loop.status == loops.ACTIVE]
    named = _session(session)
    chosen = active if everything else [loop for loop in active if loop.session == named]
    if not chosen and not named and not everything:
        if len(active) > 1:
            raise UserError("several loops are active here", "name one with --session ID, or give --all")
        chosen = active
    if not chosen:
        raise UserError(
            f"no loop is active in {root}" + (f" in session {named}" if named else ""), "`ralph hook status` lists all"
        )
    for loop in chosen:
        with locked(Path(root, loops.FOLDER)):
            if loop.goes_on():
                starting.cancel(loop)
                print(f"{loop.session}  {loop.status}")
    return 0


def status(session: str, directory: str, json: bool) -> int:
    workspace = _workspace(directory)
    shown = [loop for loop in loops.recorded(str(workspace)) if session in ("", loop.session)]
    for loop in shown:
        print(msgspec.json.encode(loop.facts).decode() if json else _summary(loop))
    if not shown and not json:
        print("no loop here" + (f" in session {session}" if session else ""), file=sys.stderr)
    for host in installing.installed(workspace, os.environ):
        _say_if_silenced(host, workspace)
    return 0


def _say_if_silenced(host: Host, workspace: Path) -> None:
    if why := installing.silenced(host, workspace, os.environ):
        print(f"note: {why}", file=sys.stderr)


def _workspace(directory: str) -> Path:
    folder = Path(directory)
    if not folder.is_dir():
        raise UserError(f"no such folder: {directory}", "name a folder")
    return folder.resolve()


def _session(named: str) -> str:
    """The session that is meant: the one named, else that of the agent around us."""
    return named or loops.session_of({})


def _summary(loop: loops.Loop) -> str:
    place = f"{loop.iteration} of {loop.max_iterations} continuations"
    return clean(f"{loop.session}  {loop.status}  {place}  {one_line(loop.task, 80)}")
