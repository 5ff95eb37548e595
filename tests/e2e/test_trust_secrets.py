"""Keys reach neither disk, screen nor prompt, and other users cannot read what ralph writes."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Prompts = Callable[..., list[str]]
Start = Callable[..., Any]

KEYS = (
    "sk-ant-api03-" + "aB3dE6gH" * 6,
    "ghp_" + "a1B2c3D4" * 5,
    "AKIA" + "ABCD1234EFGH5678",
    "xoxb-123456789012-abcdefghijkl",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLTEyMw",
)
PRIVATE = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7\nq0YhTm\n-----END RSA PRIVATE KEY-----\n"
OWN = "correct-horse-battery-staple"  # looks like nothing, but the environment calls it a password


def files_with(folder: Path, word: str, but: tuple[str, ...] = ()) -> list[str]:
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in but and word.encode() in path.read_bytes():
            found.append(str(path.relative_to(folder)))
    return found


@pytest.mark.parametrize("teller", ["answer", "tool", "stderr", "check", "command", "goal", "file"])
def test_a_key_is_redacted_everywhere(
    ralph: Ralph, agent: Agent, prompts: Prompts, repository: Path, teller: str
) -> None:
    """Anyone who says it: neither the disk, nor the screen, nor `--json`, nor a later prompt holds it."""
    keys = " ".join((*KEYS, OWN))
    say = f'printf "%s\\n" "the keys are {keys} here"'
    tool = {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "1", "content": keys}]}}
    script = {
        "answer": say,
        "tool": f"echo '{json.dumps(tool)}'; echo '{json.dumps({'type': 'result', 'result': keys})}'",
        "stderr": f"{say} >&2; exit 1",
        "file": f"{say} > notes.txt; echo $N",
    }.get(teller, "echo $N")
    (repository / "check.sh").write_text(say if teller == "check" else "echo $MY_PASSWORD")
    check = "sh check.sh; false" + (f" {keys}" if teller == "command" else "")
    goal = f"use {keys}" if teller == "goal" else "goal"
    words = ("--preset", "checks", "-m", "2", "--check", check, "-V", "--agent", agent(script))
    shown = ralph("run", goal, *words, MY_PASSWORD=OWN)
    told = ralph("run", goal, *words, "--json", MY_PASSWORD=OWN)
    assert (shown.code, told.code) == (1, 1)
    asked = [] if teller == "goal" else prompts()
    assert len(prompts()) == 4
    for secret in (*KEYS, OWN):
        assert secret not in shown.err + told.err + told.out
        assert not files_with(repository / ".ralph", secret, but=("index",))
        assert not any(secret in prompt for prompt in asked)


@pytest.mark.parametrize("cut", [200, 500, 1000, 2000])
def test_a_part_of_a_key_is_redacted_everywhere(ralph: Ralph, agent: Agent, workspace: Path, cut: int) -> None:
    """Text that is cut within a key would no longer be recognised as a key."""
    text = "word " * ((cut - 10) // 5) + OWN + " word" * 1000  # the first ten letters, and not the others
    call = {"type": "tool_use", "id": "1", "name": "Bash", "input": {"command": text}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": text}
    lines = [
        {"type": "assistant", "message": {"content": [call]}},
        {"type": "user", "message": {"content": [result]}},
        {"type": "result", "result": "no"},
    ]
    (workspace / "said").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("-m", "1", "-V", "--agent", agent("cat said", "claude"), "--agent-arg", text)
    shown = ralph("run", text, *words, MY_PASSWORD=OWN)
    assert shown.code == 1
    assert OWN[:8] not in shown.err
    assert not files_with(workspace / ".ralph", OWN[:8])


def test_a_private_key_of_many_lines_is_redacted_completely(
    ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts
) -> None:
    (workspace / "key").write_text(PRIVATE)
    words = ("--preset", "goal", "-m", "2", "--no-stall", "--check", "cat key; false", "-V")
    result = ralph("run", "g", *words, "--agent", agent("cat key; cat key >&2; echo $N"))
    assert "-----END" not in prompts()[1]
    for part in ("MIIEowIBAAKCAQEA7", "q0YhTm"):
        assert part not in result.err + prompts()[1]
        assert not files_with(workspace / ".ralph", part)


def test_keys_in_two_texts_of_one_event_leave_the_journal_readable(
    ralph: Ralph, agent: Agent, journal: Callable[[], list[dict[str, Any]]]
) -> None:
    """One text opens a block that another closes: what lies between them must not be struck out."""
    checks = ("--check", "echo -----BEGIN PRIVATE KEY-----; false", "--check", "echo -----END PRIVATE KEY-----; false")
    ralph("run", "g", "-m", "2", *checks, "--agent", agent("echo $N"))
    assert [e["data"]["iteration"] for e in journal() if e["type"] == "iteration_finished"] == [1, 2]


def test_only_the_owner_can_read_the_files_of_a_run(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    before = os.umask(0)
    try:
        (workspace / ".ralph" / "runs").mkdir(parents=True)
        ralph("run", "g", "-m", "1", "--agent", agent("echo $N"))
    finally:
        os.umask(before)
    for folder in (workspace / ".ralph" / "runs", *(workspace / ".ralph" / "runs").iterdir()):
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["claude", "codex", "gemini", "opencode", "qwen", "pi", "fake-agent"])
def test_the_prompt_is_not_on_any_command_line(
    live: Start, agent: Agent, prompts: Prompts, workspace: Path, eventually: Any, name: str, nap: str
) -> None:
    agent(f"sleep {nap}", name)
    (workspace / "goal.md").write_text("a goal that nobody else may read")
    run = live("run", "-f", "goal.md", "--agent", name)
    run.until("agent_started")
    eventually(lambda: prompts(name) == ["a goal that nobody else may read"])
    lines = [Path("/proc", pid, "cmdline") for pid in os.listdir("/proc") if pid.isdigit()]
    assert not any(b"nobody else may read" in _bytes_of(line) for line in lines)
    run.end(signal.SIGHUP)


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("name", "given", "hidden"),
    [
        ("claude", "ANTHROPIC_API_KEY", ("OPENAI_API_KEY", "GEMINI_API_KEY", "AMP_API_KEY", "CLAUDECODE")),
        ("codex", "OPENAI_API_KEY", ("ANTHROPIC_API_KEY", "GEMINI_API_KEY", "CLAUDECODE")),
        ("gemini", "GEMINI_API_KEY", ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "CLAUDECODE")),
    ],
)
def test_an_agent_does_not_get_the_keys_of_other_agents(
    ralph: Ralph, agent: Agent, workspace: Path, name: str, given: str, hidden: tuple[str, ...]
) -> None:
    agent("env > seen", name)
    keys = dict.fromkeys((given, *hidden), "some-value")
    ralph("run", "g", "-m", "1", "--agent", name, PLAIN="kept", **keys)
    seen = dict(line.split("=", 1) for line in (workspace / "seen").read_text().splitlines() if "=" in line)
    assert seen[given] == "some-value"
    assert seen["PLAIN"] == "kept"
    assert not set(hidden) & set(seen)


ESCAPES = "\\033]0;owned\\007\\033[2J\\033[31mred\\033[0m\\033]52;c;ZXZpbA==\\007\\r\\b\\b\\0233;1Hwhere"


@pytest.fixture
def on_a_terminal(environment: dict[str, str], workspace: Path) -> Callable[..., bytes]:
    """Runs the real command on a terminal; gives every byte that reached it."""

    def run(*words: str, **more: str) -> bytes:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "ralph", *words]
        env = {**environment, **more, "TERM": "xterm-256color"}
        with subprocess.Popen(command, cwd=workspace, env=env, stdin=theirs, stdout=theirs, stderr=theirs):
            os.close(theirs)
            seen = b""
            try:
                while chunk := os.read(ours, 65536):
                    seen += chunk
            except OSError:
                pass  # the terminal's other end is closed
        os.close(ours)
        return seen

    return run


@pytest.mark.parametrize("teller", ["agent", "check", "tool", "goal", "file name"])
def test_escape_sequences_do_not_reach_the_terminal(
    on_a_terminal: Callable[..., bytes], agent: Agent, workspace: Path, teller: str
) -> None:
    wild = ESCAPES.encode().decode("unicode_escape")
    lines = [
        {
            "type": "assistant",
            "message": {"content": [{"type": "tool_use", "id": "1", "name": wild, "input": {"c": wild}}]},
        },
        {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "1", "content": wild}]}},
        {"type": "result", "result": wild},
    ]
    script = {
        "agent": f'printf "{ESCAPES}"',
        "tool": "cat <<'END'\n" + "\n".join(map(json.dumps, lines)) + "\nEND",
        "file name": f'touch "$(printf "x{ESCAPES}")"',
    }.get(teller, "echo hello")
    check = f'printf "{ESCAPES}"; false' if teller == "check" else "true"
    goal = f"the goal {wild}" if teller == "goal" else "goal"
    seen = on_a_terminal("run", goal, "-m", "2", "--check", check, "--protect", "x*", "-V", "--agent", agent(script))
    for forbidden in (b"\x1b]", b"\x1b[2J", b"\x1b[31mred", b"\x07", b"\x08", b"\xc2\x9b", b"\x9b"):
        assert forbidden not in seen


def test_a_key_in_a_file_name_or_a_question_is_redacted(
    ralph: Ralph, agent: Agent, repository: Path, on_a_terminal: Callable[..., bytes]
) -> None:
    """An agent names files after the key, as plain text and as in a URL, asks about it, and forges a question."""
    address = quote_plus(f"{OWN} & more")
    names = " ".join(f"'{name}'" for name in (f"{OWN} & more", address))
    forged = json.dumps({"id": "1", "text": f"is it {OWN} & more?"})
    ask = f'"{sys.executable}" -m ralph ask "shall I use {OWN} & more, {address}?"'
    script = f'mkdir -p d; for f in {names}; do echo $N > "$f"; cp "$f" d; done; {ask}; echo $N'
    words = ("-m", "2", "--check", "false", "--protect", "d/**", "-V", "--agent", agent(script))
    secret = {"MY_PASSWORD": f"{OWN} & more"}
    seen = [ralph("run", "g", *words, **secret)]
    (folder,) = (repository / ".ralph" / "runs").iterdir()
    (folder / "mail" / "1.question").write_text(forged)
    commands = (("ps", "-a"), ("show",), ("show", "--json"), ("report",), ("report", "--json"), ("diff", "--stat"))
    seen += [ralph(*command, **secret) for command in (*commands, ("logs",), ("tell", "no"), ("rewind", "0"))]
    shown = "".join(one.out + one.err for one in seen) + on_a_terminal("diff", **secret).decode()
    assert [one.code for one in seen] == [1] + [0] * 9
    assert "[redacted]" in shown
    (folder / "mail" / "1.question").unlink()
    assert OWN not in shown
    assert not files_with(repository / ".ralph", OWN, but=tuple(p.name for p in folder.rglob("*index*")))
