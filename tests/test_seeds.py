"""The founding documents' own examples and acceptance lists, with ralph's names, against the real command."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Ralph = Callable[..., Any]
Agent = Callable[[str], str]
Prompts = Callable[..., list[str]]
Git = Callable[..., str]


# Seed 000: re-feed the goal until STOP


def test_the_agent_converges_by_saying_stop(ralph: Ralph, agent: Agent, prompts: Prompts) -> None:
    fake = agent('if [ $N = 2 ]; then printf "All tests pass.\\nSTOP\\n"; else echo working; fi')
    result = ralph("run", "--print", "Charm this Flask app", "--ralph", "5", "--agent", fake)
    assert result.code == 0
    first, second = prompts()
    assert first == "Charm this Flask app"
    assert second == (
        "This is Ralph iteration 2.\nOriginal goal:\nCharm this Flask app\n\n"
        "Last iteration's final response (for context):\nworking\n\n"
        "Continue refining toward the original goal.  When the goal is\n"
        "complete, emit `STOP` on a line by itself to end the loop."
    )


def test_json_frames_the_loop_with_lifecycle_events(ralph: Ralph, agent: Agent) -> None:
    fake = agent('if [ $N = 2 ]; then echo STOP; else echo "step $N"; fi')
    result = ralph("run", "--print", "--json", "--yolo", "--ralph", "10", "Pack and deploy", "--agent", fake)
    assert result.code == 0
    loop = [(e["type"], e["data"]) for e in result.events if e["type"].startswith("ralph_")]
    assert loop == [
        ("ralph_iteration_started", {"iteration": 1, "max_iterations": 10, "goal": "Pack and deploy"}),
        ("ralph_iteration_started", {"iteration": 2, "max_iterations": 10, "goal": "Pack and deploy"}),
        ("ralph_converged", {"iteration": 2, "signal": "STOP"}),
    ]
    assert result.kinds()[-1] == "run_finished"


def test_reaching_the_iteration_limit_exits_with_1(ralph: Ralph, agent: Agent) -> None:
    result = ralph("run", "--print", "g", "--ralph", "3", "--json", "--agent", agent('echo "still at it $N"'))
    assert result.code == 1
    assert result.one("ralph_exhausted") == {"iteration": 3, "cap": 3}


def test_stopped_is_not_stop(ralph: Ralph, agent: Agent) -> None:
    fake = agent('echo "Tests STOPPED early due to a panic — investigating. $N"')
    assert ralph("run", "--print", "g", "--ralph", "2", "--agent", fake).code == 1


def test_a_repeated_answer_on_an_unchanged_tree_stalls(ralph: Ralph, agent: Agent, repository: Path) -> None:
    result = ralph("run", "--print", "g", "--ralph", "9", "--json", "--agent", agent("echo same"))
    assert result.code == 1
    assert result.one("ralph_stalled")["iteration"] == 2
    assert "ralph_exhausted" not in result.kinds()


def test_a_re_edit_of_a_dirty_file_is_progress(ralph: Ralph, agent: Agent, repository: Path) -> None:
    result = ralph("run", "--print", "g", "--ralph", "3", "--json", "--agent", agent("echo $N > file; echo same"))
    assert "ralph_stalled" not in result.kinds()
    assert result.one("run_finished")["outcome"] == "exhausted"


def test_without_git_the_answers_alone_are_compared(ralph: Ralph, agent: Agent) -> None:
    result = ralph("run", "--print", "g", "--ralph", "9", "--json", "--agent", agent("echo $N > file; echo same"))
    assert result.one("run_finished")["outcome"] == "stalled"


def test_ralph_0_is_one_shot_without_loop_events(ralph: Ralph, agent: Agent) -> None:
    result = ralph("run", "--print", "g", "--ralph", "0", "--json", "--agent", agent("echo hello"))
    assert result.code == 0
    assert not [kind for kind in result.kinds() if kind.startswith("ralph_")]
    assert result.one("run_finished")["iterations"] == 1


def test_unlimited_has_no_cap_in_its_events_and_ends_on_a_stall(ralph: Ralph, agent: Agent) -> None:
    result = ralph("run", "--print", "g", "--ralph", "-1", "--json", "--agent", agent("echo same"))
    assert result.all("ralph_iteration_started")[0]["max_iterations"] is None
    assert result.one("run_finished")["outcome"] == "stalled"


def test_a_workspace_may_follow_the_options(ralph: Ralph, agent: Agent, tmp_path: Path, workspace: Path) -> None:
    fake = agent("pwd; echo; echo STOP")
    words = ["--print", "Pack", "--json", "--yolo", "--ralph", "8", "--max-iterations", "50", str(workspace)]
    result = ralph("run", *words, "--agent", fake, cwd=tmp_path)
    assert result.code == 0
    assert result.one("run_started")["workspace"] == str(workspace)


@pytest.mark.parametrize("tasks", ["- [x] one\n- [ ] two\n", '{"userStories": [{"title": "a", "passes": false}]}'])
def test_stop_counts_only_when_every_task_is_done(ralph: Ralph, agent: Agent, workspace: Path, tasks: str) -> None:
    name = "prd.json" if tasks.startswith("{") else "TASKS.md"
    (workspace / name).write_text(tasks)
    fake = agent(f'echo $N; echo; echo STOP; if [ $N = 2 ]; then sed -i "s/\\[ \\]/[x]/; s/false/true/" {name}; fi')
    result = ralph("run", "--print", "g", "--ralph", "5", "--tasks", name, "--json", "--agent", fake)
    assert result.code == 0
    assert result.one("claim_rejected")["gate"] == "tasks"
    assert result.one("run_finished")["iterations"] == 2


# Seed 001: settings, guardrails, SCM


def settings(workspace: Path, **values: object) -> None:
    (workspace / ".ralph").mkdir(exist_ok=True)
    (workspace / ".ralph" / "settings.json").write_text(json.dumps(values))


def test_the_completion_response_ends_the_loop(ralph: Ralph, agent: Agent, prompts: Prompts) -> None:
    fake = agent('if [ $N = 2 ]; then echo "<response>done</response>"; else echo no; fi')
    result = ralph("run", "-p", "do it", "-m", "5", "-c", "DONE", "-V", "--agent", fake)
    assert result.code == 0
    assert prompts() == ["do it", "do it"]
    assert "[ralph] " in result.err


def test_max_iterations_without_completion_is_status_1(ralph: Ralph, agent: Agent) -> None:
    assert ralph("run", "-p", "x", "--maximum-iterations", "2", "--agent", agent("echo $N")).code == 1


def test_a_failed_guardrail_is_fed_into_the_next_prompt(
    ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts
) -> None:
    fake = agent('if [ $N = 2 ]; then touch fixed; fi; echo "<response>DONE</response>"')
    guard = {"command": "echo broken; test -f fixed", "hint": "Create the file."}
    settings(workspace, agent={"command": fake}, guardrails=[guard])
    assert ralph("run", "-p", "base").code == 0
    assert prompts()[1] == (
        'base\n\nGuardrail "echo broken; test -f fixed" failed with exit code 1.\n'
        "Hint: Create the file.\n"
        "Output file: .ralph/guardrail_001_echo_broken_test_f_fixed.log\n"
        "Output (truncated):\nbroken"
    )
    assert (workspace / ".ralph" / "guardrail_001_echo_broken_test_f_fixed.log").read_text() == "broken\n"


@pytest.mark.parametrize(
    ("action", "starts", "ends"),
    [("PREPEND", "Guardrail", "base"), ("REPLACE", "Guardrail", "boom"), ("append", "base", "boom")],
)
def test_fail_actions_place_the_message(
    ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts, action: str, starts: str, ends: str
) -> None:
    guard = {"command": "echo boom; exit 3", "failAction": action}
    settings(workspace, agent={"command": agent("echo $N")}, guardrails=[guard], maximumIterations=2)
    assert ralph("run", "-p", "base").code == 1
    assert prompts()[1].startswith(starts)
    assert prompts()[1].endswith(ends)


def test_guardrail_output_is_cut_with_a_mark(ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts) -> None:
    settings(
        workspace,
        agent={"command": agent("echo $N")},
        guardrails=[{"command": "printf 1234567890; exit 1"}],
        outputTruncateChars=4,
        maximumIterations=2,
    )
    ralph("run", "-p", "base")
    assert prompts()[1].endswith("\n1234... [truncated]")


def test_two_equal_checks_have_separate_logs(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    ralph("run", "-p", "x", "-m", "1", "--check", "true -a", "--check", "true 'a'", "--agent", agent("echo"))
    assert sorted(path.name for path in (workspace / ".ralph").glob("*.log")) == [
        "guardrail_001_true_a.log",
        "guardrail_001_true_a_1.log",
    ]


def test_a_claim_is_refused_while_a_check_fails(ralph: Ralph, agent: Agent) -> None:
    fake = agent('echo "<response>DONE</response>"')
    result = ralph("run", "-p", "x", "-m", "2", "--check", "false", "--json", "--agent", fake)
    assert result.code == 1
    assert [rejected["gate"] for rejected in result.all("claim_rejected")] == ["checks", "checks"]


def test_the_prompt_can_contain_the_iteration_count(
    ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts
) -> None:
    settings(workspace, agent={"command": agent("echo $N")}, includeIterationCountInPrompt=True, maximumIterations=2)
    ralph("run", "-p", "base")
    assert prompts() == ["Iteration 1 of 2, 1 remaining.\n\nbase", "Iteration 2 of 2, 0 remaining.\n\nbase"]


def test_a_prompt_file_is_read_again_every_iteration(
    ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts
) -> None:
    (workspace / "P.md").write_text("one")
    ralph("run", "-f", "P.md", "-m", "2", "--agent", agent("printf two > P.md; echo $N"))
    assert prompts() == ["one", "two"]


def test_local_settings_override_and_the_command_line_overrides_both(
    ralph: Ralph, agent: Agent, workspace: Path
) -> None:
    settings(workspace, agent={"command": "nonsense", "flags": ["--model opus"]}, maximumIterations=9)
    (workspace / ".ralph" / "settings.local.json").write_text(json.dumps({"agent": {"command": agent("echo $N")}}))
    result = ralph("run", "-p", "x", "-m", "1", "--json")
    assert result.one("run_finished")["iterations"] == 1
    assert "opus" in result.one("agent_started")["argv"]


def test_green_work_is_committed_with_the_agents_message(
    ralph: Ralph, agent: Agent, workspace: Path, repository: Path, git: Git
) -> None:
    fake = agent(
        'case "$PROMPT" in *"commit message"*) echo "Add the \\"file\\"";; '
        '*) echo x > new; echo "<response>DONE</response>";; esac'
    )
    settings(
        workspace,
        agent={"command": fake},
        scm={"command": "git", "tasks": ["commit"]},
        guardrails=[{"command": "true"}],
    )
    assert ralph("run", "-p", "x").code == 0
    assert git("log", "-1", "--format=%s").strip() == 'Add the "file"'
    assert "new" in git("show", "--stat", "HEAD")
    assert ".ralph" not in git("show", "--stat", "HEAD")


def test_red_work_is_not_committed(ralph: Ralph, agent: Agent, workspace: Path, repository: Path, git: Git) -> None:
    ralph("run", "-p", "x", "-m", "1", "--commit", "--check", "false", "--agent", agent("echo x > new; echo hi"))
    assert git("log", "--format=%s").split() == ["first"]


@pytest.mark.parametrize("words", [("-p", "a", "-f", "b"), (), ("",), ("-p", " ")])
def test_exactly_one_goal(ralph: Ralph, agent: Agent, words: tuple[str, ...]) -> None:
    result = ralph("run", *words, "--agent", agent("echo"))
    assert result.code == 2
    assert "goal" in result.err


# Seed 004: checks, spec, worktree, budgets


def test_the_loop_iterates_until_the_checks_pass(
    ralph: Ralph, agent: Agent, repository: Path, prompts: Prompts
) -> None:
    fake = agent("if [ $N = 3 ]; then touch ok; fi; echo line $N >> work; echo COMPLETE")
    result = ralph(
        "loop", "implement it", "--check", "test -f ok || { echo missing ok; exit 1; }", "--json", "--agent", fake
    )
    assert result.code == 0
    assert result.one("run_finished")["iterations"] == 3
    third = prompts()[2]
    order = [
        third.index(f"# {title}\n")
        for title in ("Task", "Instructions", "Changes so far", "Errors of the previous iteration", "Progress")
    ]
    assert order == sorted(order)
    assert "iteration 3/25" in third
    assert "+line 2" in third, "new files are part of the diff"
    assert "missing ok" in third
    assert "## Iteration 2 — FAIL" in third


def test_every_check_must_pass(ralph: Ralph, agent: Agent) -> None:
    result = ralph(
        "loop", "t", "--check", "true", "--check", "false", "--max-iterations", "1", "--agent", agent("echo COMPLETE")
    )
    assert result.code == 1


def test_green_checks_without_the_tag_are_not_done(ralph: Ralph, agent: Agent) -> None:
    result = ralph("loop", "t", "--check", "true", "--max-iterations", "2", "--agent", agent("echo $N INCOMPLETE"))
    assert result.code == 1


def test_a_spec_takes_the_place_of_the_task(ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts) -> None:
    (workspace / "spec.md").write_text("THE SPEC")
    ralph("loop", "see spec", "--spec", "spec.md", "--check", "true", "--agent", agent("echo COMPLETE"))
    assert "THE SPEC" in prompts()[0]
    assert "see spec" not in prompts()[0]


def test_no_checks_is_an_error(ralph: Ralph, agent: Agent) -> None:
    result = ralph("loop", "t", "--agent", agent("echo"))
    assert result.code == 2
    assert "--check" in result.err


def test_progress_is_kept_in_a_file(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    ralph("loop", "t", "--check", "echo bad news; false", "--max-iterations", "1", "--agent", agent("echo"))
    text = (workspace / ".ralph" / "progress.md").read_text()
    assert text.startswith("## Iteration 1 — FAIL\n- Steps: ")
    assert "FAIL — bad news" in text


def test_a_worktree_holds_the_work_on_a_branch(ralph: Ralph, agent: Agent, repository: Path, git: Git) -> None:
    fake = agent("echo made > made; echo COMPLETE")
    result = ralph("loop", "t", "--check", "test -f made", "--worktree", "--json", "--agent", fake)
    assert result.code == 0
    finished = result.one("run_finished")
    assert not (repository / "made").exists()
    assert Path(finished["worktree"], "made").exists()
    git("merge", "-q", finished["branch"])
    assert (repository / "made").exists()


def test_a_worktree_that_cannot_be_made_is_an_error_not_a_fallback(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    result = ralph("loop", "t", "--check", "true", "--worktree", "--agent", agent("touch damage; echo COMPLETE"))
    assert result.code == 2
    assert not (workspace / "damage").exists()


def test_a_budget_ends_the_loop(ralph: Ralph, agent: Agent) -> None:
    line = json.dumps({"type": "result", "result": "working", "total_cost_usd": 2.0, "is_error": False})
    fake = agent(f"echo '{line}'")
    result = ralph("loop", "t", "--check", "false", "--max-cost", "3.0", "--json", "--agent", fake)
    assert (result.code, result.one("run_finished")["outcome"]) == (1, "budget")
    assert result.one("run_finished")["iterations"] == 2


def test_a_time_limit_ends_the_loop_in_the_middle_of_a_turn(ralph: Ralph, agent: Agent) -> None:
    result = ralph("loop", "t", "--check", "true", "--max-time", "1", "--json", "--agent", agent("sleep 60"))
    assert (result.code, result.one("run_finished")["outcome"]) == (1, "timeout")


def test_quiet_says_only_the_final_result(ralph: Ralph, agent: Agent) -> None:
    result = ralph("loop", "t", "--check", "true", "--quiet", "--agent", agent("echo COMPLETE"))
    assert result.out == ""
    assert len(result.err.splitlines()) == 1
    assert "done" in result.err


def test_yaml_configures_the_loop(ralph: Ralph, agent: Agent, workspace: Path) -> None:
    (workspace / "c.yaml").write_text("ralph_loop:\n  max_iterations: 2\n  completion_tag: FINISHED\n  agent: build\n")
    settings(workspace, agent={"command": agent("echo $N")})
    result = ralph("loop", "t", "--check", "true", "-c", "c.yaml", "--json")
    assert result.one("ralph_exhausted") == {"iteration": 2, "cap": 2}


# Seed 004: the Python API


def test_the_python_api_runs_the_same_loop(tmp_path: Path, workspace: Path) -> None:
    from ralph import LoopIteration, RalphConfig, RalphLoop, RalphLoopResult

    made: list[str] = []

    class State:
        final_output, steps, cost = "COMPLETE", 3, 0.5

    class Worker:
        def run(self, prompt: str) -> State:
            made.append(prompt)
            if len(made) == 2:
                (workspace / "ok").write_text("")
            return State()

    config = RalphConfig(task="make ok", checks=["test -f ok"])
    loop = RalphLoop(config, agent_factory=lambda **kwargs: Worker(), workspace_root=str(workspace))
    result = loop.run()
    assert isinstance(result, RalphLoopResult)
    assert (result.success, result.stop_reason, result.total_iterations) == (True, "all_checks_passed", 2)
    assert result.total_cost == 1.0
    first = result.iterations[0]
    assert isinstance(first, LoopIteration)
    assert (first.iteration, first.steps_taken, first.cost, first.all_checks_passed) == (1, 3, 0.5, False)
    assert first.completion_tag_found
    assert first.check_results[0]["name"] == "test -f ok"
    assert (workspace / ".ralph" / "progress.md").exists()
    loop.cleanup_progress()
    assert not (workspace / ".ralph" / "progress.md").exists()
    assert loop.cleanup_worktree() is False


def test_an_agent_that_raises_is_a_failed_iteration(workspace: Path) -> None:
    from ralph import RalphConfig, RalphLoop

    class Broken:
        def run(self, prompt: str) -> str:
            raise ValueError("no model")

    result = RalphLoop(RalphConfig("t", ["true"], max_iterations=2), Broken, str(workspace)).run()
    assert not result.success
    assert result.iterations[0].error == "ValueError: no model"


def test_the_start_event_has_the_iteration_limit_that_was_given(ralph: Ralph, agent: Agent) -> None:
    fake = agent("touch work.$N; echo $N")
    result = ralph("run", "g", "--preset", "promise", "-m", "2", "--json", "--agent", fake)
    assert result.one("ralph_exhausted") == {"iteration": 3, "cap": 2}, "two continuations after the first turn"
    result = ralph("run", "--print", "g", "--ralph", "-1", "--json", "--agent", fake, timeout=120)
    assert result.one("ralph_exhausted") == {"iteration": 200, "cap": -1}


def test_without_a_quoting_limit_the_whole_output_is_quoted(
    ralph: Ralph, agent: Agent, workspace: Path, prompts: Prompts
) -> None:
    (workspace / ".ralph").mkdir()
    check = {"command": "seq 40000; false"}
    settings = {"agent": {"command": agent("echo $N")}, "guardrails": [check], "outputTruncateChars": 0}
    (workspace / ".ralph" / "settings.json").write_text(json.dumps({**settings, "maximumIterations": 2}))
    ralph("run", "-p", "g")
    assert prompts()[1].endswith("\n39999\n40000")


def test_make_all_formats_lints_tests_and_builds() -> None:
    root = Path(__file__).parent.parent
    done = subprocess.run(["make", "-n", "all"], cwd=root, capture_output=True, text=True, check=True)
    steps = [done.stdout.index(step) for step in ("ruff format .", "ruff check .", "mypy", "pytest -n", "pip wheel")]
    assert steps == sorted(steps)
