"""Which of all runs need a person, which are at work, and what came of the others? One card each, in columns that
become sections on a phone. Before them is the page behind a link, beside them the form for a new run."""

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from msgspec import Struct

from ralph.core.backlog import Job
from ralph.core.text import one_line, plural, short
from ralph.show.plots import Html, element, joined
from ralph.show.words import duration, moment, money, nickname, portion, why_ended
from ralph.web.access import Level
from ralph.web.pieces import (
    Frame,
    badge,
    button,
    clock,
    fingerprint,
    form,
    inside,
    page_title,
    place_name,
    place_words,
    prose,
    text_area,
)
from ralph.web.server import WebAnswer
from ralph.web.watching import RunSeen, Survey

SHOWN = 24  # cards of a column; the rest is folded
NOTHING, BEGIN = "No run is at work.", "No run yet: `ralph run` in a terminal starts one."
QUEUED = ("queued", "waiting", "blocked", "held")
_BARS = 24
_PROMISES = {
    Level.LOOK: "This browser will see all runs on this machine.",
    Level.STEER: "This browser will see all runs on this machine, and may answer, tell, pause, resume and stop them.",
    Level.START: "This browser will see and steer all runs on this machine, and may start new ones.",
}


class ItemCard(Struct, frozen=True):
    """An item of a backlog that no loop works on."""

    work: str
    job: Job
    state: str


class BoardColumn(Struct, frozen=True):
    """`empty` is what it says when there is nothing in it; a column without a word for that is not shown then."""

    id: str
    title: str
    empty: str
    runs: Sequence[RunSeen] = ()
    items: Sequence[ItemCard] = ()


def columns(survey: Survey) -> list[BoardColumn]:
    """Whom a question keeps waiting comes first, the oldest first; then who is paused; then what ended badly."""
    seen = survey.runs
    wanting = [one for one in seen if one.needs_a_person]
    wanting.sort(key=lambda one: (not one.questions, not one.run.is_alive, -one.run.facts.changed))
    working = [one for one in seen if one.run.is_alive and not one.needs_a_person]
    ended = [one for one in seen if not one.run.is_alive and not one.needs_a_person]
    parked = [one for one in _items(survey) if one.state == "parked"]
    queued = [one for one in _items(survey) if one.state in QUEUED]
    return [
        BoardColumn("needs", "Needs you", "Nothing needs you.", wanting, parked),
        BoardColumn("at-work", "At work", NOTHING if seen else BEGIN, working),
        BoardColumn("queued", "Queued", "", (), queued),
        BoardColumn("done", "Done", "Nothing has been finished yet.", ended),
    ]


def _items(survey: Survey) -> Iterator[ItemCard]:
    for work in survey.works:
        states = work.history.states
        for key, job in work.history.board.jobs.items():
            yield ItemCard(work.seen.run.id, job, states[key])


def board(survey: Survey, frame: Frame) -> WebAnswer:
    has_form = frame.may_steer and any(one.questions for one in survey.runs)
    parts = pieces(survey, frame)
    made = columns(survey)
    shown = [parts[column.id] for column in made]
    body = element("main.board#main", element("h1.hidden", "Runs"), shown)
    return frame.page(title(made), frame.bar(), body, live=f"?has={fingerprint(parts)}", has_form=has_form)


def pieces(survey: Survey, frame: Frame) -> dict[str, Html]:
    """What changes on the board, by id."""
    made = columns(survey)
    return {column.id: section(column, frame) for column in made} | {"title": page_title(title(made))}


def title(shown: Sequence[BoardColumn]) -> str:
    needing = len(shown[0].runs) + len(shown[0].items)
    return f"({needing}) ralph" if needing else "ralph"


def section(column: BoardColumn, frame: Frame) -> Html:
    cards = [*(card(one, frame) for one in column.runs), *(item_card(one, frame) for one in column.items)]
    if not cards and not column.empty:
        return element("section", id=column.id, hidden=True)
    older = cards[SHOWN:]
    folded = element(
        "details",
        element("summary.btn", f"{len(older)} more"),
        element("ul.cards", older, role="list"),
        id=f"more-{column.id}",
    )
    inner = element("ul.cards", cards[:SHOWN], role="list")
    heading = element("h2", column.title, element("span.count", str(len(cards))), id=f"{column.id}-title")
    return element(
        "section",
        heading,
        joined(inner, folded if older else None) if cards else element("p.soft", prose(column.empty)),
        id=column.id,
        aria_labelledby=f"{column.id}-title",
    )


def why_not(job: Job, state: str) -> str:
    """Why no loop works on an item, where there is more to say than its state does."""
    return job.reason or (f"after {', '.join(job.item.after)}" if state in ("waiting", "blocked") else "")


def item_card(one: ItemCard, frame: Frame) -> Html:
    """An item, and why no loop works on it."""
    item = one.job.item
    why = why_not(one.job, one.state)
    first = element(
        "p.first",
        badge(one.state),
        element("b.mono", short(item.key, 40)),
        element("span.mono.soft.nick", nickname(one.work)),
    )
    where = f"{frame.run(one.work)}#item-{quote(item.key)}"
    link = element("h3", element("a.cover", short(item.about, 220), href=where))
    said = element("p.now", element("span.two-lines", prose(short(why, 200)))) if why else None
    return element("li", first, link, said, class_="card one-run bad" if one.state == "parked" else "card one-run")


def card(seen: RunSeen, frame: Frame) -> Html:
    run, present = seen.run, seen.present
    place = element("b", run.facts.item or place_name(present.workspace), title=place_words(present.workspace))
    first = element(
        "p.first", state_badge(seen), None if run.is_copy else place, element("span.mono.soft.nick", nickname(run.id))
    )
    said = f"iteration {present.iteration}" + (f" of {present.max_iterations}" if present.max_iterations else "")
    if seen.is_work:
        said = f"{present.checks_passed} of {plural(present.checks, 'item')} landed"
    way = element("p.way", bars(seen), element("span.soft", said))
    goal = element("h3", element("a.cover", short(present.goal, 220) or run.id, href=frame.run(run.id)))
    asked = answer_form(seen, frame, 1)
    tone = "warn" if run.is_alive and seen.needs_a_person else "bad" if seen.needs_a_person else ""
    return element("li", first, goal, way, _facts(seen), _now(seen), asked, class_=f"card one-run {tone}".strip())


def state_badge(seen: RunSeen) -> Html:
    return badge(seen.state, f"{seen.state}, pausing" if seen.present.pausing and seen.state == "running" else "")


def bars(seen: RunSeen) -> Html | None:
    """Each iteration as high as the share of its checks that passed."""
    shares = seen.run.facts.shares[-_BARS:]
    if not shares:
        return None
    drawn = []
    for at, passed in enumerate(shares):
        high = max(20 * portion(passed, 100), 2.5)
        back = {"class_": "f-good-bg" if passed == 100 else "f-bad-bg"}
        drawn.append(element("rect", x=str(at * 7), y="0", width="5", height="20", rx="1.5", **back))
        front = {"class_": "f-good" if passed else "f-bad"}
        drawn.append(
            element("rect", x=str(at * 7), y=f"{20 - high:.1f}", width="5", height=f"{high:.1f}", rx="1.5", **front)
        )
    wide = str(7 * len(shares))
    return element("svg.bars", drawn, viewBox=f"0 0 {wide} 20", width=wide, height="20", aria_hidden="true")


def _facts(seen: RunSeen) -> Html:
    run, present, limits = seen.run, seen.present, seen.limits
    facts = []
    if present.checks and not seen.is_work:
        tone = "good-text" if present.checks_passed == present.checks else "bad-text"
        facts.append(element("span", f"{present.checks_passed}/{present.checks} checks", class_=tone))
    if present.cost_usd is not None:
        cap = f" of {money(limits.max_cost)}" if limits.max_cost and run.is_alive else ""
        facts.append(element("span", money(present.cost_usd) + cap))
    if run.is_alive:
        facts.append(clock(run.facts.began, seen.now, ""))
    else:
        facts.append(element("span", duration(run.facts.duration_s)))
        if run.facts.changed:
            facts.append(element("span", moment(run.facts.changed, seen.now - run.facts.changed)))
    return element("p.facts.soft", facts)


def _now(seen: RunSeen) -> Html | None:
    """What it does, waits for, or came to."""
    present = seen.present
    if not seen.run.is_alive:
        said = short(why_ended(present), 200)
        return element("p.now", element("span.two-lines", said)) if said else None
    if present.waiting_until:
        until = moment(present.waiting_until, present.waiting_until - seen.now)
        return element("p.now", f"{short(present.reason, 120)}, until {until}")
    if seen.state == "paused":
        return element("p.now", "It stands still until you let it go on.")
    if present.doing and seen.state == "running":
        doing = element("code.cut", inside(short(present.doing, 200), present.workspace))
        return element("p.now", doing, clock(present.since, seen.now))
    return None


def answer_form(seen: RunSeen, frame: Frame, most: int) -> list[Html]:
    """A box for each question that nobody has answered."""
    if not frame.may_steer:
        return [element("p", element("b", "It asks: "), prose(one_line(q.text, 2000))) for q in seen.questions[:most]]
    made = []
    for question in seen.questions[:most]:
        without = button("Go on without", name="skip", value="1", formnovalidate=True) if seen.can_skip else None
        name = nickname(seen.run.id)
        box = text_area(f"Answer {name}", f"answer-{question.id}", 2, required=True, placeholder=f"Answer {name}…")
        made.append(
            form(
                frame.run(seen.run.id, "answer"),
                element("p.question", element("b", "It asks: "), prose(one_line(question.text, 2000))),
                box,
                element("p.acts", button("Answer", "primary"), without),
                class_="answer",
                hidden={"question": question.id},
            )
        )
    return made


def enter_page(frame: Frame, key: str, level: Level) -> WebAnswer:
    """Looking at a link uses nothing up: programs that preview links look at everything."""
    inside = button("Open", "primary big")
    entry = form(f"{frame.base}enter", inside, is_quick=False, hidden={"key": key})
    body = element("main.enter#main", element("h1", "ralph"), element("p", _PROMISES[level]), entry)
    return frame.page("ralph", body)


def new_page(
    places: Sequence[str], agents: Sequence[str], frame: Frame, said: Mapping[str, str], fault: str = ""
) -> WebAnswer:
    """The form for a new run; where something was wrong with it, what, and what was typed."""
    options = [element("option", place_words(one), value=one, selected=said.get("workspace") == one) for one in places]
    default = element("option", "from settings", value="")
    known = [element("option", one, value=one, selected=said.get("agent") == one) for one in agents]
    small = element(
        "div.grid",
        element("label", "Agent", element("select", default, known, name="agent")),
        _field("Iterations, at most", "iterations", said, inputmode="numeric", placeholder="25"),
        _field("Cost, at most ($)", "cost", said, inputmode="decimal", placeholder="5"),
        _field("Time, at most", "time", said, placeholder="2h"),
    )
    goal = element(
        "textarea",
        said.get("goal", ""),
        name="goal",
        rows="4",
        required=True,
        maxlength="20000",
        placeholder="What shall be true when it is done?",
    )
    checks = element(
        "textarea.mono", said.get("checks", ""), name="checks", rows="3", maxlength="20000", placeholder="pytest -q"
    )
    entry = form(
        f"{frame.base}start",
        element("p.bad-text", fault, role="alert") if fault else None,
        element("label", "Goal", goal),
        element("label", "Where", element("select", options, name="workspace", required=True)),
        element("label", "Checks, one a line: it is done when the agent says so and all of them pass", checks),
        small,
        element("p.soft", "It works in a worktree of its own, on a branch of its own: your files stay as they are."),
        element("p.acts", button("Start", "primary big")),
        class_="card new",
        is_quick=False,
    )
    none = element("p", "No workspace is known yet: name one with `ralph serve DIR`, or run something there first.")
    main = element("main.one.narrow#main", element("h1", "New run"), entry if places else none)
    made = frame.page("New run", frame.bar(), main)
    return WebAnswer(made.body, 409) if fault else made


def _field(label: str, name: str, said: Mapping[str, str], **attributes: object) -> Html:
    return element("label", label, element("input", name=name, value=said.get(name, ""), **attributes))
