"""`ralph doctor --probe` shows what ralph learned from one turn of an agent."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPEAT = "sed -n 's/.*exactly: //p'"
CLAUDE = f"""
word=$({REPEAT})
echo '{{"type":"system","subtype":"init","session_id":"S-1","model":"m"}}'
echo '{{"type":"assistant","session_id":"S-1","message":{{"id":"1","content":[{{"type":"text","text":"'$word'"}}]}}}}'
used='"total_cost_usd":0.0125,"usage":{{"input_tokens":9,"output_tokens":3}}'
echo '{{"type":"result","subtype":"success","result":"'$word'","session_id":"S-1",'$used'}}'
"""
CODEX = f"""
word=$({REPEAT})
echo '{{"type":"thread.started","thread_id":"T-1"}}'
echo '{{"type":"item.completed","item":{{"id":"1","type":"agent_message","text":"'$word'"}}}}'
echo '{{"type":"brand.new"}}'
echo '{{"type":"turn.completed","usage":{{"input_tokens":1000,"output_tokens":50}}}}'
"""


@pytest.fixture
def probe(ralph, environment, tmp_path: Path) -> Callable[..., tuple[int, dict[str, dict[str, Any]]]]:
    """Return a function that probes an agent made from a shell script; it returns exit code and findings by name."""
    (tmp_path / "tmp").mkdir()

    def run(script: str, *words: str, name: str = "mine", **env: str) -> tuple[int, dict[str, dict[str, Any]]]:
        path = Path(environment["HOME"]) / "bin" / name
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ echo 1.0; exit; }}\n{script}\n')
        path.chmod(0o755)
        agent = () if "--agent" in words else ("--agent", name)
        result = ralph("doctor", "--probe", "--json", *agent, *words, TMPDIR=str(tmp_path / "tmp"), **env)
        return result.code, {finding["name"]: finding for finding in json.loads(result.out)["findings"]}

    return run


@pytest.fixture
def live_doctor(environment, workspace: Path) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """Return a function that starts a probe of an agent made from a shell script, without waiting for its end."""
    begun: list[subprocess.Popen[str]] = []

    def start(script: str) -> "subprocess.Popen[str]":
        path = Path(environment["HOME"]) / "bin" / "slow"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        words = [sys.executable, "-m", "ralph", "doctor", "--probe", "--agent", "slow"]
        quiet: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        begun.append(subprocess.Popen(words, cwd=workspace, env=environment, text=True, **quiet))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.wait()


def left_behind(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "tmp").iterdir())


def test_the_finding_says_what_a_known_agent_reports(probe, tmp_path: Path, workspace: Path) -> None:
    code, found = probe(CLAUDE, name="claude")
    assert code == 0
    assert re.fullmatch(
        r"as asked for, after \S+; JSON with 0 tool calls, \$0\.0125, 12 tokens, session S-1", found["answer"]["detail"]
    )
    assert not left_behind(tmp_path)
    assert not list(workspace.iterdir())


def test_a_command_is_recognised_by_the_stream_that_it_prints(probe) -> None:
    code, found = probe(CLAUDE)
    assert code == 0
    assert found["answer"]["detail"].endswith("; JSON with 0 tool calls, $0.0125, 12 tokens, every turn starts fresh")


def test_the_finding_says_what_plain_text_does_not_report(probe) -> None:
    code, found = probe(REPEAT)
    assert code == 0
    assert found["answer"]["detail"].endswith("; plain text without tool calls, cost unknown, every turn starts fresh")


def test_unknown_events_and_prices_are_named(probe) -> None:
    _, found = probe(CODEX, "--agent", "codex", name="codex")
    assert "unknown kinds: brand.new, cost unknown, 1050 tokens, session T-1" in found["answer"]["detail"]


def test_an_agent_that_the_settings_describe_is_probed_by_that_description(probe, workspace: Path) -> None:
    (workspace / ".ralph").mkdir()
    described = {"argv": ["mine"], "prompt": "file", "stream": "text"}
    settings = {"agent": {"command": "own"}, "agents": {"own": described}}
    (workspace / ".ralph" / "settings.json").write_text(json.dumps(settings))
    code, found = probe(f'{REPEAT} "$1"', "--agent", "own")
    assert (code, found["answer"]["state"]) == (0, "ok")


@pytest.mark.parametrize(
    ("script", "detail"),
    [
        ("echo hello", "not as asked for: hello"),
        ("cat", "none"),
        ("echo 'Error: invalid API key' >&2; exit 1", "the turn failed (fatal): Error: invalid API key"),
        ("exit 3", "the turn failed (ordinary): exit code 3"),
    ],
)
def test_a_wrong_answer_is_a_failure_that_names_the_logs(script: str, detail: str, probe, tmp_path: Path) -> None:
    code, found = probe(script)
    assert code == 1
    assert found["answer"]["detail"] == detail
    (folder,) = left_behind(tmp_path)
    assert str(folder) in found["answer"]["advice"]
    (prompt,) = folder.glob("runs/*/iterations/001/prompt.md")
    assert prompt.read_text().startswith("Reply with exactly: ")


def test_an_agent_that_cannot_be_started_is_not_probed(ralph) -> None:
    result = ralph("doctor", "--probe", "--agent", "no-such-agent")
    assert result.code == 1
    assert "answer" not in result.out


def test_without_the_probe_option_the_agent_gets_no_prompt(ralph, agent, prompts) -> None:
    assert ralph("doctor", "--agent", agent("true")).code == 0
    assert prompts() == []


def test_ctrl_c_ends_a_probe_and_its_agent(live_doctor, environment, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    process = live_doctor(f"exec > {tmp_path}/alive; echo running; exec sleep 600")
    with open(tmp_path / "alive") as alive:
        assert alive.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        assert alive.read() == ""  # the end of the file comes when the agent is gone
    assert process.wait() == 130
