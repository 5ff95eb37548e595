"""The page of one run, whose parts live updates replace by their id; pages of an iteration, its prompt and log; diffs,
reports. Files are read up to a limit, without following links, and keys are redacted.
"""

import os
import time
from collections.abc import Mapping, Sequence

from starlette.responses import HTMLResponse

from ralph.actions import control
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import clean, plural, short
from ralph.errors import UserError
from ralph.history.evidence import Evidence, Patch, PatchedFile
from ralph.history.feed import entries_of
from ralph.history.run_history import PastIteration, RunHistory
from ralph.show import report_tables as tables
from ralph.show.needs import Action, command, needs
from ralph.show.plots import Html, element, joined, prose
from ralph.show.report import report_body
from ralph.show.words import cost, done_when, duration, money, nickname
from ralph.store.folder import load_exam_outputs, read_log
from ralph.store.register import Listed
from ralph.web.board_page import activity, answer_forms, ending_buttons, state_badge
from ralph.web.pieces import (
    MAX_PIECES,
    Frame,
    RecentPieces,
    button,
    clock,
    facts_line,
    form,
    icon,
    items,
    page_title,
    place_words,
    post_button,
    text_area,
)
from ralph.web.watching import RunningCommand, RunSeen, View, limits_of

MAX_FILES = 12
MAX_TODO = 40
MAX_CHAPTERS = 100
MAX_FILE_SIZE = 1 << 20  # bytes
FILES = {"prompt": "prompt.md", "log": "stdout.log"}
_MORE = {
    "until": "Finish when {} pass",
    "more": "{} more iterations",
    "max_cost": "Raise the limit to ${}",
    "max_tokens": "Raise the limit to {} tokens",
    "max_time": "Raise the limit to {}",
}


def run_page(view: View, frame: Frame) -> HTMLResponse:
    status, history = view.status, view.history
    parts = pieces(view, frame)
    goal = element("h1", short(history.goal or status.present.goal, 600))
    stream = element("div#stream", view.stream, role="log", aria_live="off")
    latest = element("section", element("h2.hidden", "Now" if status.run.is_alive else "Last iteration"), stream)
    main = element(
        "main.one#main",
        element("div.head", goal, _facts(view), parts["now"]),
        [parts[name] for name in ("meters", "attention", "number", "proof", "exams")],
        element(
            "div.columns",
            element("div.column", latest, _chapters(view, parts, frame)),
            element("aside.column.beside", parts["score"], parts["todo"], parts["files"]),
        ),
    )
    return frame.page(
        parts["title"],
        frame.bar(parts["state"]),
        main,
        parts["steer"],
        live=f"?run={status.run.id}",
        at=view.seq,
        class_="run-page",
    )


def title(status: RunSeen) -> str:
    return f"{nickname(status.run.id)} {status.present.state} · {short(status.present.goal, 60)}"


def pieces(view: View, frame: Frame) -> dict[str, Html]:
    """Return the parts of the page that can change, by id: at the end the finished iterations, oldest first. The script
    puts a new one on top.
    """
    status, history = view.status, view.history
    stairs, proof = tables.staircase(history), tables.proof(history)
    exams = load_exam_outputs(status.run.id) if frame.may_steer else ()
    parts = {
        "title": page_title(title(status)),
        "state": state_piece(status),
        "now": element("p.doing#now", activity(status)),
        "attention": _attention(view, frame),
        "number": stairs
        and element("section#number", element("h2", "The number"), stairs, tables.iterations(history, "i")),
        "proof": proof and element("section.card#proof", element("h2", "Proof"), proof),
        "exams": tables.exams(exams),
        "steer": steer(status, frame),
        "todo": _todo(view),
        "meters": _meters(view),
        "score": _score(history),
        "files": _files(view, frame),
    }
    whole = history.whole[-MAX_CHAPTERS:]
    return or_empty(parts) | {f"i{iteration.number}": _chapter(iteration, view, frame) for iteration in whole}


def or_empty(parts: Mapping[str, Html | None]) -> dict[str, Html]:
    """Return the parts with an empty element for each one that has no contents now."""
    return {name: part or element(f"div#{name}") for name, part in parts.items()}


def state_piece(status: RunSeen) -> Html:
    return element("span.crumbs#state", state_badge(status), element("span.mono.soft", nickname(status.run.id)))


def _facts(view: View) -> Html:
    history, facts = view.history, view.status.run.facts
    condition = done_when(history.claims, len(history.check_names))
    return facts_line(
        place_words(facts.workspace),
        " ".join((facts.agent, *facts.rights)),
        f"branch {facts.branch}" if facts.branch else "",
        f"done when {condition}" if condition else "",
    )


def _meters(view: View) -> Html:
    status = view.status
    present, limits = status.present, limits_of(status.run)
    meters = [meter("Iteration", *present.counts)]
    if present.check_counts:
        passed, count = present.check_counts
        meters.append(meter("Checks", passed, count, tone="good" if passed == count else "bad"))
    meters += [cost_meter(present.cost_usd, limits.max_cost), time_meter(status, limits.max_time)]
    return element("dl.meters#meters", meters)


def cost_meter(cost: float | None, cap: float | None) -> Html:
    text = money(cost) if cost is not None else "–"
    return meter("Cost", cost or 0.0, cap, text=text, cap_text=money(cap or 0).removesuffix(".00"))


def time_meter(status: RunSeen, cap: float | None) -> Html:
    seconds = status.present.lasted_s
    roughly = duration(round(seconds) if seconds < 600 else round(seconds / 60) * 60)
    text = element("span", roughly, data_since=f"{status.run.facts.began:.0f}" if status.run.is_alive else None)
    return meter("Time", seconds, cap, text=text, cap_text=duration(cap or 0))


def meter(name: str, now: float, cap: float | None, *, text: object = None, cap_text: str = "", tone: str = "") -> Html:
    """Return a bar with the used share of a limit. The texts replace the plain numbers."""
    used = min(max(now / cap, 0.0), 1.0) if cap else 0.0
    rects = [element("rect.rail", width="100", height="4"), element("rect.fill", width=f"{100 * used:.1f}", height="4")]
    shape = {"viewBox": "0 0 100 4", "preserveAspectRatio": "none", "aria_hidden": "true"}
    bar = element("svg", rects, class_=f"meter {tone}", **shape)
    of = element("span.soft", f" of {cap_text or cap}") if cap else None
    return element("div", element("dt", name), element("dd", element("b", text or str(now)), of, bar))


def _attention(view: View, frame: Frame) -> Html:
    """Return what needs a person, with the buttons that help."""
    status = view.status
    cards: list[object] = [element("div.card.attention", asked) for asked in answer_forms(status, frame, 5)]
    if status.run.is_alive:
        if notes := status.present.notes:
            cards.append(element("p.soft", f"{plural(notes, 'note')} for the next prompt"))
    else:
        cards.append(command_result(view.command))
        open_needs = [need for need in needs(view.history) if need.kind != "question" or not frame.may_steer]
        rows = []
        for need in open_needs:
            acts = [_action(action, frame) for action in need.actions]
            text = element("span", prose(need.text))
            rows.append(element("li", text, element("span.acts", acts) if acts else None))
        has_accept = any(action.verb == "accept" for need in open_needs for action in need.actions)
        mergeable = status.present.mergeable
        buttons = ending_buttons(status, frame, can_accept=mergeable and not has_accept, can_discard=mergeable)
        if buttons:
            rows.append(element("li", element("span.acts", buttons)))
        if rows:
            heading = element("h2", "What needs you" if open_needs else "What you can do")
            cards.append(element("div.card.attention", heading, element("ul", rows)))
    return element("div#attention", cards)


def command_result(command: RunningCommand | None) -> Html | None:
    """Return the state of a command that takes long; None if it has succeeded."""
    if command is None or command.result == "":
        return None
    if command.result is None:
        text = f"{command.name} is running: the checks take a while. "
        return element("p.card.attention.calm", text, clock(command.began, time.time()))
    return element("p.card.attention", element("b", f"{command.name} failed: "), prose(command.result))


def _action(action: Action, frame: Frame) -> Html:
    """Return the button of an action, or its command if this reader has no button for it."""
    if action.verb == "diff":
        return element("a.btn", "What it changed", href=frame.run(action.run, "diff"))
    if action.verb == "resume" and frame.may_steer:
        label = _MORE[action.options[0][0]].format(action.options[0][1]) if action.options else "Resume"
        return post_button(frame.run(action.run, "resume"), label, "primary", hidden=dict(action.options))
    if action.verb == "tell" and frame.may_steer:
        return element("a.btn", "Write to the agent", href="#tell")
    if action.verb == "accept" and frame.may_start:
        return post_button(frame.run(action.run, "accept"), "Accept", "primary")
    if action.verb == "retry" and frame.may_start:
        return post_button(frame.run(action.run, "retry"), "Retry", "primary", hidden={"task": action.task})
    if action.verb == "allow" and frame.may_start:
        sandboxed = button("Resume in a sandbox", "primary", name="sandbox", value="1")
        return form(frame.run(action.run, "allow"), sandboxed, " ", button("Resume with --yolo"))
    return element("code", command(action))


def _todo(view: View) -> Html | None:
    todo = view.todo if view.status.run.is_alive else ()
    if not todo:
        return None
    rows = []
    for item in todo[:MAX_TODO]:
        sign = element("span", {"done": "✓", "active": "▸"}.get(item.status, "○"), role="img", aria_label=item.status)
        class_ = item.status if item.status in ("done", "active") else None
        rows.append(element("li", sign, element("span", prose(short(item.text, 300))), class_=class_))
    progress = element("span.soft", f"{sum(item.status == 'done' for item in todo)} of {len(todo)}")
    summary = element("summary", element("h2", "Todo"), progress)
    return element("details.card.todo#todo", summary, items(rows, len(todo) - MAX_TODO), open=True)


def _files(view: View, frame: Frame) -> Html | None:
    files = view.history.files
    if not files:
        return None
    rows = []
    for file in files[:MAX_FILES]:
        path = element("code.cut", short(file.path, 200), title=file.path)
        rows.append(element("li", path, element("span.number", tables.plus_minus(file.added, file.deleted))))
    link = element("a", "Changes", href=frame.run(view.status.run.id, "diff"), data_key="d")
    tone = "" if view.status.run.is_alive else ".ended"  # on a phone it is only shown for ended runs
    return element(f"section.card.files{tone}#files", element("h2", link), items(rows, len(files) - MAX_FILES))


def steer(status: RunSeen, frame: Frame) -> Html:
    """Return the controls at the bottom of the screen."""
    tell, buttons = None, _steer_buttons(status, frame)
    if not frame.may_steer or not buttons:
        return element("footer#steer")
    if not control.why_not_tell(status.run):
        box = text_area("Write to the agent", "tell", required=True, placeholder="Write to the agent…", title="t")
        tell = form(frame.run(status.run.id, "tell"), box, button("Tell", "primary"), class_="tell")
    return element("footer.steer#steer", tell, element("div.acts", buttons))


def _steer_buttons(status: RunSeen, frame: Frame) -> list[Html]:
    run = status.run
    if not run.is_alive and control.why_not_resume(run):
        return []
    is_held = not run.is_alive or status.mail.is_paused or run.state == "paused"
    sign, label = ("go", "Resume") if is_held else ("pause", "Pause")
    content = joined(icon(sign), element("span", label))
    hold = form(frame.run(run.id, label.lower()), button(content, data_key=label[0].lower(), title=label[0].lower()))
    if not run.is_alive:
        return [hold]
    summary = element("summary.btn", icon("stop"), element("span", "Stop"), data_key="s", title="s")
    choices = element(
        "div.choices",
        element("p", "Stop this run?"),
        post_button(frame.run(run.id, "stop"), "After this turn", "primary"),
        post_button(frame.run(run.id, "stop"), "Now, with all its processes", "danger", hidden={"now": "1"}),
    )
    return [hold, element("details.ask#stop", summary, choices)]


def _score(history: RunHistory) -> Html | None:
    table, number = tables.score(history, "i"), len(history.iterations)
    if table is None:
        return None
    scroll = element("div.scroll", table, tabindex="0", role="region", aria_label="Score of each iteration")
    is_cut = number > tables.MAX_CELLS
    note = element("p.soft.note", f"The last {tables.MAX_CELLS} of {number} iterations.") if is_cut else None
    return element("section.card#score", scroll, note)


def _chapters(view: View, parts: Mapping[str, Html], frame: Frame) -> Html:
    whole = view.history.whole
    chapters = [parts[f"i{iteration.number}"] for iteration in reversed(whole[-MAX_CHAPTERS:])]
    more = f"{plural(len(whole) - len(chapters), 'earlier iteration')}: see the report"
    report = element("p", element("a", more, href=frame.run(view.status.run.id, "report")))
    is_cut = len(whole) > len(chapters)
    return element(
        "section", element("h2", "Iterations"), element("div#chapters", chapters), report if is_cut else None
    )


def _chapter(chapter: PastIteration, view: View, frame: Frame) -> Html:
    run, number = view.status.run, chapter.number
    facts = [
        duration(chapter.seconds),
        cost(chapter.usage.cost_usd),
        plural(chapter.tool_calls, "tool call") if chapter.tool_calls else "",
        f"{plural(len(chapter.files), 'file')} {tables.sums(chapter.files)}" if chapter.files else "",
    ]
    used = element("span.soft.facts", " · ".join(filter(None, facts)))
    summary = element("summary", element("b", f"Iteration {number}"), tables.result(chapter), used)
    links = [element("a", "Details", href=frame.run(run.id, "iterations", number)), *_links(run.id, chapter, frame)]
    if frame.may_start and not run.is_alive and chapter.tree:
        text = f"Restore the files as they were after iteration {number}? The current files are saved first."
        rewind = button("Rewind", "danger")
        back = form(frame.run(run.id, "rewind"), element("p", text), rewind, hidden={"to": str(number)})
        links.append(element("details.ask", element("summary", "Rewind to here"), back, id=f"back-{number}"))
    inside = element("div.inside", tables.particulars(chapter, view.history), element("div.links", links))
    return element("details.card.chapter", summary, inside, id=f"i{number}", data_into="chapters")


def _links(run: str, chapter: PastIteration, frame: Frame) -> list[Html]:
    """Return links to the prompt and the log of an iteration, and to what it changed."""
    here = frame.run(run, "iterations", chapter.number)
    links = [element("a", "Prompt", href=f"{here}/prompt"), element("a", "Log", href=f"{here}/log")]
    if chapter.files:
        links.append(element("a", "What it changed", href=frame.run(run, "diff", chapter.number)))
    return links


def iteration_page(run: Listed, history: RunHistory, chapter: PastIteration, frame: Frame) -> HTMLResponse:
    """Return the page with everything that happened in an iteration."""
    stream = RecentPieces(run.facts.workspace)
    for news in entries_of(run.folder.journal, chapter.number):
        stream.add(news.entry, news.event)
    number = chapter.number
    note = element("p.soft", "The beginning is not shown: the log has all of it.") if stream.begin else None
    main = element(
        "main.one#main",
        element("h1", f"Iteration {number}"),
        element("p.links", _links(run.id, chapter, frame)),
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
        current = "page" if number == patch.number else None
        pages.append(element("a", str(number or "All"), href=where, aria_current=current))
    pager = element("nav.pager", pages, aria_label="Iterations") if pages else None
    what = f"Changes of iteration {patch.number}" if patch.number else "Changes"
    totals = [plural(len(patch.files), "file"), " · ", _sums(patch.files)] if patch.files else "No changes."
    cut = element("p.soft", f"Too long to show here: ralph diff {run.id}") if patch.is_cut else None
    files = []
    for file in patch.files:
        name = f"{file.was} → {file.path}" if file.was else file.path
        sums = element("span.number", _sums([file])) if file.lines else None
        body = tables.patch_lines(file) if file.lines else element("p.soft", "No line changed.")
        summary = element("summary", element("code", name), sums)
        files.append(element("details.card.patched", summary, body, open=True))
    top = [element("h1", what), pager, element("p.soft", totals)]
    return frame.page(f"{nickname(run.id)} {what}", _bar(run, frame), element("main.one#main", top, files, cut))


def _sums(files: Sequence[PatchedFile]) -> Html | str:
    return tables.plus_minus(sum(file.added for file in files), sum(file.deleted for file in files))


def report_page(run: Listed, history: RunHistory, evidence: Mapping[int, Evidence], frame: Frame) -> HTMLResponse:
    """Return the report of `ralph report` as a page."""
    body = element("main#main", report_body(history, evidence))
    return frame.page(f"{nickname(run.id)} report", _bar(run, frame), body, is_report=True)


def _bar(run: Listed, frame: Frame) -> Html:
    goal = element("span.soft.cut", short(run.facts.goal, 80))
    return frame.bar(element("a.mono", nickname(run.id), href=frame.run(run.id)), goal)
