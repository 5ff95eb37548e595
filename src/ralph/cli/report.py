"""`ralph report`: what happened while nobody looked? A page for people, Markdown for a review, JSON for programs."""

import os
import sys
from pathlib import Path

from ralph.cli.named_run import read_run
from ralph.cli.table import DIRECTORY, CliCommand, Values
from ralph.errors import UserError
from ralph.run.options import Option


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


COMMAND = CliCommand(
    "report",
    "Say what one run or several did and what needs you, as one HTML page that needs nothing but itself. "
    "On a terminal, without -o, it is written into the run's folder, and its path is printed.",
    report,
    (
        Option(("-o", "--output"), "The file to write; `-`: standard output.", "Options", metavar="FILE"),
        Option(("--open",), "Show it in a browser.", "Options", kind="flag"),
        Option(("--markdown",), "For a pull request or a CI summary.", "Options", kind="flag"),
        Option(("--json",), "For programs: an object a line.", "Options", kind="flag"),
        DIRECTORY,
    ),
    words="[RUN]...",
    examples=("ralph report --open", "ralph report -o night.html", "ralph report --markdown | gh pr comment -F -"),
)
