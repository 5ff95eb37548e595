"""What came of a backlog by morning? One page: what needs you first, each item, and when loops and landings were."""

import time
from collections.abc import Sequence

from ralph.core.backlog import SHOWN
from ralph.core.text import short
from ralph.history.work_history import WorkHistory, WorkSpan
from ralph.show.plots import Html, element, joined
from ralph.show.report import page
from ralph.show.words import duration, money, plural
from ralph.show.works import counted, last_line

WIDE, ROW, LEFT = 960, 16, 120
FILLS = {
    "landed": "var(--good)",
    "ready": "var(--turn)",
    "refused": "var(--wait)",
    "red": "var(--bad)",
    "parked": "var(--bad)",
}
TONES = {"landed": "good", "parked": "bad", "blocked": "warn", "held": "warn", "withdrawn": "calm"}


def summary(history: WorkHistory) -> str:
    """The work in one sentence."""
    if history.finished and history.started:
        said = last_line(history.finished, history.target, bool(history.started.push))
        return said.removeprefix("ralph: ").partition(": git merge")[0]
    states = [*history.states.values()]
    return f"{history.state}: {counted({state: states.count(state) for state in SHOWN})}"


def html(history: WorkHistory) -> str:
    return page(f"ralph: {history.run}", body(history))


def body(history: WorkHistory) -> Html:
    """What stands on the page."""
    needing = history.needing()
    items = [element("li", f"{job.item.key}: {short(why, 300)} ", element("code", f"ralph work retry {job.item.key}"))
             for job, why in needing]  # fmt: skip
    started = history.started
    about = (
        [f"{started.backlog} → {started.target}", *(f"check: {check}" for check in started.checks)] if started else []
    )
    return joined(
        element("h1", summary(history)),
        element("p", [element("span", fact) for fact in [*about, *_figures(history)]], class_="facts"),
        element("div", element("h2", "What needs you"), element("ul", items), class_="card needs")
        if items
        else element("div", element("h2", "Nothing needs you."), class_="card needs calmly"),
        element("section", element("h2", "Timeline"), timeline(history)),
        element("section", element("h2", "Items"), _items(history)),
    )


def _figures(history: WorkHistory) -> list[str]:
    cost = [money(history.board.spent)] if history.board.costs else []
    loops = sum(span.kind == "loop" for span in history.spans)
    took = duration(max(history.last - history.began, 0.0))
    return [plural(loops, "loop"), plural(history.landings, "landing"), f"{history.returns} sent back", *cost, took]


def timeline(history: WorkHistory) -> Html:
    """A row for each item and one for the gate: its loops, and what came of each."""
    keys = [*dict.fromkeys(key for span in history.spans for key in span.keys if span.kind == "loop")][:200]
    whole = max(history.last - history.began, 1e-3)
    rows = ["gate", *keys]
    drawn: list[Html] = []
    for number, name in enumerate(rows):
        y = number * ROW
        drawn.append(element("text", name, x=LEFT - 8, y=y + 12, text_anchor="end", class_="label"))
        spans = [
            s for s in history.spans if (s.kind == "gate" if name == "gate" else s.kind == "loop" and name in s.keys)
        ]
        drawn += [_bar(span, history, whole, y) for span in spans]
        landed = [s for s in history.spans if s.kind == "gate" and s.result == "landed" and name in s.keys]
        drawn += [element("circle", cx=_x(s.ended, history, whole), cy=y + 8, r=4, fill="var(--good)") for s in landed]
    size = {"viewBox": f"0 0 {WIDE + 20} {len(rows) * ROW + 4}", "role": "img"}
    said = f"loops and landings over {duration(whole)}"
    plot = element("svg", *drawn, **size, aria_label=said, class_="plot")
    return element("div", plot, class_="scroll", tabindex="0", role="region", aria_label="Timeline")


def _x(at: float, history: WorkHistory, whole: float) -> int:
    return LEFT + round((at - history.began) / whole * (WIDE - LEFT))


def _bar(span: WorkSpan, history: WorkHistory, whole: float, y: int) -> Html:
    start, end = _x(span.began, history, whole), _x(span.ended or history.last, history, whole)
    title = element("title", f"{', '.join(span.keys[:10])}: {span.result or 'at work'}")
    fill = FILLS.get(span.result, "var(--pause)")
    return element("rect", title, x=start, y=y + 3, width=max(end - start, 2), height=ROW - 6, rx=2, fill=fill)


def _items(history: WorkHistory) -> Html:
    states = history.states
    head = element(
        "tr", [element("th", name, class_="brief") for name in ("Item", "State", "Rounds", "Cost", "Title", "Why")]
    )
    rows = []
    for key, job in sorted(history.board.jobs.items(), key=lambda pair: SHOWN.index(states[pair[0]])):
        badge = element("span", states[key], class_=f"badge {TONES.get(states[key], 'calm')}")
        cost = money(job.cost_usd) if job.cost_usd is not None else ""
        short_ones = [
            element("td", cell, class_="brief") for cell in (element("code", key), badge, str(job.rounds), cost)
        ]
        long_ones = [element("td", short(text, 200)) for text in (job.item.about, job.reason)]
        rows.append(element("tr", short_ones, long_ones))
    table = element("table", element("thead", head), element("tbody", rows))
    return element("div", table, class_="scroll", tabindex="0", role="region", aria_label="Items")


def markdown(history: WorkHistory) -> str:
    """For a pull request or a mail."""
    states = history.states
    lines = [f"## {summary(history)}", "", " · ".join(_figures(history)), ""]
    if needing := history.needing():
        lines += ["**What needs you**", "", *(f"- `{job.item.key}`: {short(why, 300)}" for job, why in needing), ""]
    lines += ["| item | state | rounds | cost | title |", "|---|---|---|---|---|"]
    for key, job in history.board.jobs.items():
        cost = money(job.cost_usd) if job.cost_usd is not None else ""
        title = short(job.item.about, 120).replace("|", "\\|")
        lines.append(f"| `{key}` | {states[key]} | {job.rounds} | {cost} | {title} |")
    return "\n".join([*lines, ""])


def lines(history: WorkHistory) -> Sequence[str]:
    """`ralph show`: the landings and loops, one a line, as they came."""
    told = []
    for span in history.spans:
        at = time.strftime("%H:%M:%S", time.localtime(span.began))
        took = duration(max((span.ended or history.last) - span.began, 0.0))
        told.append(f"{at}  {span.kind}  {', '.join(span.keys[:8])}: {span.result or 'at work'} ({took})")
    return told
