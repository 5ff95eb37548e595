"""Odd input that broke something once: one line each, never an internal error."""

import errno
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

Agent = Callable[..., str]
Ralph = Callable[..., Any]
DONE = "echo '<response>DONE</response>'"


@pytest.mark.parametrize(
    "said",
    [
        {"agent": {"command": "a\0b"}},
        {"guardrails": [{"command": "tr\0ue"}]},
        {"tasks": "t\0.md"},
        {"spec": "s\0.md"},
        {"notify": ["n\0"]},
        {"agent": {"command": "true", "model": "m\0", "flags": ["--x\0y"]}},
        {"sandbox": {"enabled": True, "read": ["/r\0"]}},
    ],
    ids=json.dumps,
)
def test_a_nul_in_a_setting_is_a_one_line_error(
    ralph: Ralph, agent: Agent, workspace: Path, said: dict[str, Any]
) -> None:
    (workspace / ".ralph").mkdir()
    (workspace / ".ralph" / "settings.json").write_text(json.dumps(said))
    done = ralph("run", "g", "-m", "1", *(() if "agent" in said else ("--agent", agent(DONE))))
    assert "internal error" not in done.err
    assert done.code in (1, 2)


@pytest.mark.parametrize("most", [5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 18, 20])
def test_too_few_descriptors_are_a_one_line_error(
    environment: dict[str, str], agent: Agent, workspace: Path, most: int
) -> None:
    script = f'ulimit -n {most}; exec "{sys.executable}" -m ralph run g -m 1 --check true --agent "{agent(DONE)}"'
    done = subprocess.run(
        ["sh", "-c", script], cwd=workspace, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "internal error" not in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == 0 or "ulimit -n" in done.stderr, done.stderr
    assert "settings have changed" not in done.stderr, done.stderr


@pytest.mark.parametrize("limit", ["ulimit -f 1", "ulimit -f 8"])
def test_a_file_size_limit_of_the_shell_is_reported(
    environment: dict[str, str], agent: Agent, workspace: Path, limit: str
) -> None:
    talking = agent("head -c 100000 /dev/zero | tr '\\0' x | fold -w 100")
    script = f'{limit}; exec "{sys.executable}" -m ralph run g -m 1 --check true --agent "{talking}"'
    done = subprocess.run(
        ["sh", "-c", script], cwd=workspace, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "ulimit -f" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("error", "said", "limit"),
    [
        (MemoryError(), "out of memory", "ulimit -v"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable", "git"), "too many processes", "ulimit -u"),
        (OSError(errno.EFBIG, "File too large"), "a file has reached its size limit", "ulimit -f"),
        (OSError(errno.ENFILE, "Too many open files in system"), "too many open files", "ulimit -n"),
    ],
)
def test_a_shortage_of_resources_is_not_reported_as_a_bug(
    capsys: pytest.CaptureFixture[str], error: Exception, said: str, limit: str
) -> None:
    from ralph.cli.main import exit_code

    def command() -> int:
        raise error

    assert exit_code(command) == 2
    complaint, hint = capsys.readouterr().err.splitlines()
    assert complaint == f"ralph: {said}"
    assert limit in hint


@pytest.mark.parametrize("value", [True, 3, None, "x", [True]])
def test_a_cline_event_with_any_output_is_read(value: object) -> None:
    from ralph.agents import module
    from ralph.agents.protocol import TurnRequest

    parser = module("cline").parser(TurnRequest(prompt="p", prompt_file="p", command=("cline",)))
    event = {"type": "content_end", "contentType": "tool", "toolCallId": "1", "toolName": "t", "output": value}
    assert list(parser.feed(json.dumps({"type": "agent_event", "event": event}).encode()))


def test_git_gc_during_a_run_removes_no_checkpoint(
    ralph: Ralph, agent: Agent, repository: Path, git: Callable[..., str]
) -> None:
    fake = agent("echo $N > new$N; git add -A . ; git reset -q; git gc -q --prune=now; echo more")
    done = ralph("run", "g", "-m", "3", "--agent", fake)
    assert done.code == 1, done.err
    assert "+1" in ralph("diff", "1").out
    assert ralph("rewind", "1").code == 0
    assert git("fsck", "--no-progress", "--no-dangling") == ""


@pytest.mark.parametrize("named", [".", "{workspace}", "{workspace}/src"])
def test_a_module_that_the_agent_puts_into_the_workspace_is_not_imported_by_ralph(
    live: Callable[..., Any], agent: Callable[..., str], repository: Path, tmp_path: Path, named: str
) -> None:
    """Many a PYTHONPATH names the workspace, and ralph imports much of what it needs only when it needs it: a sandboxed
    agent would be free by this."""
    proof = tmp_path / "it-ran"
    modules = [name for name in sys.stdlib_module_names if not name.startswith("_")]
    planted = f"""
for place in . src; do mkdir -p $place; for name in {" ".join(modules)} apprise msgspec; do
printf 'open("{proof}", "w").write(__name__)' > $place/$name.py; done; done
echo "<response>DONE</response>"
"""
    run = live("run", "g", "--commit", "--agent", agent(planted), PYTHONPATH=named.format(workspace=repository))
    assert run.end() == 0, run.err
    assert not proof.exists(), proof.read_text()


@pytest.fixture
def terminal(environment: dict[str, str], workspace: Path) -> Iterator[Callable[..., "pexpect.spawn[str]"]]:
    """A command on a terminal."""
    begun: list[pexpect.spawn[str]] = []

    def start(*words: str, size: tuple[int, int] = (24, 80), **env: str) -> "pexpect.spawn[str]":
        begun.append(
            pexpect.spawn(
                sys.executable,
                ["-m", "ralph", *words],
                cwd=str(workspace),
                env={**environment, "TERM": "xterm", **env},  # type: ignore[arg-type]
                encoding="utf-8",
                timeout=60,
                dimensions=size,
            )
        )
        return begun[-1]

    yield start
    for child in begun:
        child.close(force=True)


def ended(child: "pexpect.spawn[str]") -> tuple[int | None, str]:
    """Return the exit code and everything that was printed."""
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus, str(child.before)


@pytest.mark.parametrize("columns", [0, 1])
def test_a_terminal_of_unknown_or_tiny_width_works(
    ralph: Ralph, agent: Agent, terminal: Any, tmp_path: Path, columns: int
) -> None:
    fake = agent("echo hello")
    assert ralph("run", "g", "-m", "1", "--agent", fake).code == 1
    for words in ("ps -a", "show", "logs", f"run g -m 1 --agent {fake}", "doctor", *(["demo"] if columns else [])):
        child = terminal(*words.split(), size=(columns, columns), TMPDIR=str(tmp_path))
        code, output = ended(child)
        assert "internal error" not in output, words
        assert code in (0, 1), words


IN_THE_SAME_MOMENT = """
import os, signal
from ralph.cli import main

def interrupted():
    raise KeyboardInterrupt

main._discard_output = lambda *_: os.kill(os.getpid(), signal.SIGINT)
main.exit_code(interrupted)
"""


def test_two_ctrl_c_at_once_end_ralph_without_a_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", IN_THE_SAME_MOMENT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "")
