"""How any other command line is run, and how its output is read."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from ralph.agents import command, module, needs_shell, wire
from ralph.agents.command import dialect_of
from ralph.agents.protocol import Invocation, TurnRequest
from ralph.core.events import AgentText
from ralph.core.model import Exit
from ralph.errors import UserError

NASTY = 'it\'s "so" $HOME `id` $(id) ; rm -rf / | & > x\n{prompt_file} {prompt}\\ \n--flag'


def start(line: str, prompt: str = NASTY, **request: Any) -> Invocation:
    return command.invocation(TurnRequest(prompt=prompt, prompt_file="/tmp/a 'b'/p.md", command=(line,), **request))


@pytest.mark.parametrize(
    ("line", "argv"),
    [
        ("my-agent --fast", ("my-agent", "--fast")),
        ("my-agent 'two words'", ("my-agent", "two words")),
        ("my-agent -p {prompt}", ("my-agent", "-p", NASTY)),
        ("my-agent --text={prompt} -f {prompt_file}", ("my-agent", f"--text={NASTY}", "-f", "/tmp/a 'b'/p.md")),
        ("my-agent ';' \"|\" '$HOME' a\\;b", ("my-agent", ";", "|", "$HOME", "a;b")),
    ],
)
def test_a_placeholder_is_one_word_without_a_shell(line: str, argv: tuple[str, ...]) -> None:
    made = start(line)
    assert made.argv == argv
    assert made.stdin == ("empty" if "{prompt" in line else "prompt")


def test_flags_come_last() -> None:
    assert start("my-agent run", flags=("-x", "a b")).argv == ("my-agent", "run", "-x", "a b")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a | b", True),
        ("a && b", True),
        ("a; b", True),
        ("a > f", True),
        ("a < f", True),
        ("a &", True),
        ("a $(b)", True),
        ('a "$(b)"', True),
        ("a `b`", True),
        ("a $HOME", True),
        ("a ${HOME}", True),
        ("KEY=1 a", True),
        ("a\nb", True),
        ("a '$(b)'", False),
        ("a '|' \";\"", False),
        ("a \\| b", False),
        ("a --price=5$", False),
        ("a --key=value", False),
        ("a {prompt}", False),
        ("", False),
    ],
)
def test_a_shell_is_used_only_for_shell_syntax(line: str, expected: bool) -> None:
    assert needs_shell(line) is expected


@pytest.mark.parametrize(
    "line",
    [
        "printf '%s' {prompt} | cat",
        'printf "%s" "{prompt}" | cat',
        "printf '%s' '{prompt}' | cat",
        'printf "%s" "a{prompt}"; true',
    ],
)
def test_the_shell_never_runs_text_of_a_prompt(line: str) -> None:
    made = start(line)
    done = subprocess.run(made.argv, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout in (NASTY, f"a{NASTY}")
    assert made.stdin == "empty"


def test_the_path_of_the_prompts_file_is_one_word_in_the_shell(tmp_path: Path) -> None:
    folder = tmp_path / "it's a $(touch hacked) folder"
    folder.mkdir()
    file = folder / "p.md"
    file.write_text("hello")
    request = TurnRequest(
        prompt="hello", prompt_file=str(file), command=("cat {prompt_file} < /dev/null | tr a-z A-Z",)
    )
    done = subprocess.run(
        command.invocation(request).argv, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=60
    )
    assert done.stdout == "HELLO"
    assert not (tmp_path / "hacked").exists()


def test_a_shell_line_without_a_placeholder_reads_the_prompt_from_stdin() -> None:
    made = start("cat | tail -1")
    assert made.stdin == "prompt"
    done = subprocess.run(made.argv, input="a\nlast", capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "last"


def test_flags_for_a_shell_line_are_refused() -> None:
    with pytest.raises(UserError, match="shell"):
        start("a | b", flags=("--model", "x"))


def test_unclosed_quotes_are_an_error() -> None:
    with pytest.raises(UserError, match="cannot be read"):
        start("my-agent 'oops")


def test_a_prompt_that_is_too_long_for_an_argument_is_an_error() -> None:
    with pytest.raises(UserError, match="too long") as told:
        start("my-agent {prompt}", prompt="é" * 70_000)
    assert "{prompt_file}" in told.value.hint
    assert start("my-agent {prompt_file}", prompt="é" * 5_000_000).argv[1] == "/tmp/a 'b'/p.md"
    assert start("my-agent", prompt="é" * 5_000_000).stdin == "prompt"


def test_a_prompt_with_a_nul_character_cannot_be_an_argument() -> None:
    with pytest.raises(UserError, match="NUL"):
        start("my-agent {prompt} | cat", prompt="a\0b")


def test_an_escaped_placeholder_is_left_alone() -> None:
    done = subprocess.run(start("echo \\{prompt} | cat").argv, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "{prompt}\n"


def test_a_program_in_the_home_folder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert start("~/bin/my-agent ~/x").argv == ("/home/me/bin/my-agent", "~/x")


def test_a_program_whose_path_has_a_space_is_one_word(tmp_path: Path) -> None:
    program = tmp_path / "my agent"
    program.touch()
    assert start(str(program)).argv == (str(program),)


def read(output: bytes, prompt: str = "the prompt", code: int = 0, line: str = "my-agent", stderr: str = "") -> Any:
    parser = command.parser(TurnRequest(prompt=prompt, prompt_file="", command=(line,)))
    events = [event for each in output.removesuffix(b"\n").split(b"\n") for event in parser.feed(each)]
    return events, parser.turn(Exit(code=code, at=1000.0, duration=1.0, stderr=stderr)), parser


def test_all_of_plain_text_is_the_answer() -> None:
    events, turn, parser = read("one\n\ntwo é\r\nSTOP\n".encode())
    assert turn.text == "one\n\ntwo é\nSTOP"
    assert [event.text for event in events] == ["one", "", "two é", "STOP"]
    assert (turn.tool_calls, parser.skipped) == (None, 0)


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini", "opencode", "pi", "copilot", "cline"])
def test_a_known_stream_is_recognised_in_any_commands_output(agent: str, recorded) -> None:
    recording = recorded[f"{agent}/tools.ndjson"]
    output = b"npm warn something\n" + b"\n".join(recording.lines)
    _, turn, parser = read(output)
    assert (turn.text, turn.tool_calls) == ("All done.\nSTOP", 2)
    assert parser.skipped == 0


def test_every_recorded_stream_names_its_dialect_in_its_first_line(recording) -> None:
    if not recording.is_text and recording.agent != "amp":
        table = wire.read(recording.lines[0])
        expected = "claude" if recording.agent in ("qwen", "builtin") else recording.agent
        assert dialect_of(table or {}) == expected


@pytest.mark.parametrize(
    "line",
    [b'{"a": 1}', b'{"type": "object", "properties": {}}', b'{"type":"message"}', b'{"type":"result"}', b"{not json}"],
)
def test_json_in_an_answer_is_text(line: bytes) -> None:
    events, turn, parser = read(b"here:\n" + line + b"\nSTOP")
    assert turn.text == f"here:\n{line.decode()}\nSTOP"
    assert AgentText(line.decode()) in events
    assert parser.skipped == 0


@pytest.mark.parametrize("code", [126, 127])
def test_a_program_that_the_shell_does_not_find_is_fatal(code: int) -> None:
    _, turn, _ = read(b"", code=code, line="nosuch | cat", stderr="sh: 1: nosuch: not found")
    assert (turn.failure.kind, turn.failure.reason) == ("fatal", "sh: 1: nosuch: not found")
    _, turn, _ = read(b"", code=code, stderr="./helper: not found")
    assert turn.failure.kind == "ordinary"


def test_the_output_of_a_failed_command_is_kept() -> None:
    _, turn, _ = read(b"I fixed it.\nSTOP", code=3, stderr="warning: something")
    assert turn.text == "I fixed it.\nSTOP"
    assert (turn.failure.kind, turn.failure.reason) == ("ordinary", "exit code 3: warning: something")


def test_json_is_text_from_a_known_agent_that_was_asked_for_text() -> None:
    parser = module("claude").parser(TurnRequest(prompt="p", prompt_file="", command=("claude",), stream=False))
    events = [event for line in (b'{"answer": 42}', b'{"broken', b"STOP") for event in parser.feed(line)]
    assert events == [AgentText('{"answer": 42}'), AgentText('{"broken'), AgentText("STOP")]
    assert parser.turn(Exit(code=0, at=0.0, duration=0.0)).text == '{"answer": 42}\n{"broken\nSTOP'


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini", "cline"])
def test_a_known_agent_that_prints_plain_text_is_judged_by_it(agent: str) -> None:
    parser = module(agent).parser(TurnRequest(prompt="the prompt", prompt_file="", command=(agent,)))
    events = [event for line in (b"the prompt", b"Done.", b"STOP") for event in parser.feed(line)]
    turn = parser.turn(Exit(code=0, at=0.0, duration=0.0))
    assert (turn.text, turn.tool_calls, turn.failure) == ("Done.\nSTOP", None, None)
    assert events == [AgentText("Done."), AgentText("STOP")]


def test_one_line_of_a_stream_in_plain_text_is_only_an_example(workspace, ralph, agent) -> None:
    line = '{"type": "assistant", "message": {"content": [{"type": "text", "text": "an example"}]}}'
    fake = agent(
        f"echo 'This is such a line:'; echo '{line}'; echo 'as you see.'; echo; echo '<response>DONE</response>'"
    )
    assert ralph("run", "g", "-m", "1", "--agent", fake).code == 0
