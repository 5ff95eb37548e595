"""Commands that show runs: `ralph ps`, `show`, `logs`, `ui` and `serve`."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ralph.cli.backlog_views import show_backlog
from ralph.cli.request import one_run
from ralph.cli.screen import has_usable_terminal, open_screen
from ralph.cli.table import DIRECTORY, JSON, Values, command, needs_extra, print_objects
from ralph.core.text import clean, escaped
from ralph.errors import UserError
from ralph.history.feed import history_now
from ralph.history.overview import runs_now
from ralph.options.option import Option
from ralph.show.backlog_lines import sentence
from ralph.show.outlet import choose, terminal_size
from ralph.show.report import as_json
from ralph.show.screen import make_screen
from ralph.show.summary import render_history, run_list
from ralph.store.folder import load_exam_outputs
from ralph.store.journal import JournalReader, decode_entry
from ralph.store.register import Listed, find_orphans, run_at


@command(
    Option("-a --all", "Include runs that have ended."),
    JSON,
    examples=("ralph ps", "ralph ps -a --json"),
)
def ps(values: Values, words: list[str]) -> int:
    """List the runs of this user on this machine, in any workspace: what they do, and what they need from you."""
    includes_ended = bool(values.get("all"))
    seen = runs_now(includes_ended)
    if values.get("json"):
        return print_objects([*seen, *find_orphans()])
    if seen:
        columns, _ = terminal_size(sys.stdout, 0)
        print("\n".join(run_list(seen, choose(sys.stdout), columns, time.time(), os.path.expanduser("~"))))
    elif includes_ended:
        print("no runs on this machine yet", file=sys.stderr)
    else:
        print("no run is running; `ralph ps -a` lists all", file=sys.stderr)
    for orphan in find_orphans():
        print(clean(f"run {orphan.run} was killed; still running: {orphan}; `ralph clean` kills it"))
    return 0


@command(JSON, DIRECTORY, words="[RUN]", examples=("ralph show", "ralph show k3fa --json"))
def show(values: Values, words: list[str]) -> int:
    """Show what a run did, iteration by iteration: checks, cost, changed files, refused claims, and what needs you."""
    run = one_run(values, words)
    return run.by_kind(_show_run, show_backlog)(run, bool(values.get("json")))


def _show_run(run: Listed, is_json: bool) -> int:
    history = history_now(run)
    if is_json:
        sys.stdout.buffer.write(as_json(history))
        return 0

    style = choose(sys.stdout)
    for line in render_history(history, style, load_exam_outputs(run.id)):
        print(line)
    return 0


POLL_INTERVAL = 0.1  # seconds


@command(
    Option("-f --follow", "Keep printing until the run ends."),
    Option("-t --timestamps", "Print the time of day in front of every line."),
    Option("-v -V --verbose", "Print more."),
    Option("--json", "Print the lines that `ralph run --json` printed."),
    DIRECTORY,
    words="[RUN]",
    examples=("ralph logs -f", "ralph logs k3fa --json | jq .type"),
)
def logs(values: Values, words: list[str]) -> int:
    """Print what a run printed on its screen; with -f, continue with what it prints next."""
    run = one_run(values, words)
    lines = _lines(run, follows=bool(values.get("follow")))
    if values.get("json"):
        for line in lines:
            if decode_entry(line) is not None:  # not a line that was cut off
                sys.stdout.buffer.write(escaped(line))  # an agent can write to the journal as well
                sys.stdout.buffer.flush()
        return 0
    return run.by_kind(_log_of_run, _log_of_backlog)(run, lines, values)


def _log_of_run(run: Listed, lines: Iterator[bytes], values: Values) -> int:
    read = _print_events(run, lines, values)
    now, journal = run_at(run.place), run.folder.journal
    if not read and journal.stat().st_size:
        raise UserError(f"cannot parse {journal}", "was it written by another version of ralph?")
    if now and now.state == "killed":
        print(f"ralph: run {run.id} was killed; continue with `ralph resume {run.id}`", file=sys.stderr)
    return 0


def _lines(run: Listed, follows: bool) -> Iterator[bytes]:
    """Yield the journal's lines; if it is followed, until the run has ended."""
    reader = JournalReader.open(run.folder.journal)
    yield from reader.lines()
    while follows:
        now = run_at(run.place)
        follows = now is not None and now.is_alive
        yield from reader.lines()
        time.sleep(POLL_INTERVAL if follows else 0)


def _log_of_backlog(run: Listed, lines: Iterator[bytes], values: Values) -> int:
    """Print the lines that were on the screen of a backlog."""
    for line in lines:
        entry = decode_entry(line)
        text = sentence(entry.event())[0] if entry else ""
        if entry and text:
            at = time.strftime("[%H:%M:%S] ", time.localtime(entry.at)) if values.get("timestamps") else ""
            print(at + text, flush=True)
    return 0


def _print_events(run: Listed, lines: Iterator[bytes], values: Values) -> int:
    """Print the events as the screen would; return how many lines could be read."""
    now = 0.0
    screen = make_screen(
        sys.stdout,
        verbose=bool(values.get("verbose")),
        live=False,
        waits=True,
        timestamps=bool(values.get("timestamps")),
        clock=lambda: now,
    )
    screen.belongs_to(run.id)
    read = 0
    for line in lines:
        entry = decode_entry(line)
        event = entry.event() if entry else None
        if entry and event is not None:
            now = entry.at if values.get("timestamps") else now
            screen(event)
        read += event is not None
        if screen.is_gone:
            break
    screen.close()
    return read


@command(words="[PATH]")
def ui(values: Values, words: list[str]) -> int:
    """Watch and steer runs in the terminal, and start new ones in PATH.

    Type a goal, or a command such as /ralph 5, /check CMD, /help. A run that was started here ends with the TUI, unless
    you choose to keep it when you leave.

    `ralph run PATH` opens it as well, with options (--agent, --max-cost, ...) for every run that you start there."""
    if len(words) > 1:
        raise UserError(f"too many words: {words[1]!r}", "name one folder")
    path = words[0] if words else "."
    place = Path(path)
    if not place.is_dir():
        raise UserError(f"folder not found: {path}", "name a folder")
    if not has_usable_terminal():
        raise UserError("the TUI needs a terminal", "`ralph ps` and `ralph logs -f` work anywhere")
    return open_screen(place)


@command(
    Option("--port N", "Default: 8787; 0: any free port."),
    Option("--name HOST ...", "A name that browsers use, through a proxy or VPN; repeatable."),
    Option("--bind ADDR", "Another address; beyond loopback it needs --plain."),
    Option("--plain", "Serve without TLS: others on the network can read the traffic."),
    Option("--allow look|steer|start", "The most that any link allows (default: start)."),
    Option("--remember", "Browsers keep their access when the server restarts."),
    Option("--link[=look|steer|start]", "Print another link to the running web UI."),
    words="[LEVEL]",
    examples=("ralph serve", "ralph serve --allow steer", "ralph serve --link look"),
)
def serve(values: Values, words: list[str]) -> int:
    """Serve a web UI that shows and steers all your runs.

    It prints a link that works once, within ten minutes; `ralph serve --link` prints another from any terminal. A link
    allows a browser to look, steer (tell, answer, pause, resume, stop), or do everything (start: also accept, discard,
    retry, rewind); --allow caps all links. Only this machine can connect: from elsewhere use an ssh tunnel, a
    mesh VPN or a proxy (--name). Runs continue without the web UI."""
    with needs_extra("the web UI", "web"):
        from ralph.web import listening

    port, bind = values.get("port"), values.get("bind", "127.0.0.1")
    if port is not None and not 0 <= port <= 65535:
        raise UserError(f"--port expects 0 (any free port) to 65535, got {port}", "ralph serve --port 8787")
    if "link" in values:
        level = values["link"] or "".join(words[:1])
        print(listening.another_link(level, bind, port))
        return 0
    if words:
        raise UserError(f"too many words: {words[0]!r}", "a level needs --link: ralph serve --link look")
    options = listening.ServeOptions(
        port=port,
        names=tuple(values.get("name", ())),
        bind=bind,
        plain=bool(values.get("plain")),
        allow=values.get("allow", "start"),
        remember=bool(values.get("remember")),
    )
    return listening.serve(options, sys.stdout)
