"""`ralph ps`, `show` and `logs`: list runs, show what one did, print its output."""

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import IO

from ralph.cli.request import read_run
from ralph.cli.table import DB, DIRECTORY, JSON, Values, command, print_objects
from ralph.cli.work import log_of_work, show_work
from ralph.cli.worker import mirror_fleet
from ralph.core.text import clean, escaped
from ralph.errors import UserError
from ralph.history.feed import history_now
from ralph.history.overview import RunNow, runs_now
from ralph.process.detached import DetachedProcess
from ralph.process.signals import ignore_ctrl_c
from ralph.run.options import Option
from ralph.show.outlet import GLYPHS, choose, terminal_size
from ralph.show.report import render_report
from ralph.show.screen import make_screen
from ralph.show.summary import render_history, run_list
from ralph.store.exam_output import load_exam_outputs
from ralph.store.journal import JournalReader, decode_entry
from ralph.store.orphans import find_orphans
from ralph.store.register import Listed, run_at


@command(
    Option("-a --all", "Include runs that have ended."),
    JSON,
    DB,
    examples=("ralph ps", "ralph ps -a --json", "ralph ps --db postgresql://db.example/ralph"),
)
def ps(values: Values, words: list[str]) -> int:
    """List the runs of this user on this machine, in any workspace: what they do, and what they need from you."""
    if words:
        raise UserError(f"too many words: {words[0]!r}", "`ralph ps` lists all runs; `ralph show RUN` is about one")
    if "db" in values:
        return _show_fleet(values)
    seen = runs_now(bool(values.get("all")))
    if values.get("json"):
        return print_objects([*seen, *find_orphans()])
    if not seen:
        nothing = "no runs on this machine yet" if values.get("all") else "no run is running; `ralph ps -a` lists all"
        print(nothing, file=sys.stderr)
    else:
        _show_runs(seen)
    for orphan in find_orphans():
        print(clean(f"run {orphan.run} was killed; still running: {orphan}; `ralph clean` kills it"))
    return 0


def _show_fleet(values: Values) -> int:
    """Print the backlogs of a fleet and its workers."""
    with mirror_fleet(values["db"]) as mirror:
        seen = [run for run in runs_now(bool(values.get("all"))) if run.run in mirror]
        if values.get("json"):
            return print_objects([*seen, *mirror.workers])
        if seen:
            _show_runs(seen)
        else:
            print("no backlog is open there; `ralph ps -a --db URL` lists all", file=sys.stderr)
        for line in mirror.describe_workers():
            print(clean(line))
    return 0


def _show_runs(seen: "list[RunNow]") -> None:
    columns, _ = terminal_size(sys.stdout, 0)
    style = choose(sys.stdout)
    print("\n".join(run_list(seen, style, columns, time.time(), os.path.expanduser("~"))))


@command(JSON, DIRECTORY, words="[RUN]", examples=("ralph show", "ralph show k3fa --json"))
def show(values: Values, words: list[str]) -> int:
    """Show what a run did, iteration by iteration: checks, cost, changed files, refused claims, and what needs you."""
    run = read_run(values, words)
    if run.facts.kind == "work":
        return show_work(run, bool(values.get("json")))
    history = history_now(run)
    if values.get("json"):
        sys.stdout.buffer.write(render_report([history], "json"))
        return 0

    style = choose(sys.stdout)
    with paged() as out:
        for line in render_history(history, style, load_exam_outputs(run.id)):
            print(line, file=out)
    return 0


POLL_INTERVAL = 0.1  # seconds


@command(
    Option("-f --follow", "Keep printing until the run ends."),
    Option("-t --timestamps", "Print the time of day in front of every line."),
    Option("-v -V --verbose", "Print more."),
    Option("--json", "Print the lines that `ralph run --json` printed."),
    Option("--no-color", "Use no colours."),
    DIRECTORY,
    words="[RUN]",
    examples=("ralph logs -f", "ralph logs k3fa --json | jq .type"),
)
def logs(values: Values, words: list[str]) -> int:
    """Print what a run printed on its screen; with -f, continue with what it prints next."""
    run = read_run(values, words)
    follows = bool(values.get("follow"))
    lines = _lines(run, follows)
    if values.get("json"):
        out = sys.stdout.buffer
        for line in lines:
            if decode_entry(line) is not None:  # not a line that was cut off
                out.write(escaped(line))  # an agent can write to the journal as well
                if follows:
                    out.flush()
        out.flush()
        return 0
    if run.facts.kind == "work":
        return log_of_work(lines, bool(values.get("timestamps")))
    return _render(run, lines, values)


def _lines(run: "Listed", follows: bool) -> Iterator[bytes]:
    """Yield the journal's lines; if it is followed, until the run has ended."""
    reader = JournalReader.open(run.folder.journal)
    yield from reader.lines()
    while follows:
        now = run_at(run.place)
        follows = now is not None and now.is_alive
        yield from reader.lines()
        time.sleep(POLL_INTERVAL if follows else 0)


def _render(run: "Listed", lines: Iterator[bytes], values: Values) -> int:
    with nullcontext(sys.stdout) if values.get("follow") else paged() as out:
        read = _print_events(run, lines, values, out)
    now, journal = run_at(run.place), run.folder.journal
    if not read and journal.stat().st_size:
        raise UserError(f"cannot parse {journal}", "was it written by another version of ralph?")
    if not read:
        print(f"ralph: {journal} is still empty", file=sys.stderr)
    if now and now.state == "killed":
        print(f"ralph: run {run.id} was killed; continue with `ralph resume {run.id}`", file=sys.stderr)
    return 0


def _print_events(run: "Listed", lines: Iterator[bytes], values: Values, out: IO[str]) -> int:
    """Print the events as the screen would; return how many lines could be read."""
    now = 0.0
    is_terminal = sys.stdout.isatty()
    color = False if values.get("no_color") else None
    style = choose(sys.stdout, color=color)
    screen = make_screen(
        out,
        verbose=bool(values.get("verbose")),
        color=style.color,
        emoji=style.marks is GLYPHS if is_terminal else None,
        live=False,
        waits=True,
        timestamps=bool(values.get("timestamps")),
        width=terminal_size(sys.stdout, 80)[0] if is_terminal and out is not sys.stdout else None,
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


@contextmanager
def paged() -> Iterator[IO[str]]:
    """Yield a stream for a person: on a terminal through `$RALPH_PAGER`, `$PAGER` or `less`, else standard output."""
    if not sys.stdout.isatty():
        yield sys.stdout
        return

    words: list[str] = []
    with suppress(ValueError):  # an unclosed quote
        words = shlex.split(os.environ.get("RALPH_PAGER", os.environ.get("PAGER", "less")))
    program = shutil.which(words[0]) if words and words[0] != "cat" else None
    if not program:
        yield sys.stdout
        return
    reader, writer = os.pipe()
    env = {"LESS": "FRX", "LV": "-c", **os.environ}
    with ignore_ctrl_c():
        try:
            pager = DetachedProcess.start((program, *words[1:]), env, (reader, 1, 2), new_session=False)
        except OSError:
            os.close(writer)
            yield sys.stdout
            return
        finally:
            os.close(reader)
        try:
            with (
                suppress(BrokenPipeError),  # the user quit the pager
                open(writer, "w", encoding="utf-8", errors="backslashreplace") as out,
            ):
                yield out
        finally:
            pager.wait()
