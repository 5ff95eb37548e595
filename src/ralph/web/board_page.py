"""The board with one card per run, the page that a link opens, and the form for a new run."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct
from starlette.responses import HTMLResponse

from ralph.core.backlog import Job
from ralph.core.text import one_line, plural, short
from ralph.history.states import state_of
from ralph.settings.detect_checks import detect_checks
from ralph.show.plots import Html, element, joined, prose
from ralph.show.words import duration, moment, money, nickname, portion, why_ended
from ralph.web.access import Level
from ralph.web.pieces import (
    Frame,
    badge,
    button,
    clock,
    facts_line,
    fingerprint,
    form,
    page_title,
    place_name,
    place_words,
    post_button,
    shorten_paths,
    task_badge,
    text_area,
)
from ralph.web.watching import RunSeen, Survey, limits_of

CARDS_SHOWN, NEEDS_SHOWN = 24, 8  # per column; the rest is collapsed
NOTHING_RUNNING, NO_RUNS = "No run is running.", "No runs yet: start one with `ralph loop` in a terminal."
MAX_SEARCHED = 20  # workspaces whose checks the form for a new run offers
QUEUED = ("queued", "waiting", "blocked", "held")
_MAX_BARS = 24
CHECKS_HINT = "The run is done when the agent says so and all checks pass."
_LEVEL_TEXTS = {
    Level.LOOK: "This browser will see all runs on this machine.",
    Level.STEER: "This browser will see all runs on this machine, and can answer, tell, pause, resume and stop them.",
    Level.START: "This browser will see and steer all runs on this machine, and can start new ones.",
}


class TaskCard(Struct, frozen=True):
    """A card for a backlog task without a running run."""

    work: str
    job: Job
    state: str


class BoardColumn(Struct, frozen=True):
    """One column of the board. `empty` is its text if it has no cards; without a text an empty column is hidden."""

    id: str
    title: str
    empty: str
    runs: Sequence[RunSeen] = ()
    tasks: Sequence[TaskCard] = ()

    @property
    def visible_cards(self) -> int:
        return NEEDS_SHOWN if self.id == "needs" else CARDS_SHOWN


def columns(survey: Survey) -> list[BoardColumn]:
    """Sort the runs into columns. In "Needs you", questions come first, then paused runs, then failed ones."""
    seen = survey.runs
    needing = [one for one in seen if one.present.needs_you]
    needing.sort(key=lambda one: (not one.mail.questions, not one.run.is_alive, -one.run.facts.changed))
    running = [one for one in seen if one.run.is_alive and not one.present.needs_you]
    ended = [one for one in seen if not one.run.is_alive and not one.present.needs_you]
    parked = [one for one in _tasks(survey) if one.state == "parked"]
    queued = [one for one in _tasks(survey) if one.state in QUEUED]
    return [
        BoardColumn("needs", "Needs you", "Nothing needs you.", needing, parked),
        BoardColumn("running", "Running", NOTHING_RUNNING if seen else NO_RUNS, running),
        BoardColumn("queued", "Queued", "", (), queued),
        BoardColumn("done", "Done", "No run has finished yet.", ended),
    ]


def _tasks(survey: Survey) -> Iterator[TaskCard]:
    for work in survey.works:
        states = work.history.states
        for key, job in work.history.board.jobs.items():
            yield TaskCard(work.seen.run.id, job, states[key])


def board(survey: Survey, frame: Frame) -> HTMLResponse:
    has_form = frame.may_steer and any(one.mail.questions for one in survey.runs)
    parts = pieces(survey, frame)
    made = columns(survey)
    shown = [parts[column.id] for column in made]
    body = element("main.board#main", element("h1.hidden", "Runs"), shown)
    return frame.page(title(made), frame.bar(), body, live=f"?has={fingerprint(parts)}", has_form=has_form)


def pieces(survey: Survey, frame: Frame) -> dict[str, Html]:
    """Return the parts of the board that can change, by id."""
    made = columns(survey)
    return {column.id: section(column, frame) for column in made} | {"title": page_title(title(made))}


def title(shown: Sequence[BoardColumn]) -> str:
    needing = len(shown[0].runs) + len(shown[0].tasks)
    return f"({needing}) ralph" if needing else "ralph"


def section(column: BoardColumn, frame: Frame) -> Html:
    cards = [*(card(one, frame) for one in column.runs), *(task_card(one, frame) for one in column.tasks)]
    if not cards and not column.empty:
        return element("section", id=column.id, hidden=True)
    inner, older = element("ul.cards", cards[: column.visible_cards], role="list"), cards[column.visible_cards :]
    summary = element("summary.btn", f"{len(older)} more")
    collapsed = element("details", summary, element("ul.cards", older, role="list"), id=f"more-{column.id}")
    heading = element("h2", column.title, element("span.count", str(len(cards))), id=f"{column.id}-title")
    return element(
        "section",
        element("div.heading", heading, _dismiss_all(column, frame)),
        joined(inner, collapsed if older else None) if cards else element("p.soft", prose(column.empty)),
        id=column.id,
        aria_labelledby=f"{column.id}-title",
    )


def _dismiss_all(column: BoardColumn, frame: Frame) -> Html | None:
    ended = [one for one in column.runs if not one.run.is_alive]
    if column.id != "needs" or len(ended) < 2 or not frame.may_steer:
        return None
    return post_button(f"{frame.base}dismissall", "Dismiss all")


def waiting_reason(job: Job, state: str) -> str:
    """Return why a task is not running; "" if its state says it all."""
    return job.reason or (f"after {', '.join(job.task.after)}" if state in ("waiting", "blocked") else "")


def task_card(one: TaskCard, frame: Frame) -> Html:
    task = one.job.task
    why = waiting_reason(one.job, one.state)
    first = element(
        "p.first",
        task_badge(one.state),
        element("b.mono", short(task.key, 40)),
        element("span.mono.soft.nick", nickname(one.work)),
    )
    where = f"{frame.run(one.work)}#task-{quote(task.key)}"
    link = element("h3", element("a.cover", short(task.about, 220), href=where))
    said = element("p.now", element("span.two-lines", prose(short(why, 200)))) if why else None
    return element("li", first, link, said, class_="card one-run bad" if one.state == "parked" else "card one-run")


def card(seen: RunSeen, frame: Frame) -> Html:
    run, present = seen.run, seen.present
    place = element("b", run.facts.backlog_task or place_name(present.workspace), title=place_words(present.workspace))
    first = element(
        "p.first", state_badge(seen), None if run.is_copy else place, element("span.mono.soft.nick", nickname(run.id))
    )
    said = f"iteration {present.iteration}" + (f" of {present.max_iterations}" if present.max_iterations else "")
    if run.facts.kind == "work":
        said = f"{present.checks_passed} of {plural(present.checks, 'task')} merged"
    way = element("p.way", bars(seen), element("span.soft", said))
    goal = element("h3", element("a.cover", short(present.goal, 220) or run.id, href=frame.run(run.id)))
    asked = answer_forms(seen, frame, 1)
    acts = _card_buttons(seen, frame) if not run.is_alive and seen.present.needs_you else []
    is_good = state_of(seen.present.state).tone == "good"
    tone = "" if not seen.present.needs_you else "warn" if run.is_alive or is_good else "bad"
    shown = [first, goal, way, _facts(seen), _now(seen), asked, element("div.acts", acts) if acts else None]
    return element("li", *shown, class_=f"card one-run {tone}".strip())


def _card_buttons(seen: RunSeen, frame: Frame) -> list[Html]:
    run, made = seen.run.id, []
    if seen.present.mergeable and seen.present.state == "done" and frame.may_start:
        made.append(post_button(frame.run(run, "accept"), "Accept", "primary"))
    if frame.may_steer:
        made.append(post_button(frame.run(run, "dismiss"), "Dismiss"))
    return made


def state_badge(seen: RunSeen) -> Html:
    present = seen.present
    text = present.state if present.verified else "done (unverified)"
    if present.pausing and present.state == "running":
        text = "running, pausing"
    return badge(state_of(present.label).tone, text)


def bars(seen: RunSeen) -> Html | None:
    """Draw a bar per iteration, as high as the share of its checks that passed."""
    shares = seen.run.facts.shares[-_MAX_BARS:]
    if not shares:
        return None
    rects = []
    for at, passed in enumerate(shares):
        high = max(20 * portion(passed, 100), 2.5)
        column = {"x": str(at * 7), "width": "5", "rx": "1.5"}
        back, front = "good-bg" if passed == 100 else "bad-bg", "good" if passed else "bad"
        rects.append(element(f"rect.f-{back}", y="0", height="20", **column))
        rects.append(element(f"rect.f-{front}", y=f"{20 - high:.1f}", height=f"{high:.1f}", **column))
    wide = str(7 * len(shares))
    return element("svg.bars", rects, viewBox=f"0 0 {wide} 20", width=wide, height="20", aria_hidden="true")


def _facts(seen: RunSeen) -> Html:
    run, present = seen.run, seen.present
    checks, cost = None, ""
    if present.checks and run.facts.kind != "work":
        tone = "good" if present.checks_passed == present.checks else "bad"
        checks = element(f"span.{tone}-text", f"{present.checks_passed}/{present.checks} checks")
    if present.cost_usd is not None:
        cap = limits_of(run).max_cost if run.is_alive else None
        cost = money(present.cost_usd) + (f" of {money(cap)}" if cap else "")
    if run.is_alive:
        return facts_line(checks, cost, clock(run.facts.began, seen.now, ""))
    changed = run.facts.changed
    return facts_line(checks, cost, duration(run.facts.seconds), moment(changed, seen.now - changed) if changed else "")


def _now(seen: RunSeen) -> Html | None:
    """Return what the run is doing or waiting for, or how it ended."""
    present = seen.present
    if not seen.run.is_alive:
        said = short(why_ended(present) or present.doing, 200)
        return element("p.now", element("span.two-lines", said)) if said else None
    if present.until:
        until = moment(present.until, present.until - seen.now)
        return element("p.now", f"{short(present.reason, 120)}, until {until}")
    if seen.present.state == "paused":
        return element("p.now", "Paused until you resume it.")
    if present.doing and seen.present.state == "running":
        doing = element("code.cut", shorten_paths(short(present.doing, 200), present.workspace))
        return element("p.now", doing, clock(present.since, seen.now))
    return None


def answer_forms(seen: RunSeen, frame: Frame, limit: int) -> list[Html]:
    """Return a form for each open question. A reader who may not steer sees only the question."""
    made, name = [], nickname(seen.run.id)
    for question in seen.mail.questions[:limit]:
        text = (element("b", "Question: "), prose(one_line(question.text, 2000)))
        if not frame.may_steer:
            made.append(element("p", text))
            continue
        skip = button("Continue without an answer", name="skip", value="1", formnovalidate=True)
        box = text_area(f"Answer {name}", f"answer-{question.id}", 2, required=True, placeholder=f"Answer {name}…")
        made.append(
            form(
                frame.run(seen.run.id, "answer"),
                element("p.question", text),
                box,
                element("p.acts", button("Answer", "primary"), skip if seen.run.state == "asking" else None),
                class_="answer",
                hidden={"question": question.id},
            )
        )
    return made


def enter_page(frame: Frame, key: str, level: Level) -> HTMLResponse:
    """Show what a link allows. Opening it does not use it up, because chat programs preview links."""
    inside = button("Open", "primary big")
    entry = form(f"{frame.base}enter", inside, is_quick=False, hidden={"key": key})
    body = element("main.enter#main", element("h1", "ralph"), element("p", _LEVEL_TEXTS[level]), entry)
    return frame.page("ralph", body)


def new_page(
    places: Sequence[str], agents: Sequence[str], frame: Frame, values: Mapping[str, str], error: str = ""
) -> HTMLResponse:
    """Return the form for a new run, with the values and the error of a failed attempt."""
    found = {one: _checks_found(one) for one in places[:MAX_SEARCHED]}
    options = [
        element(
            "option", place_words(one), value=one, selected=values.get("workspace") == one, data_checks=found.get(one)
        )
        for one in places
    ]
    known_checks = values.get("checks", found.get(places[0], "") if places else "")
    default = element("option", "from settings", value="")
    known = [element("option", one, value=one, selected=values.get("agent") == one) for one in agents]
    small = element(
        "div.grid",
        element("label", "Agent", element("select", default, known, name="agent")),
        _field("Max iterations", "iterations", values, inputmode="numeric", placeholder="from settings"),
        _field("Max cost ($)", "cost", values, inputmode="decimal", placeholder="no limit"),
        _field("Max time", "time", values, placeholder="no limit, or 2h"),
    )
    goal = element(
        "textarea",
        values.get("goal", ""),
        name="goal",
        rows="4",
        required=True,
        maxlength="20000",
        placeholder="What should be true when it is done?",
    )
    checks = element(
        "textarea.mono", known_checks, name="checks", rows="3", maxlength="20000", placeholder="from settings"
    )
    entry = form(
        f"{frame.base}start",
        element("p.bad-text", error, role="alert") if error else None,
        element("label", "Goal", goal),
        element("label", "Where", element("select", options, name="workspace", required=True)),
        element("label", "Checks, one per line", checks, element("span.soft", CHECKS_HINT)),
        small,
        _choice("worktree", "In its own worktree and branch: your files are not changed", values, is_default=True),
        _choice("sandbox", "In a sandbox (Linux): the agent may do everything, but only there", values),
        _choice("yolo", "Allow the agent everything (--yolo)", values),
        element("p.acts", button("Start", "primary big")),
        class_="card new",
        is_quick=False,
    )
    none = element("p", "No workspace is known yet: name one with ralph serve DIR, or start a run in it first.")
    main = element("main.one.narrow#main", element("h1", "New run"), entry if places else none)
    return frame.page("New run", frame.bar(), main, status=409 if error else 200)


def _checks_found(workspace: str) -> str:
    """Return the checks of a project without settings, one per line."""
    if os.path.exists(f"{workspace}/.ralph/settings.json"):
        return ""
    return "\n".join(check.command for check in detect_checks(Path(workspace)))


def _choice(name: str, label: str, values: Mapping[str, str], is_default: bool = False) -> Html:
    is_on = bool(values.get(name)) if values else is_default
    return element("label.choice", element("input", type="checkbox", name=name, value="1", checked=is_on), label)


def _field(label: str, name: str, values: Mapping[str, str], **attributes: object) -> Html:
    return element("label", label, element("input", name=name, value=values.get(name, ""), **attributes))
