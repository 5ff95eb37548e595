"""How the arguments of tool calls are read, and which error messages invalid ones get."""

import pytest
from script import Forever, Say, Uses, shell

SAID = {"command": "echo made-up"}


@pytest.fixture(params=["chat", "responses", "messages"])
def wire(request):
    """In Google's protocol arguments are always an object, so they cannot be malformed like this."""
    return request.param


@pytest.mark.parametrize(
    "words",
    [
        '{"command": "echo made-up"}',
        '```json\n{"command": "echo made-up"}\n```',
        '"{\\"command\\": \\"echo made-up\\"}"',
        'Here it is: {"command": "echo made-up"} as you wished.',
        '{"command": "echo made-up", "timeout": "5"}',
        '{"command": "echo made-up", "purpose": "to see"}',
    ],
)
def test_arguments_are_read_in_every_accepted_form(play, words):
    ran = play(Uses((("bash", words),)), Say("ok"))
    assert ran.answer == "ok"
    assert [(block["is_error"], block["content"]) for block in ran.blocks] == [(False, "made-up")]


@pytest.mark.parametrize(
    ("tool", "words", "told"),
    [
        ("bash", "", "missing required field `command`. Its arguments are a JSON object with: command, timeout (opt"),
        ("bash", "{}", "missing required field `command`"),
        ("bash", '{"command": 7}', "Expected `str`, got `int` - at `$.command`"),
        ("bash", "echo made-up", "Its arguments are a JSON object with: command, timeout (optional)"),
        ("write", '{"path": "a", "content": "half a te', "Its arguments are a JSON object with: path, content"),
        ("edit", '{"path": "a"}', "missing required field `old`. Its arguments are a JSON object with: path, old, new"),
        ("Bash!", '{"command": "echo made-up"}', "there is no tool 'Bash!'; the tools are: bash, read, write, edit"),
    ],
)
def test_an_invalid_call_gets_an_error_with_the_fields(play, tool, words, told, workspace):
    ran = play(Uses(((tool, words),)), Say("ok"))
    assert ran.answer == "ok"
    [block] = ran.blocks
    assert block["is_error"]
    assert told in block["content"]
    assert list(workspace.iterdir()) == []


def test_eight_invalid_calls_in_a_row_end_the_turn(play):
    ran = play(Forever(Uses((("bash", "rubbish"),))))
    assert "8 tool calls in a row were invalid" in ran.trouble
    assert len(ran.stage.asked) == 8


def test_a_valid_call_resets_the_count_of_invalid_ones(play):
    bad = Uses((("bash", "rubbish"),))
    ran = play(*[bad] * 7, shell("echo good"), *[bad] * 7, Say("ok"))
    assert ran.answer == "ok"


def test_ten_megabytes_of_arguments_are_refused_and_not_sent_back(play, workspace):
    ran = play(Uses((("write", '{"path": "big", "content": "' + "x" * 10_000_000 + '"}'),)), Say("ok"))
    assert ran.answer == "ok"
    assert "too long" in ran.blocks[0]["content"]
    assert list(workspace.iterdir()) == []
    assert len(ran.stage.bodies[1]) < 10_000
    assert len(ran.stdout) < 10_000


CALL = '{"name": "bash", "arguments": {"command": "echo made-up"}}'


@pytest.mark.parametrize(
    "words",
    [
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"I look first.\n<tool_call>{CALL}</tool_call>",
        f"<tool_call>\n{CALL}",
        f"```\n<tool_call>\n{CALL}\n</tool_call>\n```",
        '<tool_call>{"name": "bash", "parameters": {"command": "echo made-up"}}</tool_call>',
    ],
)
def test_a_call_in_the_text_is_run(play, words):
    ran = play(Say(words), Say("ok"))
    assert ran.answer == "ok"
    assert [block["content"] for block in ran.blocks] == ["made-up"]
    assert ran.stage.asked[1].prompt == "Output of bash:\nmade-up"


def test_two_calls_in_the_text_are_two_calls(play):
    ran = play(Say(f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>"), Say("ok"))
    assert len(ran.blocks) == 2


def test_a_quoted_call_is_part_of_the_answer(play):
    answer = f"To call a tool, a model writes:\n```\n<tool_call>{CALL}</tool_call>\n```\nThat is all."
    assert play(Say(answer)).answer == answer


def test_a_malformed_call_in_the_text_gets_an_error_message(play):
    ran = play(Say("<tool_call>bash echo made-up</tool_call>"), Say("ok"))
    assert "write one JSON object" in ran.stage.asked[1].prompt


def test_a_model_without_tool_calling_works_with_fenced_commands(play, workspace):
    ran = play(
        Say("I make it.\n```bash\necho fixed > made.txt\ncat made.txt\n```"),
        Say("It says:\n```\nfixed\n```\n<response>DONE</response>"),
        words=("--tools", "text"),
        asides=False,
    )
    assert ran.answer.endswith("<response>DONE</response>")
    assert (workspace / "made.txt").read_text() == "fixed\n"
    assert ran.stage.asked[0].tools == {}
    assert ran.stage.asked[1].prompt == "Output of bash:\nfixed"
    assert [block["content"] for block in ran.blocks] == ["fixed"]


def test_only_commands_in_a_shell_fence_are_run():
    from ralph.builtin_agent.toolbox import commands_in

    assert commands_in("see `ls`\n```python\nprint(1)\n```\n```sh\nls\n```") == ["ls"]
    assert commands_in("no fence: bash\nls") == []


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ('{"content": "a\nb"}', {"content": "a\nb"}),
        ('{"content": 1,}', None),
        ("nothing at all", None),
        ("[" * 100_000, None),
        ("", None),
    ],
)
def test_json_is_parsed_if_it_is_valid_apart_from_line_breaks(words, meant):
    from ralph.builtin_agent.toolbox import parse_json

    assert parse_json(words) == meant
