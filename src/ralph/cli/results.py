"""Commands for ended runs: report, diff, accept, prove, discard, rewind, clean and trust."""

import os
import sys
import webbrowser
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from ralph.actions import control
from ralph.actions.accept import NotAccepted, accept_run, discard_run, why_no_branch
from ralph.actions.accept import rewind as rewind_run
from ralph.actions.clean import Leftover, find_leftovers, remove_leftovers
from ralph.backlog.accept_backlog import accept_backlog, discard_backlog, ends_of_backlog, why_not_accept
from ralph.cli.request import one_run, run_and_number
from ralph.cli.run import readable
from ralph.cli.table import DIRECTORY, JSON, Values, command, confirm, folder_of, is_terminal
from ralph.cli.work import backlog_report
from ralph.core import events
from ralph.core.proof import Proof
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import clean as cleaned
from ralph.core.text import listed, nickname, one_line, plural
from ralph.errors import UserError, complain
from ralph.git.checkpoints import Checkpoints, changed_files, patch
from ralph.git.client import Git
from ralph.history.backlog_history import merged_range
from ralph.history.evidence import evidence_of, lines_in
from ralph.history.feed import history_now, history_of, home_repository, repository_with_checkpoints
from ralph.options.option import Option
from ralph.process.keeper import Keeper
from ralph.process.signals import Deadline, Interrupt
from ralph.run import request as requests
from ralph.sandbox.mounts import is_inside
from ralph.settings import parse_duration
from ralph.settings.trust import difference_in
from ralph.settings.trust import trust as accept_settings
from ralph.show.outlet import choose
from ralph.show.report import REPORT_FILE, as_json, html
from ralph.show.screen import make_screen
from ralph.show.summary import proof_lines
from ralph.store.folder import load_exam_outputs
from ralph.store.journal import Journal, load_run
from ralph.store.register import Listed, kill_orphans, run_at
from ralph.store.writer import Writer
from ralph.verdict.context import Context
from ralph.verdict.copies import remove_abandoned
from ralph.verdict.undo import prove_change


@command(
    Option("-o --output FILE", "The file to write; `-`: standard output."),
    Option("--open", "Show it in a browser."),
    JSON,
    DIRECTORY,
    words="[RUN]",
    examples=("ralph report --open", "ralph report -o night.html", "ralph report k3fa --json"),
)
def report(values: Values, words: list[str]) -> int:
    """Write a page about what a run did and what needs you: one HTML file without other resources. On a terminal,
    without -o, it goes into the run's folder, and its path is printed."""
    run, is_json = one_run(values, words), bool(values.get("json"))
    if values.get("open") and (is_json or values.get("output") == "-"):
        raise UserError("--open needs an HTML file", "leave out --json and `-o -`")
    into_folder = not is_json and (sys.stdout.isatty() or values.get("open"))
    target = values.get("output", "" if into_folder else "-")
    data = run.by_kind(partial(_run_report, run, is_json, target), partial(backlog_report, run, is_json))()
    if target == "-":
        sys.stdout.buffer.write(data)
        return 0
    path = Path(target) if target else run.folder.path / REPORT_FILE
    if target and path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file", "name another one, or `-o -` for standard output")
    try:
        if target:
            path.write_bytes(data)
        else:  # in the workspace, where an agent may have put a link or a pipe
            run.folder.write(REPORT_FILE, data)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", "name another file with -o FILE") from None
    print(path)
    if values.get("open") and not webbrowser.open(path.absolute().as_uri()):
        raise UserError("no browser found", f"open {path} yourself, or set BROWSER")
    return 0


def _run_report(run: Listed, is_json: bool, target: str) -> bytes:
    history = history_now(run)
    if is_json:
        return as_json(history)
    # Agents may find a file in the workspace, so it doesn't contain the output of exams.
    is_hidden = target == "-" or (target and not is_inside(os.path.realpath(target), [run.facts.workspace]))
    exams = load_exam_outputs(run.id) if is_hidden else []
    return html(history, evidence_of(run.folder, history, os.environ), exams).encode()


TONES = {"+": "green", "-": "red", "@": "cyan"}


@command(
    Option("--stat", "List only the files, with the numbers of added and deleted lines."), DIRECTORY, words="[RUN] [N]"
)
def diff(values: Values, words: list[str]) -> int:
    """Show what a run changed, or what its iteration N changed, including new files.

    RUN is the last run here unless given; any unambiguous part of its id works. In a file or a pipe the output is a
    patch for `git apply`."""
    run, number = run_and_number(values, words)
    repository, before, after = changed_range(run, number)
    if before == after:
        print("no changes", file=sys.stderr)
    elif values.get("stat"):
        for change in changed_files(repository, before, after):
            lines = "binary" if change.added is None else f"+{change.added} -{change.deleted}"
            print(f"{change.status} {one_line(change.path, 4096)} ({lines})")
    else:
        _print(patch(repository, before, after))
    return 0


def changed_range(run: Listed, number: int | None = None) -> tuple[Git, str, str]:
    """Return a repository and two states of it: before and after what a run, one of its iterations, a merged task or a
    backlog changed."""
    return run.by_kind(partial(_run_range, run, number), partial(ends_of_backlog, run))()


def _run_range(run: Listed, number: int | None) -> tuple[Git, str, str]:
    repository = repository_with_checkpoints(run)
    if run.facts.backlog_task and number is None and (ends := merged_range(run, repository)):
        return repository, *ends
    saved = Checkpoints(repository, run.id)
    before, after = saved.ends() if number is None else saved.around(number)
    return repository, before, after


def _print(chunks: Iterable[bytes]) -> None:
    """Print a patch verbatim; on a terminal with colours, and without secrets and control characters."""
    if not sys.stdout.isatty():
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return

    redact = Redactor(secret_values(os.environ)).text
    style = choose(sys.stdout)
    for raw in lines_in(chunks):
        line = redact(cleaned(raw.decode("utf-8", "replace")))
        tone = TONES.get(line[:1])
        print(style.paint(tone, line) if tone else line)


@command(
    Option("-m --message TEXT", "The commit's message, instead of one made of goal, changed files and checks."),
    Option("--no-squash", "Keep the commits of the iterations."),
    DIRECTORY,
    words="[RUN]",
    examples=("ralph accept", 'ralph accept k3fa -m "Handle empty input"'),
)
def accept(values: Values, words: list[str]) -> int:
    """Merge the work that a run did with --worktree, or what a backlog run has merged on its own branch.

    ralph runs the checks once more in a clean copy of the merged commit, then your pre-commit hook. If all of them
    pass, the work becomes one commit on your branch, and its worktree and branch are removed. The worktree stays if it
    has the only copy of a file, which ralph names. If the work no longer merges, a check fails, the hook refuses, or
    your own changes are in the way, ralph says so and changes nothing. A backlog's merges stay as they are. RUN is the
    last run here with its own branch unless given."""
    squash, message = not values.get("no_squash"), values.get("message", "")
    if message and not squash:
        raise UserError("-m can't be combined with --no-squash", "leave one of them out")
    with Keeper.start() as keeper:
        run = one_run(values, words, _why_not_accept)
        try:
            with Interrupt(lambda: None) as interrupt:
                how = run, keeper, interrupt, message
                return run.by_kind(partial(_accept_run, *how, squash=squash), partial(_accept_backlog, *how))()
        except NotAccepted as refused:
            complain(refused.message, refused.hint)
            return 1
        except (UserError, KeyboardInterrupt):
            if interrupt.level:  # Ctrl-C caused the error
                complain("interrupted", f"to accept it after all: ralph accept {nickname(run.id)}")
                raise KeyboardInterrupt from None
            raise


def _accept_run(run: Listed, keeper: Keeper, interrupt: Interrupt, message: str, *, squash: bool) -> int:
    screen = make_screen(sys.stderr, live=False)
    taken = accept_run(run, keeper, interrupt, screen, squash=squash, message=message)
    place = "Its worktree and its branch are gone"
    if taken.left:
        control.dismiss(run)
        remove = f"`ralph discard {nickname(run.id)}` removes it"
        place = f"Its worktree stays, because only it has {listed(taken.left, 5)}: {taken.worktree}; {remove}"
    if not taken.is_new:
        print(f"{taken.branch} has nothing to merge: your branch has all of it. {place}.")
        return 0
    checked = f"{plural(taken.checks, 'check')} passed" if taken.checks else "no check was configured"
    print(f"{taken.branch} is merged: {plural(taken.files, 'file')} changed, {checked}; now at {taken.commit[:12]}.")
    print(f"{place}. `git reset --keep ORIG_HEAD` would undo the merge.")
    return 0


def _why_not_accept(run: Listed) -> str:
    return run.by_kind(why_no_branch, why_not_accept)(run)


def _accept_backlog(run: Listed, keeper: Keeper, interrupt: Interrupt, message: str) -> int:
    if message:
        raise UserError(f"{run.id} is a backlog: its merges stay as they are", "leave out -m")
    work = accept_backlog(run, keeper, interrupt)
    if work.is_done:
        control.dismiss(run)
    what = f"{work.merged} of {plural(work.tasks, 'task')} merged"
    still_red = f", {work.red} no worse than before" if work.red else ""
    checked = f"{plural(work.checks, 'check')} passed{still_red}"
    print(f"{what}: {plural(work.files, 'file')} changed, {checked}; now at {work.commit[:12]}.")
    stays = f"{work.target} is gone" if work.is_done else f"{work.target} stays for the other tasks: ralph resume"
    print(f"{stays}; `git reset --keep ORIG_HEAD` would undo the merge.")
    return 0


@command(DIRECTORY, words="[RUN]", examples=("ralph discard k3fa",))
def discard(values: Values, words: list[str]) -> int:
    """Throw away the work that a run did with --worktree, or of a backlog run: remove its worktrees and branches.

    The last state is kept under a ref, which is printed, until `ralph clean` removes the run. RUN is the last run here
    with its own branch unless given."""
    run = one_run(values, words, _why_not_accept)
    for branch, kept_as in run.by_kind(_discard_run, _discard_backlog)(run):
        print(f"{branch} is gone. To restore it: git branch {branch} {kept_as}")
    return 0


def _discard_run(run: Listed) -> list[tuple[str, str]]:
    return [(run.facts.branch, discard_run(run))]


def _discard_backlog(run: Listed) -> list[tuple[str, str]]:
    with Interrupt(lambda: None) as interrupt:
        branches = discard_backlog(run, interrupt)
    control.dismiss(run)
    return branches


@command(DIRECTORY, words="[RUN] N")
def rewind(values: Values, words: list[str]) -> int:
    """Restore the files as they were after iteration N of a run (0: before the first).

    ralph saves the current state first and overwrites nothing that it can't save, so a rewind can be undone. Branches,
    commits and staged changes stay as they are, and so do files that git ignores. git
    converts line ends and, for files that a filter such as git-lfs wrote, runs that filter; ralph lists what the
    checkpoint does not contain. RUN is the last run here unless given."""
    run, number = run_and_number(values, words)
    if number is None:
        raise UserError("no iteration given", "ralph rewind N; 0 is the state before the first")
    done = rewind_run(run, number, lambda notice: print(cleaned(notice), file=sys.stderr))
    state = f"after iteration {number}" if number else "before the first iteration"
    print(f"{plural(done.files, 'file')} changed: this is the state {state} of run {run.id}.", file=sys.stderr)
    for missed in done.missed:
        print(f"Not restored: {missed}.", file=sys.stderr)
    print(f"The state before the rewind is saved as {done.kept_as}.", file=sys.stderr)
    return 0


OLDER = "14d"


@command(
    Option("--older-than TIME", f"How long ago they ended (default: {OLDER})."),
    Option("-y --yes", "Don't ask."),
    DIRECTORY,
    examples=("ralph clean", "ralph clean --older-than 2d --yes"),
)
def clean(values: Values, words: list[str]) -> int:
    """Delete what is left of runs that ended long ago: their records, checkpoints, merged worktrees and branches, the
    folders of demos, and temporary files of killed runs. Processes that killed runs left running are killed at once,
    and the copies in which their exams and checks ran are removed; every start of a run does the same.

    ralph lists what it would delete. On a terminal it then asks; elsewhere it deletes nothing without --yes. Unmerged
    work stays, and so does everything of a run that is running."""
    for orphan in kill_orphans():
        print(cleaned(orphan.killed_words))
    for path in remove_abandoned():
        print(f"removed what a killed run left: {cleaned(path)}")
    below = os.path.abspath(values["directory"]) if "directory" in values else ""
    found = find_leftovers(parse_duration(values.get("older_than", OLDER)), below=below)
    going = [one for one in found if not one.kept]
    for one in found:
        _say(one)
    if not going:
        print(f"nothing to delete that is older than {values.get('older_than', OLDER)}")
        return 0
    print(f"total {_size(sum(one.size for one in going))}")
    if not values.get("yes"):
        if not is_terminal(sys.stdin, sys.stdout):
            print("nothing was deleted: `ralph clean --yes` deletes it")
            return 0
        if not confirm("Delete it?"):
            return 0
    stayed = remove_leftovers(going)
    for one in stayed:
        _say(one)
    print(f"{len(going) - len(stayed)} deleted")
    return 1 if stayed else 0


def _say(one: Leftover) -> None:
    """Print whether a leftover stays, and why, or goes."""
    run = one.run
    what = f"{run.id}  {run.state}  {cleaned(run.facts.workspace)}" if run else cleaned(one.place)
    print(f"{'stays' if one.kept else 'goes':<5}  {what}  {_size(one.size)}")
    if one.kept:
        print(f"       {cleaned(one.kept)}")


def _size(number: int) -> str:
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 1000)):
        if number >= scale:
            return f"{number / scale:.1f} {unit}"
    return f"{number} B"


@command(DIRECTORY, examples=("ralph trust",))
def trust(values: Values, words: list[str]) -> int:
    """Show which settings changed during a run here, and accept them. Until then no run uses them."""
    workspace = folder_of(values)
    difference = difference_in(workspace, os.environ)
    if not difference:
        print("no settings have changed during a run here")
        return 0
    print(readable(difference))
    accept_settings(workspace, os.environ)
    print("accepted: the next run uses these settings")
    return 0


COULD_NOT_TRY = ("red", "no time")


@command(DIRECTORY, words="[RUN]", examples=("ralph prove", "ralph prove k3fa"))
def prove(values: Values, words: list[str]) -> int:
    """Find the parts of a run's change that no check notices.

    ralph undoes one part at a time in a throwaway copy of the run's last state and runs its checks there: a part
    without which every check still passes is untested. The first two of at most 10 runs of the checks are controls:
    with the whole change they must pass, without any of it one should fail. What it finds is added to the run's record,
    for `ralph show` and `ralph report`.

    The exit code is 0 if every part that was tried is tested, 1 if not, and 2 if nothing could be tried. RUN is the
    last run here unless given."""
    run = one_run(values, words, why_not_prove)
    request = requests.read(run.id)
    if not request.settings.checks:
        raise UserError(f"run {run.id} doesn't have a check that could notice anything", 'start one with --check "CMD"')
    _, before, after = changed_range(run)
    with Keeper.start() as keeper, Interrupt() as interrupt:
        deadline = Deadline(interrupt, grace=0.0)
        home = replace(home_repository(run), deadline=deadline)
        context = Context(
            root=Path(request.workspace),
            workspace=request.workspace,
            settings=replace(request.settings, grace=0.0),  # a proof that is interrupted is worth nothing
            folder=run.folder,
            keeper=keeper,
            tell=make_screen(sys.stderr, live=False),
            deadline=deadline,
        )
        try:
            proof = prove_change(home, before, after, context)
        except UserError:
            if interrupt.level:
                raise KeyboardInterrupt from None
            raise
    for line in proof_lines(proof, choose(sys.stdout)):
        print(line)
    _record(run, proof)
    if proof.verdict == "red":
        print("hint: --setup CMD or .worktreeinclude prepares a copy: ralph loop -h", file=sys.stderr)
    return 2 if proof.verdict in COULD_NOT_TRY else 1 if proof.untested else 0


def why_not_prove(run: Listed) -> str:
    if run.is_alive:
        return "is running"
    return run.by_kind("", "is a backlog: name a task of it")


def _record(run: Listed, proof: Proof) -> None:
    """Add the proof to the journal of a run that has not continued since, and write its report again."""
    now = run_at(run.place)
    if now is None or now.is_alive:
        print("ralph: not recorded, because the run continues", file=sys.stderr)
        return
    story = load_run(run.folder.journal)
    journal = Journal(run.folder.journal).open()
    try:
        redact = Redactor(secret_values(os.environ))
        Writer(run.id, [journal], seq=story.seq, redact=redact)(events.ProofFinished(len(story.run.iterations), proof))
    finally:
        journal.close()
    history = history_of(run.folder)
    run.folder.write(REPORT_FILE, html(history, evidence_of(run.folder, history, os.environ)).encode())
