"""How does one run stand, what does it do now, what can a person do about it? The stream replaces parts by their id."""

from ralph.core.text import plural, short
from ralph.history.needs import Action, needs
from ralph.show import report_tables as tables
from ralph.show.plots import Html, element, joined
from ralph.show.words import command, duration, moment, money, need_words, nickname, portion, why_ended
from ralph.steering import control
from ralph.web.board_page import answer_form, state_badge
from ralph.web.iteration_pages import chapters, chapters_section, score
from ralph.web.pieces import (
    RELOAD,
    Frame,
    button,
    clock,
    fingerprint,
    form,
    icon,
    inside,
    mark,
    page_title,
    place_words,
    prose,
    text_area,
)
from ralph.web.server import WebAnswer
from ralph.web.watching import RunSeen, View

MOST_FILES = 12
MOST_TODO = 40
HOT = 0.8  # of a limit


def run_page(view: View, frame: Frame) -> WebAnswer:
    seen, history = view.seen, view.history
    heavy = heavy_pieces(view, frame)
    parts = heavy | light_pieces(view, frame)
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
        parts["reading"],
        element("div.columns", story, beside),
    )
    return frame.page(
        title(seen),
        frame.bar(parts["state"]),
        main,
        parts["steer"],
        live=f"?run={seen.run.id}&has={fingerprint(heavy)}",
        at=view.seq,
        class_="run-page",
        has_form=frame.may_steer,
    )


def title(seen: RunSeen) -> str:
    return f"{nickname(seen.run.id)} {seen.state} · {short(seen.present.goal, 60)}"


def light_pieces(view: View, frame: Frame) -> dict[str, Html]:
    """Those that may change though the journal does not grow."""
    seen = view.seen
    return {
        "title": page_title(title(seen)),
        "state": state_piece(seen),
        "now": _now(view.seen),
        "attention": _attention(view, frame),
        "steer": _steer(view, frame),
        "reading": _reading(view),
        "todo": _todo(view),
    }


def heavy_pieces(view: View, frame: Frame) -> dict[str, Html]:
    return {"meters": _meters(view), "score": score(view, frame), "files": _files(view, frame)} | chapters(view, frame)


def state_piece(seen: RunSeen) -> Html:
    return element("span.crumbs#state", state_badge(seen), element("span.mono.soft", nickname(seen.run.id)))


def _facts(view: View) -> Html:
    history = view.history
    said = " or ".join(claim.partition(":")[2] or claim for claim in history.claims)
    checks = f" and {plural(len(history.checks), 'check')} pass" if history.checks else ""
    known = view.seen.run.facts
    facts = [
        place_words(known.workspace),
        known.agent,
        f"branch {known.branch}" if known.branch else "",
        f"done when it says {said}{checks}" if said else "",
    ]
    return element("p.facts.soft", [element("span", short(fact, 200)) for fact in facts if fact])


def _now(seen: RunSeen) -> Html:
    present = seen.present
    if not seen.run.is_alive:
        said = why_ended(present) or f"It was {seen.state}."
        return element("p.doing.soft#now", prose(short(said, 400)))
    if seen.can_skip or seen.run.state == "paused":
        said = "It stands still until you answer." if seen.can_skip else "It stands still until you let it go on."
        return element("p.doing.soft#now", said)
    if present.waiting_until:
        return element("p.doing.soft#now", f"It waits: {short(present.reason, 200)}")
    doing = element("code.cut", inside(short(present.doing or "thinking", 300), present.workspace))
    since = clock(present.since, seen.now) if present.since else None
    return element("p.doing#now", mark("run"), doing, since)


def _reading(view: View) -> Html:
    """While the beginning of a long journal is still being read."""
    if view.progress >= 1:
        return element("div#reading")
    said = f"Reading the journal: {view.progress:.0%}. Earlier iterations come as soon as they are read."
    return element("p.soft#reading", said)


def _meters(view: View) -> Html:
    seen = view.seen
    present, limits = seen.present, seen.limits
    made = [meter("Iteration", present.iteration, present.max_iterations)]
    if present.checks:
        tone = "good" if present.checks_passed == present.checks else "bad"
        made.append(meter("Checks", present.checks_passed, present.checks, tone=tone))
    made += [cost_meter(present.cost_usd, limits.max_cost), time_meter(seen, limits.max_time)]
    return element("dl.meters#meters", made)


def cost_meter(cost: float | None, cap: float | None) -> Html:
    said = money(cost) if cost is not None else "–"
    return meter("Cost", cost or 0.0, cap, said=said, most=money(cap or 0).removesuffix(".00"))


def time_meter(seen: RunSeen, most: float | None) -> Html:
    taken = seen.present.lasted_s
    roughly = duration(round(taken) if taken < 600 else round(taken / 60) * 60)
    said = element("span", roughly, data_since=f"{seen.run.facts.began:.0f}" if seen.run.is_alive else None)
    return meter("Time", taken, most, said=said, most=duration(most or 0))


def meter(name: str, now: float, cap: float | None, *, said: object = None, most: str = "", tone: str = "") -> Html:
    """How much there is of how much there may be; `said` and `most` where that is not a plain number."""
    used = portion(now, cap or 0.0)
    hot = " hot" if used >= HOT and not tone else ""
    rail = element("rect.rail", width="100", height="4")
    fill = element("rect.fill", width=f"{100 * used:.1f}", height="4")
    bar = element(
        "svg",
        rail,
        fill,
        class_=f"meter {tone}{hot}",
        viewBox="0 0 100 4",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
    of = element("span.soft", f" of {most or cap}") if cap else None
    return element("div", element("dt", name), element("dd", element("b", said or str(now)), of, bar))


def _attention(view: View, frame: Frame) -> Html:
    """What needs the person, with what can be done about it."""
    seen = view.seen
    made: list[object] = [element("div.card.attention", asked) for asked in answer_form(seen, frame, 5)]
    if seen.run.is_alive:
        present = seen.present
        if until := present.waiting_until:
            said = element("b", f"Waits until {moment(until, until - seen.now)}. ")
            made.append(element("p.card.attention.calm", said, short(present.reason, 400)))
        if present.notes:
            made.append(element("p.soft", f"{plural(present.notes, 'note')} of yours for the next prompt"))
    else:
        wanted = [need for need in needs(view.history) if need.kind != "question" or not frame.may_steer]
        items = []
        for need in wanted:
            acts = [_action(action, frame) for action in need.actions]
            said = element("span", prose(need_words(need)))
            items.append(element("li", said, element("span.acts", acts) if acts else None))
        if items:
            made.append(element("div.card.attention", element("h2", "What needs you"), element("ul", items)))
    return element("div#attention", made)


def _action(action: Action, frame: Frame) -> Html:
    """A button for what the page can do, the command for what it cannot."""
    if action.verb == "diff":
        return element("a.btn", "What it changed", href=frame.run(action.run, "diff"))
    if action.verb == "resume" and frame.may_steer:
        label = _MORE[action.options[0][0]].format(action.options[0][1]) if action.options else "Go on"
        return form(frame.run(action.run, "resume"), button(label, "primary"), hidden=dict(action.options))
    if action.verb == "tell" and frame.may_steer:
        return element("a.btn", "Say a word to it", href="#tell")
    return element("code", command(action))


_MORE = {
    "until": "Let green {} suffice",
    "more": "{} more iterations",
    "max_cost": "Up to ${} in all",
    "max_tokens": "Up to {} tokens in all",
    "max_time": "Up to {} in all",
}


def _todo(view: View) -> Html:
    items = view.todo if view.seen.run.is_alive else ()
    if not items:
        return element("div#todo")
    signs = {"done": "✓", "active": "▸"}
    rows = [
        element(
            "li",
            element("span", signs.get(one.status, "○"), role="img", aria_label=one.status),
            element("span", prose(short(one.text, 300))),
            class_=one.status if one.status in ("done", "active") else None,
        )
        for one in items[:MOST_TODO]
    ]
    active = next((one.text for one in items if one.status == "active"), "")
    summary = element(
        "summary",
        element("h2", "Todo"),
        element("span.soft", f"{sum(one.status == 'done' for one in items)} of {len(items)}"),
        element("span.soft.cut.if-folded", short(active, 80)),
    )
    more = element("li.soft", f"and {len(items) - MOST_TODO} more") if len(items) > MOST_TODO else None
    return element("details.card.todo#todo", summary, element("ul", rows, more, role="list"), open=True)


def _files(view: View, frame: Frame) -> Html:
    files = view.history.files
    if not files:
        return element("div#files")
    rows = [
        element(
            "li",
            element("code.cut", short(one.path, 200), title=one.path),
            element("span.number", tables.lines_of(one)),
        )
        for one in files[:MOST_FILES]
    ]
    if len(files) > MOST_FILES:
        rows.append(element("li.soft", f"and {len(files) - MOST_FILES} more"))
    link = element("a", "Changes", href=frame.run(view.seen.run.id, "diff"), data_key="d")
    tone = "" if view.seen.run.is_alive else " ended"  # a phone shows it then: nothing else is going on
    return element("section#files", element("h2", link), element("ul", rows, role="list"), class_=f"card files{tone}")


def _stream(view: View) -> Html:
    alive = view.seen.run.is_alive
    heading = element("h2.hidden", "Now" if alive else "The last iteration")
    log = element("div#stream", view.stream, role="log", aria_live="off")
    return element("section", heading, log)


def _steer(view: View, frame: Frame) -> Html:
    """What can be done at any time, at the bottom of the screen."""
    seen = view.seen
    if not frame.may_steer or control.cannot_be_told(seen.run):
        return element("footer#steer")
    box = text_area("Say a word to it", "tell", required=True, placeholder="Say a word…", title="t")
    tell = form(frame.run(seen.run.id, "tell"), box, button("Tell", "primary"), class_="tell")
    return element("footer.steer#steer", tell, element("div.acts", steer_buttons(seen, frame)))


def steer_buttons(seen: RunSeen, frame: Frame) -> list[Html]:
    run = seen.run
    go_on = _one_button(frame.run(run.id, "resume"), "go", "Go on", "r")
    if not run.is_alive:
        return [] if control.cannot_go_on(run) else [go_on]
    is_held = seen.mail.is_paused or run.state == "paused"
    hold = go_on if is_held else _one_button(frame.run(run.id, "pause"), "pause", "Pause", "p")
    summary = element("summary.btn", icon("stop"), element("span", "Stop"), data_key="s", title="s")
    choices = element(
        "div.choices",
        element("p", "End this run?"),
        form(frame.run(run.id, "stop"), button("After this turn", "primary")),
        form(frame.run(run.id, "stop"), button("Now, with all it started", "danger"), hidden={"now": "1"}),
    )
    return [hold, element("details.ask#stop", summary, choices)]


def _one_button(action: str, sign: str, label: str, key: str) -> Html:
    return form(action, button(joined(icon(sign), element("span", label)), data_key=key, title=key))
