"""An agent, a person or a time limit ends an attempt or the task, and no process survives."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph.supervise.task import task_folder

Agent = Callable[..., str]
Pipe = Callable[[str], Any]
Prompts = Callable[..., list[str]]
DONE = 'echo fine > "$TASK_FOLDER/DONE"'


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 42", "exit code 42"),
        ('echo "for a review" > "$TASK_FOLDER/WAIT_WITHOUT_RESTART"', "for a review"),
        ('touch "$TASK_FOLDER/WAIT_WITHOUT_RESTART"; exit 1', "WAIT_WITHOUT_RESTART"),
        ("ralph bus post --type wait_without_restart --body 'for the webhook'", "for the webhook"),
        (f'{DONE}; touch "$TASK_FOLDER/WAIT_WITHOUT_RESTART"', "WAIT_WITHOUT_RESTART"),
    ],
)
def test_an_agent_that_asks_to_wait_is_not_restarted(task: Any, agent: Agent, script: str, reason: str) -> None:
    result = task.supervise("--agent", agent(script), "--prompt", "x")
    assert result.returncode == 0
    assert [run.status for run in task.attempts()] == ["stopped"]
    assert "ralph: stopped" in result.stderr.rstrip().splitlines()[-1]
    (told,) = [said for said in task.said("INFO") if said.startswith("Wait-without-restart signal detected")]
    assert reason in told
    assert not Path(task.folder.project_bus.path).exists()


WAITS = {
    "a file": 'touch "$TASK_FOLDER/WAIT_WITHOUT_RESTART"',
    "an exit code": "exit 42",
    "a message": "ralph bus post --type wait_without_restart --body later",
}


@pytest.mark.parametrize("way", WAITS)
def test_a_waiting_task_stays_stopped_until_it_is_resumed(
    task: Any, agent: Agent, ralph: Callable[..., Any], way: str
) -> None:
    """Each way in which an agent can ask to wait."""
    fake = agent(f"if [ $N = 1 ]; then {WAITS[way]}; else {DONE}; fi")
    assert task.supervise("--agent", fake, "--prompt", "x").returncode == 0
    again = task.supervise("--agent", fake)
    assert again.returncode == 0
    assert "ralph: stopped" in again.stderr.rstrip().splitlines()[-1]
    assert len(task.attempts()) == 1, "the marker is still there"
    assert ralph("resume", "-C", str(task.folder.path)).code == 0
    first, second = task.attempts()
    assert (first.attempt, second.attempt) == (1, 1)
    assert task.folder.done.exists()


def test_a_wait_request_from_before_the_run_does_not_count(task: Any, agent: Agent) -> None:
    task.folder.path.mkdir(parents=True)
    task.folder.bus.post("wait_without_restart", "for somebody else")
    assert task.supervise("--agent", agent(DONE), "--prompt", "x").returncode == 0
    assert task.folder.done.exists()


def test_resume_removes_done_and_counts_from_one(task: Any, agent: Agent, ralph: Callable[..., Any]) -> None:
    fake = agent(f'[ -e "$TASK_FOLDER/DONE" ] && echo still there > "$TASK_FOLDER/bad"; [ $N = 2 ] || {DONE}')
    assert task.supervise("--agent", fake, "--prompt", "x", "--max-restarts", "2").returncode == 0
    result = ralph("resume", "-C", str(task.folder.path))
    assert result.code == 0, result.err
    assert [run.attempt for run in task.attempts()] == [1, 1, 2]
    assert not (task.folder.path / "bad").exists()


def test_a_copied_task_resumes_in_its_copy(
    task: Any, agent: Agent, prompts: Prompts, ralph: Callable[..., Any], tmp_path: Path
) -> None:
    task.folder.path.mkdir(parents=True)
    task.folder.prompt.write_text("the original")
    assert task.supervise("--agent", agent(DONE)).returncode == 0
    shutil.copytree(task.folder.root, tmp_path / "copy", symlinks=True)
    copy = task_folder(tmp_path / "copy", "shop", "login")
    copy.done.unlink()
    copy.prompt.write_text("the copy")
    assert ralph("resume", "-C", str(copy.path)).code == 0
    assert [prompts()[-1], len(copy.list_runs()), len(task.attempts())] == ["the copy", 2, 1]
    assert copy.done.exists()


STUBBORN = "trap '' TERM; setsid sleep {n} & sleep {n} & sleep {n}"


@pytest.mark.parametrize("option", ["--turn-timeout", "--idle-timeout"])
def test_a_hanging_agent_is_ended_with_its_processes_and_restarted(
    task: Any, agent: Agent, mark: Any, option: str
) -> None:
    fake = agent(f"[ $N != 1 ] && {DONE} && exit 0; setsid sleep {mark.seconds} & exec sleep {mark.seconds}")
    result = task.supervise("--agent", fake, "--prompt", "x", option, "1500ms")
    assert result.returncode == 0
    assert mark.bearers() == []
    first, *_ = task.attempts()  # on a busy machine the second may take too long as well
    assert (first.status, first.error_summary) == ("failed", f"exit code -15 ({option[2:]})")
    assert task.said("WARNING")[:3] == [
        "Agent timeout after 1.5s, killing process group",
        "Process group killed, treating as failure",
        f"agent failed on restart #0: exit code -15 ({option[2:]})",
    ]
    assert "Agent timeout after 1.5s, killing process group" in result.stderr


def test_an_agent_that_ignores_sigterm_is_killed_after_five_seconds(task: Any, agent: Agent, mark: Any) -> None:
    fake = agent(STUBBORN.format(n=mark.seconds))
    result = task.supervise("--agent", fake, "--prompt", "x", "--turn-timeout", "5", "--max-restarts", "1")
    assert result.returncode == 1
    assert mark.bearers() == []
    (run,) = task.attempts()
    assert run.exit_code == -9


def heard(process: Any) -> None:
    """Wait until the supervisor has reported the signal; other messages may come first."""
    assert any("Received signal, shutting down..." in line for line in iter(process.stderr.readline, ""))


def terminated_in_an_attempt(task: Any, agent: Agent, pipe: Pipe, last: str) -> None:
    """Send SIGTERM to the supervisor during an attempt whose agent runs `last` afterwards."""
    started, go = pipe("started"), pipe("go")
    process = task.start("--agent", agent(f"echo up > {started}; cat {go}; {last}"), "--prompt", "x")
    started.read()
    process.terminate()
    heard(process)
    go.write()
    process.communicate()
    assert process.returncode == 130


def test_the_first_sigterm_lets_the_attempt_finish_within_the_grace(task: Any, agent: Agent, pipe: Pipe) -> None:
    terminated_in_an_attempt(task, agent, pipe, "exit 1")
    assert len(task.attempts()) == 1
    assert task.said()[-1] == "task cancelled: received SIGTERM"


def test_after_the_grace_period_all_processes_are_ended(task: Any, agent: Agent, pipe: Pipe, mark: Any) -> None:
    started = pipe("started")
    fake = agent(f"setsid sleep {mark.seconds} & echo up > {started}; exec sleep {mark.seconds}")
    process = task.start("--agent", fake, "--prompt", "x", "--grace", "0.1")
    started.read()
    process.terminate()
    process.communicate()
    assert process.returncode == 130
    assert mark.bearers() == []
    assert [run.status for run in task.attempts()] == ["stopped"]


def test_ctrl_c_ends_the_wait_between_attempts(task: Any, agent: Agent) -> None:
    process = task.start("--agent", agent("exit 1"), "--prompt", "x", "--restart-delay", "600", "--json")
    assert any('"type":"waiting"' in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    assert task.said()[-1] == "task cancelled: received SIGINT"
    assert [run.status for run in task.attempts()] == ["failed"]


def test_an_interrupt_takes_precedence_over_done(task: Any, agent: Agent, pipe: Pipe) -> None:
    terminated_in_an_attempt(task, agent, pipe, DONE)


def test_a_supervisor_killed_with_9_leaves_nothing_and_the_next_one_takes_over(
    task: Any, agent: Agent, pipe: Pipe, mark: Any
) -> None:
    started = pipe("started")
    hanging = f"setsid sleep {mark.seconds} & echo up > {started}; exec sleep {mark.seconds}"
    fake = agent(f"[ $N = 2 ] && {DONE} && exit 0; {hanging}")
    process = task.start("--agent", fake, "--prompt", "x")
    started.read()
    process.kill()
    process.communicate()
    mark.wait_until_gone()
    assert [run.status for run in task.attempts()] == ["running"]
    assert task.supervise("--agent", fake).returncode == 0
    first, second = task.attempts()
    assert first.status == "failed"
    assert first.error_summary.endswith("is gone")
    assert second.status == "completed"


@pytest.mark.parametrize("resumes", [True, False])
def test_notes_for_a_killed_supervisor_are_delivered_once_by_the_next_one(
    task: Any, agent: Agent, pipe: Pipe, prompts: Prompts, ralph: Callable[..., Any], resumes: bool
) -> None:
    started, go = pipe("started"), pipe("go")
    fake = agent(f"[ $N = 4 ] && {DONE}; [ $N -gt 2 ] || {{ echo up > {started}; cat {go}; }}")
    process = task.start("--agent", fake, "--prompt", "x")
    started.read()
    assert ralph("tell", "the first", "-C", str(task.folder.path)).code == 0
    go.write()
    started.read()
    assert ralph("tell", "the second", "-C", str(task.folder.path)).code == 0
    process.kill()
    process.communicate()
    again = ralph("resume", "-C", str(task.folder.path)) if resumes else task.supervise("--agent", fake)
    assert "done" in (again.err if resumes else again.stderr)
    assert ["the first" in prompt for prompt in prompts()] == [False, True, True, False]
    assert ["the second" in prompt for prompt in prompts()] == [False, False, True, False]


def test_a_done_file_of_an_agent_that_outlived_its_supervisor_does_not_count(
    task: Any, agent: Agent, ralph: Callable[..., Any], pipe: Pipe, mark: Any
) -> None:
    started, go = pipe("started"), pipe("go")
    late = f"trap 'read word < {go}; {DONE}; exit' TERM; echo $$ > {started}; sleep {mark.seconds} & wait"
    wait = 'while kill -0 $(cat old) && ! [ -e "$TASK_FOLDER/DONE" ]; do sleep 0.01; done'
    fake = agent(f"[ $N = 1 ] && {{ {late}; }}; exec 3<> {go}; echo go >&3; {wait}")
    process = task.start("--agent", fake, "--prompt", "x", "--max-restarts", "1")
    (task.workspace / "old").write_text(started.read())
    process.kill()
    process.communicate()
    assert ralph("resume", "-C", str(task.folder.path)).code == 1


def test_two_supervisors_do_not_share_a_task(task: Any, agent: Agent, pipe: Pipe) -> None:
    started, go = pipe("started"), pipe("go")
    process = task.start("--agent", agent(f"echo up > {started}; cat {go}; {DONE}"), "--prompt", "x")
    started.read()
    second = task.supervise("--agent", "false")
    assert second.returncode == 2
    assert f"another run is running in {task.folder.path}" in second.stderr
    assert str(process.pid) in second.stderr
    go.write()
    process.communicate()
    assert (process.returncode, len(task.attempts())) == (0, 1)


def test_many_tasks_share_a_workspace(task: Any, agent: Agent, pipe: Pipe, ralph: Callable[..., Any]) -> None:
    started, go = pipe("started"), pipe("go")
    process = task.start("--agent", agent(f"echo up > {started}; cat {go}; {DONE}"), "--prompt", "x")
    started.read()
    root = str(task.folder.root)
    other = ralph(
        "task", "--root", root, "--project", "shop", "--task", "other", "-p", "x", "--agent", agent(DONE, "b")
    )
    assert other.code == 0
    go.write()
    process.communicate()
    assert process.returncode == 0


def test_a_run_without_a_task_has_the_same_markers(ralph: Callable[..., Any], agent: Agent, workspace: Any) -> None:
    words = ("run", "x", "--preset", "supervise", "--restart-delay", "0", "--json", "--agent")
    assert ralph(*words, agent("[ $N = 3 ] && touch DONE; exit 1")).one("run_finished")["iterations"] == 3
    os.unlink(workspace / "DONE")
    assert ralph(*words, agent("exit 42", "b")).one("run_finished")["outcome"] == "stopped"
    result = ralph(*words, agent("echo review > WAIT_WITHOUT_RESTART", "c"))
    assert (result.code, result.one("run_finished")["outcome"]) == (0, "stopped")
