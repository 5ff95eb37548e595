"""An agent of one's own: any command line, or a description in the settings. Does every way work as the guide says?"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "own-agent.md").read_text()
HOSTILE = (
    "--do it; $(touch pwned) `touch pwned` \"two\" 'one' | > & {prompt_file} {{x}} \\ %s $1 ~ * é\n---\n\tlast line"
)
DONE = "echo '<response>DONE</response>'"
TURN = '{{"type":"result","subtype":"success","session_id":"S-{n}","result":"{text}","total_cost_usd":0.5}}'


@pytest.fixture
def configure(workspace: Path) -> Callable[..., None]:
    """Writes settings in which the agent is called `mine`."""

    def write(**description: Any) -> None:
        settings = {"agent": {"command": "mine"}, "agents": {"mine": description}}
        (workspace / ".ralph").mkdir()
        (workspace / ".ralph" / "settings.json").write_text(json.dumps(settings))

    return write


@pytest.fixture
def receiver(environment: dict[str, str], workspace: Path) -> Callable[[str], str]:
    """An agent that keeps what `reads` gives it as the prompt, byte for byte, and is done."""

    def make(reads: str) -> str:
        path = Path(environment["HOME"]) / "bin" / "my-agent"
        path.write_text(f'#!/bin/sh\n{reads} > "{workspace}/received"\n{DONE}\n')
        path.chmod(0o755)
        return str(path)

    return make


STDIN, FIRST, FILE = "cat", 'printf %s "$1"', 'cat "$1"'


@pytest.mark.parametrize(
    ("line", "reads"),
    [
        ("my-agent", STDIN),
        ("my-agent {prompt}", FIRST),
        ("my-agent '{prompt}'", FIRST),
        ("my-agent --task={prompt}", 'printf %s "${1#--task=}"'),
        ("my-agent {prompt_file}", FILE),
        ("env NAME=value my-agent --file {prompt_file}", 'cat "$2"'),
        ("cat | my-agent", STDIN),
        ("NAME=value my-agent {prompt}", FIRST),
        ('my-agent "{prompt}" | cat', FIRST),
        ("my-agent '{prompt}' && true", FIRST),
        ("my-agent < {prompt_file}", STDIN),
        ('true; my-agent "--task={prompt}"', 'printf %s "${1#--task=}"'),
    ],
)
def test_the_prompt_reaches_a_command_line_byte_for_byte(
    line: str, reads: str, ralph, receiver, workspace: Path
) -> None:
    receiver(reads)
    result = ralph("run", "-p", HOSTILE, "--agent", line)
    assert result.code == 0, result.err
    assert (workspace / "received").read_text() == HOSTILE
    assert not (workspace / "pwned").exists()


@pytest.mark.parametrize(("way", "reads"), [("stdin", STDIN), ("argument", FIRST), ("file", FILE)])
def test_the_prompt_reaches_a_described_agent_byte_for_byte(
    way: str, reads: str, ralph, receiver, configure, workspace: Path
) -> None:
    receiver(reads)
    configure(argv=["my-agent"], prompt=way)
    result = ralph("run", "-p", HOSTILE)
    assert result.code == 0, result.err
    assert (workspace / "received").read_text() == HOSTILE
    assert not (workspace / "pwned").exists()


@pytest.mark.slow
@pytest.mark.parametrize("line", ["my-agent", "my-agent < {prompt_file}", "cat | my-agent"])
def test_five_megabytes_of_prompt_arrive(line: str, ralph, receiver, workspace: Path) -> None:
    receiver(STDIN)
    text = "0123456789abcde\n" * (5 << 16)
    (workspace / "PROMPT.md").write_text(text)
    result = ralph("run", "-f", "PROMPT.md", "--agent", line)
    assert result.code == 0, result.err
    assert (workspace / "received").read_text() == text


def test_a_prompt_too_long_for_an_argument_is_refused_with_a_hint(ralph, receiver, workspace: Path) -> None:
    receiver(FIRST)
    (workspace / "PROMPT.md").write_text("x" * 200_000)
    result = ralph("run", "-f", "PROMPT.md", "--agent", "my-agent {prompt}")
    assert result.code == 2
    assert "{prompt_file}" in result.last_line
    assert not (workspace / "received").exists()


def test_a_command_of_several_words_keeps_them(ralph, agent, environment) -> None:
    agent(DONE, "my-agent")
    assert ralph("run", "go", "--agent", "my-agent --name 'two words' \"$\"", "--agent-arg", "more").code == 0
    assert (Path(environment["HOME"]) / "my-agent.argv.1").read_text() == "--name\ntwo words\n$\nmore\n"


def test_a_path_with_blanks_may_be_an_agent(ralph, workspace: Path) -> None:
    path = workspace / "my agent"
    path.write_text(f"#!/bin/sh\n{DONE}\n")
    path.chmod(0o755)
    assert ralph("run", "go", "--agent", str(path)).code == 0
    assert ralph("run", "go", "--agent", "'./my agent' --flag").code == 0


def test_the_environment_of_an_agent_names_run_and_iteration(ralph, agent, workspace: Path) -> None:
    line = 'echo "$RALPH_RUN_ID $RALPH_ITERATION" > told; cat "$RALPH_PROMPT_FILE" > read'
    assert ralph("run", "-p", "the goal", "--agent", agent(f"{line}; {DONE}")).code == 0
    run, iteration = (workspace / "told").read_text().split()
    assert (workspace / ".ralph" / "runs" / run).is_dir()
    assert iteration == "1"
    assert (workspace / "read").read_text() == "the goal"


def test_stderr_is_not_part_of_the_answer(ralph, agent) -> None:
    result = ralph("run", "go", "-m", "1", "--agent", agent(f"{DONE} >&2; echo still at it"))
    assert result.code == 1


def test_a_nonzero_exit_code_is_a_failed_turn(ralph, agent, prompts) -> None:
    result = ralph("run", "go", "--max-failures", "2", "--agent", agent(f"{DONE}; echo it broke >&2; exit 7"))
    assert result.code == 1
    assert "exit code 7: it broke" in result.err
    assert len(prompts()) == 2


STREAMS = [
    *(("claude", "tools"), ("codex", "tools"), ("opencode", "tools"), ("gemini", "tools"), ("qwen", "text")),
    *(("pi", "tools"), ("copilot", "tools"), ("cline", "tools")),
]


@pytest.mark.parametrize(("dialect", "scenario"), STREAMS)
def test_a_stream_that_a_known_agent_could_have_printed_is_noticed(
    dialect: str, scenario: str, ralph, streams: Path
) -> None:
    stream = streams / dialect / f"{scenario}.ndjson"
    result = ralph("run", "go", "--json", "--until", "word:STOP", "--agent", f"cat {stream}")
    assert result.code == 0, result.err
    (iteration,) = result.all("iteration_finished")
    assert iteration["record"]["turn"]["text"] == "All done.\nSTOP"
    tools = 0 if scenario == "text" else 2
    assert iteration["record"]["turn"]["tool_calls"] == tools
    assert len(result.all("tool_started")) == len(result.all("tool_finished")) == tools
    assert result.one("agent_finished").get("skipped_lines", 0) == 0


def test_plain_words_before_a_stream_do_not_hide_it(ralph, agent, streams: Path) -> None:
    line = agent(f"echo starting up; cat {streams}/claude/text.ndjson", "wrapper")
    result = ralph("run", "go", "--json", "--until", "word:STOP", "--agent", line)
    assert result.one("iteration_finished")["record"]["turn"]["text"] == "All done.\nSTOP"
    assert result.one("run_finished")["cost_usd"] == 0.00375


def test_json_that_no_agent_prints_is_plain_text(ralph, agent) -> None:
    said = '{"status":"<response>DONE</response>"}'
    result = ralph("run", "go", "--json", "--claim-anywhere", "--agent", agent(f"echo '{said}'"))
    assert result.code == 0
    assert result.one("iteration_finished")["record"]["turn"]["text"] == said


def test_a_described_agent_is_read_by_the_stream_of_its_description(ralph, agent, configure, streams: Path) -> None:
    agent(f"cat {streams}/claude/tools.ndjson", "my-agent")
    configure(argv=["my-agent"], stream="claude")
    result = ralph("run", "go", "--json", "--until", "word:STOP")
    assert result.one("agent_result")["cost_usd"] == 0.01125
    assert [tool["name"] for tool in result.all("tool_started")] == ["Bash", "Write"]
    assert result.all("agent_started")[0]["agent"] == "mine"


def test_a_described_agent_that_prints_text_is_read_as_text(ralph, agent, configure, streams: Path) -> None:
    agent(f"cat {streams}/claude/text.ndjson", "my-agent")
    configure(argv=["my-agent"], stream="text")
    result = ralph("run", "go", "--json", "-m", "1", "--until", "word:STOP")
    assert result.code == 1
    assert not result.all("agent_result")


def test_a_session_is_continued_with_the_described_arguments(ralph, agent, configure, environment) -> None:
    working, done = TURN.format(n="1", text="working"), TURN.format(n="1", text="<response>DONE</response>")
    agent(f"[ $N = 1 ] && echo '{working}' || echo '{done}'", "my-agent")
    configure(argv=["my-agent", "--headless"], stream="auto", resume=["--session", "{session}"])
    assert ralph("run", "go", "--session", "continue").code == 0
    words = [(Path(environment["HOME"]) / f"my-agent.argv.{n}").read_text().split() for n in (1, 2)]
    assert words == [["--headless"], ["--headless", "--session", "S-1"]]


def test_a_model_is_chosen_with_the_described_arguments(ralph, agent, configure, environment) -> None:
    agent(DONE, "my-agent")
    configure(argv=["my-agent", "{prompt}"], model=["--model={model}"])
    assert ralph("run", "-p", "the {model} goal", "--model", "big one").code == 0
    assert (Path(environment["HOME"]) / "my-agent.argv.1").read_text() == "the {model} goal\n--model=big one\n"


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ({}, '"argv" is missing'),
        ({"argv": ["no-such-agent"]}, "command not found: no-such-agent"),
        ({"argv": ["cat"], "stream": "klingon"}, 'stream: unknown format "klingon"'),
        ({"argv": ["cat"], "prompt": "telepathy"}, "telepathy"),
        ({"argv": ["cat"], "resumes": []}, "resumes"),
    ],
)
def test_a_bad_description_is_refused_before_anything_runs(
    description: dict[str, Any], said: str, ralph, configure, workspace: Path
) -> None:
    configure(**description)
    result = ralph("run", "go")
    assert result.code == 2
    assert said in result.err
    assert not (workspace / ".ralph" / "runs").exists()


def test_the_settings_in_the_guide_work(ralph, agent, workspace: Path, environment, streams: Path) -> None:
    agent(f"cat {streams}/claude/promise.ndjson", "my-agent")
    (settings,) = re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)
    (workspace / ".ralph").mkdir()
    (workspace / ".ralph" / "settings.json").write_text(settings)
    result = ralph("run", "go", "--model", "m", "--until", "promise:DONE", "-m", "2")
    assert result.code == 0, result.err
    assert (Path(environment["HOME"]) / "my-agent.argv.1").read_text().split() == ["--headless", "--model", "m"]


def test_every_command_line_in_the_guide_works(ralph, agent) -> None:
    agent(DONE, "my-agent")
    lines = re.findall(r'^ralph run "GOAL" --agent "(.*?)"', GUIDE, re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        result = ralph("run", "GOAL", "--agent", line)
        assert result.code == 0, (line, result.err)


def test_the_python_in_the_guide_works(workspace: Path, environment) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    code = "def my_model(prompt):\n    return '<promise>COMPLETE</promise>'\n\n\n" + code.replace("pytest -q", "true")
    done = subprocess.run([sys.executable, "-c", code], cwd=workspace, env=environment, capture_output=True, text=True)
    assert done.stdout == "True all_checks_passed 1\n", done.stderr
