"""The iterations of a run: the score, one foldable section each, and the pages for one iteration, its prompt, its log,
a diff and the report. Files are read up to a limit, without following links, and keys are redacted."""

import os
from collections.abc import Mapping, Sequence

from starlette.responses import HTMLResponse

from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import clean, plural, short
from ralph.errors import UserError
from ralph.history.evidence import Evidence, Patch, PatchedFile
from ralph.history.feed import entries_of
from ralph.history.run_history import PastIteration, RunHistory
from ralph.show import report_tables as tables
from ralph.show.plots import Html, element
from ralph.show.report import report_body
from ralph.show.words import duration, money, nickname
from ralph.store.folder import read_log
from ralph.store.register import Listed
from ralph.web.pieces import MAX_PIECES, Frame, RecentPieces, button, form
from ralph.web.watching import View

MAX_CHAPTERS = 100
MAX_FILE_SIZE = 1 << 20  # bytes
FILES = {"prompt": "prompt.md", "log": "stdout.log"}


def score(view: View) -> Html:
    table = tables.score(view.history, "i")
    if table is None:
        return element("div#score")
    scroll = element("div.scroll", table, tabindex="0", role="region", aria_label="Score of each iteration")
    number = len(view.history.iterations)
    is_cut = number > tables.MAX_CELLS
    note = element("p.soft.note", f"The last {tables.MAX_CELLS} of {number} iterations.") if is_cut else None
    return element("section.card#score", scroll, note)


def chapters(view: View, frame: Frame) -> dict[str, Html]:
    """Return the finished iterations by id, oldest first. The script puts a new one on top."""
    whole = [one for one in view.history.iterations if one.is_whole]
    return {f"i{one.number}": _chapter(one, view, frame) for one in whole[-MAX_CHAPTERS:]}


def chapters_section(view: View, parts: Mapping[str, Html], frame: Frame) -> Html:
    made = [parts[name] for name in reversed(list(parts)) if name[0] == "i" and name[1:].isdigit()]
    left = sum(one.is_whole for one in view.history.iterations) - len(made)
    more = f"{plural(left, 'earlier iteration')}: see the report"
    report = element("p", element("a", more, href=frame.run(view.seen.run.id, "report"))) if left > 0 else None
    return element("section", element("h2", "Iterations"), element("div#chapters", made), report)


def _chapter(chapter: PastIteration, view: View, frame: Frame) -> Html:
    usage = chapter.usage
    facts = [
        duration(chapter.seconds),
        money(usage.cost_usd) if usage.cost_usd is not None else "",
        plural(chapter.tool_calls, "tool call") if chapter.tool_calls else "",
        f"{plural(len(chapter.files), 'file')} {tables.sums(chapter.files)}" if chapter.files else "",
    ]
    summary = element(
        "summary",
        element("b", f"Iteration {chapter.number}"),
        tables.result(chapter),
        element("span.soft.facts", " · ".join(filter(None, facts))),
    )
    shown = {"id": f"i{chapter.number}", "data_into": "chapters"}
    return element("details.card.chapter", summary, _inside(chapter, view, frame), **shown)


def _inside(chapter: PastIteration, view: View, frame: Frame) -> Html:
    run, number = view.seen.run, chapter.number
    links = [
        element("a", "Details", href=frame.run(run.id, "iterations", number)),
        element("a", "What it changed", href=frame.run(run.id, "diff", number)) if chapter.files else None,
        element("a", "Prompt", href=frame.run(run.id, "iterations", number, "prompt")),
        element("a", "Log", href=frame.run(run.id, "iterations", number, "log")),
    ]
    if frame.may_start and not run.is_alive and chapter.tree:
        text = f"Restore the files as they were after iteration {number}? The current files are saved first."
        rewind = button("Rewind", "danger")
        back = form(frame.run(run.id, "rewind"), element("p", text), rewind, hidden={"to": str(number)})
        links.append(element("details.ask", element("summary", "Rewind to here"), back, id=f"back-{number}"))
    return element("div.inside", tables.particulars(chapter, view.history), element("div.links", links))


def iteration_page(run: Listed, history: RunHistory, chapter: PastIteration, frame: Frame) -> HTMLResponse:
    """Return the page with everything that happened in an iteration."""
    stream = RecentPieces(run.facts.workspace)
    for news in entries_of(run.folder.journal, chapter.number):
        stream.add(news.entry, news.event)
    number = chapter.number
    here = frame.run(run.id, "iterations", number)
    links = element(
        "p.links",
        element("a", "Prompt", href=f"{here}/prompt"),
        element("a", "Log", href=f"{here}/log"),
        element("a", "What it changed", href=frame.run(run.id, "diff", number)),
    )
    note = element("p.soft", "The beginning is not shown: the log has all of it.") if stream.begin else None
    main = element(
        "main.one#main",
        element("h1", f"Iteration {number}"),
        links,
        element("div.card.particulars", tables.result(chapter), tables.particulars(chapter, history)),
        element("h2.hidden", "What happened"),
        note,
        element("div#stream", stream.latest(MAX_PIECES)),
    )
    return frame.page(f"{nickname(run.id)} iteration {number}", _bar(run, frame), main)


def text_page(run: Listed, number: int, what: str, frame: Frame) -> HTMLResponse:
    """Return the prompt or the log of an iteration; only the end if it is long."""
    try:
        log = read_log(run.folder.path, number, FILES[what], MAX_FILE_SIZE, tail=True)
    except OSError:
        raise UserError("this file was not kept, or was removed") from None
    data = log.data if len(log.data) == log.size else log.data.partition(b"\n")[2]  # cut at a line
    text = Redactor(secret_values(os.environ)).text(clean(data.decode("utf-8", "replace")))
    title = f"{what.capitalize()} of iteration {number}"
    cut = f"The last {len(data) >> 10} of {log.size >> 10} KB." if log.size > len(data) else ""
    note = element("p.soft", cut) if cut else None
    whole = element("pre.whole", text, tabindex="0")
    main = element("main.one#main", element("h1", title), note, whole)
    return frame.page(f"{nickname(run.id)} {title}", _bar(run, frame), main)


def diff_page(run: Listed, patch: Patch, frame: Frame) -> HTMLResponse:
    pages = []
    for number in [None, *range(1, patch.last + 1)] if patch.last > 1 else []:
        where = frame.run(run.id, "diff", *([number] if number else []))
        pages.append(
            element("a", str(number or "All"), href=where, aria_current="page" if number == patch.number else None)
        )
    pager = element("nav.pager", pages, aria_label="Iterations") if pages else None
    what = f"Changes of iteration {patch.number}" if patch.number else "Changes"
    totals = [plural(len(patch.files), "file"), " · ", _sums(patch.files)] if patch.files else "No changes."
    cut = element("p.soft", f"Too long to show here: ralph diff {run.id}") if patch.is_cut else None
    files = [_file_diff(one) for one in patch.files]
    top = [element("h1", what), pager, element("p.soft", totals)]
    return frame.page(f"{nickname(run.id)} {what}", _bar(run, frame), element("main.one#main", top, files, cut))


def _sums(files: Sequence[PatchedFile]) -> Html:
    return tables.plus_minus(sum(one.added for one in files), sum(one.deleted for one in files))


def _file_diff(file: PatchedFile) -> Html:
    name = f"{file.was} → {file.path}" if file.was else file.path
    sums = element("span.number", _sums([file])) if file.lines else None
    summary = element("summary", element("code", name), sums)
    body = tables.patch_lines(file) if file.lines else element("p.soft", "No line changed.")
    return element("details.card.patched", summary, body, open=True)


def report_page(run: Listed, history: RunHistory, evidence: Mapping[int, Evidence], frame: Frame) -> HTMLResponse:
    """Return the report of `ralph report` as a page."""
    body = element("main#main", report_body([history], {history.run: evidence}))
    return frame.page(f"{nickname(run.id)} report", _bar(run, frame), body, is_report=True)


def _bar(run: Listed, frame: Frame) -> Html:
    goal = element("span.soft.cut", short(run.facts.goal, 80))
    return frame.bar(element("a.mono", nickname(run.id), href=frame.run(run.id)), goal)
