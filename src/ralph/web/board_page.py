"""Which of all runs need a person, which are at work, and what came of the others? One card each, in columns that
become sections on a phone."""

from collections.abc import Sequence

from msgspec import Struct

from ralph.core.text import one_line, short
from ralph.show.plots import Html, element, joined
from ralph.show.words import duration, moment, money, nickname
from ralph.web.pieces import (
    Frame,
    badge,
    button,
    clock,
    fingerprint,
    form,
    from_home,
    inside,
    page_title,
    place_name,
    prose,
    text_area,
)
from ralph.web.server import WebAnswer
from ralph.web.watching import RunSeen

SHOWN = 24  # cards of a column; the rest is folded
SETTLED = ("done", "stopped")
_BARS = 24


class BoardColumn(Struct, frozen=True):
    id: str
    title: str
    empty: str
    runs: Sequence[RunSeen]


def columns(seen: Sequence[RunSeen]) -> list[BoardColumn]:
    """Whom a question keeps waiting comes first, the oldest first; then who is paused; then what ended badly."""
    wanting = [one for one in seen if one.needs_a_person]
    wanting.sort(key=lambda one: (not one.questions, not one.run.is_alive, -one.run.facts.changed))
    working = [one for one in seen if one.run.is_alive and not one.needs_a_person]
    ended = [one for one in seen if not one.run.is_alive and not one.needs_a_person]
    return [
        BoardColumn("needs", "Needs you", "Nothing needs you.", wanting),
        BoardColumn("at-work", "At work", "No run is at work.", working),
        BoardColumn("done", "Done", "Nothing has been finished yet.", ended),
    ]


def board(seen: Sequence[RunSeen], frame: Frame) -> WebAnswer:
    has_form = frame.may_steer and any(one.questions for one in seen)
    parts = pieces(seen, frame)
    shown = [parts[column.id] for column in columns(seen)]
    body = element("main", element("h1", "Runs", class_="hidden"), shown, id="main", class_="board")
    return frame.page(title(columns(seen)), frame.bar(), body, live=f"?has={fingerprint(parts)}", has_form=has_form)


def pieces(seen: Sequence[RunSeen], frame: Frame) -> dict[str, Html]:
    """What changes on the board, by id."""
    shown = columns(seen)
    return {column.id: section(column, frame) for column in shown} | {"title": page_title(title(shown))}


def title(shown: Sequence[BoardColumn]) -> str:
    return f"({len(shown[0].runs)}) ralph" if shown[0].runs else "ralph"


def section(column: BoardColumn, frame: Frame) -> Html:
    cards = [card(one, frame) for one in column.runs]
    older = cards[SHOWN:]
    folded = element(
        "details",
        element("summary", f"{len(older)} more", class_="btn"),
        element("ul", older, class_="cards", role="list"),
        id=f"more-{column.id}",
    )
    inner = element("ul", cards[:SHOWN], class_="cards", role="list")
    heading = element("h2", column.title, element("span", str(len(cards)), class_="count"), id=f"{column.id}-title")
    return element(
        "section",
        heading,
        joined(inner, folded if older else None) if cards else element("p", column.empty, class_="soft"),
        id=column.id,
        aria_labelledby=f"{column.id}-title",
    )


def card(seen: RunSeen, frame: Frame) -> Html:
    run, present = seen.run, seen.present
    first = element(
        "p",
        badge(seen.state, f"{seen.state}, pausing" if present.pausing and seen.state == "running" else ""),
        element("b", place_name(present.workspace), title=from_home(present.workspace)),
        element("span", nickname(run.id), class_="mono soft nick"),
        class_="first",
    )
    of = f" of {present.max_iterations}" if present.max_iterations else ""
    way = element("p", bars(seen), element("span", f"iteration {present.iteration}{of}", class_="soft"), class_="way")
    goal = element("h3", element("a", short(present.goal, 220) or run.id, href=frame.run(run.id), class_="cover"))
    asked = answer_form(seen, frame, 1)
    tone = "warn" if run.is_alive and seen.needs_a_person else "bad" if seen.needs_a_person else ""
    return element("li", first, goal, way, _facts(seen), _now(seen), asked, class_=f"card one-run {tone}".strip())


def bars(seen: RunSeen) -> Html | None:
    """Each iteration as high as the share of its checks that passed."""
    shares = seen.run.facts.shares[-_BARS:]
    if not shares:
        return None
    drawn = []
    for at, share in enumerate(shares):
        high = max(20 * share / 100, 2.5)
        back = {"class_": "f-good-bg" if share == 100 else "f-bad-bg"}
        drawn.append(element("rect", x=str(at * 7), y="0", width="5", height="20", rx="1.5", **back))
        front = {"class_": "f-good" if share else "f-bad"}
        drawn.append(
            element("rect", x=str(at * 7), y=f"{20 - high:.1f}", width="5", height=f"{high:.1f}", rx="1.5", **front)
        )
    wide = str(7 * len(shares))
    return element("svg", drawn, viewBox=f"0 0 {wide} 20", width=wide, height="20", aria_hidden="true", class_="bars")


def _facts(seen: RunSeen) -> Html:
    run, present, limits = seen.run, seen.present, seen.limits
    facts = []
    if present.checks:
        tone = "good-text" if present.checks_passed == present.checks else "bad-text"
        facts.append(element("span", f"{present.checks_passed}/{present.checks} checks", class_=tone))
    if present.cost_usd is not None:
        cap = f" of {money(limits.cost_usd)}" if limits.cost_usd and run.is_alive else ""
        facts.append(element("span", money(present.cost_usd) + cap))
    if run.is_alive:
        facts.append(clock(run.facts.began, seen.now, ""))
    else:
        facts.append(element("span", duration(run.facts.duration_s)))
        if run.facts.changed:
            facts.append(element("span", moment(run.facts.changed, seen.now - run.facts.changed)))
    return element("p", facts, class_="facts soft")


def _now(seen: RunSeen) -> Html | None:
    """What it does, waits for, or came to."""
    present = seen.present
    if not seen.run.is_alive:
        return (
            element("p", element("span", short(present.reason, 200), class_="two-lines"), class_="now")
            if present.reason
            else None
        )
    if present.waiting_until:
        until = moment(present.waiting_until, present.waiting_until - seen.now)
        return element("p", f"{short(present.reason, 120)}, until {until}", class_="now")
    if seen.state == "paused":
        return element("p", "It stands still until you let it go on.", class_="now")
    if present.doing and seen.state == "running":
        doing = element("code", inside(short(present.doing, 200), present.workspace), class_="cut")
        return element("p", doing, clock(present.since, seen.now), class_="now")
    return None


def answer_form(seen: RunSeen, frame: Frame, most: int) -> list[Html]:
    """A box for each question that nobody has answered."""
    if not frame.may_steer:
        return [element("p", element("b", "It asks: "), prose(one_line(q.text, 2000))) for q in seen.questions[:most]]
    made = []
    for question in seen.questions[:most]:
        without = button("Go on without", name="skip", value="1", formnovalidate=True) if seen.can_skip else None
        name = nickname(seen.run.id)
        box = text_area(
            "text", f"Answer {name}", f"answer-{question.id}", 2, required=True, placeholder=f"Answer {name}…"
        )
        made.append(
            form(
                frame.run(seen.run.id, "answer"),
                element("p", element("b", "It asks: "), prose(one_line(question.text, 2000)), class_="question"),
                box,
                element("p", button("Answer", "primary"), without, class_="acts"),
                class_="answer",
                hidden={"question": question.id},
            )
        )
    return made
