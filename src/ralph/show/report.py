"""Reports of runs: one self-contained HTML page without scripts or network, readable on paper, in light and dark; and
Markdown for a pull request and a CI summary. The agent's words are escaped text, nothing else.
"""

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import to_builtins
from msgspec.json import encode
from msgspec.structs import replace

from ralph.core.text import clean, escaped, head, listed, one_line, plural, short
from ralph.files import add_to_file
from ralph.history.evidence import Evidence, evidence_of
from ralph.history.feed import history_of
from ralph.history.run_history import RunHistory
from ralph.history.states import state_of
from ralph.show import report_tables as tables
from ralph.show.needs import needs
from ralph.show.plots import Html, element, joined
from ralph.show.summary import Column, iteration_columns, refusal_columns, share_of_checks
from ralph.show.words import (
    agent_name,
    baseline_sentence,
    count,
    duration,
    money,
    outcome_sentence,
    proof_sentence,
    sentence_case,
    spent,
)
from ralph.store.folder import ExamOutput, RunFolder

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
MOST_NAMED = 30  # checks that have a column each in a pull request


def html(history: RunHistory, evidence: Mapping[int, Evidence], exams: Sequence[ExamOutput] = ()) -> str:
    """Return the report of a run as a page that needs no other file."""
    return page(f"ralph: {history.state}", report_body(history, evidence, exams))


def page(title: str, content: Html) -> str:
    """Return a self-contained page."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(stylesheet("report.css") + stylesheet("drawings.css"))),
    )
    body = element("main", content)
    return f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n"


def stylesheet(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def report_body(history: RunHistory, evidence: Mapping[int, Evidence], exams: Sequence[ExamOutput] = ()) -> Html:
    """Return the contents of the page without its frame. `evidence` is by the number of the iteration.

    `exams` is the output of the exams. Never pass it for a page in the workspace.
    """
    origin = f"Written by ralph {history.version} on {_moment(time.time())}."
    footer = element("footer", f"{origin} The journals in .ralph/runs have every event.")
    return joined(_article(history, evidence), tables.exams(exams), footer)


def _article(history: RunHistory, evidence: Mapping[int, Evidence]) -> Html:
    needed = [
        element("li", need.text, joined(" ", element("code", need.commands)) if need.actions else None)
        for need in needs(history)
    ]
    if needed:
        needing = element("div.card.needs", element("h2", "What needs you"), element("ul", needed))
    else:
        heading = "Nothing needs you." if history.outcome else "Nothing needs you now: the run continues by itself."
        needing = element("div.card.needs.calmly", element("h2", heading))
    proofs = [f"{title}: {listed([short(name, 60) for name in names], 6)}." for title, names in _seen_red(history)]
    if before := baseline_sentence(history):
        proofs.insert(0, f"{sentence_case(before)}.")
    proof = element("p.facts", " ".join(proofs)) if proofs else None
    scores = tables.score(history, f"{history.run}-") if history.checked else None
    details = [tables.details(history, iteration, evidence.get(iteration.number)) for iteration in history.iterations]
    sections = [
        ("The number", tables.staircase(history)),
        ("Iterations", [*filter(None, (tables.iterations(history, f"{history.run}-"), proof))]),
        ("Checks", element("div.card.scroll", scores, tabindex="0") if scores else None),
        ("Proof", tables.proof(history)),
        ("Claims that were refused", tables.refusals(history)),
        ("Questions", tables.questions(history)),
        ("Files changed", tables.files(history)),
        ("Each iteration", details),
    ]
    bodies = [element("section", element("h2", title), body) for title, body in sections if body]
    return element("article", _header(history), needing, _tiles(history), bodies, id=history.run)


def _seen_red(history: RunHistory) -> list[tuple[str, list[str]]]:
    """Return the names of the checks that failed at least once, and of the others, which may be unable to."""
    lists = [("Seen red at least once", history.proven), ("Never seen red, so unproven", history.unproven)]
    return [(title, names) for title, names in lists if names]


def _header(history: RunHistory) -> list[Html]:
    cap = f", at most {history.max_iterations}" if history.max_iterations is not None else ""
    facts = [
        " ".join((history.agent, *history.rights)),
        f"preset {history.preset}",
        f"{_moment(history.began)} to {_moment(history.ended)}",
        f"{plural(len(history.iterations), 'iteration')}{cap}",
        f"resumed {plural(history.resumed, 'time')}" if history.resumed else "",
        f"branch {history.branch}" if history.branch else "",
        "" if history.is_in_git else "not in git: changes were not recorded",
        "" if history.outcome or history.state == "killed" else "still running: these are its facts so far",
    ]
    return [
        element("div.top", element("span.wrap", f"{history.run} in {history.workspace}"), _badge(history)),
        element("h1", outcome_sentence(history)),
        element("div.goal", head(history.goal, 4000, "…")),
        element("p.facts", [element("span", fact) for fact in facts if fact]),
    ]


def _badge(history: RunHistory) -> Html:
    unverified = history.outcome == "done" and not history.verified
    tone = "warn" if unverified else state_of(history.state).badge
    return element(f"span.badge.{tone}", history.state + (" (unverified)" if unverified else ""))


def _tiles(history: RunHistory) -> Html:
    usage, refused = history.usage, history.refused_claims
    tiles = [plural(len(history.iterations), "iteration").split(), [duration(history.seconds), "time"]]
    if history.cost_usd is not None:
        tiles.append([("~" if usage.estimated else "") + money(history.cost_usd), "cost"])
    if usage.tokens:
        tiles.append([count(usage.tokens), f"tokens, {count(usage.output_tokens)} of them written"])
    if history.files is not None:
        number, files = plural(len(history.files), "file").split()
        tiles.append([number, f"{files} changed, {tables.sums(history.files)}"])
    if refused:
        tiles.append(f"{plural(refused, 'claim')} refused".split(" ", 1))
    cards = [element("div.card.tile", element("b", number), element("span", name)) for number, name in tiles]
    return element("div.tiles", cards)


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))


def as_json(history: RunHistory) -> bytes:
    """Return everything about a run as an object, with the sentence that says how it ended."""
    return escaped(encode({**to_builtins(history), "sentence": f"ralph: {outcome_sentence(history)}"}) + b"\n")


REPORT_FILE = "report.html"


def write_report(folder: RunFolder, env: Mapping[str, str]) -> None:
    """Write the report to the run's folder, and to the summary of the CI job that the run belongs to."""
    history = history_of(folder)
    folder.write(REPORT_FILE, html(history, evidence_of(folder, history, env)).encode())
    summary = env.get("GITHUB_STEP_SUMMARY")
    if summary:
        add_to_file(summary, for_review(history).encode() + b"\n")


MOST_PARTS = 50  # untested ones
REVIEW_NEEDS = ("question", "unclaimed", "denied", "blocked", "restored")
# A comment inside keeps a forge from taking `@name` for a person to call, and `#1` for an issue to link.
_SPECIAL = {ord(char): "\\" + char for char in "\\`*_[]|~>$"} | {
    ord("<"): "&lt;",
    ord("&"): "&amp;",
    ord("@"): "@<!-- -->",
    ord("#"): "#<!-- -->",
}


def for_review(history: RunHistory, answer: str = "") -> str:
    """Return the report as Markdown for a reviewer at the host: the goal and the changes come before the verification,
    and details of this machine are left out.
    """
    history = replace(history, agent=agent_name(history.agent))
    lines = head(clean(answer[:12_000]).strip(), 3000, " …").splitlines()
    quoted = "\n".join(f"> {escape_markdown(line, 500)}".rstrip() for line in lines)
    summary = f"### What was done, in the agent's words\n\n{quoted}" if answer else ""
    parts = [*_title(history), summary, _needs(history), *_tables(history), _facts(history)]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def escape_markdown(text: str, limit: int = 300) -> str:
    """Return text on one line that no renderer reads as a mark, a link, a mention or HTML."""
    line = one_line(clean(text[: 4 * limit]), limit).translate(_SPECIAL)
    line = line.replace("://", "\\://").replace("www.", "www\\.")
    line = re.sub(r"\b(gh)-(?=\d)", r"\1<!-- -->-", line, flags=re.IGNORECASE)  # GitHub's other name of an issue
    return "\\" + line if line.startswith(("-", "+", "=")) else line


def code(text: str, limit: int = 200) -> str:
    """Return text on one line as code: a fence of backticks longer than any in it."""
    line = one_line(clean(text[: 4 * limit]), limit).replace("|", "¦")
    runs = "".join(char if char == "`" else " " for char in line).split()
    fence = "`" * (max(map(len, runs), default=0) + 1)
    pad = " " if runs else ""
    return f"{fence}{pad}{line}{pad}{fence}" if line else ""


def _title(history: RunHistory) -> list[str]:
    mark = {"done": "✅" if history.verified else "⚠️", "": "⏳"}.get(history.outcome, "❌")
    sentence = escape_markdown(outcome_sentence(history), 600)
    return [f"## {mark} {sentence}", f"**Goal:** {escape_markdown(history.goal, 500)}"]


def _facts(history: RunHistory) -> str:
    agent = escape_markdown(" ".join((history.agent, *history.rights)))
    facts = [f"run {code(history.run)}", agent, plural(len(history.iterations), "iteration")]
    facts += map(escape_markdown, spent(history.seconds, history.cost_usd, history.usage.tokens))
    if history.files:
        facts.append(f"{plural(len(history.files), 'file')} changed")
    if history.branch:
        facts.append(f"branch {code(history.branch)}")
    return " · ".join(facts)


def _tables(history: RunHistory) -> list[str]:
    proofs = (f"{title}: {', '.join(code(name, 60) for name in names)}." for title, names in _seen_red(history))
    refused = f"### Claims that were refused\n\n{_table(refusal_columns(history))}" if history.refused_claims else ""
    before = baseline_sentence(history)
    baseline = escape_markdown(f"{sentence_case(before)}.") if before else ""
    return [_iterations(history), baseline, " ".join(proofs), _proof(history), refused]


def _proof(history: RunHistory) -> str:
    if history.proof is None:
        return ""
    parts = [f"- {code(part.place)}: {code(part.line)}" for part in history.proof.untested[:MOST_PARTS]]
    sentence = escape_markdown(sentence_case(proof_sentence(history.proof)), 600)
    return "\n\n".join(("### Proof", sentence, "\n".join(parts)))


def _needs(history: RunHistory) -> str:
    wanted = [need for need in needs(history) if need.kind in REVIEW_NEEDS]
    items = [f"- {escape_markdown(need.text, 600)} {code(need.commands)}".rstrip() for need in wanted]
    return "### What needs you\n\n" + "\n".join(items) if items else ""


def _iterations(history: RunHistory) -> str:
    past = history.iterations
    if not past:
        return ""
    names = history.checked if len(history.checked) <= MOST_NAMED else []
    verdicts = [{check.name: "✅" if check.passed else "❌" for check in iteration.checks} for iteration in past]
    checks = [Column(code(name, 60), [verdict.get(name, "") for verdict in verdicts]) for name in names]
    columns = [
        Column("#", [str(iteration.number) for iteration in past]),
        *(checks or [Column("Checks", [share_of_checks(iteration) for iteration in past])]),
        *iteration_columns(past, history),
        Column("Idea", [iteration.idea for iteration in past]),
    ]
    return "### Iterations\n\n" + _table(columns)


def _table(columns: Sequence[Column]) -> str:
    """Return the table without empty columns."""
    used = [column for column in columns if any(column.cells)]
    rows = zip(*([escape_markdown(cell) for cell in column.cells] for column in used), strict=True)
    lines = [[column.title for column in used], ["---"] * len(used), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
