"""What did a person mean by `/ralph-loop …`? Any text survives; only options at its ends are options."""

import pytest

from ralph.errors import UserError
from ralph.hooks.hosts import LOOP
from ralph.hooks.spoken import command_in, parse
from ralph.hooks.starting import OPTIONS

TASKS = [
    ('"fix the tests"', "fix the tests", {}),
    ("fix the tests", "fix the tests", {}),
    ("'fix the \"tests\"'", 'fix the "tests"', {}),
    ('"say \\"hi\\""', 'say "hi"', {}),
    ('"fix" --max-iterations 3', "fix", {"maximum_iterations": 3}),
    ("fix it --max-iterations=3", "fix it", {"maximum_iterations": 3}),
    ("--max-iterations 3 fix it", "fix it", {"maximum_iterations": 3}),
    ("--max-iterations 3 'fix it' --force", "fix it", {"maximum_iterations": 3, "force": True}),
    ('"x" --completion-promise "ALL DONE"', "x", {"completion_promise": "ALL DONE"}),
    ("x --completion-promise it's", "x", {"completion_promise": "it's"}),
    ('"x" --check "pytest -q" --check "ruff check"', "x", {"check": ["pytest -q", "ruff check"]}),
    ('"x" --on-promise-no-work warn', "x", {"on_promise_no_work": "warn"}),
    ("don't stop, it's fine", "don't stop, it's fine", {}),
    ('"a" and "b"', '"a" and "b"', {}),
    ('add an option --verbose to "x"', 'add an option --verbose to "x"', {}),
    ("$(rm -rf /) `id` ; | & > {{x}} $& !x", "$(rm -rf /) `id` ; | & > {{x}} $& !x", {}),
    ('"line one\n\n  line two\ttab"', "line one\n\n  line two\ttab", {}),
    ("“curly quotes” --max-iterations 2", "curly quotes", {"maximum_iterations": 2}),
    ('"C:\\new\\dir"', "C:\\new\\dir", {}),
    ("", "", {}),
]


@pytest.mark.parametrize(("text", "task", "values"), TASKS)
def test_the_task_is_what_stands_between_the_options(text, task, values):
    assert parse(text, OPTIONS) == (task, values)


@pytest.mark.parametrize(
    "text",
    [
        '"x" --max-iteration 5',
        '"x" --max-iterations many',
        "--max-iterations x y",
        '"x" --on-promise-no-work never',
        '"x" --nonsense',
    ],
)
def test_what_cannot_be_understood_is_said(text):
    with pytest.raises(UserError):
        parse(text, OPTIONS)


@pytest.mark.parametrize(
    ("prompt", "name", "rest"),
    [
        ('/ralph-loop "x"', "ralph-loop", '"x"'),
        ('/ralph:ralph-loop "x"', "ralph-loop", '"x"'),
        ("/ulw-loop fix it", "ulw-loop", "fix it"),
        ("/cancel-ralph", "cancel-ralph", ""),
        ("cancel-ralph\n", "cancel-ralph", ""),
        ('ralph-loop "x"', "ralph-loop", '"x"'),
        ("ralph-loop --force 'x'", "ralph-loop", "--force 'x'"),
        ('  /ralph-loop\n"x"', "ralph-loop", '"x"'),
        (f'{LOOP}\n\n/ralph-loop "x"', "ralph-loop", '"x"'),
    ],
)
def test_a_command_is_known_by_its_beginning(prompt, name, rest):
    spoken = command_in(prompt)
    assert spoken is not None
    assert (spoken.name, spoken.rest) == (name, rest)


@pytest.mark.parametrize(
    "prompt",
    [
        "what is /ralph-loop?",
        "ralph-loop is a nice thing",
        "/ralph-loops",
        "/ralph-loop-x",
        "cancel-ralph does what?",
        "You attempted to end the loop. Original task:\n/ralph-loop x",
        "",
    ],
)
def test_talk_about_a_command_is_none(prompt):
    assert command_in(prompt) is None
