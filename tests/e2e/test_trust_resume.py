"""A run that ended too soon continues where it was: same id, next number, and nothing is done twice."""

import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]
Agent = Callable[..., str]
Prompts = Callable[..., list[str]]
Git = Callable[..., str]
Start = Callable[..., Any]
Alive = Callable[[str], list[int]]
Read = Callable[[], list[dict[str, Any]]]

DONE = 'echo "<response>DONE</response>"'
COMMITTING = 'case "$PROMPT" in *"commit message"*) {message};; *) echo $RALPH_ITERATION >> work; {work};; esac'


def numbers(events: list[dict[str, Any]], kind: str = "iteration_finished") -> list[int]:
    return [event["data"]["iteration"] for event in events if event["type"] == kind]


def cut_behind(workspace: Path, kind: str) -> None:
    """Takes away what the journal says after the last event of this kind, as if ralph had been killed there."""
    (path,) = workspace.glob(".ralph/runs/*/journal.ndjson")
    lines = path.read_bytes().splitlines(keepends=True)
    while json.loads(lines[-1])["type"] != kind:
        lines.pop()
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda n: n.name)
def test_a_run_that_ended_during_a_turn_repeats_that_turn(
    live: Start, ralph: Ralph, agent: Agent, journal: Read, alive: Alive, nap: str, eventually: Any, number: int
) -> None:
    fake = agent(
        f"if [ $N = 2 ]; then setsid sleep {nap} & echo begun; sleep {nap}; fi; {DONE}; test $N = 3 || echo $N"
    )
    check = "test $(cat $HOME/*.calls) = 3"
    run = live("run", "g", "--check", check, "--grace", "0.2", "--agent", fake)
    identity = run.until("run_started") and run.events[0]["run"]
    run.until("iteration_finished")
    run.until("agent_text")
    code = run.end(number)
    assert code == (-9 if number == signal.SIGKILL else 130)
    eventually(lambda: not alive(nap))
    result = ralph("resume", "--json")
    assert result.code == 0
    assert {event["run"] for event in result.events} == {identity}
    assert result.one("run_started")["resumed"] is True
    assert numbers(journal()) == [1, 2], "none is missing, and none is there twice"
    seqs = [event["seq"] for event in journal()]
    assert seqs == list(range(1, len(seqs) + 1))


def test_the_first_signal_lets_the_turn_finish(live: Start, ralph: Ralph, agent: Agent, workspace: Path) -> None:
    fake = agent(f"echo begun; while ! test -f go; do sleep 0.1; done; echo; {DONE}")
    run = live("run", "g", "--agent", fake)
    run.until("agent_text")
    run.process.send_signal(signal.SIGINT)
    assert run.process.stderr.readline()
    (workspace / "go").touch()
    assert run.end() == 130
    assert "Received signal, shutting down" in run.err or run.kinds()[-1] == "run_finished"
    result = ralph("resume", "--json")
    assert result.code == 0


def test_an_exhausted_run_gets_more_iterations_and_keeps_them(ralph: Ralph, agent: Agent, journal: Read) -> None:
    fake = agent("echo $N")
    assert ralph("run", "g", "-m", "2", "--agent", fake).code == 1
    refused = ralph("resume")
    assert refused.code == 2
    assert "ralph resume -m N" in refused.err
    assert ralph("resume", "-m", "2").code == 1
    assert numbers(journal()) == [1, 2, 3, 4]
    started = [event["data"]["max_iterations"] for event in journal() if event["type"] == "run_started"]
    assert started == [2, 4]


def test_new_limits_survive_a_kill(live: Start, ralph: Ralph, agent: Agent, journal: Read) -> None:
    fake = agent("if [ $N = 3 ]; then echo begun; sleep 1000; fi; echo $N")
    ralph("run", "g", "-m", "1", "--agent", fake)
    run = live("resume", "-m", "3")
    run.until("iteration_finished")
    run.until("agent_text")
    run.end(signal.SIGKILL)
    assert ralph("resume").code == 1
    assert numbers(journal()) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("words", "outcome", "option"),
    [(("--max-time", "0.5"), "timeout", "--max-time"), (("--max-tokens", "5"), "budget", "--max-tokens")],
)
def test_a_run_that_used_up_its_share_needs_a_new_one(
    ralph: Ralph, agent: Agent, words: tuple[str, str], outcome: str, option: str
) -> None:
    line = json.dumps({"type": "result", "result": "working", "is_error": False, "usage": {"output_tokens": 9}})
    fake = agent(f"if [ $N -gt 1 ]; then {DONE}; exit; fi; echo '{line}'; test {outcome} = budget || sleep 1000")
    assert ralph("run", "g", *words, "--json", "--agent", fake).one("run_finished")["outcome"] == outcome
    refused = ralph("resume")
    assert refused.code == 2
    assert option in refused.err
    assert ralph("resume", option, "1h" if outcome == "timeout" else "99").code == 0


def test_a_failed_run_gets_another_chance(ralph: Ralph, agent: Agent, journal: Read) -> None:
    fake = agent(f"if [ $N -lt 4 ]; then exit 1; fi; {DONE}")
    assert ralph("run", "g", "--agent", fake).code == 1
    assert ralph("resume").code == 0
    assert numbers(journal()) == [1, 2, 3, 4]


def test_a_stalled_run_gets_another_chance(ralph: Ralph, agent: Agent) -> None:
    fake = agent("if [ $N -lt 3 ]; then echo same; else echo STOP; fi")
    assert (
        ralph("run", "--print", "g", "--ralph", "9", "--json", "--agent", fake).one("run_finished")["outcome"]
        == "stalled"
    )
    assert ralph("resume").code == 0


def test_the_prompt_is_the_one_that_the_run_would_have_had(ralph: Ralph, agent: Agent, prompts: Prompts) -> None:
    fake = agent("echo answer $N")
    ralph("run", "--print", "the goal", "--ralph", "2", "--no-stall", "--agent", fake)
    ralph("resume", "-m", "1")
    agent("echo answer $N", "other")
    ralph("run", "--print", "the goal", "--ralph", "3", "--no-stall", "--agent", "other")
    assert prompts() == prompts("other")


def test_a_run_that_is_done_is_not_resumed(ralph: Ralph, agent: Agent) -> None:
    ralph("run", "g", "--agent", agent(DONE))
    for words in (("resume",), ("resume", "20")):
        refused = ralph(*words)
        assert refused.code == 2
        assert "is done" in refused.err


# What follows from an iteration is done once


def test_an_unrecorded_commit_is_not_repeated(
    ralph: Ralph, agent: Agent, repository: Path, git: Git, prompts: Prompts
) -> None:
    fake = agent(COMMITTING.format(message="echo Message $N", work="echo $N"))
    ralph("run", "g", "-m", "1", "--check", "true", "--commit", "--agent", fake)
    cut_behind(repository, "agent_finished")
    (repository / "edited by the user").touch()
    assert ralph("resume").code == 1
    assert git("log", "--format=%s").split("\n")[:2] == ["Message 2", "first"]
    assert len(prompts()) == 2, "nobody pays for a second message"


def test_a_missing_commit_is_made_on_resume(
    live: Start, ralph: Ralph, agent: Agent, repository: Path, git: Git, prompts: Prompts, eventually: Any
) -> None:
    fake = agent(COMMITTING.format(message="if [ $N = 2 ]; then sleep 1000; fi; echo Message", work="echo $N"))
    run = live("run", "g", "-m", "1", "--check", "true", "--commit", "--agent", fake)
    eventually(lambda: len(prompts()) == 2)
    run.end(signal.SIGKILL)
    assert git("log", "--format=%s").split() == ["first"]
    assert ralph("resume").code == 1
    assert git("log", "--format=%s").split() == ["Message", "first"]
    assert git("show", "HEAD:work") == "1\n"


def test_a_commit_prevented_by_an_error_is_made_on_resume(
    ralph: Ralph, agent: Agent, repository: Path, git: Git
) -> None:
    fake = agent(COMMITTING.format(message="if [ $N = 2 ]; then kill -9 $PPID; fi; echo Message", work=DONE))
    assert ralph("run", "g", "--check", "true", "--commit", "--agent", fake).code == 2
    assert git("log", "--format=%s").split() == ["first"]
    assert ralph("resume").code == 0
    assert git("log", "--format=%s").split() == ["Message", "first"]


def test_a_missing_push_is_made_on_resume_without_another_commit(
    ralph: Ralph, agent: Agent, repository: Path, git: Git, tmp_path: Path, prompts: Prompts
) -> None:
    git("init", "-q", "--bare", str(tmp_path / "remote.git"))
    git("remote", "add", "origin", str(tmp_path / "remote.git"))
    git("config", "push.default", "current")
    fake = agent(COMMITTING.format(message="echo Message", work="echo $N"))
    ralph("run", "g", "-m", "1", "--check", "true", "--push", "--agent", fake)
    (path,) = repository.glob(".ralph/runs/*/journal.ndjson")
    lines = path.read_bytes().splitlines(keepends=True)
    pushed = next(at for at, line in enumerate(lines) if b'"task":"push"' in line)
    path.write_bytes(b"".join(lines[:pushed]))
    git("--git-dir", str(tmp_path / "remote.git"), "update-ref", "-d", "refs/heads/main")
    ralph("resume")
    assert git("--git-dir", str(tmp_path / "remote.git"), "log", "--format=%s", "main").split() == ["Message", "first"]
    assert len(prompts()) == 2


def test_an_unfinished_iteration_is_not_committed_as_the_last_one(
    live: Start, ralph: Ralph, agent: Agent, repository: Path, git: Git
) -> None:
    """Where a commit failed it stays failed: what has been written since belongs to another iteration."""
    work = "if [ $N = 3 ]; then echo half > half; echo begun; sleep 1000; fi; echo $N"
    fake = agent(COMMITTING.format(message="if [ $N -gt 2 ]; then echo Message; fi", work=work))
    run = live("run", "g", "-m", "2", "--check", "true", "--commit", "--agent", fake)
    run.until("iteration_finished")
    run.until("agent_text")
    run.end(signal.SIGKILL)
    assert ralph("resume").code == 1
    assert git("log", "--format=%s").split() == ["Message", "first"]
    assert git("show", "HEAD:work") == "1\n2\n2\n"


def test_a_resumed_run_continues_in_its_worktree(
    live: Start, ralph: Ralph, agent: Agent, repository: Path, git: Git
) -> None:
    fake = agent(
        f"echo $RALPH_ITERATION >> work; if [ $N = 2 ]; then echo begun; sleep 1000; fi; test $N = 1 || {DONE}"
    )
    run = live("run", "g", "--worktree", "--check", "true", "--agent", fake)
    run.until("iteration_finished")
    run.until("agent_text")
    run.end(signal.SIGKILL)
    result = ralph("resume", "--json")
    assert result.code == 0
    branch = result.one("run_finished")["branch"]
    subjects = git("log", "--format=%s", f"main..{branch}").splitlines()
    assert [subject.split("(")[0].strip() for subject in subjects] == ["ralph: iteration 2", "ralph: iteration 1"]
    assert not (repository / "work").exists()
    assert git("show", f"{branch}:work") == "1\n2\n2\n"


def test_the_worktree_of_a_run_that_never_began_is_removed(
    ralph: Ralph, agent: Agent, repository: Path, git: Git, environment: dict[str, str], tmp_path: Path
) -> None:
    deadly = tmp_path / "deadly" / "git"
    deadly.parent.mkdir()
    deadly.write_text(
        f'#!/bin/sh\nPATH="{environment["PATH"]}"\ngit "$@"\ncode=$?\n'
        'case "$*" in *"worktree add"*) kill -9 $PPID;; esac\nexit $code\n'
    )
    deadly.chmod(0o755)
    words = ("run", "g", "--worktree", "--agent", agent(DONE))
    killed = ralph(*words, PATH=f"{deadly.parent}:{environment['PATH']}")
    assert killed.code == -signal.SIGKILL
    assert git("worktree", "list").count("\n") == 2, "no record names this one"
    (repository / "README").write_text("the user continues\n")
    git("commit", "-qam", "second")
    first = ralph(*words, "--json").one("run_finished")
    second = ralph(*words, "--json").one("run_finished")
    kept = {first["branch"], second["branch"]}
    assert {*git("branch", "--format=%(refname:short)").split()} == {"main", *kept}, "those of runs that began stay"
    assert git("worktree", "list").count("\n") == 3


def test_a_missing_worktree_is_a_one_line_error(ralph: Ralph, agent: Agent, repository: Path, git: Git) -> None:
    result = ralph("run", "g", "-m", "1", "--worktree", "--json", "--agent", agent("echo $N > work"))
    git("worktree", "remove", "--force", result.one("run_finished")["worktree"])
    refused = ralph("resume", "-m", "1")
    assert refused.code == 2
    assert "worktree is gone" in refused.err
    assert not (repository / "work").exists()


# The journal


@pytest.mark.parametrize(
    "torn", [b'{"type":"iteration_fini', b"\xff\xfe\x00", b'{"type":"run_started","seq":"x"}\n', b"\n\n"]
)
def test_an_incomplete_line_is_skipped(ralph: Ralph, agent: Agent, workspace: Path, torn: bytes) -> None:
    ralph("run", "g", "-m", "1", "--agent", agent("echo $N"))
    (path,) = workspace.glob(".ralph/runs/*/journal.ndjson")
    with open(path, "ab") as file:
        file.write(torn)
    result = ralph("resume", "-m", "1", "--json")
    assert (result.code, result.one("iteration_finished")["iteration"]) == (1, 2)
    assert path.read_bytes().count(b'"type":"run_started","timestamp"') == 2, "the resumed run begins a new line"


def test_a_journal_with_a_gap_is_not_resumed(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    ralph("run", "g", "-m", "3", "--agent", agent("echo $N"))
    (path,) = workspace.glob(".ralph/runs/*/journal.ndjson")
    lines = [line for line in path.read_bytes().splitlines() if b'"iteration":2,"record"' not in line]
    path.write_bytes(b"\n".join(lines) + b"\n")
    refused = ralph("resume", "-m", "1")
    assert refused.code == 2
    assert "iteration 2 cannot be read" in refused.err


def test_a_missing_journal_is_a_one_line_error(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    ralph("run", "g", "-m", "1", "--agent", agent("echo $N"))
    (path,) = workspace.glob(".ralph/runs/*/journal.ndjson")
    path.unlink()
    refused = ralph("resume", "-m", "1")
    assert (refused.code, refused.err.splitlines()[0]) == (2, f"ralph: cannot read {path}: No such file or directory")


@pytest.mark.parametrize(
    "limit", ["--max-cost=0", "--max-cost=-1", "--max-cost=nan", "--max-cost=inf", "--max-time=0", "--max-time=soon"]
)
def test_an_impossible_limit_is_refused_and_changes_nothing(ralph: Ralph, agent: Agent, limit: str) -> None:
    ralph("run", "g", "-m", "1", "--agent", agent("echo $N"))
    refused = ralph("resume", "-m", "1", limit)
    assert refused.code == 2
    assert "expected a" in refused.err.splitlines()[0]
    assert ralph("resume", "-m", "1", "--json").one("run_finished")["iterations"] == 2


@pytest.mark.parametrize("is_copy", [False, True], ids=["moved", "copied"])
def test_a_run_is_resumed_where_its_workspace_was_moved(
    ralph: Ralph, agent: Agent, workspace: Path, tmp_path: Path, prompts: Prompts, is_copy: bool
) -> None:
    (workspace / "goal.md").write_text("the old place")
    ralph("run", "-f", "goal.md", "-m", "1", "--agent", agent("pwd > where; echo $N"))
    (workspace / "where").unlink()
    now = tmp_path / "elsewhere"
    shutil.copytree(workspace, now) if is_copy else workspace.rename(now)
    (now / "goal.md").write_text("the new place")
    assert ralph("resume", "-m", "1", cwd=now).code == 1
    assert (now / "where").read_text().strip() == str(now)
    assert not (workspace / "where").exists()
    assert prompts()[-1] == "the new place"
    assert json.loads(ralph("ps", "-a", "--json", cwd=now).out)["workspace"] == str(now)


def test_invalid_text_in_the_goal_is_preserved(
    environment: dict[str, str], workspace: Path, ralph: Ralph, agent: Agent
) -> None:
    fake = agent("echo $N")
    goal = b"caf\xe9 \xff"
    command = [b"python", b"-m", b"ralph", b"run", b"-p", goal, b"-m", b"1", b"--agent", fake.encode()]
    done = subprocess.run(command, cwd=workspace, env=environment, capture_output=True, check=False)
    assert done.returncode == 1, done.stderr
    assert ralph("resume", "-m", "1").code == 1
    asked = [(Path(environment["HOME"]) / f"fake-agent.prompt.{number}").read_bytes() for number in (1, 2)]
    assert asked == [goal, goal]


def test_the_start_of_an_iteration_is_recorded_before_its_agent_starts(ralph: Ralph, agent: Agent) -> None:
    """Otherwise a run killed in between would add this iteration's work to the previous one."""
    look = 'grep -c ralph_iteration_started "$RALPH_RUN_FOLDER/journal.ndjson"'
    result = ralph("run", "g", "-m", "3", "--agent", agent(look), "--json")
    assert [event["text"] for event in result.all("agent_text")] == ["1", "2", "3"]


def test_a_key_in_the_goal_is_not_stored_and_resume_reports_that(ralph: Ralph, agent: Agent, prompts: Prompts) -> None:
    key = "sk-ant-api03-" + "a1B2" * 12
    ralph("run", "-p", f"use {key}", "-m", "1", "--agent", agent("echo $N"))
    result = ralph("resume", "-m", "1")
    assert prompts() == [f"use {key}", "use [redacted]"]
    assert "the goal contained a key" in result.err


def test_a_run_with_a_key_in_its_settings_cannot_be_resumed(ralph: Ralph, agent: Agent) -> None:
    key = "sk-ant-api03-" + "a1B2" * 12
    ralph("run", "g", "-m", "1", "--check", f"false {key}", "--agent", agent("echo $N"))
    refused = ralph("resume", "-m", "1")
    assert refused.code == 2
    assert "key" in refused.err


# One run at a time


def test_a_second_run_is_refused_and_names_the_first(live: Start, ralph: Ralph, agent: Agent) -> None:
    fake = agent("echo begun; sleep 1000")
    run = live("run", "g", "--agent", fake)
    started = run.until("run_started")
    for words in (("run", "other", "--agent", fake), ("rewind", "0"), ("resume",)):
        refused = ralph(*words)
        assert refused.code == 2
        assert run.events[0]["run"] in refused.err
        assert "is running" in refused.err
        assert str(started["pid"]) in refused.err or words == ("resume",)


def test_of_many_runs_that_start_at_once_only_one_runs(
    environment: dict[str, str], workspace: Path, agent: Agent, eventually: Any
) -> None:
    fake = agent('echo "$RALPH_RUN_ID" >> ran; while ! test -f go; do sleep 0.1; done; ' + DONE)
    command = ["python", "-m", "ralph", "run", "g", "--quiet", "--agent", fake]
    racing = [
        subprocess.Popen(command, cwd=workspace, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(6)
    ]
    eventually(lambda: sum(process.poll() is not None for process in racing) == len(racing) - 1)
    (winner,) = [process for process in racing if process.poll() is None]
    (workspace / "go").touch()
    said = [process.communicate()[1] for process in racing]
    assert len((workspace / "ran").read_text().split()) == 1
    for process, text in zip(racing, said, strict=True):
        if process is not winner:
            assert str(winner.pid) in text


def test_a_lock_ends_with_its_process(live: Start, ralph: Ralph, agent: Agent) -> None:
    run = live("run", "g", "--agent", agent(f"if [ $N = 1 ]; then echo begun; sleep 1000; fi; {DONE}"))
    run.until("agent_text")
    run.end(signal.SIGKILL)
    assert ralph("run", "other", "--agent", agent(DONE)).code == 0
