"""Every command in README, tutorial and guides works as its page says, with agents that follow a script.

Other tests run the commands in ELSEWHERE.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "concepts").glob("*.md")),
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
]

ELSEWHERE = {
    r"ralph judge": "tests/cli/test_judge.py",
    r"ralph (run|loop) .*--agent \"?acp:": "tests/agents_real/test_acp_real.py: it needs such an agent",
    r"ralph (run|loop) .*--agent builtin": "tests/agents_real: it needs a model",
    r"ralph run (PATH|~/shop)|ralph ui": "tests/tui: it needs a terminal",
    r"ralph init": "tests/cli/test_init.py: it asks questions",
    r"ralph (tell|ask|pause|resume|stop)\b": "tests/steering: it needs a run at work",
    r"ralph (bus|job)\b|ralph task --root tasks": "tests/supervise/test_guide.py: the pieces of one example",
    r"ralph work\b": "tests/backlog/test_guide.py: the night of one example",
    r"ralph (worker|accept|discard|clean|trust)\b": "tests/fleet, and the tests of each command",
    r"ralph (plan|loop|run) .*--(issue|pr)\b|ralph plan\b": "tests/forge and tests/planning: they need a host",
    r"ralph (tune\b|demo --tune)": "tests/run/test_tune.py: it needs an agent with ideas",
    r"ralph loop .*--exam": "tests/run/test_exam_guide.py: it needs the exams of its page",
    r"ralph prove\b": "tests/run/test_prove.py: it needs a run with checks",
    r"ralph serve\b": "tests/web: it serves until it is ended",
    r"ralph report k3fa": "tests/history/test_reports.py: it names a run",
    r"ralph hook (stop|cancel)": "tests/hooks: a host calls it, or a loop must be active",
    r"ralph run .*--notify (desktop|\"slack)": "tests/steering/test_notify.py: it needs a desktop, or a service",
    r"ralph (run|loop) .*--detach": "tests/cli/test_afterwards.py: it continues without its terminal",
    r"ralph run .*--claims": "tests/core/test_rules.py: it needs an agent that stops changing files",
    r".*\| jq ": "below: it needs jq",
}
"""Patterns of commands that are not run here, and the tests that run them."""

AGENT = """#!/bin/sh
# Work, and claim as the prompt asks, else with STOP.
P=$(cat; printf '%s ' "$@"; for word; do [ -f "$word" ] && cat "$word"; done)
echo work >> work.txt
touch "${TASK_FOLDER:-.}/DONE"
case "$P" in
*COMPLETE*) echo COMPLETE ;;
*"<promise>DONE</promise>"*) echo "<promise>DONE</promise>" ;;
*"<response>DONE</response>"*) echo "<response>DONE</response>" ;;
*"create the file DONE"*) touch DONE ;;
*) echo STOP ;;
esac
"""
AGENTS = ("claude", "codex", "opencode", "my-agent")
TOOLS = ("pytest", "ruff", "mail")  # which pass


def commands() -> list[tuple[str, str]]:
    """Return the commands in the pages without their comments, each with the first page that has it."""
    found: dict[str, str] = {}
    for page in PAGES:
        blocks = re.findall(r"```(?:sh|console)\n(.*?)```", page.read_text(), re.DOTALL)
        for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
            line = re.sub(r"\s+", " ", line.strip().removeprefix("$ ")).partition(" # ")[0]
            if line.startswith("ralph "):
                found.setdefault(line, page.name)
    return [(page, line) for line, page in found.items()]


def is_elsewhere(line: str) -> bool:
    return any(re.match(pattern, line) for pattern in ELSEWHERE)


def starts_an_agent(line: str) -> bool:
    return bool(re.match(r"ralph (run|loop|task) ", line))


HERE = [each for each in commands() if not is_elsewhere(each[1])]
STARTING = [each for each in HERE if starts_an_agent(each[1])]
LOOKING = [each for each in HERE if not starts_an_agent(each[1])]


@pytest.fixture
def project(repository: Path, environment: dict[str, str], git: Callable[..., str]) -> Path:
    """Make a repository with the files, agents and tools that the pages name."""
    tools = Path(environment["HOME"]) / "bin"
    for name in (*AGENTS, *TOOLS):
        (tools / name).write_text(AGENT if name in AGENTS else "#!/bin/sh\ncat > /dev/null 2>&1 < /dev/null\n")
        (tools / name).chmod(0o755)
    (tools / "ralph").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ralph "$@"\n')
    (tools / "ralph").chmod(0o755)
    (repository / "Makefile").write_text("test lint:\n\ttrue\n")
    (repository / "PROMPT.md").write_text("Do it, then answer <response>DONE</response>.\n")
    (repository / "tests").mkdir()
    (repository / "tests" / "test_a.py").write_text("def test_a() -> None: ...\n")
    git("add", "-A")
    git("commit", "-qm", "a project")
    environment["BROWSER"] = "true"
    return repository


def typed(line: str, project: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run a line in a shell."""
    return subprocess.run(
        ["sh", "-c", line],
        cwd=project,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
    )


def test_every_skipped_command_names_a_test_that_exists() -> None:
    for pattern, place in ELSEWHERE.items():
        names = [name for name in re.findall(r"tests/[\w/.]+\w", place) if not (ROOT / name).exists()]
        assert not names, pattern


@pytest.mark.parametrize(("page", "line"), STARTING, ids=lambda value: value[:70])
def test_a_run_from_the_docs_ends_as_done(page: str, line: str, project: Path, environment: dict[str, str]) -> None:
    if "--sandbox" in line and not (shutil.which("bwrap") or "CI" in os.environ):
        pytest.skip("needs bubblewrap: apt-get install bubblewrap")
    if "ralph loop" in line and "--check" not in line:  # the page has written settings before
        assert typed("ralph init --yes", project, environment).returncode == 0
    result = typed(line, project, environment)
    assert result.returncode == 0, f"{page}: {line}\n{result.stderr[-2000:]}"
    assert result.stderr.splitlines()[-1].startswith(("ralph: done", "To merge it: ")), result.stderr


def test_the_other_commands_of_the_docs_work_after_a_run(
    project: Path, environment: dict[str, str], ralph: Callable[..., Any]
) -> None:
    assert ralph("run", "Do it", "--check", "true", "--agent", "claude").code == 0
    for page, line in LOOKING:
        result = typed(line, project, environment)
        assert result.returncode == 0, f"{page}: {line}\n{result.stderr[-2000:]}"


def test_the_pipeline_of_the_ci_guide_shows_the_lifecycle_of_its_loop(
    project: Path, environment: dict[str, str]
) -> None:
    if not (shutil.which("jq") or "CI" in os.environ):
        pytest.skip("needs jq: apt-get install jq")
    (piped,) = [line for page, line in commands() if page == "ci.md" and "| jq" in line]
    result = typed(piped, project, environment)
    assert result.returncode == 0, result.stderr
    assert [json.loads(line)["type"] for line in result.stdout.splitlines()] == [
        "ralph_iteration_started",
        "ralph_converged",
    ]
    assert '"type":"run_finished"' in (project / "build.ndjson").read_text()
