"""What happened while nobody looked, and what is there to do? One HTML page that needs nothing but itself: no script,
no network, readable on paper, in light and dark. All that an agent wrote is text on it, and nothing else."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import to_builtins

from ralph.core.text import escaped, head, listed, short
from ralph.files import add_to_file
from ralph.history.evidence import Evidence
from ralph.history.needs import Need, needs
from ralph.history.run_history import RunHistory
from ralph.records.folder import RunFolder
from ralph.show import report_tables as tables
from ralph.show.plots import Html, element, joined
from ralph.show.words import commands, count, duration, money, need_words, outcome_sentence, plural

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_TONES = {"done": "good", "paused": "warn", "asking": "warn"}
_AT_WORK = ("running", "stopping", "waiting", "paused", "asking")
_TONES |= dict.fromkeys(("stopped", "running", "stopping", "waiting"), "calm")


RunEvidence = Mapping[str, Mapping[int, Evidence]]
"""Of each run, of each iteration."""


def html(histories: Sequence[RunHistory], evidence: RunEvidence | None = None) -> str:
    """The page about one run or several."""
    title = f"ralph: {histories[0].state}" if len(histories) == 1 else f"ralph: {plural(len(histories), 'run')}"
    return page(title, report_body(histories, evidence))


def page(title: str, content: Html) -> str:
    """A page that needs nothing but itself."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(stylesheet())),
    )
    body = element("main", content)
    return f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n"


def stylesheet() -> str:
    return Path(__file__).with_name("report.css").read_text("utf-8")


def report_body(histories: Sequence[RunHistory], evidence: RunEvidence | None = None) -> Html:
    """What stands on the page, without its frame."""
    shown = [_article(history, (evidence or {}).get(history.run, {})) for history in histories]
    return joined(_overview(histories), shown, _footer(histories))


def _overview(histories: Sequence[RunHistory]) -> Html | None:
    if len(histories) < 2:
        return None
    iterations = [len(one.iterations) for one in histories]
    costs = [one.cost_usd for one in histories if one.cost_usd is not None]
    spent, lasted = sum(costs) if costs else None, sum(one.seconds for one in histories)
    done = sum(one.outcome == "done" for one in histories)
    columns = [
        tables.HtmlColumn("Run", [element("a", one.run, href=f"#{one.run}", class_="mono") for one in histories]),
        tables.HtmlColumn("Outcome", [_badge(one) for one in histories], f"{done} done"),
        tables.HtmlColumn("Iterations", [str(number) for number in iterations], str(sum(iterations)), "num"),
        tables.HtmlColumn("Cost", [tables.cost(one.cost_usd) for one in histories], tables.cost(spent), "num"),
        tables.HtmlColumn("Time", [duration(one.seconds) for one in histories], duration(lasted), "num"),
        tables.HtmlColumn("Goal", [head(one.goal, 160, "…") for one in histories], "in all", kind="wrap"),
    ]
    return joined(element("h1", plural(len(histories), "run")), tables.table(columns, has_total=True))


MANY = 10
"""Of more iterations than these people want the course first, then each of them."""


def _article(history: RunHistory, evidence: Mapping[int, Evidence]) -> Html:
    listed = _section("Iterations", [*filter(None, (tables.iterations(history), _proofs(history)))])
    drawn = _section("Over the iterations", tables.drawings(history))
    details = [tables.details(history, one, evidence.get(one.number)) for one in history.iterations]
    return element(
        "article",
        _header(history),
        _needs(needs(history), history),
        _tiles(history),
        _section("Timeline", tables.timeline(history)),
        *((drawn, listed) if len(history.iterations) > MANY else (listed, drawn)),
        _section("Checks", tables.checks(history)),
        _section("Claims that were refused", tables.refusals(history)),
        _section("Questions and notes", tables.talk(history)),
        _section("Files changed", tables.files(history)),
        _section("Each iteration", details),
        id=history.run,
    )


def _proofs(history: RunHistory) -> Html | None:
    """Which checks have ever failed: one that never did may be unable to."""
    proven, unproven = (listed([short(name, 60) for name in names], 6) for names in (history.proven, history.unproven))
    said = [f"Seen red at least once: {proven}."] if proven else []
    said += [f"Never seen red, so unproven: {unproven}."] if unproven else []
    return element("p", " ".join(said), class_="facts") if said else None


def _section(title: str, body: Html | list[Html] | None) -> Html | None:
    return element("section", element("h2", title), body) if body else None


def _header(history: RunHistory) -> list[Html]:
    cap = f", at most {history.max_iterations}" if history.max_iterations is not None else ""
    facts = [
        history.agent,
        f"preset {history.preset}",
        f"{_moment(history.began)} to {_moment(history.ended)}",
        f"{plural(len(history.iterations), 'iteration')}{cap}",
        f"resumed {plural(history.resumed, 'time')}" if history.resumed else "",
        f"branch {history.branch}" if history.branch else "",
        "" if history.base_tree and ":" in history.base_tree else "no git here: what changed was not kept",
        "" if history.outcome else "still at work: this is how it stands now" if history.state in _AT_WORK else "",
    ]
    return [
        element(
            "div",
            element("span", f"{history.run} in {history.workspace}", class_="wrap"),
            _badge(history),
            class_="top",
        ),
        element("h1", outcome_sentence(history).removeprefix("ralph: ")),
        element("div", head(history.goal, 4000, "…"), class_="goal"),
        element("p", [element("span", fact) for fact in facts if fact], class_="facts"),
    ]


def _badge(history: RunHistory) -> Html:
    unverified = history.outcome == "done" and not history.verified
    tone = "warn" if unverified else _TONES.get(history.state, "bad")
    return element("span", history.state + (" (unverified)" if unverified else ""), class_=f"badge {tone}")


def _needs(wanted: list[Need], history: RunHistory) -> Html:
    if not wanted:
        said = "Nothing needs you." if history.outcome else "Nothing needs you now: the run goes on by itself."
        return element("div", element("h2", said), class_="card needs calmly")
    items = [element("li", need_words(need), _command(commands(need))) for need in wanted]
    return element("div", element("h2", "What needs you"), element("ul", items), class_="card needs")


def _command(command: str) -> Html | None:
    return joined(" ", element("code", command)) if command else None


def _tiles(history: RunHistory) -> Html:
    usage = history.usage
    tiles = [
        (str(len(history.iterations)), plural(len(history.iterations), "iteration").split(" ", 1)[1]),
        (duration(history.seconds), "time"),
    ]
    if history.cost_usd is not None:
        tiles.append((("~" if usage.estimated else "") + money(history.cost_usd), "cost"))
    if usage.tokens:
        tiles.append((count(usage.tokens), f"tokens, {count(usage.output_tokens)} of them written"))
    if history.files is not None:
        noun = "file" if len(history.files) == 1 else "files"
        tiles.append((str(len(history.files)), f"{noun} changed, {tables.sums(history.files)}"))
    refused = history.refused_claims
    if refused:
        tiles.append((str(refused), "claim refused" if refused == 1 else "claims refused"))
    made = [element("div", element("b", number), element("span", name), class_="card tile") for number, name in tiles]
    return element("div", made, class_="tiles")


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))


def _footer(histories: Sequence[RunHistory]) -> Html:
    made = f"Written by ralph {histories[0].version} on {_moment(time.time())}."
    return element("footer", f"{made} The journals in .ralph/runs are the whole truth.")


Form = Literal["html", "markdown", "json"]


def written(histories: Sequence[RunHistory], form: Form, evidence: RunEvidence | None = None) -> bytes:
    if form == "json":
        from msgspec.json import encode

        return escaped(b"".join(encode(_told(history)) + b"\n" for history in histories))
    if form == "markdown":
        from ralph.show.report_markdown import markdown

        return markdown(histories).encode()

    return html(histories, evidence).encode()


def _told(history: RunHistory) -> dict[str, Any]:
    """All facts, and the sentence that is made of them."""
    return {**to_builtins(history), "sentence": outcome_sentence(history)}


def leave(folder: RunFolder, env: Mapping[str, str]) -> None:
    """Leaves the report in the run's folder, and in the summary of the CI job that the run is part of."""
    from ralph.history.evidence import evidence_of
    from ralph.history.feed import history_of

    history = history_of(folder)
    folder.write("report.html", written([history], "html", {history.run: evidence_of(folder, history, env)}))
    summary = env.get("GITHUB_STEP_SUMMARY")
    if summary:
        add_to_file(summary, written([history], "markdown") + b"\n")
