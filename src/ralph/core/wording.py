"""Is a marker stated, or only talked about? Imports nothing at first: the stop hook asks this, and must start fast."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

Span = tuple[int, int]

_DECORATION = " \t`*_\"'"


def occurrences(marker: str, text: str) -> "Iterator[Span]":
    """Where `marker` stands in `text`, to the letter."""
    start = text.find(marker)
    while start >= 0:
        end = start + len(marker)
        yield start, end
        start = text.find(marker, end)


def is_plain_statement(text: str, span: Span) -> bool:
    """Whether the marker at `span` stands on a line of its own, or in a sentence that simply states it."""
    start, end = span
    line_start, line_end = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    if not (text[line_start:start] + text[end:line_end]).strip(_DECORATION):
        return True
    from ralph.core.sentence import simply_states

    return simply_states(text, start, end)
