"""Does `ralph doctor --probe` say what was understood of an agent?"""

import json
import os
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
    """Makes an agent of a script, and probes it."""
    (tmp_path / "tmp").mkdir()

    def run(script: str, *words: str, name: str = "mine", **env: str) -> tuple[int, dict[str, dict[str, Any]]]:
        path = Path(environment["HOME"]) / "bin" / name
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ echo 1.0; exit; }}\n{script}\n')
        path.chmod(0o755)
        agent = () if "--agent" in words else ("--agent", name)
        result = ralph("doctor", "--probe", "--json", *agent, *words, TMPDIR=str(tmp_path / "tmp"), **env)
        told = json.loads(result.out)["findings"]
        return result.code, {finding["name"]: finding for finding in told}

    return run


@pytest.fixture
def live_doctor(environment, workspace: Path) -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """A probe of an agent that follows a script, still continuing."""
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


def states(found: dict[str, dict[str, Any]]) -> str:
    names = ("answer", "stream", "tools", "cost", "session")
    return " ".join(found[name]["state"] if name in found else "-" for name in names)


def left_behind(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "tmp").iterdir())


def test_a_known_agent_is_understood_in_full(probe, tmp_path: Path, workspace: Path) -> None:
    code, found = probe(CLAUDE, name="claude")
    assert code == 0
    assert states(found) == "ok ok ok ok ok"
    assert found["stream"]["detail"] == "JSON, line by line, as claude prints it"
    assert found["cost"]["detail"] == "$0.0125, as it says; 12 tokens"
    assert found["session"]["detail"].startswith("S-1 can be continued")
    assert not left_behind(tmp_path)
    assert not list(workspace.iterdir())


def test_the_dialect_of_a_command_is_found_out(probe) -> None:
    code, found = probe(CLAUDE)
    assert code == 0
    assert states(found) == "ok ok ok ok note"
    assert found["stream"]["detail"].endswith("as claude prints it")


def test_plain_text_is_fine_and_what_it_lacks_is_said(probe) -> None:
    code, found = probe(REPEAT)
    assert code == 0
    assert states(found) == "ok note note note note"
    assert found["stream"]["detail"] == "plain text"
    assert "--max-time" in found["cost"]["advice"]


def test_what_is_not_understood_is_named(probe) -> None:
    _, found = probe(CODEX, "--agent", "codex", name="codex")
    assert states(found) == "ok note ok note ok"
    assert "brand.new" in found["stream"]["detail"]
    assert found["cost"]["detail"] == "1050 tokens, no price"


def test_a_settings_agent_is_probed_as_it_is_described(probe, workspace: Path) -> None:
    (workspace / ".ralph").mkdir()
    described = {"argv": ["mine"], "prompt": "file", "stream": "text"}
    settings = {"agent": {"command": "own"}, "agents": {"own": described}}
    (workspace / ".ralph" / "settings.json").write_text(json.dumps(settings))
    code, found = probe(f'{REPEAT} "$1"', "--agent", "own")
    assert code == 0
    assert states(found) == "ok note note note note"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo hello", "not the word it was asked for: hello"),
        ("cat", "nothing"),
        ("echo 'Error: invalid API key' >&2; exit 1", "the turn failed (fatal): Error: invalid API key"),
        ("exit 3", "the turn failed (ordinary): exit code 3"),
    ],
)
def test_an_agent_that_does_not_answer_is_a_failure_with_logs(script: str, said: str, probe, tmp_path: Path) -> None:
    code, found = probe(script)
    assert code == 1
    assert found["answer"]["detail"] == said
    (folder,) = left_behind(tmp_path)
    assert str(folder) in found["answer"]["advice"]
    (prompt,) = folder.glob("runs/*/iterations/001/prompt.md")
    assert prompt.read_text().startswith("Reply with exactly: ")


def test_an_agent_that_cannot_be_run_is_not_probed(ralph) -> None:
    result = ralph("doctor", "--probe", "--agent", "no-such-agent")
    assert result.code == 1
    assert "answer" not in result.out


def test_nothing_is_asked_unless_a_probe_is_asked_for(ralph, agent, prompts) -> None:
    assert ralph("doctor", "--agent", agent("true")).code == 0
    assert prompts() == []


def test_ctrl_c_ends_a_probe_and_its_agent(live_doctor, environment, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    process = live_doctor(f"exec > {tmp_path}/alive; echo at work; exec sleep 600")
    with open(tmp_path / "alive") as alive:
        assert alive.readline() == "at work\n"
        process.send_signal(signal.SIGINT)
        assert alive.read() == ""  # the end of the file comes when the agent is gone
    assert process.wait() == 130
