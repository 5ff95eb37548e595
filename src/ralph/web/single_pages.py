"""What stands on the pages that are read once and do not change by themselves? An iteration, its prompt and log, a
patch, the report, the form for a new run, and the page behind a link."""

from collections.abc import Mapping, Sequence

from ralph.core.text import short
from ralph.history.evidence import Evidence, Patch, PatchedFile
from ralph.history.run_history import PastIteration, RunHistory
from ralph.records.register import Listed
from ralph.show import report_tables as tables
from ralph.show.plots import Html, element, joined
from ralph.show.report import report_body
from ralph.show.words import nickname, plural
from ralph.web.access import Level
from ralph.web.pieces import Frame, button, form, from_home
from ralph.web.server import WebAnswer

_PROMISES = {
    Level.LOOK: "This browser will see all runs on this machine.",
    Level.STEER: "This browser will see all runs on this machine, and may answer, tell, pause, resume and stop them.",
    Level.START: "This browser will see and steer all runs on this machine, and may start new ones.",
}
_TONES = {"+": "add", "-": "del", "@": "hunk"}


def enter_page(frame: Frame, key: str, level: Level) -> WebAnswer:
    """Looking at a link uses nothing up: programs that preview links look at everything."""
    inside = button("Open", "primary big")
    entry = form(f"{frame.base}enter", inside, is_quick=False, hidden={"key": key})
    body = element("main", element("h1", "ralph"), element("p", _PROMISES[level]), entry, id="main", class_="enter")
    return frame.page("ralph", body)


def iteration_page(
    run: Listed, chapter: PastIteration, stream: Sequence[Html], left_out: bool, frame: Frame
) -> WebAnswer:
    number = chapter.number
    here = frame.run(run.id, "iterations", number)
    links = element(
        "p",
        element("a", "Its prompt", href=f"{here}/prompt"),
        element("a", "Its log", href=f"{here}/log"),
        element("a", "What it changed", href=frame.run(run.id, "diff", number)),
        class_="links",
    )
    note = element("p", "The beginning is left out: its log has all of it.", class_="soft") if left_out else None
    main = element(
        "main",
        element("h1", f"Iteration {number}"),
        links,
        element("div", tables.result(chapter), tables.particulars(chapter), class_="card particulars"),
        element("h2", "What happened", class_="hidden"),
        note,
        element("div", stream, id="stream"),
        id="main",
        class_="one",
    )
    return frame.page(f"{nickname(run.id)} iteration {number}", _bar(run, frame), main)


def text_page(run: Listed, title: str, text: str, note: str, frame: Frame) -> WebAnswer:
    said = element("p", note, class_="soft") if note else None
    whole = element("pre", text, tabindex="0", class_="whole")
    main = element("main", element("h1", title), said, whole, id="main", class_="one")
    return frame.page(f"{nickname(run.id)} {title}", _bar(run, frame), main)


def diff_page(run: Listed, patch: Patch, frame: Frame) -> WebAnswer:
    numbers: list[int | None] = [None, *range(1, patch.last + 1)] if patch.last > 1 else []
    pager = element(
        "nav",
        [
            element(
                "a",
                str(number or "All"),
                href=frame.run(run.id, "diff", *([number] if number else [])),
                aria_current="page" if number == patch.number else None,
            )
            for number in numbers
        ],
        class_="pager",
        aria_label="Iterations",
    )
    what = f"Changes of iteration {patch.number}" if patch.number else "Changes"
    said = [plural(len(patch.files), "file"), " · ", _sums(patch.files)] if patch.files else "Nothing was changed."
    cut = element("p", f"More than can be shown: ralph diff {run.id}", class_="soft") if patch.is_cut else None
    files = [_patched(one) for one in patch.files]
    top = [element("h1", what), pager if numbers else None, element("p", said, class_="soft")]
    return frame.page(
        f"{nickname(run.id)} {what}", _bar(run, frame), element("main", top, files, cut, id="main", class_="one")
    )


def _sums(files: Sequence[PatchedFile]) -> Html:
    added, deleted = (sum(one.added for one in files), sum(one.deleted for one in files))
    return joined(element("span", f"+{added}", class_="plus"), " ", element("span", f"−{deleted}", class_="minus"))


def _patched(file: PatchedFile) -> Html:
    name = f"{file.was} → {file.path}" if file.was else file.path
    sums = element("span", _sums([file]), class_="number") if file.lines else None
    summary = element("summary", element("code", name), sums)
    lines = [element("span", f"{line}\n", class_=_TONES.get(line[:1])) for line in file.lines]
    patch = element("pre", lines, class_="patch", tabindex="0", role="group", aria_label=f"Changes in {file.path}")
    body = patch if lines else element("p", "No line of it is different.", class_="soft")
    return element("details", summary, body, class_="card patched", open=True)


def report_page(run: Listed, history: RunHistory, evidence: Mapping[int, Evidence], frame: Frame) -> WebAnswer:
    """The same that `ralph report` writes."""
    body = element("main", report_body([history], {history.run: evidence}), id="main")
    return frame.page(
        f"{nickname(run.id)} report", _bar(run, frame), body, styles=("page.css", "report.css"), class_="report"
    )


def new_page(
    places: Sequence[str], agents: Sequence[str], frame: Frame, said: Mapping[str, str], fault: str = ""
) -> WebAnswer:
    """The form for a new run; where something was wrong with it, what, and what was typed."""
    options = [element("option", from_home(one), value=one, selected=said.get("workspace") == one) for one in places]
    default = element("option", "from settings", value="")
    known = [element("option", one, value=one, selected=said.get("agent") == one) for one in agents]
    small = element(
        "div",
        element("label", "Agent", element("select", default, known, name="agent")),
        _field("Iterations, at most", "iterations", said, inputmode="numeric", placeholder="25"),
        _field("Cost, at most ($)", "cost", said, inputmode="decimal", placeholder="5"),
        _field("Time, at most", "time", said, placeholder="2h"),
        class_="grid",
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
        "textarea",
        said.get("checks", ""),
        name="checks",
        rows="3",
        class_="mono",
        maxlength="20000",
        placeholder="pytest -q",
    )
    entry = form(
        f"{frame.base}start",
        element("p", fault, class_="bad-text", role="alert") if fault else None,
        element("label", "Goal", goal),
        element("label", "Where", element("select", options, name="workspace", required=True)),
        element("label", "Checks, one a line: it is done when the agent says so and all of them pass", checks),
        small,
        element(
            "p",
            "It works in a worktree of its own, on a branch of its own: your files stay as they are.",
            class_="soft",
        ),
        element("p", button("Start", "primary big"), class_="acts"),
        class_="card new",
        is_quick=False,
    )
    none = element("p", "No workspace is known yet: name one with `ralph serve DIR`, or run something there first.")
    main = element("main", element("h1", "New run"), entry if places else none, id="main", class_="one narrow")
    made = frame.page("New run", frame.bar(), main)
    return WebAnswer(made.body, 409) if fault else made


def _field(label: str, name: str, said: Mapping[str, str], **attributes: object) -> Html:
    return element("label", label, element("input", name=name, value=said.get(name, ""), **attributes))


def _bar(run: Listed, frame: Frame) -> Html:
    goal = element("span", short(run.facts.goal, 80), class_="soft cut")
    return frame.bar(element("a", nickname(run.id), href=frame.run(run.id), class_="mono"), goal)
