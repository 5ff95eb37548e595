"""`ralph ui` and `ralph serve`: open the TUI or the web UI."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ralph.cli.table import DB, Values, command, is_terminal, no_words
from ralph.errors import UserError, to_install
from ralph.run.options import Option

MIN_TEXTUAL = 8  # the first version that leaves the colours to the terminal
WEB_PACKAGES = ("anyio", "h11", "segno", "starlette", "uvicorn")


@command(DB, words="[PATH]")
def ui(values: Values, words: list[str]) -> int:
    """Watch and steer runs in the terminal, and start new ones in PATH.

    Type a goal, or a command such as /ralph 5, /check CMD, /help. A run that was started here ends with the TUI, unless
    you choose to keep it when you leave.

    With --db the TUI also shows the backlogs of that database; requests reach all machines that work on them.

    `ralph run PATH` opens it as well, with options (--agent, --max-cost, ...) for every run that you start there."""
    no_words(words[1:], "name one folder")
    path = words[0] if words else "."
    place = Path(path)
    if not place.is_dir():
        raise UserError(f"folder not found: {path}", "name a folder")
    if not is_possible():
        raise UserError("the TUI needs a terminal", "`ralph ps` and `ralph logs -f` work anywhere")
    if "db" not in values:
        return open_screen(place)
    from ralph.cli.worker import mirror_fleet

    with mirror_fleet(values["db"], follows=True):
        return open_screen(place)


def is_possible() -> bool:
    """Whether this is a terminal that the TUI can use: textual reads stdin and draws on stderr."""
    return is_terminal(sys.stdin, sys.stdout, sys.stderr) and os.environ.get("TERM", "") not in ("", "dumb")


def open_screen(place: Path, given: Mapping[str, Any] | None = None) -> int:
    """Open the TUI and return when the user leaves. `given` are options for every run that is started there."""
    try:
        from textual import __version__ as version
    except ModuleNotFoundError:
        raise UserError("the TUI needs textual, which is not installed", to_install("tui")) from None
    if int(version.partition(".")[0]) < MIN_TEXTUAL:
        raise UserError(f"the TUI needs textual {MIN_TEXTUAL}, not {version}", "pip install --upgrade textual")
    from ralph.show.words import nickname
    from ralph.tui.app import RalphApp
    from ralph.tui.draw import tui_style
    from ralph.tui.tui_state import TuiState

    state = TuiState(place.resolve(), given)
    app = RalphApp(state, tui_style(sys.stdout))
    try:
        kept = app.run() or []
    finally:
        state.close()
    for name in map(nickname, kept):
        how = f"run {name} continues: `ralph logs -f {name}` follows it, `ralph stop {name}` stops it"
        print(how if name else "a run continues: `ralph ps` lists it", file=sys.stderr)
    return 3 if app.return_code else 0


@command(
    Option("--port N", "Default: 8787; 0: any free port."),
    Option("--socket PATH", "Listen on a Unix socket (mode 0600) instead of a port."),
    Option("--name HOST ...", "A name that browsers use, through a proxy or VPN; repeatable."),
    Option("--bind ADDR", "Another address; beyond loopback it needs --plain."),
    Option("--plain", "Serve without TLS: others on the network can read the traffic."),
    Option("--allow look|steer|start", "The most that any link allows (default: start)."),
    Option("--remember", "Browsers keep their access when the server restarts."),
    DB,
    Option("--link[=look|steer|start]", "Print another link to the running web UI."),
    words="[DIR]...",
    examples=("ralph serve", "ralph serve ~/src/shop --allow steer", "ralph serve --link look"),
)
def serve(values: Values, words: list[str]) -> int:
    """Serve a web UI that shows and steers all your runs.

    It prints a link that works once, within ten minutes; `ralph serve --link` prints another from any terminal. A link
    allows a browser to look, steer (tell, answer, pause, resume, stop) or start runs; --allow caps all links. Only this
    machine can connect: from elsewhere use an ssh tunnel, a mesh VPN or a proxy (--name). Runs continue without the web
    UI. New runs can be started in each DIR and in the workspaces of earlier runs. With --db it also shows the backlogs
    of a fleet."""
    try:
        from ralph.web import listening
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in WEB_PACKAGES:
            raise
        raise UserError(f"the web UI needs {missing}, which is not installed", to_install("web")) from None

    port, socket, bind = values.get("port"), values.get("socket"), values.get("bind", "127.0.0.1")
    if port is not None and not 0 <= port <= 65535:
        raise UserError(f"--port expects 0 (any free port) to 65535, got {port}", "ralph serve --port 8787")
    if "link" in values:
        level = values["link"] or "".join(words[:1])
        print(listening.another_link(level, bind, port, socket))
        return 0
    workspaces = [os.path.abspath(folder) for folder in words]
    for folder in workspaces:
        if not os.path.isdir(folder):
            raise UserError(f"folder not found: {folder}", "name folders in which runs may be started")
    options = listening.ServeOptions(
        workspaces=tuple(workspaces),
        port=port,
        socket=socket,
        names=tuple(values.get("name", ())),
        bind=bind,
        plain=bool(values.get("plain")),
        allow=values.get("allow", "start"),
        remember=bool(values.get("remember")),
    )
    if "db" not in values:
        return listening.serve(options, sys.stdout)
    from ralph.cli.worker import mirror_fleet

    with mirror_fleet(values["db"], follows=True):
        return listening.serve(options, sys.stdout)
