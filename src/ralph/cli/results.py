"""`ralph report`, `diff`, `accept`, `discard`, `rewind`: what did a run leave, and what becomes of it?"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ralph.cli.request import one_run, read_run
from ralph.cli.table import DIRECTORY, CliCommand, Values
from ralph.core.text import one_line
from ralph.errors import UserError, complain
from ralph.run.options import Option
from ralph.steering.which_run import run_and_number, saved_in

if TYPE_CHECKING:
    from ralph.records.register import Listed
    from ralph.repository.git import Repository


def report(values: Values, words: list[str]) -> int:
    from ralph.history.evidence import evidence_of
    from ralph.history.feed import history_now
    from ralph.show.report import Form, written

    if values.get("markdown") and values.get("json"):
        raise UserError("--markdown and --json at once", "choose one")
    runs = [read_run(values, [word]) for word in words] or [read_run(values, [])]
    form: Form = "markdown" if values.get("markdown") else "json" if values.get("json") else "html"
    if runs[0].facts.kind == "work":
        from ralph.cli.work import work_report

        data = work_report(runs[0], form)
    else:
        histories = [history_now(run) for run in runs]
        shown = {run.id: evidence_of(run.folder, one, os.environ) for run, one in zip(runs, histories, strict=True)}
        data = written(histories, form, shown if form == "html" else None)
    if values.get("open") and (form != "html" or values.get("output") == "-"):
        raise UserError("--open is for a page in a file", "leave out --markdown, --json and `-o -`")
    into_file = form == "html" and (sys.stdout.isatty() or values.get("open"))
    target = values.get("output", "" if into_file else "-")
    if target == "-":
        sys.stdout.buffer.write(data)
        return 0
    path = Path(target) if target else runs[-1].folder.path / "report.html"
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", "name another file with -o FILE") from None
    print(path)
    return _opened(path) if values.get("open") else 0


def _opened(path: Path) -> int:
    """Shows the page in a browser, if there is one."""
    import webbrowser

    if not webbrowser.open(path.absolute().as_uri()):
        raise UserError("no browser could be started here", f"open {path} yourself, or set BROWSER")
    return 0


REPORT = CliCommand(
    "report",
    "Say what one run or several did and what needs you, as one HTML page that needs nothing but itself. "
    "On a terminal, without -o, it is written into the run's folder, and its path is printed.",
    report,
    (
        Option("-o --output FILE", "The file to write; `-`: standard output."),
        Option("--open", "Show it in a browser."),
        Option("--markdown", "For a pull request or a CI summary."),
        Option("--json", "For programs: an object a line."),
        DIRECTORY,
    ),
    words="[RUN]...",
    examples=("ralph report --open", "ralph report -o night.html", "ralph report --markdown | gh pr comment -F -"),
)


DIFF_HELP = """Show what a run changed, or what iteration N of it changed; new files included.

RUN is the last one here unless it is named; any unambiguous part of its id will do. Into a file or a pipe goes a patch
that `git apply` takes."""

COLORS = {"+": "32", "-": "31", "@": "36"}  # green, red, cyan


def diff(values: Values, words: list[str]) -> int:
    from ralph.repository.checkpoints import changed_files, patch
    from ralph.repository.index import tree_of

    run, number = run_and_number(values.get("directory", "."), words)
    repository, before, after = _ends(run, number)
    if tree_of(before) == tree_of(after):
        print("nothing was changed", file=sys.stderr)
    elif values.get("stat"):
        for change in changed_files(repository, before, after):
            lines = "binary" if change.added is None else f"+{change.added} -{change.deleted}"
            print(f"{change.status} {one_line(_plain(change.path), 4096)} ({lines})")
    else:
        _print(patch(repository, before, after))
    return 0


def _ends(run: "Listed", number: int | None) -> "tuple[Repository, str, str]":
    """The two states between which a work, an item of one that has landed, or a run has changed something."""
    from ralph.repository.checkpoints import Checkpoints

    if run.facts.kind == "work":
        from ralph.cli.work import ends_of_work

        return ends_of_work(run)
    repository = saved_in(run)
    if run.facts.item and number is None:
        from ralph.cli.work import ends_of_item

        if ends := ends_of_item(run, repository):
            return repository, *ends
    saved = Checkpoints(repository, run.id)
    before, after = saved.ends() if number is None else saved.around(number)
    return repository, before, after


def _print(chunks: Iterable[bytes]) -> None:
    """To the letter, but a terminal is not let in for what a file may hold."""
    if not sys.stdout.isatty():
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return
    from ralph.cli.watch import paged

    with paged() as out:
        for line in _lines(chunks):
            color = "" if os.environ.get("NO_COLOR") else COLORS.get(line[:1], "")
            print(f"\x1b[{color}m{_plain(line)}\x1b[0m" if color else _plain(line), file=out)


def _lines(chunks: Iterable[bytes]) -> Iterable[str]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in lines)
    if rest:
        yield rest.decode("utf-8", "replace")


def _plain(line: str) -> str:
    from ralph.core.secrets import redact_text
    from ralph.core.text import clean

    return redact_text(clean(line))


DIFF = CliCommand(
    "diff",
    DIFF_HELP,
    diff,
    (Option("--stat", "The files alone, with the lines added and deleted."), DIRECTORY),
    words="[RUN] [N]",
)


ACCEPT_HELP = """Take over the work that a run did with --worktree.

Its checks run once more on exactly what the merge would bring; only if all pass, your branch gets it, and the worktree
and the run's branch go. Where it no longer merges, where a check is red or where your own changes are in the way, that
is said and nothing is changed. RUN is the last one here with a branch of its own unless it is named."""


def accept(values: Values, words: list[str]) -> int:
    from ralph.processes.keeper import Keeper

    with Keeper.start() as keeper:
        from ralph.processes.interrupt import Interrupt
        from ralph.run.afterwards import NotTaken, has_no_branch, take_over
        from ralph.show.screen import make_screen
        from ralph.show.words import plural

        run = one_run(values, words, has_no_branch)
        screen = make_screen(sys.stderr, live=False)
        try:
            with Interrupt(lambda: None) as interrupt:
                taken = take_over(run, keeper, interrupt, screen)
        except NotTaken as refused:
            complain(refused.message, refused.hint)
            return 1
    checked = f"{plural(taken.checks, 'check')} passed" if taken.checks else "no check was configured"
    print(f"{taken.branch} is merged: {plural(taken.files, 'file')} changed, {checked}; now at {taken.commit[:12]}.")
    print("Its worktree and its branch are gone; `git reset --keep ORIG_HEAD` would undo the merge.")
    return 0


ACCEPT = CliCommand(
    "accept", ACCEPT_HELP, accept, (DIRECTORY,), words="[RUN]", examples=("ralph accept", "ralph accept k3fa")
)


DISCARD_HELP = """Throw away the work that a run did with --worktree: the worktree and the branch are removed.

What was there is kept under a name of its own, which is said, until `ralph clean` takes the run away. RUN is the last
one here with a branch of its own unless it is named."""


def discard(values: Values, words: list[str]) -> int:
    from ralph.run.afterwards import has_no_branch, throw_away

    run = one_run(values, words, has_no_branch)
    kept_as = throw_away(run)
    print(f"{run.facts.branch} and its worktree are gone.")
    print(f"To have it back: git branch {run.facts.branch} {kept_as}")
    return 0


DISCARD = CliCommand("discard", DISCARD_HELP, discard, (DIRECTORY,), words="[RUN]", examples=("ralph discard k3fa",))


REWIND_HELP = """Make the files what they were after iteration N of a run (0: before the first).

The present state is saved first, and what cannot be saved is not overwritten: rewinding can itself be undone. Branch,
commits and the staged changes stay as they are; files that git ignores are left alone. Files are written by git's
settings and filters as they were when the run started; what could not be made as it was is said. RUN is the last one
here unless it is named."""


def rewind(values: Values, words: list[str]) -> int:
    from ralph.show.words import plural
    from ralph.steering import control

    run, number = run_and_number(values.get("directory", "."), words)
    if number is None:
        raise UserError("rewind to which iteration?", "give its number, 0 for the state before the first")
    done = control.rewind(run, number)
    state = f"after iteration {number}" if number else "before the first iteration"
    print(f"{plural(done.files, 'file')} changed: this is the state {state} of run {run.id}.", file=sys.stderr)
    for missed in done.missed:
        print(f"Not as it was: {missed}.", file=sys.stderr)
    print(f"What was there before is kept as {done.kept_as}.", file=sys.stderr)
    return 0


REWIND = CliCommand("rewind", REWIND_HELP, rewind, (DIRECTORY,), words="[RUN] N")
