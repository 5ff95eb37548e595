"""Commands that show what a run did: report and diff; and trust, for the settings of the next one."""

import os
import sys
import webbrowser
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from ralph.backlog.accept_backlog import ends_of_backlog
from ralph.cli.backlog_views import backlog_report
from ralph.cli.play import readable
from ralph.cli.request import one_run, run_and_number
from ralph.cli.table import DIRECTORY, JSON, Values, command, folder_of
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import clean as cleaned
from ralph.core.text import one_line
from ralph.errors import UserError
from ralph.git.checkpoints import Checkpoints, changed_files, patch
from ralph.git.client import Git
from ralph.history.backlog_history import merged_range
from ralph.history.evidence import evidence_of, lines_in
from ralph.history.feed import history_now, repository_with_checkpoints
from ralph.options.option import Option
from ralph.sandbox.mounts import is_inside
from ralph.settings.trust import difference_in
from ralph.settings.trust import trust as accept_settings
from ralph.show.outlet import choose
from ralph.show.report import REPORT_FILE, as_json, html
from ralph.store.folder import load_exam_outputs
from ralph.store.register import Listed


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
