"""The output of exams, for the person only: no report in the workspace has it, where the agent could read it."""

from collections.abc import Iterator, Sequence

from ralph.core.text import clean, short
from ralph.show.outlet import Style
from ralph.show.plots import Html, element
from ralph.show.words import duration
from ralph.store.folder import ExamOutput

MOST_LINES = 20
MOST_TEXT = 20_000  # bytes


def exam_lines(outputs: Sequence[ExamOutput], style: Style) -> Iterator[str]:
    """Yield lines for a terminal: each exam with the end of its output and the path of its log."""
    if not outputs:
        return
    yield style.paint("bold", "exams, which the agent doesn't see")
    for output in outputs:
        mark = style.paint("green", style.marks.passed) if output.passed else style.paint("alarm", style.marks.failed)
        yield f"  {mark} {_title(output)}  {style.paint('dim', _ending(output))}"
        lines = [] if output.passed or output is not outputs[-1] else clean(output.text(MOST_TEXT)).rstrip().split("\n")
        yield from (f"    {style.paint('dim', line[:500])}" for line in lines[-MOST_LINES:] if line)
        yield f"    {style.marks.to} {output.log}"
    yield ""


def exam_places(outputs: Sequence[ExamOutput]) -> list[str]:
    """Return the path of the output of the exam that refused the last claim."""
    return [f"What the exam printed is in {output.log}" for output in outputs[-1:] if not output.passed]


def exam_section(outputs: Sequence[ExamOutput]) -> Html | None:
    """Return the outputs as a section of a page."""
    if not outputs:
        return None
    shown = [
        element(
            "details",
            element("summary", f"{_title(output)}: {_ending(output)}"),
            element("pre", clean(output.text(MOST_TEXT)) or "It printed nothing.", tabindex="0"),
            open=not output.passed and output is outputs[-1],
        )
        for output in outputs
    ]
    return element("section.card#exams", element("h2", "Exams, which the agent doesn't see"), shown)


def _title(output: ExamOutput) -> str:
    return f"{output.stage}: {short(output.command, 200)}"


def _ending(output: ExamOutput) -> str:
    return f"{'passed' if output.passed else output.ending}, {duration(output.duration)}"
