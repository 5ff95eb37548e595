"""The board with one card per run, and the page that a link opens."""

from collections.abc import Sequence
from urllib.parse import quote

from starlette.responses import HTMLResponse

from ralph.core.backlog import Job
from ralph.core.text import one_line, short
from ralph.history.states import state_of
from ralph.show.plots import Html, element, joined, prose
from ralph.show.words import duration, moment, money, nickname, why_ended
from ralph.web.access import Level
from ralph.web.pieces import (
    Frame,
    badge,
    button,
    clock,
    facts_line,
    form,
    page_title,
    place_name,
    place_words,
    post_button,
    shorten_paths,
    task_badge,
    text_area,
)
from ralph.web.watching import RunSeen, Survey

CARDS_SHOWN = 12  # per column; the rest is collapsed
QUEUED = ("queued", "waiting", "blocked", "held")
_LEVEL_TEXTS = {
    Level.LOOK: "This browser will see all runs on this machine.",
    Level.STEER: "This browser will see all runs on this machine, and can answer, tell, pause, resume and stop them.",
    Level.START: "This browser will see and steer all runs on this machine, and can accept, discard, retry and rewind.",
}


def board(survey: Survey, frame: Frame) -> HTMLResponse:
    parts = pieces(survey, frame)
    *sections, title = parts.values()
    body = element("main.board#main", element("h1.hidden", "Runs"), sections)
    return frame.page(title, frame.bar(), body, live="")


def pieces(survey: Survey, frame: Frame) -> dict[str, Html]:
    """Return the parts of the board that can change, by id: a column for each kind of run, and the title.

    In "Needs you", questions come first, then paused runs, then failed ones.
    """
    needing = [status for status in survey.runs if status.present.needs_you]
    needing.sort(key=lambda status: (not status.mail.questions, not status.run.is_alive, -status.run.facts.changed))
    others = [status for status in survey.runs if not status.present.needs_you]
    tasks = [(work, key, state) for work in survey.works for key, state in work.history.states.items()]

    def task_cards(*states: str) -> list[Html]:
        matching = ((work, key, state) for work, key, state in tasks if state in states)
        return [
            task_card(work.status.run.id, work.history.board.jobs[key], state, frame) for work, key, state in matching
        ]

    waiting = [*(card(status, frame) for status in needing), *task_cards("parked")]
    queued = task_cards(*QUEUED)
    running = [card(status, frame) for status in others if status.run.is_alive]
    ended = [card(status, frame) for status in others if not status.run.is_alive]
    has_several = sum(not status.run.is_alive for status in needing) > 1
    dismiss = post_button(f"{frame.base}dismissall", "Dismiss all") if has_several and frame.may_steer else None
    no_run = "No run is running." if survey.runs else "No runs yet: start one with `ralph loop` in a terminal."
    return {
        "needs": section("needs", "Needs you", waiting, empty="Nothing needs you.", action=dismiss),
        "running": section("running", "Running", running, empty=no_run),
        "queued": section("queued", "Queued", queued) if queued else element("section#queued", hidden=True),
        "done": section("done", "Done", ended, empty="No run has finished yet."),
        "title": page_title(f"({len(waiting)}) ralph" if waiting else "ralph"),
    }


def section(id_: str, title: str, cards: Sequence[Html], *, empty: str = "", action: Html | None = None) -> Html:
    """Return a column of cards. `empty` is its text without cards, `action` a button for all of them."""
    heading = element("h2", title, element("span.count", str(len(cards))), id=f"{id_}-title")
    older = cards[CARDS_SHOWN:]
    summary = element("summary.btn", f"{len(older)} more")
    collapsed = element("details", summary, element("ul.cards", older, role="list"), id=f"more-{id_}")
    inner = [element("ul.cards", cards[:CARDS_SHOWN], role="list"), collapsed if older else None]
    return element(
        "section",
        element("div.heading", heading, action),
        inner if cards else element("p.soft", prose(empty)),
        id=id_,
        aria_labelledby=f"{id_}-title",
    )


def waiting_reason(job: Job, state: str) -> str:
    """Return why a task is not running; "" if its state says it all."""
    return job.reason or (f"after {', '.join(job.task.after)}" if state in ("waiting", "blocked") else "")


def task_card(work: str, job: Job, state: str, frame: Frame) -> Html:
    """Return the card of a backlog task without a running run."""
    task, why = job.task, waiting_reason(job, state)
    name = element("b.mono", short(task.key, 40))
    first = element("p.first", task_badge(state), name, element("span.mono.soft.nick", nickname(work)))
    where = f"{frame.run(work)}#task-{quote(task.key)}"
    link = element("h3", element("a.cover", short(task.about, 220), href=where))
    reason = element("p.now", element("span.two-lines", prose(short(why, 200)))) if why else None
    return element("li", first, link, reason, class_="card one-run bad" if state == "parked" else "card one-run")


def card(status: RunSeen, frame: Frame) -> Html:
    run, present = status.run, status.present
    place = element("b", run.facts.backlog_task or place_name(present.workspace), title=place_words(present.workspace))
    first = element("p.first", state_badge(status), place, element("span.mono.soft.nick", nickname(run.id)))
    goal = element("h3", element("a.cover", short(present.goal, 220) or run.id, href=frame.run(run.id)))
    asked = answer_forms(status, frame, 1)
    tone, acts = "", []
    if present.needs_you:
        tone = "warn" if run.is_alive or state_of(present.state).tone == "good" else "bad"
    if present.needs_you and not run.is_alive:
        acts = ending_buttons(status, frame, can_accept=present.mergeable and present.state == "done")
    now = element("p.now", activity(status))
    way = element("p.way", present.progress_sentence)
    parts = [first, goal, way, _facts(status), now, asked, element("div.acts", acts) if acts else None]
    return element("li", *parts, class_=f"card one-run {tone}".strip())


def ending_buttons(status: RunSeen, frame: Frame, *, can_accept: bool, can_discard: bool = False) -> list[Html]:
    """Return buttons to accept, discard or dismiss an ended run."""
    run, buttons = status.run.id, []
    if can_accept and frame.may_start:
        buttons.append(post_button(frame.run(run, "accept"), "Accept", "primary"))
    if can_discard and frame.may_start:
        confirm = post_button(frame.run(run, "discard"), "Throw its work away", "danger")
        buttons.append(element("details.ask", element("summary.btn", "Discard…"), confirm, id=f"discard-{run}"))
    if status.present.needs_you and frame.may_steer:
        buttons.append(post_button(frame.run(run, "dismiss"), "Dismiss"))
    return buttons


def state_badge(status: RunSeen) -> Html:
    present = status.present
    text = present.state if present.verified else "done (unverified)"
    is_pausing = present.pausing and present.state == "running"
    return badge(state_of(present.label).tone, "running, pausing" if is_pausing else text)


def _facts(status: RunSeen) -> Html:
    run, present = status.run, status.present
    checks = None
    if present.check_counts:
        passed, count = present.check_counts
        checks = element("span", f"{passed}/{count} checks", class_="good-text" if passed == count else "bad-text")
    cost = "" if present.cost_usd is None else money(present.cost_usd)
    if run.is_alive:
        return facts_line(checks, cost, clock(run.facts.began, status.now, ""))
    changed = run.facts.changed
    return facts_line(
        checks, cost, duration(run.facts.seconds), moment(changed, status.now - changed) if changed else ""
    )


def activity(status: RunSeen) -> Html:
    """Return what the run is doing or waiting for, or how it ended."""
    present = status.present
    if not status.run.is_alive:
        return element("span.two-lines", prose(short(why_ended(present) or present.doing or present.state, 400)))
    if present.until:
        return element(
            "span", f"{short(present.reason, 200)}, until {moment(present.until, present.until - status.now)}"
        )
    sentence = {"asking": "Waiting for your answer.", "paused": "Paused until you resume it."}.get(present.state)
    if sentence:
        return element("span", sentence)
    doing = element("code.cut", shorten_paths(short(present.doing or "running", 300), present.workspace))
    return joined(doing, clock(present.since, status.now) if present.since else None)


def answer_forms(status: RunSeen, frame: Frame, limit: int) -> list[Html]:
    """Return a form for each open question. A reader who may not steer sees only the question."""
    forms, name = [], nickname(status.run.id)
    for question in status.mail.questions[:limit]:
        text = (element("b", "Question: "), prose(one_line(question.text, 2000)))
        if not frame.may_steer:
            forms.append(element("p", text))
            continue
        skip = button("Continue without an answer", name="skip", value="1", formnovalidate=True)
        box = text_area(f"Answer {name}", f"answer-{question.id}", 2, required=True, placeholder=f"Answer {name}…")
        acts = element("p.acts", button("Answer", "primary"), skip if status.run.state == "asking" else None)
        inside = (element("p.question", text), box, acts)
        forms.append(
            form(frame.run(status.run.id, "answer"), *inside, class_="answer", hidden={"question": question.id})
        )
    return forms


def enter_page(frame: Frame, key: str, level: Level) -> HTMLResponse:
    """Show what a link allows. Opening it does not use it up, because chat programs preview links."""
    inside = button("Open", "primary big")
    entry = form(f"{frame.base}enter", inside, is_quick=False, hidden={"key": key})
    body = element("main.enter#main", element("h1", "ralph"), element("p", _LEVEL_TEXTS[level]), entry)
    return frame.page("ralph", body)
