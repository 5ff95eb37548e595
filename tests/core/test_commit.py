import pytest

from ralph.core.prompts import MAX_COMMIT_MESSAGE, commit_message


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("Add a parser", "Add a parser"),
        ("\n\n  Add a parser  \n\nIt parses.", "Add a parser"),
        ("Sure!\n<response>Add a parser</response>", "Add a parser"),
        ("<RESPONSE>\n Add a parser\n\nIt parses.\n</Response> bye", "Add a parser\n\nIt parses."),
        ("<response>First</response><response>Second</response>", "First"),
        ("```\nAdd a parser\n```", "Add a parser"),
        ("`Add` a parser", "`Add` a parser"),
        ("-m 'Add'", "-m 'Add'"),
        ("\x1b[1mAdd\x1b[0m a\0 parser", "Add a parser"),
        ("<response>never closed", "<response>never closed"),
        ("", None),
        (" \n\t\n", None),
        ("```\n```", None),
        ("text <response> </response>", None),
    ],
)
def test_the_message_is_in_the_tag_or_in_the_first_line(answer: str, message: str | None) -> None:
    assert commit_message(answer) == message


def test_an_endless_message_is_truncated() -> None:
    assert commit_message("x" * 10**6) == "x" * MAX_COMMIT_MESSAGE
