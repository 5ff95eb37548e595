"""The built-in agent on a real model of this machine: streaming, counting and caching as the large ones do."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.model_real.conftest import Prompter

pytestmark = pytest.mark.timeout(600)
CONTEXT = (Path(__file__).parents[2] / "docs" / "concepts" / "done.md").read_text()[:4000]


def command(text: str) -> str:
    return f"```bash\n{text}\n```"


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home / "state")}


def turn(prompter: Prompter, workspace: Path, prompt: str, *words: str) -> list[dict[str, Any]]:
    """What the agent printed."""
    agent = [
        sys.executable,
        "-P",
        "-m",
        "ralph.builtin_agent",
        "--model",
        "lab",
        "--url",
        prompter.url,
        "--wire",
        "chat",
    ]
    done = subprocess.run(
        [*agent, "--context", "8192", *words],
        cwd=workspace,
        env=environment(workspace),
        input=prompt,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_prefix_is_cached_and_nearly_complete_from_the_third_call_on(prompter: Prompter, tmp_path: Path) -> None:
    prompter.lines = [*(command(f"echo {word}") for word in ("one", "two", "three", "four")), "That is all.\nDONE"]
    lines = turn(prompter, tmp_path, f"{CONTEXT}\n\nSay so.", "--tools", "text")
    assert lines[-1]["result"] == "That is all.\nDONE"
    shares = [used["prompt_tokens_details"]["cached_tokens"] / used["prompt_tokens"] for used in prompter.usage]
    assert len(shares) == 5
    assert shares[1] > 0.9, shares
    assert min(shares[2:]) >= 0.95, shares
    told = [line["message"]["usage"] for line in lines if line["type"] == "assistant"]
    counted = [used["prompt_tokens"] for used in prompter.usage]
    assert [used["input_tokens"] + used.get("cache_read_input_tokens", 0) for used in told] == counted
    assert told[-1]["cache_read_input_tokens"] == prompter.usage[-1]["prompt_tokens_details"]["cached_tokens"]


def test_free_text_of_the_model_is_not_a_claim(prompter: Prompter, tmp_path: Path) -> None:
    """An answer that is cut off by its length is a failed turn; one that ends is what it said."""
    agent = [
        sys.executable,
        "-P",
        "-m",
        "ralph.builtin_agent",
        "--model",
        "lab",
        "--url",
        prompter.url,
        "--wire",
        "chat",
    ]
    done = subprocess.run(
        [*agent, "--context", "8192", "--max-output", "24", "--tools", "text"],
        cwd=tmp_path,
        env=environment(tmp_path),
        input="Count from one to a thousand, in words.",
        capture_output=True,
        text=True,
        check=False,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert "Traceback" not in done.stderr
    assert result["is_error"] == (done.returncode != 0)
    assert prompter.usage[0]["completion_tokens"] <= 24
    if prompter.usage[0]["completion_tokens"] == 24:
        assert "cut off" in result["result"]


def test_a_fix_takes_two_iterations(prompter: Prompter, tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    (workspace / ".ralph").mkdir(parents=True)
    (workspace / "add.py").write_text("def add(a, b):\n    return a - b\n")
    builtin = {"model": "lab", "url": prompter.url, "wire": "chat", "context": 8192, "tools": "text"}
    (workspace / ".ralph" / "settings.json").write_text(json.dumps({"agents": {"builtin": builtin}}))
    prompter.lines = [
        command("sed -i 's/a - b/a * b/' add.py"),
        "It adds now.\nCOMPLETE",
        command("sed -i 's/a \\* b/a + b/' add.py"),
        "It adds now, and the check says so.\nCOMPLETE",
    ]
    check = f'{sys.executable} -c "from add import add; assert add(2, 3) == 5"'
    words = ["loop", "Make add() add.", "--check", check, "--agent", "builtin", "-m", "3", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "ralph", *words],
        cwd=workspace,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "done" in done.stderr.splitlines()[-1]
    assert "2 iterations" in done.stderr.splitlines()[-1]
    assert (workspace / "add.py").read_text() == "def add(a, b):\n    return a + b\n"
    assert "AssertionError" in json.dumps(prompter.asked[2])
    assert not prompter.lines
