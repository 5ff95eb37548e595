"""Commands that a user types as a prompt in a session. No shell ever sees them."""

import json
import subprocess
import sys

import pytest


@pytest.fixture
def type_in(environment, workspace):
    def call(prompt, host="claude", **fields):
        event = {
            "session_id": "s1",
            "cwd": str(workspace),
            "hook_event_name": "UserPromptSubmit",
            "prompt": prompt,
            **fields,
        }
        code = f"import sys; from ralph.hooks.stop import main; sys.exit(main(['prompt', {host!r}]))"
        argv = [sys.executable, "-c", code]
        run = subprocess.run(
            argv, input=json.dumps(event), env=environment, cwd=workspace, capture_output=True, text=True
        )
        assert run.returncode == 0
        assert run.stderr == ""
        return json.loads(run.stdout) if run.stdout else {}

    return call


def test_a_prompt_starts_a_loop_and_the_agent_reads_its_instructions(type_in, sessions):
    task = "fix $(touch oops) `id` 'q' & {{x}}\nsecond line"
    said = type_in(f'/ralph-loop "{task}" --max-iterations 2 --completion-promise "ALL DONE"')
    context = said["hookSpecificOutput"]["additionalContext"]
    assert context.startswith(task + "\n\n")
    assert "<promise>ALL DONE</promise>" in context
    answer = sessions("s1").stops("hm")
    assert f"Original task:\n{task}" in answer.reason
    assert "1 of 2" in answer.message


def test_no_part_of_a_task_is_run_by_a_shell(type_in, workspace):
    type_in('/ralph-loop "$(touch oops) `touch oops`; touch oops"')
    assert not (workspace / "oops").exists()


def test_every_prompt_of_the_ultrawork_loop_starts_with_ultrawork(type_in, sessions):
    type_in('/ulw-loop "x"')
    assert sessions("s1").stops("hm").reason.startswith("ultrawork\n\n")


def test_cancelling_by_prompt_ends_the_loop_and_the_agent_gets_no_prompt(type_in, sessions):
    type_in('/ralph-loop "x"')
    said = type_in("/cancel-ralph")
    assert said["decision"] == "block"
    assert "CANCELLED" in said["reason"]
    assert sessions("s1").stops("hm").out == ""
    assert "no loop is active" in type_in("/cancel-ralph")["reason"]


def test_a_second_loop_by_prompt_needs_force(type_in, sessions):
    type_in('/ralph-loop "the first"')
    said = type_in('/ralph-loop "the second"')
    assert said["decision"] == "block"
    assert "--force" in said["reason"]
    type_in('/ralph-loop "the second" --force')
    assert "the second" in sessions("s1").stops("hm").reason


@pytest.mark.parametrize("prompt", ["/ralph-loop", '/ralph-loop ""', '/ralph-loop "x" --max-iteration 3'])
def test_an_invalid_command_does_not_reach_the_agent(type_in, workspace, prompt):
    said = type_in(prompt)
    assert said["decision"] == "block"
    assert said["reason"].startswith("ralph: ")
    assert not list(workspace.glob(".ralph/hook/*.json"))


@pytest.mark.parametrize("prompt", ["hello", "what does /ralph-loop do?", "the word ralph-loop in a sentence", 7, None])
def test_any_other_prompt_reaches_the_agent_unchanged(type_in, workspace, prompt):
    assert type_in(prompt) == {}
    assert list(workspace.iterdir()) == []


def test_a_loop_belongs_to_the_project_and_not_to_the_agents_current_folder(type_in, workspace, environment):
    deep = workspace / "deep"
    deep.mkdir()
    environment["CLAUDE_PROJECT_DIR"] = str(workspace)
    type_in('/ralph-loop "x"', cwd=str(deep))
    assert list(workspace.glob(".ralph/hook/s1.json"))
