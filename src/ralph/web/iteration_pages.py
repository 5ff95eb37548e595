"""The iterations of a run: the score, one foldable section each, and the pages for one iteration, its prompt, its log,
a diff and the report. Files are read up to a limit, without following links, and keys are redacted."""

import os
from collections.abc import Mapping, Sequence

from starlette.responses import HTMLResponse

from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import clean, head, plural, short
from ralph.errors import UserError
from ralph.history.evidence import Evidence, Patch, PatchedFile
from ralph.history.feed import entries_of
from ralph.history.run_history import PastIteration, RunHistory
from ralph.show import report_tables as tables
from ralph.show.plots import Html, element, prose
from ralph.show.report import report_body
from ralph.show.words import (
    duration,
    hand_over_words,
    how_it_failed,
    money,
    nickname,
    portion,
    progress_words,
    sentence_case,
)
from ralph.store.folder import read_log
from ralph.store.register import Listed
from ralph.web.pieces import MAX_PIECES, Frame, RecentPieces, button, form, refusal, result_row
from ralph.web.watching import View

MAX_CHAPTERS = 100
MAX_COLUMNS = 60
MAX_ROWS = 30
MAX_FILE_SIZE = 1 << 20  # bytes
FILES = {"prompt": "prompt.md", "log": "stdout.log"}


def score(view: View, frame: Frame) -> Html:
    """Return a table with a column per iteration and a row per check."""
    chapters = view.history.iterations[-MAX_COLUMNS:]
    if not chapters:
        return element("div#score")
    rows = [_score_row("Iteration", [_number(one, view) for one in chapters], is_head=True)]
    names = list(dict.fromkeys([*view.history.check_names, *(check.name for one in chapters for check in one.checks)]))
    for name in names[:MAX_ROWS]:
        cells = [_check_cell(name, one) for one in chapters]
        rows.append(_score_row(element("code", short(name, 60)), cells, title=name))
    if any(one.step for one in chapters):
        rows.append(_score_row("Progress", [_progress_cell(one, view) for one in chapters]))
    if any(one.refused or one.is_accepted for one in chapters):
        rows.append(_score_row("Claims done", [_claim_cell(one) for one in chapters]))
    most = max(one.usage.cost_usd or 0.0 for one in chapters)
    if most:
        rows.append(_score_row("Cost", [_cost_cell(one.usage.cost_usd or 0.0, most) for one in chapters]))
    if any(one.files for one in chapters):
        rows.append(_score_row("Files", [_files_cell(one, view, frame) for one in chapters]))
    caption = element("caption.hidden", "Checks, claims, cost and files of each iteration")
    table = element("table", caption, element("tbody", rows))
    scroll = element("div.scroll", table, tabindex="0", role="region", aria_label="Score of each iteration")
    all_ = len(view.history.iterations)
    note = f"The last {len(chapters)} of {all_} iterations."
    return element("section.card.score#score", scroll, element("p.soft.note", note) if all_ > len(chapters) else None)


def _score_row(name: object, cells: list[Html], is_head: bool = False, title: str = "") -> Html:
    class_ = None if is_head or title else "soft"
    return element("tr", element("th", name, scope="row", title=title or None, class_=class_), cells)


def _sign_cell(sign: str, tone: str, meaning: str) -> Html:
    return element(f"td.{tone}", element("span", sign, role="img", aria_label=meaning), title=meaning)


def _number(chapter: PastIteration, view: View) -> Html:
    is_now = not chapter.is_whole and view.seen.run.is_alive
    link = element("a", str(chapter.number), href=f"#i{chapter.number}")
    return element("th", link, scope="col", class_="current" if is_now else None)


def _check_cell(name: str, chapter: PastIteration) -> Html:
    check = next((one for one in chapter.checks if one.name == name), None)
    if check is None:
        return element("td.none")
    took = duration(check.seconds)
    if check.passed:
        return _sign_cell("✓", "good", f"passed, {took}")
    return _sign_cell("✗", "bad", f"{how_it_failed(check)}, {took}")


def _progress_cell(chapter: PastIteration, view: View) -> Html:
    said = progress_words(chapter, view.history)
    step = chapter.step
    if not said or step is None:
        return element("td")
    sign = "★" if chapter.number == view.history.best else "▲" if step.gain else "–"
    return _sign_cell(sign, "good" if step.gain else "none", said)


def _claim_cell(chapter: PastIteration) -> Html:
    if chapter.refused:
        return _sign_cell("⊘", "refusal", f"refused: {chapter.refused[0].reason}")
    return _sign_cell("✓", "good", "accepted") if chapter.is_accepted else element("td")


def _cost_cell(usd: float, most: float) -> Html:
    if not usd:
        return element("td")
    high = max(20 * portion(usd, most), 1)
    bar = element("rect", x="6", y=f"{22 - high:.1f}", width="12", height=f"{high:.1f}", rx="2")
    drawn = element("svg", element("title", money(usd)), bar, viewBox="0 0 24 22", width="24", height="22", role="img")
    return element("td.cost", drawn)


def _files_cell(chapter: PastIteration, view: View, frame: Frame) -> Html:
    if not chapter.files:
        return element("td")
    where = frame.run(view.seen.run.id, "diff", chapter.number)
    return element("td", element("a", str(len(chapter.files)), href=where, title=tables.sums(chapter.files)))


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
    told = [element("div.you", element("b", "You: "), prose(text)) for text in chapter.told]
    answer = element("p.says", prose(head(chapter.answer, 900, "…"))) if chapter.answer else None
    checks = []
    for check in chapter.checks:
        note = ("" if check.passed else f"{how_it_failed(check)} · ") + duration(check.seconds)
        checks.append(result_row(check.passed, short(check.name, 120), note))
    refused = [element("div.refused", refusal(one.claim, one.reason)) for one in chapter.refused]
    progress = progress_words(chapter, view.history)
    gained = element("p.soft", f"Progress: {progress}") if progress else None
    passed_on = element("p", sentence_case(hand_over_words(chapter.hand_over))) if chapter.hand_over else None
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
    return element("div.inside", told, answer, checks, gained, refused, passed_on, element("div.links", links))


def iteration_page(run: Listed, chapter: PastIteration, frame: Frame) -> HTMLResponse:
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
        element("div.card.particulars", tables.result(chapter), tables.particulars(chapter)),
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
    lines = [element("span", f"{line}\n", class_=tables.LINE_TONES.get(line[:1])) for line in file.lines]
    patch = element("pre.patch", lines, tabindex="0", role="group", aria_label=f"Changes in {file.path}")
    body = patch if lines else element("p.soft", "No line changed.")
    return element("details.card.patched", summary, body, open=True)


def report_page(run: Listed, history: RunHistory, evidence: Mapping[int, Evidence], frame: Frame) -> HTMLResponse:
    """Return the same report as `ralph report` as a page."""
    body = element("main#main", report_body([history], {history.run: evidence}))
    return frame.page(
        f"{nickname(run.id)} report", _bar(run, frame), body, styles=("page.css", "report.css"), class_="report"
    )


def _bar(run: Listed, frame: Frame) -> Html:
    goal = element("span.soft.cut", short(run.facts.goal, 80))
    return frame.bar(element("a.mono", nickname(run.id), href=frame.run(run.id)), goal)
