"""A proof undoes parts of a change one at a time and runs the checks: it reports, and changes and leaves nothing."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]
BEFORE = "def add(a, b):\n    return a - b\n\n\n# one\n# two\n# three\n# four\ndef mul(a, b):\n    return a + b\n"
TEST = "from sums import add\nassert add(1, 2) == 3\n"
CHECK = "python3 -B test_sums.py"
FIX = "sed -i 's/return a - b/return a + b/' sums.py; sed -i '10s/.*/    return a * b/' sums.py"
TEST_MUL = "printf 'from sums import add, mul\\nassert add(1, 2) == 3\\nassert mul(2, 3) == 6\\n' > test_sums.py"


@pytest.fixture
def sums(repository: Path, git: Start) -> Path:
    """A repository with a bug that the check sees, and one that it doesn't."""
    (repository / "sums.py").write_text(BEFORE)
    (repository / "test_sums.py").write_text(TEST)
    git("add", "-A")
    git("commit", "-qm", "sums")
    return repository


def is_tidy(sums: Path, environment: dict[str, str], git: Start) -> bool:
    trees = Path(environment["HOME"]) / ".local/state/ralph/worktrees"
    left = [path.name for path in trees.glob("*.copy*")]
    return not left and len(git("worktree", "list").splitlines()) == 1


def test_a_part_that_no_check_notices_is_reported_and_the_run_is_done(
    ralph: Start, agent: Start, sums: Path, environment: dict[str, str], git: Start
) -> None:
    fake = agent(f"{FIX}; echo COMPLETE")
    done = ralph("loop", "fix it", "--check", CHECK, "--agent", fake, "--prove", "--json")
    assert done.code == 0, done.err
    sentence = "untested: sums.py:10 in mul (every check passes without it); 1 of 2 parts, 4 check runs, "
    assert sentence in done.err
    found = done.one("proof_finished")["proof"]
    assert (found["verdict"], found["untested"]) == (
        "untested",
        [{"place": "sums.py:10 in mul", "line": "return a * b"}],
    )
    assert done.kinds()[-1] == "run_finished"
    assert done.one("run_finished")["iterations"] == 1
    assert sentence in ralph("show").out
    assert sentence.replace("untested", "Untested", 1).partition(":")[2].split(" in ")[0] in ralph("report").out
    assert "<h2>Proof</h2>" in ralph("report").out
    assert json.loads(ralph("show", "--json").out)["proof"]["tried"] == 2
    assert (sums / "sums.py").read_text().count("return a * b") == 1
    assert is_tidy(sums, environment, git)


def test_the_exit_code_of_prove_is_its_result_and_the_latest_is_recorded(
    ralph: Start, agent: Start, sums: Path, environment: dict[str, str], git: Start
) -> None:
    fake = agent(f"{FIX}; echo COMPLETE")
    assert ralph("loop", "fix it", "--check", CHECK, "--agent", fake, "--worktree").code == 0
    first = ralph("prove")
    assert (first.code, first.out.splitlines()[1]) == (1, "  sums.py:10 in mul  return a * b")
    assert "untested: sums.py:10" in ralph("show").out
    fake = agent("sed -i 's/return a - b/return a + b/' sums.py; echo COMPLETE")
    assert ralph("loop", "fix it", "--check", CHECK, "--agent", fake).code == 0
    second = ralph("prove")
    assert (second.code, second.out[:42]) == (0, "tested: a check fails without the one part")
    assert second.out in ralph("show").out
    assert is_tidy(sums, environment, git) or len(git("worktree", "list").splitlines()) == 2  # the run's own worktree


def test_checks_that_pass_without_any_of_the_change_are_reported_after_two_runs(
    ralph: Start, agent: Start, sums: Path
) -> None:
    fake = agent(f"{FIX}; echo COMPLETE")
    done = ralph("loop", "fix it", "--check", "true", "--agent", fake, "--prove=ask")
    assert done.code == 0, done.err
    assert "untested: every check passes without any of this change; 2 check runs" in done.err
    assert "asking the agent" not in done.err


def test_a_copy_in_which_the_checks_fail_proves_nothing(ralph: Start, agent: Start, sums: Path) -> None:
    (sums / ".gitignore").write_text("local.cfg\n")
    (sums / "local.cfg").write_text("x")
    fake = agent(f"{FIX}; echo COMPLETE")
    check = f"test -e local.cfg && {CHECK}"
    assert ralph("loop", "fix it", "--check", check, "--agent", fake).code == 0
    red = ralph("prove")
    assert (red.code, red.out[:42]) == (2, "not proved: the checks fail in a fresh cop")
    assert "hint: --setup CMD" in red.err


def test_a_change_that_no_check_reads_cannot_be_proved(ralph: Start, agent: Start, sums: Path) -> None:
    fake = agent(f"{FIX}; echo COMPLETE")
    assert ralph("loop", "fix it", "--check", "true", "--agent", fake).code == 0
    result = ralph("prove")
    assert result.code == 2
    assert "untested: every check passes without any of this change" in result.out
    assert "hint: no check reads the changed code" in result.err


def test_a_change_without_code_cannot_be_proved(ralph: Start, agent: Start, sums: Path) -> None:
    fake = agent("echo words > notes.md; echo COMPLETE")
    assert ralph("loop", "explain it", "--check", "test -e notes.md", "--agent", fake).code == 0
    result = ralph("prove")
    assert (result.code, "nothing to prove: the change has no code" in result.out) == (2, True)


def test_a_workspace_in_a_sub_folder_of_its_repository_can_be_proved(ralph: Start, agent: Start, sums: Path) -> None:
    below = sums / "below"
    below.mkdir()
    for name in ("sums.py", "test_sums.py"):
        (sums / name).rename(below / name)
    fake = agent(f"{FIX}; echo 'x = 1' > extra.py; echo COMPLETE")
    done = ralph("loop", "fix it", "--check", CHECK, "--agent", fake, "--prove", cwd=below)
    assert done.code == 0, done.err
    assert "untested: below/extra.py:1, below/sums.py:10 in mul" in done.err, done.err


def test_with_ask_the_agent_adds_a_test_and_the_last_state_is_proved(
    ralph: Start, agent: Start, sums: Path, prompts: Start, git: Start
) -> None:
    fake = agent(f'[ "$N" = 1 ] && {{ {FIX}; echo COMPLETE; exit; }}; {TEST_MUL}; echo "I added a test."')
    done = ralph("loop", "fix it", "--check", CHECK, "--agent", fake, "--prove=ask", "--worktree", "--json")
    assert done.code == 0, done.err
    assert [one["proof"]["verdict"] for one in done.all("proof_finished")] == ["untested", "tested"]
    assert done.one("run_finished")["reason"].endswith("the agent said COMPLETE")
    assert done.one("run_finished")["iterations"] == 1
    assert len(prompts()) == 2
    assert "fix it" in prompts()[1]
    assert "- sums.py:10 in mul: return a * b\n" in prompts()[1]
    assert "test_sums.py" in ralph("diff", "--stat").out
    assert "test_sums.py" in git("diff", "--name-only", "main", done.one("run_finished")["branch"])
    assert "M test_sums.py" in ralph("show").out
    assert "tested: a check fails without each of 2 parts" in ralph("show").out


@pytest.mark.parametrize("answer", ["echo 'It is fine.'", "exit 1", f"{TEST_MUL}; echo broken >> sums.py"])
def test_the_agents_answer_to_a_proof_does_not_change_the_outcome(
    ralph: Start, agent: Start, sums: Path, prompts: Start, answer: str
) -> None:
    fake = agent(f'[ "$N" = 1 ] && {{ {FIX}; echo COMPLETE; exit; }}; {answer}')
    done = ralph("loop", "fix it", "--check", CHECK, "--agent", fake, "--prove=ask")
    assert done.code == 0, done.err
    assert "done after 1 iteration" in done.last_line
    assert len(prompts()) == 2
    assert (sums / "test_sums.py").read_text() == TEST
    assert "broken" not in (sums / "sums.py").read_text()
    assert "untested: sums.py:10 in mul" in ralph("show").out
    assert ("does not pass: its changes were undone" in done.err) == ("broken" in answer)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--prove", "--check", "true"), "--prove needs a git repository"),
        (("--prove=ask", "--check", "true"), "--prove needs a git repository"),
        (("--prove=always", "--check", "true"), "--prove: expected ask, got 'always'"),
    ],
)
def test_prove_is_refused_without_checks_or_git(
    ralph: Start, agent: Start, workspace: Path, words: tuple[str, ...], error: str
) -> None:
    refused = ralph("loop", "x", "--agent", agent("echo COMPLETE"), *words)
    assert refused.code == 2
    first, second = refused.err.splitlines()[:2]
    assert error in first
    assert second.startswith("hint:")


def test_without_checks_there_is_no_proof(ralph: Start, agent: Start, repository: Path) -> None:
    refused = ralph("run", "x", "--prove", "--agent", agent("echo DONE"))
    assert (refused.code, "--prove needs a check" in refused.err) == (2, True)
    assert ralph("run", "x", "--until", "word:DONE", "--agent", agent("echo DONE")).code == 0
    refused = ralph("prove")
    assert (refused.code, "doesn't have a check that could notice anything" in refused.err) == (2, True)
    assert ralph("prove", "nowhere").code == 2


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_proof_leaves_nothing_and_can_be_repeated(
    ralph: Start, agent: Start, sums: Path, environment: dict[str, str], git: Start, eventually: Start, sent: int
) -> None:
    started = Path(environment["HOME"]) / "started"
    hang = f"{CHECK} && {{ [ ! -e {started}.on ] || {{ touch {started}; sleep 600; }}; }}"
    assert ralph("loop", "fix it", "--check", hang, "--agent", agent(f"{FIX}; echo COMPLETE")).code == 0
    Path(f"{started}.on").touch()
    argv = [sys.executable, "-m", "ralph", "prove"]
    process = subprocess.Popen(argv, cwd=sums, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    eventually(started.exists)
    os.kill(process.pid, sent)
    process.communicate()
    assert process.returncode == (130 if sent == signal.SIGINT else -sent)
    eventually(lambda: is_tidy(sums, environment, git))
    Path(f"{started}.on").unlink()
    assert ralph("prove").code == 1
    assert is_tidy(sums, environment, git)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_killed_during_its_proof_is_done_or_can_be_resumed(
    ralph: Start, agent: Start, sums: Path, environment: dict[str, str], git: Start, eventually: Start, sent: int
) -> None:
    calls, go = Path(environment["HOME"]) / "calls", Path(environment["HOME"]) / "go"
    check = f"{CHECK} && {{ echo x >> {calls}; [ -e {go} ] || [ $(wc -l < {calls}) -lt 2 ] || sleep 600; }}"
    fake = agent(f"{FIX}; echo COMPLETE")
    argv = [sys.executable, "-m", "ralph", "loop", "x", "--check", check, "--agent", fake, "--prove", "--grace", "0"]
    process = subprocess.Popen(argv, cwd=sums, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    eventually(lambda: calls.exists() and len(calls.read_text().splitlines()) == 2)
    os.kill(process.pid, sent)
    said = process.communicate()[1].decode()
    eventually(lambda: is_tidy(sums, environment, git))
    go.touch()
    if sent == signal.SIGINT:
        assert process.returncode == 0, said
        assert "no proof: interrupted (`ralph prove` starts it again)" in said
        assert ralph("prove").code == 1
    else:
        resumed = ralph("resume")
        assert (resumed.code, "untested: sums.py:10 in mul" in resumed.err) == (0, True), resumed.err
    assert is_tidy(sums, environment, git)
