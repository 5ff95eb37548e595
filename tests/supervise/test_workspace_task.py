"""`ralph run --preset supervise`: the workspace is the task, and its agent finds the same environment as in a task."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ralph.supervise.task import TaskFolder, workspace_task

Ralph = Callable[..., Any]
Agent = Callable[..., str]
SUPERVISE = ("--preset", "supervise", "--restart-delay", "0")
VARIABLES = ("TASK_FOLDER", "RUN_FOLDER", "RUNS_DIR", "MESSAGE_BUS", "PROJECT_ID", "TASK_ID", "RUN_ID", "PARENT_ID")


def said(task: TaskFolder, kind: str = "") -> list[str]:
    return [message.body for message in task.bus.read() if kind in ("", message.type)]


def test_the_agent_has_the_same_environment_and_bus_as_in_a_task(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    echo = "; ".join(f'echo "{name}=${{{name}?}}/${{JRUN_{name}?}}"' for name in VARIABLES)
    post = 'ralph bus post --type FACT --body "attempt $N"'
    fake = agent(f'({echo}) > env.$N; {post} >&2; [ $N = 2 ] && touch "$TASK_FOLDER/DONE"; exit 0')
    result = ralph("run", "the goal", *SUPERVISE, "--agent", fake, "--json")
    assert result.code == 0, result.err
    found = dict(line.split("=", 1) for line in (workspace / "env.2").read_text().splitlines())
    assert set(found) == set(VARIABLES)
    values = {name: value[: len(value) // 2] for name, value in found.items()}
    assert found == {name: f"{value}/{value}" for name, value in values.items()}
    task = workspace_task(workspace, values["TASK_ID"])
    assert (values["TASK_FOLDER"], values["MESSAGE_BUS"]) == (str(workspace), task.bus.path)
    assert Path(values["RUN_FOLDER"], "prompt.md").read_text() == "Continue working on the following:\n\nthe goal"
    runs = task.list_runs()
    assert [(run.attempt, run.status) for run in runs] == [(1, "completed"), (2, "completed")]
    assert runs[1].run_id == values["RUN_ID"]
    assert runs[1].previous_run_id == runs[0].run_id
    assert Path(runs[1].output_path).parent == Path(values["RUN_FOLDER"])
    assert said(task, "FACT") == ["attempt 1", "attempt 2"]
    assert said(task)[-1] == "task completed (DONE marker present, no active children)"


def test_only_the_agents_work_is_in_the_tree(ralph: Ralph, agent: Agent, repository: Path) -> None:
    result = ralph("run", "the goal", *SUPERVISE, "--agent", agent("touch DONE"))
    assert result.code == 0, result.err
    assert sorted(path.name for path in repository.iterdir()) == [".git", ".ralph", "DONE", "README"]
    assert sorted(path.name for path in repository.parent.iterdir()) == ["home", "workspace"]


def test_the_run_waits_for_the_children_that_its_agent_started(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    child = agent('echo "part of $JRUN_PARENT_ID" > part', "child")
    until_known = 'until [ $(ls "$RUNS_DIR" | wc -l) = 2 ]; do sleep 0.02; done'
    fake = agent(f"ralph job --agent {child} --prompt one & {until_known}; touch DONE")
    result = ralph("run", "x", *SUPERVISE, "--agent", fake)
    assert result.code == 0, result.err
    (root, job) = workspace_task(workspace, "").list_runs()
    assert (job.status, job.parent_run_id, job.attempt) == ("completed", root.run_id, 0)
    assert (workspace / "part").read_text() == f"part of {root.run_id}\n"
    assert job.run_id in ralph("ps", "--all").out


def test_a_worktree_can_be_the_task(ralph: Ralph, agent: Agent, repository: Path) -> None:
    fake = agent('pwd > where; echo "$TASK_FOLDER" >> where; ralph bus post --type FACT --body here; touch DONE')
    result = ralph("run", "x", *SUPERVISE, "--worktree", "--agent", fake, "--json")
    assert result.code == 0, result.err
    tree = Path(result.one("run_finished")["worktree"])
    assert (tree / "where").read_text().splitlines() == [str(tree)] * 2
    assert said(workspace_task(tree, ""), "FACT") == ["here"]
    assert not (repository / ".ralph" / "task").exists()
    assert not (repository / "DONE").exists()


def test_a_message_that_asks_to_wait_stops_the_task_and_resume_continues_it(
    ralph: Ralph, agent: Agent, workspace: Path
) -> None:
    post = "ralph bus post --type wait_without_restart --body 'for a key'"
    fake = agent(f"[ $N = 1 ] && {post} || touch DONE")
    stopped = ralph("run", "x", *SUPERVISE, "--agent", fake)
    assert (stopped.code, "for a key" in stopped.last_line) == (0, True)
    assert not (workspace / "WAIT_WITHOUT_RESTART").exists()
    resumed = ralph("resume")
    assert (resumed.code, resumed.last_line.startswith("ralph: done")) == (0, True), resumed.err


def test_a_known_agent_gets_the_path_of_the_done_file(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    fake = agent('case "$PROMPT" in *"/workspace/FINISHED"*) touch FINISHED;; esac', "claude")
    result = ralph("run", "x", *SUPERVISE, "--done-file", "FINISHED", "-m", "1", "--agent", fake)
    assert result.code == 0, result.err
    prompt = next(workspace.glob(".ralph/runs/*/iterations/001/prompt.md")).read_text()
    assert "ralph bus post" in prompt
    assert "ralph job" in prompt
    assert "DONE," not in prompt


def test_a_run_that_cannot_start_leaves_no_bus(ralph: Ralph, workspace: Path) -> None:
    assert ralph("run", "x", *SUPERVISE, "--agent", "no-such-agent").code == 2
    assert not (workspace / ".ralph" / "task").exists()
