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
    needing = [one for one in survey.runs if one.present.needs_you]
    needing.sort(key=lambda one: (not one.mail.questions, not one.run.is_alive, -one.run.facts.changed))
    others = [one for one in survey.runs if not one.present.needs_you]
    tasks = [(work, key, state) for work in survey.works for key, state in work.history.states.items()]

    def task_cards(*states: str) -> list[Html]:
        shown = ((work, key, state) for work, key, state in tasks if state in states)
        return [task_card(work.seen.run.id, work.history.board.jobs[key], state, frame) for work, key, state in shown]

    waiting = [*(card(one, frame) for one in needing), *task_cards("parked")]
    queued = task_cards(*QUEUED)
    running = [card(one, frame) for one in others if one.run.is_alive]
    ended = [card(one, frame) for one in others if not one.run.is_alive]
    has_several = sum(not one.run.is_alive for one in needing) > 1
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
    said = element("p.now", element("span.two-lines", prose(short(why, 200)))) if why else None
    return element("li", first, link, said, class_="card one-run bad" if state == "parked" else "card one-run")


def card(seen: RunSeen, frame: Frame) -> Html:
    run, present = seen.run, seen.present
    place = element("b", run.facts.backlog_task or place_name(present.workspace), title=place_words(present.workspace))
    first = element("p.first", state_badge(seen), place, element("span.mono.soft.nick", nickname(run.id)))
    goal = element("h3", element("a.cover", short(present.goal, 220) or run.id, href=frame.run(run.id)))
    asked = answer_forms(seen, frame, 1)
    tone, acts = "", []
    if present.needs_you:
        tone = "warn" if run.is_alive or state_of(present.state).tone == "good" else "bad"
    if present.needs_you and not run.is_alive:
        acts = ending_buttons(seen, frame, can_accept=present.mergeable and present.state == "done")
    now = element("p.now", activity(seen))
    way = element("p.way", present.progress_sentence)
    shown = [first, goal, way, _facts(seen), now, asked, element("div.acts", acts) if acts else None]
    return element("li", *shown, class_=f"card one-run {tone}".strip())


def ending_buttons(seen: RunSeen, frame: Frame, *, can_accept: bool, can_discard: bool = False) -> list[Html]:
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


def state_badge(seen: RunSeen) -> Html:
    present = seen.present
    text = present.state if present.verified else "done (unverified)"
    is_pausing = present.pausing and present.state == "running"
    return badge(state_of(present.label).tone, "running, pausing" if is_pausing else text)


def _facts(seen: RunSeen) -> Html:
    run, present = seen.run, seen.present
    checks = None
    if present.check_counts:
        passed, count = present.check_counts
        checks = element("span", f"{passed}/{count} checks", class_="good-text" if passed == count else "bad-text")
    cost = "" if present.cost_usd is None else money(present.cost_usd)
    if run.is_alive:
        return facts_line(checks, cost, clock(run.facts.began, seen.now, ""))
    changed = run.facts.changed
    return facts_line(checks, cost, duration(run.facts.seconds), moment(changed, seen.now - changed) if changed else "")


def activity(seen: RunSeen) -> Html:
    """Return what the run is doing or waiting for, or how it ended."""
    present = seen.present
    if not seen.run.is_alive:
        return element("span.two-lines", prose(short(why_ended(present) or present.doing or present.state, 400)))
    if present.until:
        return element("span", f"{short(present.reason, 200)}, until {moment(present.until, present.until - seen.now)}")
    held = {"asking": "Waiting for your answer.", "paused": "Paused until you resume it."}.get(present.state)
    if held:
        return element("span", held)
    doing = element("code.cut", shorten_paths(short(present.doing or "running", 300), present.workspace))
    return joined(doing, clock(present.since, seen.now) if present.since else None)


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
        acts = element("p.acts", button("Answer", "primary"), skip if seen.run.state == "asking" else None)
        inside = (element("p.question", text), box, acts)
        made.append(form(frame.run(seen.run.id, "answer"), *inside, class_="answer", hidden={"question": question.id}))
    return made


def enter_page(frame: Frame, key: str, level: Level) -> HTMLResponse:
    """Show what a link allows. Opening it does not use it up, because chat programs preview links."""
    inside = button("Open", "primary big")
    entry = form(f"{frame.base}enter", inside, is_quick=False, hidden={"key": key})
    body = element("main.enter#main", element("h1", "ralph"), element("p", _LEVEL_TEXTS[level]), entry)
    return frame.page("ralph", body)
