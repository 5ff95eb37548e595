"""The report of a run is complete and has no scripts; nothing that an agent writes changes its markup."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ralph.core import events as e
from ralph.core.model import (
    Check,
    Failure,
    FileChange,
    Fingerprint,
    Iteration,
    Outcome,
    PersonNote,
    Question,
    Turn,
    Usage,
)
from ralph.history.evidence import Evidence, PatchedFile
from ralph.history.fold import Fold
from ralph.history.run_history import RunHistory
from ralph.show.outlet import GLYPHS, Style
from ralph.show.plots import element, escape
from ralph.show.report import code, escape_markdown, for_review, html
from ralph.show.summary import render_history

ALONE = {"meta", "br"}
ALLOWED = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "article",
        "section",
        "div",
        "span",
        "p",
        "caption",
        "h1",
        "h2",
        "h3",
    ),
    *("ul", "li", "table", "thead", "tbody", "tfoot", "tr", "th", "td", "code", "a", "b", "i", "details", "summary"),
    *("dl", "dt", "dd", "footer", "pre", "svg", "g", "line", "rect", "text"),
}


class Outline(HTMLParser):
    """The elements of a page in order, and its text. Fails if an element is not closed as it was opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ALONE:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError("a declaration")


def history_with(text: str) -> RunHistory:
    """Return a history in which everything that an agent or a person writes is `text`."""
    turn = Turn(
        text=text,
        tool_calls=3,
        usage=Usage(input_tokens=1000, output_tokens=200, cache_read_tokens=5000, cache_write_tokens=10, cost_usd=0.25),
        duration=5.0,
        agent=text,
    )
    failed = Turn(text=text, exit_code=1, failure=Failure("ordinary", text), duration=1.0)
    checks = (
        Check(name=text, passed=False, exit_code=1, log=text, tail=text, duration=1.0),
        Check(name="b" + text, passed=True, duration=0.1),
    )
    events: list[e.Event] = [
        e.RunStarted(
            goal=text,
            preset=text,
            agent=text,
            workspace=text,
            max_iterations=5,
            checks=(text,),
            claims=(text,),
            gates=(text,),
            pid=1,
            version="1",
            base_tree=Fingerprint.parse("h:0"),
            worktree=text,
            branch=text,
        ),
        e.IterationStarted(1, 5, text),
        e.AgentStarted(text),
        e.QuestionAsked("q", text),
        e.QuestionAsked("q2", text),
        e.AgentFinished(exit_code=0, duration_s=5.0, tool_calls=3, tool_errors=1),
        e.CheckStarted(text),
        e.CheckFinished(name=text, passed=False, exit_code=1, duration_s=1.0, log=text, output=text),
        e.IterationFinished(
            1, Iteration(number=1, turn=turn, checks=checks, touched=(text,), tree=Fingerprint.parse("h:1"))
        ),
        e.ClaimRejected(text, text, text),
        e.ScmFinished(1, text, False, text),
        e.Waiting(60.0, text, 9.0),
        e.Paused(text),
        e.Continued(1.0),
        e.Notice(text),
        e.PersonTold(2, (PersonNote("n", text, Question("q", text)),)),
        e.IterationStarted(2, 5, text),
        e.AgentStarted(text),
        e.AgentFinished(exit_code=1, duration_s=1.0),
        e.IterationFinished(
            2,
            Iteration(
                number=2, turn=failed, checks=checks, tree=Fingerprint.parse("h:2"), told=(PersonNote("m", "n" + text),)
            ),
        ),
        e.RunFinished(
            outcome=Outcome.EXHAUSTED,
            reason=text,
            iterations=2,
            cost_usd=0.25,
            duration_s=60.0,
            exit_code=1,
            verified=True,
            worktree=text,
            branch=text,
        ),
    ]
    fold = Fold("r1")
    for at, event in enumerate(events):
        fold.add(event, 1_800_000_000.0 + at)
    history = fold.as_of()
    history.files = [FileChange("A", text, 1, 0), FileChange("M", text, None, None)]
    for one in history.iterations:
        one.files = history.files
    return history


HOSTILE = [
    "<script>alert(1)</script>",
    "</title></style></svg><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" \'',
    "<!-- --> ]]> <![CDATA[ <?php ?>",
    "&lt;b&gt; &amp; &#60; &nope;",
    "javascript:alert(1) \x1b]8;;http://x\x07 \u202e \ud800 \x00 \u2028",
    "`code` | a | **b** [x](http://evil) @everyone #1 <details> $x$ ~~y~~ ![i](u)",
]


def test_the_page_is_complete_and_has_no_scripts() -> None:
    page = html(history_with("words"), {})
    outline = Outline(page)
    assert page.startswith('<!doctype html>\n<html lang="en">')
    assert set(outline.tags) <= ALLOWED
    assert not [name for name, _ in outline.attributes if name.startswith("on") or name in ("src", "style")]
    assert all(value.startswith("#") for name, value in outline.attributes if name == "href")
    for title in (
        "What needs you",
        "Iterations",
        "Claims that were refused",
        "Files changed",
        "Each iteration",
    ):
        assert title in outline.text
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    assert Outline(html(history_with("a" + text), {})).tags == Outline(html(history_with("a"), {})).tags


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(), max_size=60), st.sampled_from(HOSTILE))
def test_no_text_changes_the_shape_of_the_page(text: str, more: str) -> None:
    hostile = Outline(html(history_with(f"a{text}{more}"), {}))
    plain = Outline(html(history_with("a"), {}))
    assert hostile.tags == plain.tags
    assert [name for name, _ in hostile.attributes] == [name for name, _ in plain.attributes]


@given(st.text(st.characters()))
def test_escaped_text_reads_as_it_was_written(text: str) -> None:
    from ralph.core.text import clean

    parser = Outline(element("p", text))
    assert parser.text == clean(text)
    assert not set("<>\"'") & set(escape(text))


def evidence_with(text: str) -> dict[int, Evidence]:
    patch = [PatchedFile(text, 1, 1, ["@@ -1 +1 @@", f"-{text}", f"+{text}", f" {text}"])]
    return {1: Evidence(prompt=text, patch=patch, patch_is_cut=True, tails={text: text})}


def test_each_iteration_has_its_evidence_collapsed() -> None:
    page = html(history_with("words"), evidence_with("words"))
    outline = Outline(page)
    assert set(outline.tags) <= ALLOWED
    for said in ("✗ words", "Changes, the beginning", "ralph diff r1 1", "The prompt"):
        assert said in outline.text
    assert '<span class="add">+words\n</span>' in page


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_evidence_stays_text(text: str) -> None:
    hostile = Outline(html(history_with("a"), evidence_with("a" + text)))
    assert hostile.tags == Outline(html(history_with("a"), evidence_with("a"))).tags


def history_of(iterations: int, checks: int = 1, **facts: Any) -> RunHistory:
    fold = Fold("r1")
    fold.add(e.RunStarted(goal="g", preset="checks", agent="claude", workspace="/ws", max_iterations=99), 1000.0)
    for number in range(1, iterations + 1):
        usage = Usage(input_tokens=10, output_tokens=10, cost_usd=1000.25)
        done = tuple(Check(name=f"check {at}", passed=at < number, exit_code=1) for at in range(checks))
        record = Iteration(number=number, turn=Turn(text="x", usage=usage), checks=done)
        for refused in ("one", "two", "three", "four"):
            fold.add(e.ClaimRejected("DONE", "checks", refused), 1000.0 + number)
        fold.add(e.IterationFinished(number, record), 1000.0 + number)
    return fold.as_of(**facts)


def test_checks_have_their_own_table() -> None:
    page = html(history_of(3, checks=20), {})
    assert page.count('title="check ') == 20
    assert "<h2>Checks</h2>" not in html(history_of(3, checks=0), {})


def test_missing_facts_are_named() -> None:
    at_work = html(history_of(1, state="running"), {})
    assert at_work.count("not in git: changes were not recorded") == 1
    assert "still running: these are its facts so far" in at_work


def test_a_claim_is_one_row_even_if_several_gates_object() -> None:
    page = html(history_of(2), {})
    assert page.count("<td>DONE</td>") == 1
    assert "one\ntwo\nthree\nand 1 more" in page


def test_a_long_answer_is_whole_in_the_report_and_cut_in_the_terminal() -> None:
    history = history_of(1)
    history.iterations[0].answer = "\n".join(f"line {number}." for number in range(1, 21))
    shown = list(render_history(history, Style(GLYPHS)))
    assert "line 20." in html(history, {})
    assert [line.split()[-2:] for line in shown if "line" in line][-2:] == [["line", "14."], ["more", "lines"]]


def test_a_run_that_has_just_started_has_a_page() -> None:
    fold = Fold("r")
    fold.add(e.RunStarted(goal="goal", preset="goal", agent="claude", workspace="/ws", max_iterations=None), 1000.0)
    outline = Outline(html(fold.as_of(state="running"), {}))
    assert "Nothing needs you now" in outline.text


def test_the_text_of_a_pull_request_says_the_same() -> None:
    said = for_review(history_with("words"))
    for title in ("## ❌ exhausted: words", "### What needs you", "### Iterations", "### Claims that were refused"):
        assert title in said
    assert "| 1 | ❌ | ✅ | 3 | 6.2K | \\$0.25 |" in said


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(), max_size=60), st.sampled_from(HOSTILE))
def test_no_text_changes_the_shape_of_a_pull_request(text: str, more: str) -> None:
    hostile, plain = for_review(history_with(f"a{text}{more}")), for_review(history_with("a"))
    assert len(hostile.splitlines()) == len(plain.splitlines())
    unescaped = hostile.replace("\\|", "")
    assert [line.count("|") for line in unescaped.splitlines()] == [line.count("|") for line in plain.splitlines()]


@given(st.text(st.characters(), max_size=80))
def test_escaped_markdown_contains_no_marks(text: str) -> None:
    said = escape_markdown(text).replace("<!-- -->", "")
    assert "<" not in said
    assert "\n" not in said
    bare = said.replace("\\\\", "")
    for mark in "`*_[]|~$":
        assert mark not in bare.replace("\\" + mark, "")


@pytest.mark.parametrize("said", ["Closes #1", "fixes o/r#1", "resolves GH-1", "closes gh-12", "thanks @octocat"])
def test_no_text_links_an_issue_or_mentions_a_person(said: str) -> None:
    made = escape_markdown(said)
    assert not re.search(r"#\d|gh-\d|@\w", made, re.IGNORECASE)
    assert made.replace("<!-- -->", "") == said


def test_code_may_contain_any_number_of_backticks() -> None:
    assert code("a``b") == "``` a``b ```"
    assert code("plain") == "`plain`"
    assert code("a|b") == "`a¦b`"


def test_one_iteration_is_singular() -> None:
    fold = Fold("r1")
    fold.add(e.RunStarted(goal="goal", preset="goal", agent="claude", workspace="/ws", max_iterations=5), 1000.0)
    fold.add(e.IterationStarted(1, 5, "goal"), 1001.0)
    history = fold.as_of()
    assert "1 iteration, at most 5" in html(history, {})
    assert " 1 iteration " in for_review(history)
