"""An exam is a check that the agent doesn't see: it decides about a claim, and nothing of it reaches the agent."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REFUSED = (
    "The checks pass, but the hidden exam does not (refusal {} of 3). What it asks follows from the goal. Read the "
    "goal again and look for cases that no check shows; do not look for the exam."
)
TOKEN = f"zq-exam-token-{os.getpid()}"  # no other run of these tests leaves it in a temporary folder
HONEST = 'echo "x * 2" > double; echo "<response>DONE</response>"'
OVERFIT = 'echo "$N" >> double; echo "<response>DONE</response>"'


@pytest.fixture
def exam(environment: dict[str, str]) -> Callable[..., str]:
    """Write an exam outside of the repository; it prints a token, and passes for honest work only."""

    def write(script: str = f"echo {TOKEN}; grep -q 'x .* 2' double\n", name: str = "double.sh") -> str:
        path = Path(environment["HOME"], "exams", name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        return f"sh {path}"

    return write


def loop(ralph: Callable[..., Any], agent: str, *words: str, **env: str) -> Any:
    return ralph("run", "Double x", "--agent", agent, "--check", "test -f double", "--json", *words, **env)


def test_a_claim_counts_once_the_exam_passes(
    ralph: Callable[..., Any], agent: Callable[..., str], prompts: Callable[..., list[str]], repository: Path, exam: Any
) -> None:
    done = loop(ralph, agent(f"if [ $N = 1 ]; then {OVERFIT}; else {HONEST}; fi"), "--exam", exam())
    assert done.code == 0, done.err
    second = prompts()[1]
    assert REFUSED.format(1) in second
    assert [one["passed"] for one in done.all("exam_finished")] == [False, False, True]  # the first is the baseline
    assert done.one("claim_rejected")["gate"] == "exam"


def test_three_refused_claims_block_the_run(
    ralph: Callable[..., Any], agent: Callable[..., str], prompts: Callable[..., list[str]], repository: Path, exam: Any
) -> None:
    command = exam()
    (repository / ".ralph").mkdir()
    settings = {"exams": [{"command": command, "hint": "think of zero"}]}
    (repository / ".ralph/settings.json").write_text(json.dumps(settings))
    blocked = loop(ralph, agent(OVERFIT))
    assert blocked.code == 1
    finished = blocked.one("run_finished")
    assert finished["outcome"] == "blocked"
    assert finished["reason"] == "the exam refused 3 claims: a person should look"
    assert f"{REFUSED.format(2)}\nthink of zero" in prompts()[2]
    assert len(blocked.all("claim_rejected")) == 3


OBJECTS = "git cat-file --batch-all-objects --batch; git for-each-ref"
SEARCH = (
    f'grep -rls {TOKEN} "$PWD" "$TMPDIR" /tmp/ralph-* && echo found; env | grep {TOKEN}; '
    f"{{ {OBJECTS}; }} | grep -a {TOKEN}"
)


def contains(path: Path, token: str) -> list[str]:
    """The files below a folder in which the token is."""
    files = [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
    return [str(file) for file in files if token.encode() in file.read_bytes()]


@pytest.mark.parametrize(
    "leak",
    [
        "echo {token} > leak",
        "mkdir -p .ralph; echo {token} > .ralph/leak",
        'echo {token} > "$TMPDIR/leak"',
        "export LEAK={token}",
        "echo {token} | git hash-object -w --stdin > object",
        "git update-ref refs/heads/{token} HEAD",
    ],
)
def test_the_search_for_an_exam_finds_a_leak(
    environment: dict[str, str], repository: Path, tmp_path: Path, leak: str
) -> None:
    """For many versions it could not: it looked for a placeholder that nothing filled in."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = environment | {"TMPDIR": str(temporary)}
    for script, is_leaked in ((SEARCH, False), (f"{leak.format(token=TOKEN)}; {SEARCH}", True)):
        searched = subprocess.run(["sh", "-c", script], env=env, cwd=repository, stdout=subprocess.PIPE, check=False)
        assert bool(searched.stdout) is is_leaked


def test_an_exam_leaves_nothing_that_the_agent_can_see(
    ralph: Callable[..., Any],
    agent: Callable[..., str],
    environment: dict[str, str],
    git: Callable[..., str],
    repository: Path,
    exam: Any,
    tmp_path: Path,
) -> None:
    """Neither during the run nor after it: in the workspace, `.ralph`, git's objects and refs, temporary folders, the
    agent's environment and its prompts."""
    home, temporary = Path(environment["HOME"]), tmp_path / "temporary"
    temporary.mkdir()
    exam(f"import pathlib\npathlib.Path('{TOKEN}').write_text('{TOKEN}')\n", "helper.py")
    command = exam(
        f"import helper, pathlib, sys, tempfile  # {TOKEN}\n"
        f"tempfile.mkstemp(prefix='{TOKEN}'); pathlib.Path('double').write_text('{TOKEN}')\n"
        f"print('{TOKEN}'); sys.exit('{TOKEN}')\n",
        "exam.py",
    ).replace("sh ", "python3 ")
    told = agent(f'({SEARCH}) >> "{home}/found"; {OVERFIT}')
    ended = loop(ralph, told, "--exam", command, TMPDIR=str(temporary))
    assert ended.one("run_finished")["outcome"] == "blocked", ended.err
    assert (home / "found").read_text() == ""
    assert contains(repository, TOKEN) == contains(temporary, TOKEN) == []
    assert list(temporary.iterdir()) == []
    assert TOKEN not in f"{ended.out}{git('for-each-ref')}"
    state = home / ".local/state/ralph"
    assert all("/orders/" in path and "/exams/" in path for path in contains(state, TOKEN))
    assert len(contains(state, TOKEN)) == 4  # before the first turn, and at three claims


def test_in_a_sandbox_the_tested_code_cannot_save_the_exam(
    ralph: Callable[..., Any],
    agent: Callable[..., str],
    environment: dict[str, str],
    repository: Path,
    exam: Any,
    bubblewrap: str,
) -> None:
    """The agent's own program runs in the exam, where it reads the script: it can leave that nowhere."""
    home = Path(environment["HOME"])
    command = exam(f"./double {home}/exams/double.sh  # {TOKEN}\ntest -e passed\n")
    spy = (
        'for place in "$HOME" /tmp "$1/../.." ' + f'"{repository}" "{repository}/.ralph"; do '
        'cp "$1" "$place/leaked" 2>/dev/null; done; git hash-object -w "$1"; '
        "git update-ref refs/heads/ralph/leaked HEAD; echo seen >&2; grep -c : /proc/net/dev >&2"
    )
    look = f'cat {home}/exams/double.sh; cat "$HOME"/leaked; {SEARCH}; git for-each-ref | grep leaked'
    told = agent(
        f"({look}) > found 2> /dev/null; "
        f"printf '%s\\n' '#!/bin/sh' '{spy}' > double; chmod +x double; cp found kept-$N; rm found; "
        'echo "<response>DONE</response>"'
    )
    ended = loop(ralph, told, "--exam", command, "--sandbox")
    assert ended.one("run_finished")["outcome"] == "blocked", ended.err
    assert [(repository / f"kept-{number}").read_text() for number in (1, 2, 3)] == [""] * 3
    assert contains(repository, TOKEN) == contains(home / ".local/state/ralph/sandbox", TOKEN) == []
    logs = [path for path in (home / ".local/state/ralph/orders").rglob("*.log") if "seen" in path.read_text()]
    assert len(logs) == 3  # the spy did run
    assert logs[0].read_text().endswith("seen\n1\n")  # and no network but the loopback
    assert "could read" not in ended.err + ended.out


def test_the_copy_of_an_exam_is_set_up_in_its_own_sandbox(
    ralph: Callable[..., Any], agent: Callable[[str], str], repository: Path, exam: Any, bubblewrap: str
) -> None:
    words = ("--sandbox", "--worktree", "--setup", "pwd > made", "--exam", exam("test -s made"))
    done = loop(ralph, agent(HONEST), *words)
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python3 -c 'assert 0'", "the exam doesn't name a script"),
        ("env A=1 sh -c true", "the exam doesn't name a script"),
        ("sh {exams}/double.sh && true", "the exam uses shell syntax"),
        ("python3 {exams}/missing.py", "cannot start: file not found"),
        ("no-such-exam", "command not found: no-such-exam"),
        ("sh 'unclosed", "cannot start: no closing quotation"),
        ("sh README", "the exam is in the repository"),
        ("make exam", "the exam doesn't name a script"),
        ("sh {exams}/known.sh", "the exam is in the repository's history"),
    ],
)
def test_an_exam_that_is_not_secret_or_cannot_start_is_refused(
    ralph: Callable[..., Any],
    agent: Callable[..., str],
    environment: dict[str, str],
    repository: Path,
    exam: Any,
    command: str,
    said: str,
) -> None:
    exam()
    exam((repository / "README").read_text(), "known.sh")
    told = loop(ralph, agent(HONEST), "--exam", command.format(exams=f"{environment['HOME']}/exams"))
    assert told.code == 2
    assert said in told.err
    assert not (repository / "double").exists()


def test_exams_need_git_and_at_least_one_try(
    ralph: Callable[..., Any], agent: Callable[..., str], workspace: Path, exam: Any
) -> None:
    bare = loop(ralph, agent(HONEST), "--exam", exam())
    assert (bare.code, bare.err.startswith("ralph: --exam needs a git repository")) == (2, True)
    none = loop(ralph, agent(HONEST), "--exam", exam(), "--exam-tries", "0")
    assert (none.code, "--exam-tries: expected a whole number, 1 or more, got 0" in none.err) == (2, True)


def test_green_checks_count_as_the_claim_and_use_up_tries(
    ralph: Callable[..., Any], agent: Callable[..., str], repository: Path, exam: Any
) -> None:
    silent = agent('echo "$N" >> double; echo working')
    ended = loop(ralph, silent, "--exam", exam(), "--until", "checks", "--exam-tries", "2")
    assert ended.one("run_finished")["reason"] == "the exam refused 2 claims: a person should look"


def test_a_marker_that_does_not_end_the_answer_costs_no_try(
    ralph: Callable[..., Any], agent: Callable[..., str], prompts: Callable[..., list[str]], repository: Path, exam: Any
) -> None:
    chatty = agent('echo "$N" >> double; printf "<response>DONE</response>\\n\\nI will look at it again later.\\n"')
    ended = loop(ralph, chatty, "--exam", exam(), "--exam-tries", "1", "-m", "2")
    assert ended.one("run_finished")["outcome"] == "exhausted"
    assert REFUSED.replace(" (refusal {} of 3)", "") in prompts()[1]


def test_an_exam_that_shows_its_output_is_a_check_that_runs_last(
    ralph: Callable[..., Any], agent: Callable[..., str], prompts: Callable[..., list[str]], repository: Path, exam: Any
) -> None:
    (repository / ".ralph").mkdir()
    settings = {"exams": [{"command": exam(), "show": "output", "timeout": "1m"}]}
    (repository / ".ralph/settings.json").write_text(json.dumps(settings))
    done = loop(ralph, agent(f"if [ $N = 1 ]; then {OVERFIT}; else {HONEST}; fi"), "--until", "checks")
    assert done.code == 0, done.err
    assert TOKEN in prompts()[1]
    assert "hidden exam" not in prompts()[1]
    assert done.all("exam_finished") == []


def test_the_temporary_folder_of_an_exam_is_not_in_a_repository(
    ralph: Callable[..., Any], agent: Callable[..., str], repository: Path, exam: Any
) -> None:
    outside = exam('test -f double && cd "$(mktemp -d)" && ! git rev-parse --git-dir')
    done = loop(ralph, agent(HONEST), "--exam", outside)
    assert [one["passed"] for one in done.all("exam_finished")] == [False, True]


def test_an_exam_that_passes_at_the_start_is_reported(
    ralph: Callable[..., Any], agent: Callable[..., str], repository: Path, exam: Any
) -> None:
    done = loop(ralph, agent(HONEST), "--exam", exam("exit 0"))
    told = [notice["text"] for notice in done.all("notice")]
    assert [text for text in told if "asks nothing new" in text]
    assert [text for text in told if text.startswith("the agent could read the exam")]


def test_the_person_sees_what_the_exam_printed_and_the_workspace_does_not(
    ralph: Callable[..., Any], agent: Callable[..., str], repository: Path, exam: Any, tmp_path: Path
) -> None:
    command = exam()
    ended = ralph("run", "x", "--agent", agent(OVERFIT), "--check", "true", "--exam", command, "--exam-tries", "1")
    assert "What the exam printed is in " in ended.err
    assert TOKEN in ralph("show").out
    assert TOKEN in ralph("report").out
    assert TOKEN not in ralph("show", RALPH_RUN_ID="some run").out  # an agent that looks around
    assert ralph("report", "-o", "report.html").code == 0
    assert ralph("report", "-o", str(tmp_path / "report.html")).code == 0
    assert contains(repository, TOKEN) == []
    assert contains(tmp_path, TOKEN) != []


def test_a_resumed_run_has_its_tries_again(
    ralph: Callable[..., Any], agent: Callable[..., str], repository: Path, exam: Any
) -> None:
    fake = agent(f"if [ $N -lt 3 ]; then {OVERFIT}; else {HONEST}; fi")
    words = ("run", "x", "--agent", fake, "--check", "true", "--exam", exam(), "--exam-tries", "1")
    assert "blocked" in ralph(*words).last_line
    assert "blocked" in ralph("resume").last_line
    assert ralph("resume").code == 0


def test_accept_runs_the_exams_on_the_merged_tree(
    ralph: Callable[..., Any], agent: Callable[..., str], repository: Path, git: Any, exam: Any
) -> None:
    words = ("run", "x", "--agent", agent(HONEST), "--check", "true", "--worktree", "--commit", "--exam")
    assert ralph(*words, exam()).code == 0
    exam("exit 1")  # it asks for more by now
    refused = ralph("accept")
    assert refused.code == 1, refused.err
    assert "the exam fails on the merged tree" in refused.err
    assert not (repository / "double").exists()
    exam()
    assert ralph("accept").code == 0
    assert (repository / "double").exists()


def test_a_run_that_is_killed_before_its_first_iteration_resumes_without_another_baseline_exam(
    ralph: Callable[..., Any], agent: Callable[..., str], environment: dict[str, str], repository: Path, exam: Any
) -> None:
    taken = Path(environment["HOME"], "taken")
    command = exam(f"echo >> {taken}; grep -q 'x .* 2' double\n")
    dies = f"if [ $N = 1 ]; then echo half > double; kill -9 $(cat {environment['HOME']}/ralph); fi; {HONEST}"
    words = ("run", "x", "--check", "true", "--worktree", "--exam", command, "--agent", agent(dies))
    killed = subprocess.run(
        ["sh", "-c", 'echo $$ > "$HOME/ralph"; exec "$@"', "sh", sys.executable, "-m", "ralph", *words],
        cwd=repository,
        env=environment,
        capture_output=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    resumed = ralph("resume")
    assert resumed.code == 0, resumed.err
    assert len(taken.read_text()) == 2  # at the start, and at the claim


@pytest.mark.parametrize("next_command", ["clean", "run"])
def test_the_copy_and_the_temporary_folder_of_a_killed_exam_are_removed_by_the_next_command(
    ralph: Callable[..., Any],
    agent: Callable[..., str],
    environment: dict[str, str],
    repository: Path,
    git: Callable[..., str],
    exam: Any,
    tmp_path: Path,
    eventually: Callable[..., None],
    next_command: str,
) -> None:
    temporary, begun = tmp_path / "temporary", tmp_path / "begun"
    temporary.mkdir()
    words = ("run", "x", "--check", "true", "--agent", agent(HONEST), "--exam", exam(f"touch {begun}; sleep 60\n"))
    environment["TMPDIR"] = str(temporary)
    with subprocess.Popen(
        [sys.executable, "-m", "ralph", *words], cwd=repository, env=environment, stderr=subprocess.DEVNULL
    ) as process:
        eventually(begun.exists)
        kill_with_keeper(process.pid)
    worktrees = Path(environment["HOME"], ".local/state/ralph/worktrees")
    assert len([*temporary.glob("ralph-exam-*")]) == len([*worktrees.glob("*.copy")]) == 1
    if next_command == "clean":
        cleaned = ralph("clean")
        assert cleaned.out.count("removed what a killed run left: ") == 2, cleaned.out + cleaned.err
    else:
        assert ralph("run", "x", "--agent", agent('echo "<response>DONE</response>"')).code == 0
    assert [*temporary.glob("ralph-exam-*")] == [*worktrees.iterdir()] == []
    assert git("worktree", "list").count("\n") == 1


def kill_with_keeper(pid: int) -> None:
    """Kill a run and its keeper at once, so that neither can tidy up."""
    os.kill(pid, signal.SIGSTOP)
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
