"""The page of one run. Live updates replace its parts by their id."""

import time

from starlette.responses import HTMLResponse

from ralph.core.events import TodoItem
from ralph.core.text import plural, short
from ralph.history.needs import Action, needs
from ralph.run import control
from ralph.show import report_tables as tables
from ralph.show import staircase
from ralph.show.exam_text import exam_section
from ralph.show.plots import Html, element, joined, prose
from ralph.show.words import command, done_when, duration, moment, money, need_words, nickname, portion, why_ended
from ralph.store.exam_output import load_exam_outputs
from ralph.web.board_page import answer_forms, state_badge
from ralph.web.iteration_pages import chapters, chapters_section, score
from ralph.web.pieces import (
    RELOAD,
    Frame,
    button,
    clock,
    facts_line,
    fingerprint,
    form,
    icon,
    items,
    mark,
    page_title,
    place_words,
    post_button,
    shorten_paths,
    text_area,
)
from ralph.web.watching import RunningCommand, RunSeen, View, limits_of

MAX_FILES = 12
MAX_TODO = 40
NEAR_LIMIT = 0.8  # share of a limit from which a meter warns


def run_page(view: View, frame: Frame) -> HTMLResponse:
    seen, history = view.seen, view.history
    parts = pieces(view, frame)
    goal = element("h1", short(history.goal or seen.present.goal, 600))
    top = element("div.head", goal, _facts(view), parts["now"])
    story = element("div.column", _stream(view), chapters_section(view, parts, frame))
    beside = element("aside.column.beside", parts["score"], parts["todo"], parts["files"])
    main = element(
        "main.one#main",
        RELOAD if frame.may_steer else None,
        top,
        parts["meters"],
        parts["attention"],
        parts["number"],
        parts["proof"],
        parts["exams"],
        element("div.columns", story, beside),
    )
    return frame.page(
        title(seen),
        frame.bar(parts["state"]),
        main,
        parts["steer"],
        live=f"?run={seen.run.id}&has={fingerprint(parts)}",
        at=view.seq,
        class_="run-page",
        has_form=frame.may_steer,
    )


def title(seen: RunSeen) -> str:
    return f"{nickname(seen.run.id)} {seen.present.state} · {short(seen.present.goal, 60)}"


def pieces(view: View, frame: Frame) -> dict[str, Html]:
    """Return the parts of the page that can change, by id."""
    seen = view.seen
    return {
        "title": page_title(title(seen)),
        "state": state_piece(seen),
        "now": _now(seen),
        "attention": _attention(view, frame),
        "number": _number(view),
        "proof": _proof(view),
        "exams": _exams(view, frame),
        "steer": _steer(view, frame),
        "todo": _todo(view),
        "meters": _meters(view),
        "score": score(view),
        "files": _files(view, frame),
        **chapters(view, frame),
    }


def state_piece(seen: RunSeen) -> Html:
    return element("span.crumbs#state", state_badge(seen), element("span.mono.soft", nickname(seen.run.id)))


def _facts(view: View) -> Html:
    history, known = view.history, view.seen.run.facts
    done = done_when(history.claims, len(history.check_names))
    return facts_line(
        place_words(known.workspace),
        " ".join((known.agent, *known.rights)),
        f"branch {known.branch}" if known.branch else "",
        f"done when {done}" if done else "",
    )


def _now(seen: RunSeen) -> Html:
    present = seen.present
    if not seen.run.is_alive:
        return element("p.doing.soft#now", prose(short(why_ended(present) or seen.present.state, 400)))
    if seen.run.state == "asking" or seen.run.state == "paused":
        text = "Waiting for your answer." if seen.run.state == "asking" else "Paused until you resume it."
        return element("p.doing.soft#now", text)
    if present.until:
        return element("p.doing.soft#now", f"Waiting: {short(present.reason, 200)}")
    doing = element("code.cut", shorten_paths(short(present.doing or "thinking", 300), present.workspace))
    since = clock(present.since, seen.now) if present.since else None
    return element("p.doing#now", mark("run"), doing, since)


def _number(view: View) -> Html:
    """Return the staircase of a run that optimises a number, and its attempts."""
    shown = staircase.staircase(view.history)
    if shown is None:
        return element("div#number")
    return element("section#number", element("h2", "The number"), shown, staircase.attempts(view.history, anchor="i"))


def _proof(view: View) -> Html:
    """Return the result of `--prove` or `ralph prove`."""
    shown = tables.proof(view.history)
    if shown is None:
        return element("div#proof")
    return element("section.card#proof", element("h2", "Proof"), shown)


def _exams(view: View, frame: Frame) -> Html:
    """Return the output of the exams, for people who may steer the run."""
    shown = exam_section(load_exam_outputs(view.seen.run.id)) if frame.may_steer else None
    return shown or element("div#exams")


def _meters(view: View) -> Html:
    seen = view.seen
    present, limits = seen.present, limits_of(seen.run)
    made = [meter("Iteration", present.iteration, present.max_iterations)]
    if present.checks:
        tone = "good" if present.checks_passed == present.checks else "bad"
        made.append(meter("Checks", present.checks_passed, present.checks, tone=tone))
    made += [cost_meter(present.cost_usd, limits.max_cost), time_meter(seen, limits.max_time)]
    return element("dl.meters#meters", made)


def cost_meter(cost: float | None, cap: float | None) -> Html:
    text = money(cost) if cost is not None else "–"
    return meter("Cost", cost or 0.0, cap, text=text, cap_text=money(cap or 0).removesuffix(".00"))


def time_meter(seen: RunSeen, cap: float | None) -> Html:
    taken = seen.present.lasted_s
    roughly = duration(round(taken) if taken < 600 else round(taken / 60) * 60)
    text = element("span", roughly, data_since=f"{seen.run.facts.began:.0f}" if seen.run.is_alive else None)
    return meter("Time", taken, cap, text=text, cap_text=duration(cap or 0))


def meter(name: str, now: float, cap: float | None, *, text: object = None, cap_text: str = "", tone: str = "") -> Html:
    """Return a bar with the used share of a limit. The texts replace the plain numbers."""
    used = portion(now, cap or 0.0)
    hot = " hot" if used >= NEAR_LIMIT and not tone else ""
    rects = [element("rect.rail", width="100", height="4"), element("rect.fill", width=f"{100 * used:.1f}", height="4")]
    shape = {"viewBox": "0 0 100 4", "preserveAspectRatio": "none", "aria_hidden": "true"}
    bar = element("svg", rects, class_=f"meter {tone}{hot}", **shape)
    of = element("span.soft", f" of {cap_text or cap}") if cap else None
    return element("div", element("dt", name), element("dd", element("b", text or str(now)), of, bar))


def _attention(view: View, frame: Frame) -> Html:
    """Return what needs a person, with the buttons that help."""
    seen = view.seen
    made: list[object] = [element("div.card.attention", asked) for asked in answer_forms(seen, frame, 5)]
    if seen.run.is_alive:
        present = seen.present
        if until := present.until:
            title_ = element("b", f"Waiting until {moment(until, until - seen.now)}. ")
            made.append(element("p.card.attention.calm", title_, short(present.reason, 400)))
        if present.notes:
            made.append(element("p.soft", f"{plural(present.notes, 'note')} for the next prompt"))
    else:
        made.append(command_result(view.command))
        open_needs = [need for need in needs(view.history) if need.kind != "question" or not frame.may_steer]
        rows = []
        for need in open_needs:
            acts = [_action(action, frame) for action in need.actions]
            text = element("span", prose(need_words(need)))
            rows.append(element("li", text, element("span.acts", acts) if acts else None))
        has_accept = any(action.verb == "accept" for need in open_needs for action in need.actions)
        mergeable = seen.present.mergeable
        buttons = ending_buttons(seen, frame, can_accept=mergeable and not has_accept, can_discard=mergeable)
        if buttons:
            rows.append(element("li", element("span.acts", buttons)))
        if rows:
            heading = element("h2", "What needs you" if open_needs else "What you can do")
            made.append(element("div.card.attention", heading, element("ul", rows)))
    return element("div#attention", made)


def command_result(command: RunningCommand | None) -> Html | None:
    """Return the state of a command that takes long; None if it has succeeded."""
    if command is None or command.result == "":
        return None
    if command.result is None:
        text = f"{command.name} is running: the checks take a while. "
        return element("p.card.attention.calm", text, clock(command.began, time.time()))
    return element("p.card.attention", element("b", f"{command.name} failed: "), prose(command.result))


def ending_buttons(seen: RunSeen, frame: Frame, *, can_accept: bool, can_discard: bool) -> list[Html]:
    """Return buttons to accept, discard or dismiss an ended run."""
    run, made = seen.run.id, []
    if can_accept and frame.may_start:
        made.append(post_button(frame.run(run, "accept"), "Accept", "primary"))
    if can_discard and frame.may_start:
        confirm = post_button(frame.run(run, "discard"), "Throw its work away", "danger")
        made.append(element("details.ask", element("summary.btn", "Discard…"), confirm, id=f"discard-{run}"))
    if seen.present.needs_you and frame.may_steer:
        made.append(post_button(frame.run(run, "dismiss"), "Dismiss"))
    return made


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


_MORE = {
    "until": "Finish when {} pass",
    "more": "{} more iterations",
    "max_cost": "Raise the limit to ${}",
    "max_tokens": "Raise the limit to {} tokens",
    "max_time": "Raise the limit to {}",
}


def _todo(view: View) -> Html:
    todo = view.todo if view.seen.run.is_alive else ()
    if not todo:
        return element("div#todo")
    summary = element(
        "summary",
        element("h2", "Todo"),
        element("span.soft", f"{sum(one.status == 'done' for one in todo)} of {len(todo)}"),
        element("span.soft.cut.if-folded", short(next((one.text for one in todo if one.status == "active"), ""), 80)),
    )
    rows = [_todo_row(one) for one in todo[:MAX_TODO]]
    return element("details.card.todo#todo", summary, items(rows, len(todo) - MAX_TODO), open=True)


def _todo_row(item: TodoItem) -> Html:
    sign = element("span", {"done": "✓", "active": "▸"}.get(item.status, "○"), role="img", aria_label=item.status)
    class_ = item.status if item.status in ("done", "active") else None
    return element("li", sign, element("span", prose(short(item.text, 300))), class_=class_)


def _files(view: View, frame: Frame) -> Html:
    files = view.history.files
    if not files:
        return element("div#files")
    rows = []
    for one in files[:MAX_FILES]:
        path = element("code.cut", short(one.path, 200), title=one.path)
        rows.append(element("li", path, element("span.number", tables.lines_of(one))))
    link = element("a", "Changes", href=frame.run(view.seen.run.id, "diff"), data_key="d")
    tone = "" if view.seen.run.is_alive else ".ended"  # on a phone it is only shown for ended runs
    return element(f"section.card.files{tone}#files", element("h2", link), items(rows, len(files) - MAX_FILES))


def _stream(view: View) -> Html:
    alive = view.seen.run.is_alive
    heading = element("h2.hidden", "Now" if alive else "Last iteration")
    log = element("div#stream", view.stream, role="log", aria_live="off")
    return element("section", heading, log)


def _steer(view: View, frame: Frame) -> Html:
    """Return the controls at the bottom of the screen."""
    seen = view.seen
    if not frame.may_steer or control.why_not_tell(seen.run):
        return element("footer#steer")
    box = text_area("Write to the agent", "tell", required=True, placeholder="Write to the agent…", title="t")
    tell = form(frame.run(seen.run.id, "tell"), box, button("Tell", "primary"), class_="tell")
    return element("footer.steer#steer", tell, element("div.acts", steer_buttons(seen, frame)))


def steer_buttons(seen: RunSeen, frame: Frame) -> list[Html]:
    run = seen.run
    resume = _one_button(frame.run(run.id, "resume"), "go", "Resume", "r")
    if not run.is_alive:
        return [] if control.why_not_resume(run) else [resume]
    is_paused = seen.mail.is_paused or run.state == "paused"
    hold = resume if is_paused else _one_button(frame.run(run.id, "pause"), "pause", "Pause", "p")
    summary = element("summary.btn", icon("stop"), element("span", "Stop"), data_key="s", title="s")
    choices = element(
        "div.choices",
        element("p", "Stop this run?"),
        post_button(frame.run(run.id, "stop"), "After this turn", "primary"),
        post_button(frame.run(run.id, "stop"), "Now, with all its processes", "danger", hidden={"now": "1"}),
    )
    return [hold, element("details.ask#stop", summary, choices)]


def _one_button(action: str, sign: str, label: str, key: str) -> Html:
    return form(action, button(joined(icon(sign), element("span", label)), data_key=key, title=key))
