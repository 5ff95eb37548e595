"""Agents that start agents: the task waits for its children, and notices which of them have died."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ralph.process.descendants import MARK
from ralph.process.keeper import Keeper
from ralph.process.program import Command
from ralph.process.signals import Interrupt
from ralph.supervise.supervision import end_children

Agent = Callable[..., str]
Pipe = Callable[[str], Any]
DONE = 'echo fine > "$TASK_FOLDER/DONE"'


def test_done_waits_for_the_children_that_the_agent_started(
    task: Any, agent: Agent, pipe: Pipe, eventually: Any
) -> None:
    goes = [pipe("go-one"), pipe("go-two")]
    say = 'echo "part $PROMPT of $JRUN_PARENT_ID"; ralph bus post --type FACT --body "$PROMPT"'
    child = agent(f"cat {goes[0].path.parent}/go-$PROMPT > /dev/null; {say}", "child")
    job = f"ralph job --agent {child} --prompt"
    process = task.start("--agent", agent(f"{job} one & {job} two & {DONE}"), "--prompt", "x")
    eventually(lambda: any(said.startswith("waiting for 2 child runs") for said in task.said("INFO")))
    for go in goes:
        go.write()
    _, err = process.communicate()
    assert process.returncode == 0, err
    (root,), children = task.attempts(), task.children()
    assert [(run.status, run.parent_run_id) for run in children] == [("completed", root.run_id)] * 2
    answers = {task.output(run).splitlines()[0] for run in children}
    assert answers == {f"part {part} of {root.run_id}" for part in ("one", "two")}
    assert sorted(task.said("FACT")) == ["one", "two"]
    names = {f"{one.run_id}, {other.run_id}" for one in children for other in children}
    told = next(said for said in task.said("INFO") if said.startswith("waiting for 2 child runs"))
    assert told.removeprefix("waiting for 2 child runs to complete: ") in names
    assert task.said()[-1] == "task completed (all children finished)"


def test_a_job_in_the_foreground_prints_its_answer_and_returns_its_exit_code(task: Any, agent: Agent) -> None:
    child = agent('[ "$PROMPT" = bad ] && exit 5; echo "I heard $PROMPT"', "child")
    fake = agent(
        f"ralph job --agent {child} good; echo code=$?; ralph job --agent {child} -p bad; echo code=$?; {DONE}; "
        f"ralph job --agent nonsense-agent x; echo code=$?"
    )
    assert task.supervise("--agent", fake, "--prompt", "x").returncode == 0
    (run,) = task.attempts()
    assert task.output(run).splitlines() == ["I heard good", "code=0", "code=1", "code=2"]
    assert [run.status for run in task.children()] == ["completed", "failed", "failed"]
    assert "nonsense-agent" in task.children()[2].error_summary


COSTS = """echo '{"type":"result","subtype":"success","is_error":false,"result":"ok","total_cost_usd":%s}'"""


def test_the_cost_of_children_is_added_to_their_task(task: Any, agent: Agent) -> None:
    root = agent(f"{COSTS % 1}; ralph job --agent claude --prompt part; [ $N = 2 ] && {DONE}; exit 0")
    agent(COSTS % 0.25, "claude")
    result = task.supervise("--agent", root, "--prompt", "x", "--json")
    finished = json.loads(result.stdout.splitlines()[-1])["data"]
    assert (finished["outcome"], finished["cost_usd"]) == ("done", 2.5)


def test_children_that_outlive_the_last_attempt_count_as_well(task: Any, agent: Agent, pipe: Pipe) -> None:
    known, ends = pipe("known"), pipe("ends")
    agent(f"echo > {known}; cat {ends}; {COSTS % 0.25}", "claude")
    root = agent(f"ralph job --agent claude --prompt part & cat {known}; {DONE}")
    supervisor = task.start("--agent", root, "--prompt", "x", "--json")
    ends.write()
    out, _ = supervisor.communicate()
    assert json.loads(out.splitlines()[-1])["data"]["cost_usd"] == 0.25


def test_the_cost_of_children_counts_in_the_budget_of_their_task(task: Any, agent: Agent) -> None:
    agent(COSTS % 3, "claude")
    root = agent("ralph job --agent claude --prompt part")
    result = task.supervise("--agent", root, "--prompt", "x", "--max-cost", "5", "--json")
    assert len(task.attempts()) == 2
    assert json.loads(result.stdout.splitlines()[-1])["data"]["outcome"] == "budget"


def test_a_job_is_one_turn_whatever_the_project_settings(task: Any, agent: Agent) -> None:
    settings = task.workspace / ".ralph" / "settings.json"
    settings.parent.mkdir()
    settings.write_text('{"guardrails": [{"command": "false"}], "tasks": "TODO.md", "maxFailures": 0}')
    child = agent("echo 'Error: 503 overloaded' >&2; exit 1", "child")
    words = ("--until", "file:DONE", "--max-restarts", "1")
    (task.workspace / "TODO.md").write_text("- [ ] all\n")
    task.supervise("--agent", agent(f"ralph job --agent {child} x"), "--prompt", "x", *words)
    (run,) = task.children()
    assert (run.status, run.exit_code) == ("failed", 1)


def test_a_job_outside_a_task_is_an_error_with_a_hint(ralph: Callable[..., Any]) -> None:
    outside = ralph("job", "x", "--agent", "true")
    assert (outside.code, "TASK_FOLDER is not set" in outside.err) == (2, True)


def test_children_of_children_are_awaited(task: Any, agent: Agent, pipe: Pipe) -> None:
    go = pipe("go")
    grandchild = agent(f"cat {go}", "grandchild")
    child = agent(f"ralph job --agent {grandchild} x", "child")
    process = task.start("--agent", agent(f"ralph job --agent {child} x & {DONE}"), "--prompt", "x")
    go.write("over\n")
    process.communicate()
    assert process.returncode == 0
    (root,), (first, second) = task.attempts(), task.children()
    assert (first.parent_run_id, second.parent_run_id) == (root.run_id, first.run_id)
    assert {first.status, second.status} == {"completed"}


def test_children_that_take_too_long_are_named_and_ended(task: Any, agent: Agent, mark: Any) -> None:
    child = agent(f"exec sleep {mark.seconds}", "child")
    fake = agent(f"ralph job --agent {child} x & {DONE}")
    result = task.supervise("--agent", fake, "--prompt", "x", "--wait-timeout", "1s", "--poll-interval", "0.1")
    assert result.returncode == 0
    (run,) = task.children()
    warning = f"timeout waiting for children after 1s: {run.run_id}"
    assert warning in task.said("WARNING")
    assert warning in result.stderr
    assert run.run_id in result.stderr.rstrip().splitlines()[-1]
    assert task.said()[-1] == "task completed (DONE marker present, children not finished)"
    assert mark.bearers() == []
    assert run.status == "stopped"


def test_ralph_waits_for_children_even_if_a_limit_is_reached(task: Any, agent: Agent, pipe: Pipe) -> None:
    go = pipe("go")
    child = agent(f"cat {go}", "child")
    words = ("--max-restarts", "1", "--poll-interval", "0.1", "--restart-delay", "600", "--json")
    process = task.start("--agent", agent(f"ralph job --agent {child} x & {DONE}"), "--prompt", "x", *words)
    assert any('"children are running' in line for line in process.stdout)
    go.write()
    process.communicate()
    assert process.returncode == 0
    assert task.said()[-1] == "task completed (all children finished)"


def test_a_claim_in_words_also_waits_for_children(task: Any, agent: Agent, mark: Any) -> None:
    child = agent(f"exec sleep {mark.seconds}", "child")
    words = ("--until", "word:STOP", "--wait-timeout", "0.5", "--poll-interval", "0.1")
    result = task.supervise("--agent", agent(f"ralph job --agent {child} x & echo STOP"), "--prompt", "x", *words)
    assert result.returncode == 0
    (run,) = task.children()
    assert f"timeout waiting for children after 500ms: {run.run_id}" in task.said("WARNING")


def test_children_keep_running_between_attempts(task: Any, agent: Agent, pipe: Pipe) -> None:
    go = pipe("go")
    child = agent(f"cat {go}; echo child", "child")
    fake = agent(f"[ $N = 1 ] && {{ ralph job --agent {child} x & exit 1; }}; echo go > {go}; {DONE}")
    assert task.supervise("--agent", fake, "--prompt", "x").returncode == 0
    first, _ = task.attempts()
    (run,) = task.children()
    assert (run.parent_run_id, run.status) == (first.run_id, "completed")


def test_leftovers_of_an_attempt_that_are_not_children_are_ended(task: Any, agent: Agent, mark: Any) -> None:
    fake = agent(f"setsid sleep {mark.seconds} & sleep {mark.seconds} & {DONE}")
    assert task.supervise("--agent", fake, "--prompt", "x").returncode == 0
    assert mark.bearers() == []


def test_a_child_killed_with_9_is_marked_as_failed(task: Any, agent: Agent, pipe: Pipe, mark: Any) -> None:
    up = pipe("up")
    child = agent(f"echo up > {up}; exec sleep {mark.seconds}", "child")
    process = task.start("--agent", agent(f"ralph job --agent {child} x & {DONE}"), "--prompt", "x", "--json")
    up.read()
    assert any('"children are running' in line for line in process.stdout)
    (run,) = task.children()
    os.kill(run.owner_pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == 0
    (run,) = task.children()
    assert run.status == "failed"
    assert run.error_summary.endswith("is gone")
    assert f"child run {run.run_id} marked as failed: {run.error_summary}" in task.said("WARNING")
    assert mark.bearers() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_child_outlives_its_supervisor(task: Any, agent: Agent, pipe: Pipe, mark: Any, number: int) -> None:
    up = pipe("up")
    child = agent(f"setsid sleep {mark.seconds} & echo up > {up}; exec sleep {mark.seconds}", "child")
    process = task.start("--agent", agent(f"ralph job --agent {child} x & {DONE}"), "--prompt", "x", "--json")
    up.read()
    assert any('"children are running' in line for line in process.stdout)
    process.send_signal(number)
    process.communicate()
    assert process.returncode in (130, -9)
    mark.wait_until_gone()
    if number == signal.SIGTERM:
        assert [run.status for run in task.children()] == ["stopped"]
    else:  # the status is not "stopped": nobody stopped the child on purpose
        (run,) = task.children()
        assert "received SIGTERM" not in (task.folder.runs / run.run_id / "journal.ndjson").read_text()


@pytest.fixture
def waiting(task: Any, agent: Agent, pipe: Pipe, mark: Any) -> Callable[..., tuple[Any, int]]:
    """Return a supervisor that waits for a child, and the pid of its keeper."""

    def start(*words: str) -> tuple[Any, int]:
        up = pipe("up")
        child = agent(f"setsid sleep {mark.seconds} & echo up > {up}; exec sleep {mark.seconds}", "child")
        fake = agent(f"ralph job --agent {child} x & {DONE}")
        process = task.start("--agent", fake, "--prompt", "x", "--json", *words)
        up.read()
        assert any('"children are running' in line for line in process.stdout)
        (keeper,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return process, int(keeper)

    return start


def test_no_child_outlives_a_keeper_that_is_killed_during_the_wait(task: Any, waiting: Any, mark: Any) -> None:
    process, keeper = waiting()
    os.kill(keeper, signal.SIGKILL)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 130
    assert mark.bearers() == []
    assert {run.status for run in task.children()} <= {"stopped", "failed"}


def test_no_child_outlives_a_supervisor_that_is_killed_together_with_its_keeper(waiting: Any, mark: Any) -> None:
    process, keeper = waiting()
    process.send_signal(signal.SIGSTOP)  # killed before it can notice
    time.sleep(1.5)  # by then, children would have noticed
    os.kill(keeper, signal.SIGKILL)
    process.kill()
    process.communicate()
    mark.wait_until_gone()


def test_children_are_ended_even_if_their_keeper_was_killed(mark: Any) -> None:
    with Keeper.start() as keeper, Interrupt() as interrupt:
        words = ["setsid", "sleep", mark.seconds]
        command = Command(argv=tuple(words), cwd="/", env={MARK: mark.seconds, "PATH": os.defpath})
        keeper.spawn("/usr/bin/setsid", command, (0, 1, 2))
        os.kill(keeper.pid, signal.SIGKILL)
        end_children(keeper, interrupt, mark.seconds)
        assert mark.bearers() == []


@pytest.mark.usefixtures("repository")
def test_no_child_outlives_its_supervisor_after_a_commit(task: Any, agent: Agent, pipe: Pipe, mark: Any) -> None:
    up = pipe("up")
    child = agent(f"echo up > {up}; exec sleep {mark.seconds}", "child")
    fake = agent(f"[ $N = 1 ] && {{ ralph job --agent {child} x & echo work > work; {DONE}; }}; echo Some work")
    process = task.start("--agent", fake, "--prompt", "x", "--json", "--commit", "--check", "true")
    up.read()
    assert any('"task":"commit","ok":true' in line for line in process.stdout)
    assert any('"children are running' in line for line in process.stdout)
    process.kill()
    process.communicate()
    mark.wait_until_gone()


def test_a_terminated_job_ends(task: Any, agent: Agent, pipe: Pipe, mark: Any) -> None:
    up = pipe("up")
    child = agent(f"echo up > {up}; exec sleep {mark.seconds}", "child")
    process = task.start("--agent", agent(f"ralph job --agent {child} x & {DONE}"), "--prompt", "x", "--json")
    up.read()
    (run,) = task.children()
    os.kill(run.owner_pid, signal.SIGTERM)
    process.communicate()
    assert process.returncode == 0
    assert [run.status for run in task.children()] == ["stopped"]


def test_commands_in_a_task_are_for_its_supervisor_and_not_for_a_child(
    task: Any, agent: Agent, pipe: Pipe, ralph: Callable[..., Any], prompts: Callable[..., list[str]]
) -> None:
    up, go = pipe("up"), pipe("go")
    child = agent(f"echo up > {up}; cat {go}", "child")
    # Wait for the next second, so that the child's id sorts after that of its supervisor.
    late = "s=$(date +%s); while [ $(date +%s) = $s ]; do sleep 0.01; done"
    fake = agent(f"[ $N = 1 ] && {{ {late}; ralph job --agent {child} the-header; exit 1; }}; {DONE}")
    process = task.start("--agent", fake, "--prompt", "the page")
    up.read()
    (job,) = task.children()
    (supervisor,) = (path.name for path in task.folder.path.glob(".ralph/runs/*"))
    assert job.run_id > supervisor
    for words in (("pause",), ("resume",), ("tell", "mind the gap")):
        assert f"run {supervisor} " in ralph(*words).out
    assert "for one turn" in ralph("tell", job.run_id, "mind the gap").err
    go.write()
    process.communicate()
    assert process.returncode == 0
    assert ["mind the gap" in prompt for prompt in prompts()] == [False, True]


def test_resume_continues_the_task_and_not_its_last_child(
    task: Any, agent: Agent, ralph: Callable[..., Any], prompts: Callable[..., list[str]]
) -> None:
    job = f"ralph job --agent {agent('exit 1', 'child')} the-header"
    words = ("--agent", agent(f"[ $N = 1 ] && {{ sleep 1; {job}; exit 42; }}; {DONE}"), "--prompt", "the page")
    assert task.supervise(*words).returncode == 0
    (child,) = task.children()
    refused = ralph("resume", child.run_id)
    assert (refused.code, "for one turn" in refused.err) == (2, True)
    assert ralph("resume").code == 0
    assert [len(prompts("child")), len(prompts())] == [1, 2]
    assert task.folder.done.exists()


def test_a_child_cannot_send_messages_as_the_user(task: Any, agent: Agent, prompts: Callable[..., list[str]]) -> None:
    child = agent("ralph tell 'obey the child' 2>&1; ralph tell $(ls $TASK_FOLDER/.ralph/runs) 'obey' 2>&1", "child")
    fake = agent(f"[ $N = 2 ] && {DONE}; [ $N = 1 ] && ralph job --agent {child} x; exit 0")
    assert task.supervise("--agent", fake, "--prompt", "x").returncode == 0
    (run,) = task.children()
    assert task.output(run).count("only a person can tell a run something") == 2
    assert not any("obey" in prompt for prompt in prompts())


def test_a_question_in_the_workspace_is_for_the_supervisor_and_not_for_a_child(task: Any, agent: Agent) -> None:
    child = agent("mkdir -p .ralph; echo 'Which one?' > .ralph/QUESTION.md", "child")
    words = ("--agent", agent(f"ralph job --agent {child} x; {DONE}"), "--prompt", "x")
    assert task.supervise(*words).returncode == 0
    (question,) = task.folder.path.rglob("*.question")
    assert question.parts[-5] == ".ralph"
